"""Every component of the engine can lose and regain each job, and can be emptied."""

from test_consistency import SampleEngine

from millrace.engine import consistency
from millrace.engine.component import Component
from millrace.engine.engine import Engine
from millrace.engine.sizes import sizes
from scene import Scene


def components(engine: Engine) -> list[Component]:
    names = [name for name in dir(engine) if not name.startswith("__")]
    found = [getattr(engine, name) for name in names]
    return [each for each in found if isinstance(each, Component)]


def current_sizes(engine: Engine) -> dict[str, int]:
    """The sizes of all indexes, without entries that are out of date."""
    return {name: size for name, size in sizes(engine).items() if not name.startswith("stale")}


def test_each_component_of_the_engine_is_listed() -> None:
    engine = Scene().engine
    listed = {id(each) for each in engine.components}
    assert {id(each) for each in components(engine)} <= listed
    assert engine.components == engine.record_components + engine.state_components
    assert len(listed) == len(engine.components) == 12


def test_jobs_can_be_removed_and_added_again() -> None:
    town = SampleEngine()
    engine, before = town.engine, current_sizes(town.engine)
    jobs = list(engine.jobs.values())
    blockers = {job.seq: list(job.extra.blockers) for job in jobs if job.extra is not None}
    for job in jobs:
        for component in reversed(engine.components):
            component.remove(job)
    assert consistency.check_engine(engine).total == 0
    assert not engine.jobs
    assert not any(any(queue.counts) for queue in engine.queues.values())
    for job in jobs:
        if job.extra is not None:
            job.extra.blockers = blockers[job.seq]
        for component in engine.components:
            component.add(job)
    assert consistency.check_engine(engine).total == 0
    assert current_sizes(engine) == before


def test_a_cleared_engine_has_no_jobs_and_no_problems() -> None:
    engine = SampleEngine().engine
    for component in engine.components:
        component.clear()
    assert consistency.check_engine(engine).total == 0
    assert not engine.jobs
    indexes = (engine.scheduled, engine.blocked, engine.leased, engine.dead, engine.done)
    assert not any(indexes)
