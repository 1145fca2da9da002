"""`audit` and `note`: the log of what was changed, read and written."""

from typing import Final

from millrace.records import LOGIN_REFUSED, AuditNote, AuditPage, ListAudit, Ok

from .answering import Answering, Telling
from .errors import require_writable
from .service import AdminService

#: So many entries are told at once.
MAX_AUDIT_PAGE: Final = 500


def audit(hub: AdminService, asked: ListAudit, now: int) -> AuditPage:
    found = hub.audit.before(asked.before, max(1, min(asked.most, MAX_AUDIT_PAGE)))
    more = found[-1].number if found and hub.audit.has_before(found[-1].number) else 0
    return AuditPage(found, more)


def note(hub: AdminService, asked: AuditNote, now: int) -> Ok:
    require_writable(hub.engine)
    if asked.action == LOGIN_REFUSED:
        hub.audit.add_refused(now, asked.by, asked.action, asked.target)
    else:
        hub.audit.add(now, asked.by, asked.action, asked.target)
    return Ok()


ANSWERS: Final[dict[str, Answering]] = {"audit": audit, "note": note}
LONG: Final[dict[str, Telling]] = {}
