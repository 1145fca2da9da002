"""A raw Masenko connection."""

import json
from typing import Any

from raw_lines import RawLines


class RawMasenko(RawLines):
    def line(self) -> bytes:
        """The next line, without its LF."""
        return self._until(b"\n")

    # Commands and their replies

    def ask(self, line: str) -> bytes:
        self.send(line.encode() + b"\n")
        return self.line()

    def push(self, name: str = "a", **fields: Any) -> int:
        """The new task's id."""
        reply = self.ask(f"PUSH {json.dumps({'name': name, **fields})}")
        assert reply.startswith(b'OK {"id":'), reply
        task: int = json.loads(reply[3:])["id"]
        return task

    def fetch(self, *queues: str, timeout: str = "1ms") -> dict[str, Any] | None:
        """The task, or None if there is none."""
        fields = {"queues": queues or ["default"], "timeout": timeout}
        reply = self.ask(f"FETCH {json.dumps(fields)}")
        if reply == b"EMPTY {}":
            return None
        assert reply.startswith(b'OK {"id":'), reply
        task: dict[str, Any] = json.loads(reply[3:])
        return task

    def ack(self, task: int) -> bytes:
        return self.ask(f'ACK {{"id":{task}}}')

    def nack(self, task: int) -> bytes:
        return self.ask(f'NACK {{"id":{task}}}')

    def commit(self, *lines: str) -> bytes:
        """A transaction of these lines."""
        return self.ask("\n".join(("ATOMIC", *lines, "DONE")))

    def info(self) -> dict[str, Any]:
        reply = self.ask("INFO")
        assert reply.startswith(b"OK "), reply
        found: dict[str, Any] = json.loads(reply[3:])
        return found

    def queues(self) -> dict[str, tuple[int, int, int]]:
        """Every queue's tasks: ready, delayed, to be acknowledged."""
        return {q["name"]: (q["ready"], q["delayed"], q["to_ack"]) for q in self.info()["queues"]}
