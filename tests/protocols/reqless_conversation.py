"""Conversations in reqless with the Qless port: as in resp_conversation.py, on the real commands.

with Reqless() as talk:
    client = talk.speaker()
    client.calls("job.get", 0, "nope").hears(NIL)
"""

import json
from typing import Any, Self

from resp_conversation import SCRIPT_C, SCRIPT_D, Resp, RespClient, RespWorld, array, bulk

from millrace.protocols.qless.calls import QlessApi
from millrace.protocols.qless.script_catalog import sha_of
from millrace.store.records import decode_any, encode

#: A script that is recognized as dialect T.
SCRIPT_T = b"local QlessThrottle = {}\n" + SCRIPT_C


class ReqlessWorld(RespWorld):
    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.hub.api = QlessApi(self.hub)

    def snapshot(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "jobs": {seq: decode_any(encode(job)) for seq, job in engine.jobs.items()},
            "notes": dict(engine.settings),
            "ready": {name: [j.jid for j in q.ready.first(99)] for name, q in engine.queues.items()},
            "pending": repr(engine.limits.parked.by_key),
        }  # fmt: skip


class ReqlessClient(RespClient):
    script = SCRIPT_D

    def calls(self, command: str, now: float, *args: object) -> Self:
        words = [json.dumps(a) if isinstance(a, list | dict) else str(a) for a in args]
        return self.asks("EVALSHA", sha_of(self.script), 0, command, now, *words)

    def hears_text(self, text: str) -> Self:
        return self.hears(bulk(text))

    def hears_words(self, *words: str) -> Self:
        """An array of bulk strings."""
        return self.hears(array(*map(bulk, words)))

    def hears_whatever(self) -> Self:
        """Any reply; another test covers its content."""
        self._taken = len(self.wire.heard)
        return self

    def hears_complaint(self, text: str) -> Self:
        return self.hears(b"-ERR user_script:1: %b\r\n" % text.encode())


class Reqless(Resp):
    world_type = ReqlessWorld
    client_type = ReqlessClient

    def speaker(self, script: bytes = SCRIPT_D) -> ReqlessClient:
        """A client that has loaded its script."""
        client = self.connect()
        assert isinstance(client, ReqlessClient)
        client.script = script
        client.loads(script)
        return client
