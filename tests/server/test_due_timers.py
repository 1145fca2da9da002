"""Timers that are due run even when commands arrive in every pass of the loop."""

import asyncio
from random import Random

from millrace.engine.engine import Engine
from millrace.protocols.spec import protocol_rules
from millrace.server.app import clock
from millrace.server.server import Server

MAX_PASSES = 100


class Owner:
    """The owner of an alarm."""

    def __init__(self) -> None:
        self.alarms: list[str] = []

    def handle_alarm(self, key: str, now: int) -> None:
        self.alarms.append(key)


def test_a_due_timer_runs_on_a_busy_server() -> None:
    owner = Owner()

    async def serve() -> int:
        engine = Engine(Random(1), protocol_rules())
        server = Server(engine, None, clock, max_connections=1, max_output=1, on_fatal_error=print)
        loop = asyncio.get_running_loop()
        engine.set_alarm((owner, "due"), clock())
        for number in range(MAX_PASSES):
            loop.call_soon(server.after_commands, clock())  # as after each command
            await asyncio.sleep(0)
            if owner.alarms:
                return number
        return MAX_PASSES

    assert asyncio.run(serve()) < MAX_PASSES
    assert owner.alarms == ["due"]
