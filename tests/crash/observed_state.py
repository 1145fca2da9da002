"""The complete state that clients can observe, except state that is documented to end with the
process.

Left out: connections and workers, statistics since the start, and values that depend on the time of
the request.
"""

import json
from hashlib import sha1
from typing import Any

from command_rows import ROWS, SCRIPTS, control, faktory, now, words, workq
from raw_conversation import Conversation

#: Fields that depend on the time of the request or on events since the start.
_VOLATILE = {
    "last_fetch_at",
    "depths",
    "oldest",
    "wait",
    "run",
    "waiters",
    "why",
    "reasons",
    "now",
    "server",
    "server_utc_time",
    "examined",
}
State = dict[str, Any]

#: The hashes of all scripts that rows load: as they are, and with the name of the row.
_HASHES = [
    sha1(text + name.encode(), usedforsecurity=False).hexdigest()
    for text in SCRIPTS.values()
    for name in ("", *(f"row-{number}" for number in range(len(ROWS))))
]


def observe(conversation: Conversation) -> State:
    ask = _Questions(conversation)
    found = ask.control(search={"query": {}, "limit": 500})["jobs"]
    queues = ask.control(queues={"limit": 500})["queues"]
    state: State = {
        "jobs": {job["seq"]: job for job in found},
        "details": {
            job["seq"]: ask.control(job={"id": job["jid"], "seq": job["seq"]}) for job in found
        },
        "read": {job["seq"]: job for job in ask.faktory("MILLRACE", {"read": {}})["jobs"]},
        "loads": ask.faktory("MILLRACE", {"loads": True}),
        "info": _totals(ask.faktory("INFO")),
        "queues": {queue["name"]: queue for queue in queues},
        "queue details": {
            queue["name"]: ask.control(queue={"name": queue["name"]}) for queue in queues
        },
        "queue order": ask.qless("queues", now()),
        "recurring": ask.control(recurring={"limit": 500}),
        "tracked": ask.control(tracked={"limit": 500}),
        "tags": ask.control(tags={"limit": 100}),
        "throttles": ask.control(limits=True),
        "failures": ask.control(failures={"limit": 100}),
        "audit": ask.control(audit={"limit": 500}),
        "qless": {job["jid"]: ask.qless("get", job["jid"]) for job in found},
        "configuration": ask.qless("getconfig"),
        "completed": ask.qless("jobs", "complete", 0, 100),
        "failed": ask.qless("failed"),
        "statistics": {
            queue["name"]: ask.qless("stats", queue["name"], now() // 86_400 * 86_400)
            for queue in queues
        },
        "scripts": ask.redis("SCRIPT", "EXISTS", *_HASHES),
        "identifiers": ask.redis("HGETALL", "ql:qp:identifiers"),
        "priorities": ask.redis("LRANGE", "ql:qp:priorities", 0, -1),
        "workq": ask.send("workq", workq("inspect", "queues", 0, 100)),
    }
    return {name: _stable(part) for name, part in state.items()}


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """The paths at which two states differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            each
            for key in {**before, **after}
            for each in differences(before.get(key), after.get(key), f"{path}/{key}")
        ]
    return [] if before == after else [f"{path}: {before!r} -> {after!r}"]


class _Questions:
    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def send(self, protocol: str, data: bytes) -> bytes:
        return self._conversation.send(protocol, data, "observer")

    def control(self, **request: Any) -> Any:
        reply = json.loads(self.send("control", control(**request)).splitlines()[-1])
        assert "error" not in reply, (request, reply)
        return reply

    def faktory(self, verb: str, argument: Any = None) -> Any:
        reply = self.send("faktory", faktory(verb, argument))
        return json.loads(reply.split(b"\r\n", 1)[1])

    def redis(self, *parts: object) -> bytes:
        return self.send("qless", words(*parts))

    def qless(self, command: str, *arguments: object) -> bytes:
        return self.redis(f"QLESS.{command.upper()}", 0, *arguments)


def _totals(info: Any) -> Any:
    return {name: info["faktory"][name] for name in info["faktory"] if name != "tasks"}


def _stable(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _stable(each) for name, each in part.items() if name not in _VOLATILE}
    if isinstance(part, list):
        return [_stable(each) for each in part]
    return part
