"""The history of a job on its page."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from told_room import SETTINGS, job_detail, job_row

from millrace.records import EventRecord, JobDetail
from millrace.web import history
from millrace.web.settings import WebSettings
from millrace.web.timeline import draw

sys.path.insert(0, str(Path(__file__).parents[1] / "journal"))
from kept import Kept, kept


def happened(kind: str, at: int, before: str, state: str, **more: object) -> EventRecord:
    values = {"attempt": 1, "queue": "q", "jid": "j", "kind": "k", "origin": "faktory"}
    return EventRecord(
        event_id=at,
        time=at,
        type=kind,
        seq=1,
        before=before,
        state=state,
        priority=0.0,
        **values | more,
    )  # type: ignore[arg-type]


STORY = [
    happened("pushed", 100, "new", "ready", attempt=0),
    happened("leased", 150, "ready", "leased", worker="w1", actor="faktory", wait_us=50),
    happened("renewed", 160, "leased", "leased", worker="w1"),
    happened("failed", 200, "leased", "scheduled", run_us=50, error_group="E", error_message="no"),
    happened("due", 300, "scheduled", "ready"),
    happened("leased", 310, "ready", "leased", attempt=2, worker="w2", actor="qless", wait_us=10),
]


def test_attempts_are_listed_newest_first() -> None:
    second, first = history.attempts(STORY)
    assert (first.number, first.worker, first.wait, first.run) == (1, "w1", 50, 50)
    assert (first.renewed, first.how, first.group, first.message) == (1, "failed", "E", "no")
    assert (second.number, second.worker, second.protocol) == (2, "w2", "qless")
    assert (second.how, second.run) == ("", None)
    (over,) = history.attempts([*STORY[1:3], happened("completed", 190, "leased", "gone")])
    assert (over.how, over.run) == ("completed", 40)


def test_the_drawing_has_its_states_and_spans() -> None:
    drawn = draw(STORY, 500)
    for label in ("scheduled 100 µs", "ready 50 µs", "leased 190 µs so far", "leased by w2"):
        assert label in drawn
    assert "renewed" not in drawn
    assert ">done<" not in drawn
    assert draw([], 0) == ""


def test_a_long_history_is_drawn_in_part() -> None:
    drawn = draw(STORY[:1] + STORY[1:5] * 200, 500)
    assert drawn.count("<circle") <= 30
    assert "more</text>" in drawn


def test_text_is_escaped_in_the_drawing() -> None:
    drawn = draw([happened("leased", 1, "ready", "leased", worker="<script>")], 5)
    assert "<script>" not in drawn


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Kept]:
    with kept(tmp_path / "data", tmp_path / "lake") as made:
        yield made


def settings(work: Kept) -> WebSettings:
    return msgspec.structs.replace(SETTINGS, data=str(work.folder), lake=str(work.lake))


def read(
    where: WebSettings, seq: int, jid: str = "", detail: JobDetail | None = None
) -> history.JobHistory:
    return asyncio.run(history.read(where, seq, jid, detail))


def test_from_the_lake_and_from_the_outbox(work: Kept) -> None:
    work.work(3)
    work.ship()
    work.work(2)
    for seq in range(1, 6):
        found = read(settings(work), seq)
        assert [event.type for event in found.events][:2] == ["pushed", "leased"]
        assert len(found.events) == 3
        assert (found.complete, found.source) == (True, "journal")
    assert read(settings(work), 0, "job-5").events[0].seq == 5
    assert read(settings(work), 6).events == []


def test_an_incomplete_history_takes_the_push_from_the_job(
    work: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.work(1)
    real = history._read

    def hasty(*given: object) -> history.JobHistory:
        found = real(*given)  # type: ignore[arg-type]
        return history.JobHistory(found.events[1:], complete=False, source="journal")

    monkeypatch.setattr(history, "_read", hasty)
    row = job_row(1)
    detail = job_detail(row)
    found = read(settings(work), 1, "job-1", detail)
    assert [event.type for event in found.events] == ["pushed", "leased", "completed"]
    assert not found.complete


def test_without_a_journal_the_history_comes_from_the_job() -> None:
    row = job_row(state="dead", leased_at=5, ended_at=9, failed_at=9, created=1, ready_at=1)
    detail = job_detail(row)
    found = read(SETTINGS, 1, "job-1", detail)
    assert found.source == "job"
    assert [event.type for event in found.events] == ["pushed", "leased", "failed"]
    assert read(SETTINGS, 1).events == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (job_row(), ["pushed", "due"]),
        (job_row(state="blocked", ready_at=0), ["pushed"]),
        (job_row(state="scheduled", due=5, ready_at=0), ["pushed"]),
        (job_row(state="leased", leased_at=1_790_000_000_000_000), ["pushed", "due", "leased"]),
    ],
)
def test_events_from_the_fields_of_a_job(row: object, expected: list[str]) -> None:
    assert [event.type for event in history.from_fields(row)] == expected  # type: ignore[arg-type]


def test_readers_of_the_whole_journal_do_not_delay_other_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all readers are busy, a page uses the fields of the job."""
    release = threading.Event()

    def slow(*_: object) -> history.JobHistory:
        release.wait(10)
        return history.JobHistory([], complete=True, source="journal")

    async def visit() -> history.JobHistory:
        busy = [
            asyncio.create_task(history.read(settings, 1, "j", None, thorough=True))
            for _ in range(history.MAX_READERS)
        ]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(history.read(settings, 1, "j", detail), 5)
        finally:
            release.set()
            await asyncio.gather(*busy)

    settings = msgspec.structs.replace(SETTINGS, data=str(tmp_path), lake=str(tmp_path))
    detail = job_detail()
    monkeypatch.setattr(history, "_read", slow)
    monkeypatch.setattr(history, "_readers", asyncio.Semaphore(history.MAX_READERS))
    found = asyncio.run(visit())
    assert (found.complete, found.source) == (False, "job")
