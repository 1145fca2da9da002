"""What happened to a job."""

from typing import TYPE_CHECKING

from msgspec import UNSET

from millrace import records as messages
from millrace.admin.errors import AdminError
from millrace.web import history
from millrace.web.doors import Refusal, Visit

from . import shapes
from .asked import EventsAsked

if TYPE_CHECKING:
    from millrace.journal.tracing import Happened


async def job_events(visit: Visit, asked: EventsAsked) -> shapes.EventList:
    """Also of one that is no more."""
    name, number = visit.path("id"), 0 if asked.number is UNSET else asked.number
    detail: messages.JobDetail | None
    try:
        detail = await visit.ask(messages.JobDetail, job=messages.GetJob(name, number))
    except AdminError as error:
        if error.code != "not found":
            raise
        detail = None
    else:
        name, number = detail.job.jid, detail.job.seq
    jid = "" if number and detail is None else name
    known = await history.read(visit.settings, number, jid, detail, thorough=asked.thorough)
    if not known.events:
        more = "" if known.whole else "; not all of the journal was looked at: ask with `thorough`"
        raise Refusal(404, f"nothing is known of such a job{more}")
    return shapes.EventList([_event(each) for each in known.events], known.whole, known.source)


def _event(event: "Happened") -> shapes.Event:
    return shapes.Event(
        event=event.event_id,
        at=shapes.moment(event.time),
        type=event.type,
        id=event.jid,
        number=event.seq,
        queue=event.queue,
        state=event.state,
        attempt=event.attempt,
        protocol=event.actor or None,
        worker=event.worker or None,
        wait_seconds=None if event.wait_us is None else shapes.seconds(event.wait_us),
        run_seconds=None if event.run_us is None else shapes.seconds(event.run_us),
        due_at=shapes.moment(event.due or 0),
        group=event.error_group,
        message=event.error_message,
    )
