"""Fields that the Python SDK adds to a work unit, in `custom.millrace`.

    {"jid": ..., "custom": {"millrace": {"priority": 5, "tags": ["a"], "depends_on": ["..."]}}}

A plain Faktory server stores them and ignores them. Members that are not listed here belong to the
SDK's workers.
"""

from typing import Annotated, Final

import msgspec

from millrace.engine.engine import Engine
from millrace.engine.job import Push
from millrace.engine.states import DONE
from millrace.protocols.errors import ClientError

MAX_PRIORITY: Final = (1 << 31) - 1
MAX_TAGS: Final = 100
MAX_TAG_LENGTH: Final = 255
MAX_DEPENDENCIES: Final = 1000
#: A job id is looked up among this many jobs that have it.
MAX_DUPLICATES: Final = 16
#: No work unit without these bytes has extensions.
MARK: Final = b'"millrace"'

_Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TAG_LENGTH)]


class JobExtensions(msgspec.Struct):
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    tags: Annotated[list[_Tag], msgspec.Meta(max_length=MAX_TAGS)] = []
    #: Ids of jobs that must complete first.
    depends_on: Annotated[list[str], msgspec.Meta(max_length=MAX_DEPENDENCIES)] = []


class _Custom(msgspec.Struct):
    millrace: JobExtensions = msgspec.field(default_factory=JobExtensions)


_decode: Final = msgspec.json.Decoder(_Custom).decode


def apply_extensions(push: Push, engine: Engine) -> None:
    """Set the fields of a push that its `custom.millrace` asks for."""
    custom = push.spec.partition(b"\n")[0]
    try:
        wanted = _decode(custom or b"{}").millrace
    except msgspec.ValidationError as error:
        raise ClientError(f"invalid custom: {error}") from None
    push.rank = wanted.priority
    push.tags = list(dict.fromkeys(wanted.tags))
    push.blockers = [
        seq for jid in dict.fromkeys(wanted.depends_on) for seq in _unfinished(engine, jid)
    ]


def _unfinished(engine: Engine, jid: str) -> list[int]:
    """The jobs with this id that are not done. A job that no longer exists has completed."""
    found = engine.find_newest(jid, MAX_DUPLICATES)
    if not found:
        engine.depend()  # its completion may not be committed yet
    return [job.seq for job in found if job.state != DONE]
