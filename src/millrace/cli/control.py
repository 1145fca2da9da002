"""What is asked of a running server over the socket in its data folder (protocols/control.py)."""

import socket
import sys
from pathlib import Path

import msgspec

from millrace.records import Explanation, JobExplanation
from millrace.server.control_socket import beside, socket_of

PATIENCE = 30.0  # seconds


class NotAnswered(Exception):
    """The server could not be asked; the text says what to do."""


class NoServer(NotAnswered):
    """None runs on that folder."""


def why(folder: Path, name: str, *, json: bool) -> int:
    """The exit code: 0 only if there is such a job."""
    try:
        answer = ask_why(folder, name)
    except NotAnswered as error:
        sys.stderr.write(f"{error}\n")
        return 1
    told = msgspec.json.encode(answer).decode() if json else in_words(answer, name)
    sys.stdout.write(f"{told}\n")
    return 0 if answer.jobs else 1


def ask_why(folder: Path, name: str) -> Explanation:
    """What the server on this data folder knows of the jobs of that name."""
    try:
        line = msgspec.json.encode({"why": name}) + b"\n"
    except UnicodeEncodeError:
        raise NotAnswered(f"there is no job {shown(name)}: ids are UTF-8") from None
    answer = converse(folder, line)
    if not answer:
        raise NotAnswered(f"the server on {folder} ended before it answered. Ask again.")
    try:
        return msgspec.json.decode(answer, type=Explanation)
    except msgspec.DecodeError:
        told = shown(answer[:200].decode(errors="replace").rstrip())
        raise NotAnswered(f"the server on {folder} does not answer that: {told}") from None


def converse(folder: Path, line: bytes, patience: float = PATIENCE) -> bytes:
    """What the server on this data folder answers to a line; nothing if it ends before that."""
    path = socket_of(folder)
    try:
        with socket.socket(socket.AF_UNIX) as connection, beside(path) as name:
            connection.settimeout(patience)
            connection.connect(name)
            connection.sendall(line)
            with connection.makefile("rb") as stream:
                return stream.readline()
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NoServer(
            f"no server runs on the data folder {folder}, so no job of it runs. Start one with "
            f"`millrace serve --data {folder}`, or name another folder with --data."
        ) from None
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise NotAnswered(f"cannot ask the server on {folder}: {reason}") from error


def in_words(answer: Explanation, name: str) -> str:
    """The answer to `why`, for a person."""
    if not answer.jobs:
        if answer.known:
            return f"Job {name} has ended, and nothing is kept of it."
        return (
            f"There is no job {shown(name)}. It never was, or it has ended and nothing is kept of "
            "it; the id must be whole, as it was pushed."
        )
    told = [_about(job) for job in answer.jobs]
    if answer.more:
        told.append(f"{answer.more:,} more jobs have that id. Name one by its number.")
    return "\n\n".join(told)


def _about(job: JobExplanation) -> str:
    kind = f" {job.kind}" if job.kind else ""
    head = f'{job.jid} is {job.state}: job {job.seq},{kind} in queue "{job.queue}", of {job.origin}'
    reasons = (f"  - {reason.text}" for reason in job.reasons)
    return "\n".join(shown(line) for line in (head, *reasons))


def shown(text: str) -> str:
    """On one line, and without what a client could write on the operator's terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
