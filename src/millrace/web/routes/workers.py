"""Workers and their leased jobs."""

import time
from typing import Final

from starlette.responses import Response

from millrace.records import (
    ListWorkers,
    Ok,
    WorkerAction,
    WorkerPage,
)
from millrace.web.doors import Door, Refusal, Visit
from millrace.web.render import page

MOST: Final = 50
#: Signals for Faktory workers, and the confirmation for the user.
_SIGNALS: Final = {
    "quiet": "will stop fetching at its next heartbeat",
    "terminate": "will exit at its next heartbeat",
}


async def workers(visit: Visit) -> Response:
    found = await visit.ask(WorkerPage, workers=ListWorkers(after=visit.query("after"), most=MOST))
    return page(
        visit,
        "workers.html",
        workers=found.workers,
        count=found.count,
        more=found.more,
        after=visit.query("after"),
        now=time.time_ns() // 1000,
        is_faktory=any(row.protocol == "faktory" for row in found.workers),
    )


async def worker(visit: Visit) -> Response:
    protocol, wid = visit.path("protocol"), visit.path("wid")
    asked = ListWorkers(most=1, protocol=protocol, wid=wid)
    found = await visit.ask(WorkerPage, workers=asked)
    if not found.workers:
        raise Refusal(
            404,
            f'no worker "{wid}" is known: it has ended, or holds no job. See the list of workers.',
        )
    return page(visit, "worker.html", worker=found.workers[0], now=time.time_ns() // 1000)


async def signal(visit: Visit) -> Response:
    """Handle the same form as Faktory's web interface: `wid` and `signal`."""
    form = await visit.form()
    wid, told = form.one("wid"), form.one("signal")
    if told not in _SIGNALS:
        raise Refusal(400, f'no signal is called "{told}": there are quiet and terminate')
    if not wid:
        raise Refusal(400, "`wid` must be the ID of a worker, or `all`.")
    await visit.ask(Ok, act_on_worker=WorkerAction(wid, told, visit.by))  # type: ignore[arg-type]
    whom = "Every Faktory worker" if wid == "all" else f"Worker {wid}"
    return visit.back("/busy", f"{whom} {_SIGNALS[told]}.")


DOORS: Final = [
    Door("/busy", workers, role="read"),
    Door("/busy", signal, role="operate", methods=("POST",)),
    Door("/workers/{protocol}/{wid:path}", worker, role="read"),
]
