"""Clients of all five protocols for tests, without sockets, clocks or randomness: see speaker.py."""

from .faktory import FaktorySpeaker
from .goqueue import GoqueueSpeaker
from .masenko import MasenkoSpeaker
from .qless import QlessSpeaker
from .speaker import (
    Accepted,
    Answer,
    Closed,
    Held,
    Leased,
    Nothing,
    Refused,
    Result,
    Speaker,
    Work,
)
from .workq import WorkqSpeaker

__all__ = [
    "SPEAKERS",
    "Accepted",
    "Answer",
    "Closed",
    "FaktorySpeaker",
    "GoqueueSpeaker",
    "Held",
    "Leased",
    "MasenkoSpeaker",
    "Nothing",
    "QlessSpeaker",
    "Refused",
    "Result",
    "Speaker",
    "Work",
    "WorkqSpeaker",
]

SPEAKERS: dict[str, type[Speaker]] = {
    speaker.protocol: speaker
    for speaker in (WorkqSpeaker, MasenkoSpeaker, FaktorySpeaker, QlessSpeaker, GoqueueSpeaker)
}
