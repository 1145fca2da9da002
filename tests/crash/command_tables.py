"""The commands that the code serves, from its own dispatch tables."""

import re
from collections.abc import Iterable

from millrace.admin.connection import OPERATIONS
from millrace.protocols.faktory import mutate
from millrace.protocols.faktory.bulk import BulkRequest as MillraceRequest
from millrace.protocols.faktory.connection import COMMANDS as FAKTORY_COMMANDS
from millrace.protocols.goqueue.connection import COMMANDS as GOQUEUE_COMMANDS
from millrace.protocols.masenko.connection import COMMANDS as MASENKO_COMMANDS
from millrace.protocols.qless import calls, dialect_d
from millrace.protocols.qless.connection import QlessConnection
from millrace.protocols.qless.script_catalog import SPEC_COMMANDS
from millrace.protocols.workq import inspection
from millrace.protocols.workq.connection import COMMANDS as WORKQ_COMMANDS
from millrace.records import JOB_ACTIONS, requests
from millrace.web.api.table import ROOT, TABLE

#: Commands with subcommands as their first argument. The names are from the code where it has a
#: table.
_FAKTORY = {
    "QUEUE": ("PAUSE", "RESUME", "REMOVE", "LATENCY"),
    "WORKER": ("QUIET", "TERMINATE"),
    "MUTATE": mutate.COMMANDS,
    "MILLRACE": tuple(set(MillraceRequest.__struct_fields__) - {"jobs", "most"}),
}
_REDIS = {"SCRIPT": ("LOAD", "FLUSH", "EXISTS", "KILL")}
_CONTROL = {
    "act": tuple(JOB_ACTIONS),
    "act_on_queue": requests.QueueAction,
    "act_on_worker": requests.WorkerAction,
    "act_on_recurring": requests.RecurringAction,
    "end": requests.EndLease,
    "import_jobs": ("check", "begin", "stage", "finish", "discard"),
}


def served() -> set[tuple[str, str]]:
    """Every command as (protocol, command). A dialect of Qless counts as a protocol."""
    redis = {name.decode() for name in QlessConnection.commands}
    return {
        *_named("faktory", _expanded(_decoded(FAKTORY_COMMANDS), _FAKTORY)),
        *_named(
            "workq",
            _expanded(_decoded(WORKQ_COMMANDS), {"inspect": _decoded(inspection._OBJECTS)}),
        ),
        *_named("masenko", _decoded(MASENKO_COMMANDS)),
        *_named("goqueue", _decoded(GOQUEUE_COMMANDS)),
        *_named("redis", _expanded((n for n in redis if not n.startswith("QLESS.")), _REDIS)),
        *_named("spec", SPEC_COMMANDS),
        *_named("B", calls.COMMANDS),
        *_named("C", calls.COMMANDS),
        *_named("D", _distinct(dialect_d._COMMANDS)),
        *_named("T", dialect_d._T_COMMANDS),
        *_named("control", _expanded(requests.SocketRequest.__struct_fields__, _actions())),
        *_named("http", (_route(each.path) for each in TABLE if each.method != "GET")),
    }


def unknown_requests() -> set[str]:
    """Handlers of the control socket that no request names."""
    return set(OPERATIONS) - set(requests.SocketRequest.__struct_fields__)


def _named(protocol: str, commands: Iterable[str]) -> Iterable[tuple[str, str]]:
    return ((protocol, command) for command in commands)


def _decoded(commands: Iterable[bytes]) -> list[str]:
    return [command.decode() for command in commands]


def _expanded(commands: Iterable[str], subcommands: dict[str, Iterable[str]]) -> Iterable[str]:
    for command in commands:
        if command in subcommands:
            yield from (f"{command} {each}" for each in subcommands[command])
        else:
            yield command


def _actions() -> dict[str, Iterable[str]]:
    return {
        name: actions if isinstance(actions, tuple) else actions.__annotations__["action"].__args__
        for name, actions in _CONTROL.items()
    }


def _distinct(forms: dict[str, object]) -> Iterable[str]:
    """The first name of each form; further names are aliases."""
    names: dict[int, str] = {}
    for name, form in forms.items():
        names.setdefault(id(form), name)
    return names.values()


def _route(path: str) -> str:
    route = re.sub(r"{\w+:\w+}", "{}", path.removeprefix(ROOT))
    return route.replace("/workers/{}/{}/", "/workers/faktory/{}/")
