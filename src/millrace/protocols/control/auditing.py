"""`audit` and `note`: the log of what was changed, read and written."""

from typing import Final

from .answering import Answering, Telling
from .errors import need_durable
from .hub import ControlHub
from .messages import LOGIN_REFUSED, AskedAudit, Audit, Note, Ok

#: So many entries are told at once.
MOST_TOLD: Final = 500


def audit(hub: ControlHub, asked: AskedAudit, now: int) -> Audit:
    found = hub.audit.before(asked.before, max(1, min(asked.most, MOST_TOLD)))
    more = found[-1].number if found and hub.audit.has_before(found[-1].number) else 0
    return Audit(found, more)


def note(hub: ControlHub, asked: Note, now: int) -> Ok:
    need_durable(hub.engine)
    if asked.action == LOGIN_REFUSED:
        hub.audit.add_refused(now, asked.by, asked.action, asked.target)
    else:
        hub.audit.add(now, asked.by, asked.action, asked.target)
    return Ok()


ANSWERS: Final[dict[str, Answering]] = {"audit": audit, "note": note}
LONG: Final[dict[str, Telling]] = {}
