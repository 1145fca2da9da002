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
    Result,
    Speaker,
    Work,
)
from .workq import WorkqSpeaker

__all__ = [
    "EVERYBODY",
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
    "Result",
    "Speaker",
    "Work",
    "WorkqSpeaker",
]

#: Those that have a port.
SPEAKERS: dict[str, type[Speaker]] = {
    speaker.protocol: speaker
    for speaker in (WorkqSpeaker, MasenkoSpeaker, FaktorySpeaker, QlessSpeaker, GoqueueSpeaker)
}
#: HTTP has no port of its own in the server: the web room is in between.
EVERYBODY: dict[str, type[Speaker]] = {**SPEAKERS, "http": HttpSpeaker}
