"""The first inputs for fuzzing: requests from the transcripts in the documents, and tokens that
random bytes would not find.
"""

import re
import shlex
import struct
from collections.abc import Callable
from pathlib import Path

import vocabulary as known
from resp_conversation import request
from targets import TARGETS

from millrace.store.records import encode, encode_changes
from scene import Scene

PAGES = Path(__file__).parents[2] / "docs" / "reference"
#: The choices before a stream: the first settings, small pieces.
CHOICES = b"\x00\x02\x06\x40"


def write_seeds(name: str, corpus: Path) -> None:
    """Write a target's first inputs and tokens, in addition to existing files."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(of(name)):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    written = [f'"{"".join(f"{chr(92)}x{byte:02x}" for byte in word)}"' for word in known.of(name)]
    corpus.with_name(f"{name}.dict").write_text("\n".join(written) + "\n")


def of(name: str) -> list[bytes]:
    page = TARGETS[name].page
    if page:
        words = [word for word in known.of(name) if len(word) < 200]
        streams = [*transcripts(page), *words, b"".join(words), b"x" * 2000, known.LONG[name]]
        first = [CHOICES + stream for stream in streams]
        return first + [
            bytes([choice]) + CHOICES[1:] + stream
            for choice in range(1, 4)
            for stream in (streams[0], *streams[-3:])
        ]
    if name == "crossing":
        return [crossing()]
    if name == "resp":
        return [CHOICES + stream for stream in transcripts("qless")[:20]]
    if name == "changes":
        return [*records(), *known.of(name)]
    return [word for word in known.of(name) if len(word) > 3]


def transcripts(page: str) -> list[bytes]:
    """The requests in each block of a page's transcripts."""
    streams = []
    for block in re.split(r"\n\n|```", (PAGES / f"{page}.md").read_text()):
        shown_request = re.findall(r"^ *(?:C\d*:|>) (.*)", block, re.MULTILINE)
        if shown_request:
            streams.append(b"".join(map(TO_WIRE[page], shown_request)))
    assert streams, page
    return streams


def lines(end: bytes) -> Callable[[str], bytes]:
    return lambda shown_request: shown_request.encode() + end


def goqueue(shown_request: str) -> bytes:
    r"""`ADD\0 emails\0 4:0 4:60 4:5 hello`"""
    found = b""
    for word in shown_request.replace('"', "").split(" "):
        number = re.fullmatch(r"([48]):(\d+)", word)
        if number:
            found += struct.pack("<I" if number[1] == "4" else "<Q", int(number[2]) % 2**32)
        else:
            found += word.replace("\\0", "\0").encode()
    return found


def redis(shown_request: str) -> bytes:
    try:
        words = shlex.split(shown_request)
    except ValueError:
        return shown_request.encode() + b"\r\n"
    return request(*words)


#: Converts the notation of a page to wire bytes.
TO_WIRE: dict[str, Callable[[str], bytes]] = {
    "faktory": lines(b"\r\n"),
    "workq": lines(b"\r\n"),
    "masenko": lines(b"\n"),
    "goqueue": goqueue,
    "qless": redis,
}


def crossing() -> bytes:
    """The first requests of each protocol, one client after another."""
    steps = [CHOICES]
    for round_ in range(6):
        for number, page in enumerate(("faktory", "workq", "masenko", "goqueue", "qless")):
            shown_request = transcripts(page)[round_][:250]
            steps.append(bytes([number, len(shown_request)]) + shown_request)
    return b"".join(steps)


def records() -> list[bytes]:
    """Batches as the store writes them."""
    scene = Scene()
    found = []
    for number in range(4):
        job = scene.push(f"job-{number}", tags=["a"] if number else [])
        scene.lease()
        found.append(encode_changes(scene.engine.take_changes(), 0, None))
        if number % 2:
            scene.complete(job)
        else:
            scene.fail(job)
        found.append(encode_changes(scene.engine.take_changes(), 0, None))
    return [*found, encode(job)]
