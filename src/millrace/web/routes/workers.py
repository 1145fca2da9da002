"""Workers and their leased jobs."""

import time
from typing import Final

from starlette.responses import Response

from millrace.records import WORKER_ACTIONS, ListWorkers, Ok, WorkerAction, WorkerPage
from millrace.web.context import RequestContext
from millrace.web.errors import HttpError
from millrace.web.render import page
from millrace.web.routing import PageRoute, form_route

PAGE_SIZE: Final = 50


async def workers(context: RequestContext) -> Response:
    found = await context.ask(
        WorkerPage, workers=ListWorkers(cursor=context.query("after"), limit=PAGE_SIZE)
    )
    return page(
        context,
        "workers.html",
        workers=found.workers,
        count=found.count,
        more=found.next,
        after=context.query("after"),
        now=time.time_ns() // 1000,
        is_faktory=any(row.protocol == "faktory" for row in found.workers),
    )


async def worker(context: RequestContext) -> Response:
    protocol, wid = context.path("protocol"), context.path("wid")
    asked = ListWorkers(limit=1, protocol=protocol, wid=wid)
    found = await context.ask(WorkerPage, workers=asked)
    if not found.workers:
        raise HttpError(
            404,
            f'Worker "{wid}" not found. It has ended, or holds no job. See the list of workers.',
        )
    return page(context, "worker.html", worker=found.workers[0], now=time.time_ns() // 1000)


async def signal(context: RequestContext) -> Response:
    """Handle the same form as Faktory's web interface: `wid` and `signal`."""
    form = await context.form()
    wid, told = form.one("wid"), form.one("signal")
    if told not in WORKER_ACTIONS:
        raise HttpError(400, f"Unknown signal. Signals: {', '.join(WORKER_ACTIONS)}.")
    if not wid:
        raise HttpError(400, "`wid` must be the ID of a worker, or `all`.")
    await context.ask(Ok, act_on_worker=WorkerAction(wid, told, context.by))
    whom = "Every Faktory worker" if wid == "all" else f"Worker {wid}"
    return context.redirect("/busy", f"{whom} was {WORKER_ACTIONS[told].past}.")


ROUTES: Final = [
    PageRoute("/busy", workers, "workers and their current jobs", menu="Workers", counted=True),
    form_route("/busy", signal, "quiet or terminate a Faktory worker, or all of them"),
    PageRoute("/workers/{protocol}/{wid:path}", worker, "one worker"),
]
