"""Clients of all protocols for tests, without sockets, clocks or randomness: see speaker.py."""

from .faktory import FaktorySpeaker
from .goqueue import GoqueueSpeaker
from .masenko import MasenkoSpeaker
from .over_http import HttpSpeaker
from .qless import QlessSpeaker
from .speaker import (
    Accepted,
    Answer,
    Closed,
    Held,
    Leased,
    Nothing,
    Refused,
    Reported,
    Result,
    Speaker,
    Work,
)
from .workq import WorkqSpeaker

__all__ = [
    "ALL_SPEAKERS",
    "SPEAKERS",
    "Accepted",
    "Answer",
    "Closed",
    "FaktorySpeaker",
    "GoqueueSpeaker",
    "Held",
    "HttpSpeaker",
    "Leased",
    "MasenkoSpeaker",
    "Nothing",
    "QlessSpeaker",
    "Refused",
    "Reported",
    "Result",
    "Speaker",
    "Work",
    "WorkqSpeaker",
]

#: Protocols with a port.
SPEAKERS: dict[str, type[Speaker]] = {
    speaker.protocol: speaker
    for speaker in (WorkqSpeaker, MasenkoSpeaker, FaktorySpeaker, QlessSpeaker, GoqueueSpeaker)
}
#: HTTP has no port in the server: the web process is in between.
ALL_SPEAKERS: dict[str, type[Speaker]] = {**SPEAKERS, "http": HttpSpeaker}
