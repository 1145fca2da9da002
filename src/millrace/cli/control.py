"""Requests of commands to a running server, over the admin socket in its data folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from millrace.admin.client import COMMAND_TIMEOUT, request
from millrace.admin.errors import AdminError
from millrace.cli.tables import printable
from millrace.records import ExplainedJobs, JobExplanation
from millrace.server.control_socket import control_socket_path, short_address


class NotAnswered(Exception):
    """The server did not answer; the message gives the reason."""


class NoServer(NotAnswered):
    """No server is running on the data folder."""


def ask_why(folder: Path, name: str) -> ExplainedJobs:
    """The explanation of the jobs with this ID or number."""
    try:
        (answer,) = converse(folder, {"why": name})
    except UnicodeEncodeError:
        raise NotAnswered(f"Job {printable(name)} not found. IDs are UTF-8.") from None
    return msgspec.json.decode(answer, type=ExplainedJobs)


def converse(
    folder: Path, operation: dict[str, Any], patience: float = COMMAND_TIMEOUT
) -> list[msgspec.Raw]:
    """The replies of the server on this data folder to one operation."""
    return list(follow(folder, operation, patience))


def follow(
    folder: Path, operation: dict[str, Any], patience: float = COMMAND_TIMEOUT
) -> Iterator[msgspec.Raw]:
    """The same replies as they arrive; `patience` is the time between two of them."""
    with admin_errors(folder), short_address(control_socket_path(folder)) as path:
        yield from request(path, operation, patience)


@contextmanager
def admin_errors(folder: Path) -> Iterator[None]:
    """Raise NotAnswered for every error of a request to the server on this data folder."""
    try:
        yield
    except AdminError as error:
        raise NotAnswered(f"The server on {folder} refused the request: {error}") from error
    except msgspec.DecodeError as error:
        raise NotAnswered(f"The server on {folder} sent an invalid reply: {error}") from error
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NoServer(
            f"No server is running on data folder {folder}. Start one with "
            f"`millrace serve --data {folder}`, or choose another folder with --data."
        ) from None
    except OSError as error:
        reason = "no reply" if isinstance(error, TimeoutError) else error.strerror or error
        raise NotAnswered(f"Cannot reach the server on {folder}: {reason}") from error


def in_words(answer: ExplainedJobs, name: str) -> str:
    """The explanation as text."""
    if not answer.jobs:
        if answer.known:
            return f"Job {name} has finished and is no longer retained."
        return (
            f"Job {printable(name)} not found. It never existed, or it finished and is no longer "
            "retained. Pass the complete ID."
        )
    told = [_about(job) for job in answer.jobs]
    if answer.more:
        told.append(f"{answer.more:,} more jobs have this ID. Use a job number to select one.")
    return "\n\n".join(told)


def _about(job: JobExplanation) -> str:
    kind = f" {job.kind}" if job.kind else ""
    head = (
        f'{job.jid} is {job.state}: job {job.seq},{kind} in queue "{job.queue}", '
        f"pushed over {job.origin}"
    )
    reasons = (f"  - {reason.text}" for reason in job.reasons)
    return "\n".join(printable(line) for line in (head, *reasons))
