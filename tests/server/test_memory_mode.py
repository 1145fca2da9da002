"""A server without a store counts transitions, but keeps no record of them."""

import asyncio
from random import Random

from millrace.engine.engine import Engine
from millrace.engine.job import FOREVER
from millrace.protocols.spec import protocol_rules
from millrace.server.app import clock
from millrace.server.server import Server
from millrace.server.turns import MAX_UNAWAITED_EVENTS
from millrace.store.memory import MemoryStore
from scene import Scene

CYCLES = MAX_UNAWAITED_EVENTS


def test_a_server_without_a_store_records_no_transitions() -> None:
    scene = Scene(Engine(Random(1), protocol_rules()))
    engine = scene.engine

    async def serve() -> None:
        server = Server(engine, None, clock, max_connections=1, max_output=1, on_fatal_error=print)
        for number in range(CYCLES):
            scene.complete(scene.pushed_and_leased(f"job-{number}"))
            assert engine.change_set.events == []
            assert not any(engine.change_set.touched_seqs())
            server.after_commands(scene.now)
            await asyncio.sleep(0)

    asyncio.run(serve())
    assert engine.turn >= 3 * CYCLES // (MAX_UNAWAITED_EVENTS + 3)
    assert engine.change_set.event_count < MAX_UNAWAITED_EVENTS
    assert [day.run.count for day in engine.current_statistics().days.values()] == [CYCLES]


def test_a_server_with_a_store_records_transitions() -> None:
    scene = Scene(Engine(Random(1), protocol_rules()))

    async def serve() -> None:
        store = MemoryStore()
        server = Server(
            scene.engine, store, clock, max_connections=1, max_output=1, on_fatal_error=print
        )
        scene.push()
        assert [event[1] for event in scene.engine.change_set.events] == ["pushed"]
        await server.turns.drain()
        server.turns.close()

    asyncio.run(serve())


def test_changes_without_events_take_a_limited_amount_of_memory() -> None:
    scene = Scene(Engine(Random(1), protocol_rules()))
    engine = scene.engine
    sizes: list[int] = []

    async def serve() -> None:
        server = Server(engine, None, clock, max_connections=1, max_output=1, on_fatal_error=print)
        jobs = [scene.push(f"job-{number}", due_at=FOREVER) for number in range(3 * CYCLES)]
        for number, job in enumerate(jobs):
            engine.set_setting(f"option-{number}", b"x", must_wait=False)
            engine.set_setting(f"option-{number}", None)
            engine.open_queue(f"queue-{number}")
            engine.forget_queue(f"queue-{number}")
            engine.set_tags(job, [("tag", scene.now)])
            engine.update(job, payload=b"[1]")
            server.after_commands(scene.now)
            await asyncio.sleep(0)
            changes = engine.change_set
            sizes.append(max(map(len, (changes.settings, changes.queues, *changes.touched_seqs()))))

    asyncio.run(serve())
    assert max(sizes) <= MAX_UNAWAITED_EVENTS
