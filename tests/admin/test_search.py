"""`search`: the matching jobs, their order, and the continuation with a cursor."""

from random import Random

import pytest

from millrace.admin.errors import AdminError
from millrace.admin.search import matching_jobs, search_jobs
from millrace.admin.service import AdminService
from millrace.engine.engine import Engine
from millrace.engine.events import fingerprint
from millrace.engine.job import Job
from millrace.protocols.registry import MASENKO
from millrace.protocols.spec import protocol_rules
from millrace.records import JobFilter, JobPage, SearchJobs
from scene import START, Scene


class Library(Scene):
    """A scene with a client that searches for jobs."""

    def __init__(self) -> None:
        super().__init__(Engine(Random(1), protocol_rules()))
        self.hub = AdminService(self.engine, 10)

    def page(self, order: str = "newest", cursor: str = "", limit: int = 50, **query) -> JobPage:
        request_ = SearchJobs(JobFilter(**query), order, cursor, limit)
        (found,) = (each for each in search_jobs(self.hub, request_, self.now) if each is not None)
        return found

    def find(self, **query) -> list[str]:
        return [job.jid for job in self.page(**query).jobs]

    def dead(self, jid: str, group: str = "Oops", message: str = "it broke", **fields) -> Job:
        job = self.pushed_and_leased(jid, "failing", retries=-1, **fields)
        self.fail(job, group, message)
        return job


@pytest.fixture
def library() -> Library:
    return Library()


def test_by_jid_and_seq(library):
    library.push("one")
    library.push("two")
    library.push("two")
    assert library.find(id="one") == ["one"]
    assert [job.seq for job in library.page(id="two").jobs] == [3, 2]
    assert library.find(id="1") == ["one"]
    assert library.find(id="three") == []
    assert library.find(id="one", queue="elsewhere") == []


def test_1200_jobs_with_few_ids(library):
    for number in range(1, 1201):
        library.push("twin" if number % 2 else "600")
    odd = list(range(1199, 0, -2))
    assert [job.seq for job in library.page(id="twin", limit=1000).jobs] == odd
    assert [job.seq for job in library.page(id="600", limit=1000).jobs] == [n + 1 for n in odd]
    assert [job.seq for job in library.page(id="601", limit=1000).jobs] == [601]
    library.push("1201")
    library.push("1201")
    library.push("7")
    assert [job.seq for job in library.page(id="1201").jobs] == [1202, 1201]
    first = library.page(id="7", limit=1)
    assert [job.seq for job in first.jobs] == [1203]
    assert [job.seq for job in library.page(id="7", cursor=first.next).jobs] == []


def test_by_fields(library):
    library.push("mail-1", "mail", kind="Send")
    library.push("mail-2", "mail", kind="Bounce", due_at=START + 10)
    library.push("sms-1", "sms", kind="Send", origin=MASENKO, tags=["slow"])
    assert library.find(queue="mail") == ["mail-2", "mail-1"]
    assert library.find(queue="mail", state="ready") == ["mail-1"]
    assert library.find(state="scheduled") == ["mail-2"]
    assert library.find(state="ready") == ["sms-1", "mail-1"]
    assert library.find(kind="Send") == ["sms-1", "mail-1"]
    assert library.find(protocol="masenko") == ["sms-1"]
    assert library.find(tag="slow") == ["sms-1"]
    assert library.find(queue="nowhere") == []
    library.lease("mail", holder="worker-7")
    assert library.find(worker="worker-7") == ["mail-1"]
    assert library.find(state="leased") == ["mail-1"]


def test_by_failure(library):
    library.dead("dead-1", "Timeout", "after 30 s")
    library.dead("dead-2", "Timeout", "after 31 s")
    library.dead("dead-3", "AdminError", "by mail.example")
    job = library.pushed_and_leased("again", "failing")
    library.fail(job, "Timeout", "after 32 s")
    library.push("later", due_at=START + 10**9)
    assert library.find(group="Timeout", state="dead") == ["dead-2", "dead-1"]
    assert library.find(error="MAIL.example") == ["dead-3"]
    assert library.find(error="timeout") == ["again", "dead-2", "dead-1"]
    assert library.find(state="scheduled", retrying=True) == ["again"]
    assert library.find(state="scheduled", retrying=False) == ["later"]
    assert library.find(failing=True, group="Timeout") == ["again", "dead-2", "dead-1"]
    library.engine.retry_now(job, library.now)
    assert library.find(error="timeout") == ["again", "dead-2", "dead-1"]
    assert library.find(failing=True) == ["dead-3", "dead-2", "dead-1"]
    assert library.find(failing=False, group="Timeout") == ["again"]


def test_by_the_fingerprint_of_a_failure(library):
    for number in range(3):
        library.dead(f"dead-{number}", "Timeout", f"after {number} s")
    library.dead("other", "Timeout", "of the clock")
    retried = library.pushed_and_leased("again", "failing")
    library.fail(retried, "Timeout", "after 32 s")
    shape = fingerprint("Timeout", "after 7 s")
    assert library.find(fingerprint=shape) == ["again", "dead-2", "dead-1", "dead-0"]
    assert library.find(fingerprint=shape, state="dead") == ["dead-2", "dead-1", "dead-0"]
    library.engine.retry_now(library.engine.find("dead-1"), library.now)
    assert library.find(fingerprint=shape) == ["again", "dead-2", "dead-0"]
    assert library.find(fingerprint="unknown") == []


def test_by_text(library):
    library.push("plain", payload=b'{"to":"Anna@Example.com"}')
    library.push("escaped", payload=b'["M\\u00fcller", "\\ud83d\\ude00"]')
    library.push("raw", payload='["MÜLLER"]'.encode())
    library.push("bytes", payload=b"\xff\xfeanna\x00")
    library.dead("failed", "ANNA", "said no")
    assert library.find(terms=["anna"]) == ["failed", "bytes", "plain"]
    assert library.find(terms=["anna", "EXAMPLE"]) == ["plain"]
    assert library.find(terms=["müller"]) == ["raw", "escaped"]
    assert library.find(terms=["😀"]) == ["escaped"]
    assert library.find(terms=["somejob", "PLAIN"]) == ["plain"]
    assert library.find(terms=["nobody"]) == []


@pytest.mark.parametrize(
    ("word", "payload"),
    [
        ("a<B", rb'["A\u003Cb"]'),
        ('say "hi"', rb'["Say \"hi\""]'),
        ("a/b/c", rb'["a\/b/c"]'),
        ("it's", rb'["it\u0027s"]'),
        (r"c:\temp", rb'["C:\\temp"]'),
        ("one\ntwo", rb'["one\ntwo"]'),
        ("a<b", b"[" + b'"",' * 30_000 + rb'"a\u003cb"]'),
    ],
)
def test_text_that_json_escapes(library, word, payload):
    library.push("escaped", payload=payload)
    library.push("other", payload=rb'["a\u003dB", "say \\hi\\", "a\\b", "c:\/temp", "one\\two"]')
    assert library.find(terms=[word]) == ["escaped"]


def test_text_anywhere_in_a_large_payload(library):
    for at in (0, 32_000, 262_140, 1 << 20):
        payload = bytearray(b"x" * ((1 << 20) + 100))
        payload[at : at + 9] = b"N\xc3\x84DEL 42"
        library.push(f"at-{at}", payload=bytes(payload))
    for word in ("del 42", "nädel 42"):
        assert library.find(terms=[word]) == ["at-1048576", "at-262140", "at-32000", "at-0"]
        assert library.find(terms=[word + "3"]) == []


def test_orders(library):
    for number, seconds in enumerate((30, 10, 20)):
        library.push(f"due-{seconds}", due_at=START + seconds * 1_000_000)
        library.push(f"rank-{number}", rank=number)
    assert library.find(state="scheduled", order="due") == ["due-10", "due-20", "due-30"]
    ready = library.find(state="ready", queue="default", order="queue")
    assert ready == ["rank-2", "rank-1", "rank-0"]
    for jid in ("first", "second", "third"):
        library.dead(jid)
        library.advance(1)
    assert library.find(state="dead", order="ended") == ["third", "second", "first"]


@pytest.mark.parametrize(
    ("order", "query"),
    [
        ("newest", {}),
        ("newest", {"queue": "default"}),
        ("queue", {"queue": "default", "state": "ready"}),
        ("due", {"state": "scheduled"}),
    ],
)
def test_pages_have_each_job_once(library, order, query):
    for number in range(100):
        due = START + 1_000_000 * (1 + number % 7) if number % 2 else 0
        library.push(f"job-{number}", due_at=due, rank=number % 3)
    all_jobs = library.find(limit=1000, order=order, **query)
    assert len(all_jobs) in {50, 100}
    pages, cursor = [], ""
    while True:
        page = library.page(order, cursor, 7, **query)
        pages += [job.jid for job in page.jobs]
        cursor = page.next
        if not cursor:
            break
    assert pages == all_jobs


@pytest.mark.parametrize("cursor", ["x", "!!!", "lQAAkJAA", "kwA", "a" * 5000, "ü"])
def test_an_invalid_cursor(library, cursor):
    with pytest.raises(AdminError):
        library.page(cursor=cursor)


def test_a_cursor_of_another_search(library):
    library.push("one")
    library.push("two")
    cursor = library.page(limit=1).next
    with pytest.raises(AdminError, match="another search"):
        library.page(cursor=cursor, queue="default")


def test_candidates_are_fixed_at_the_start(library):
    for number in range(3):
        library.dead(f"dead-{number}")
    found = []
    for job in matching_jobs(library.hub, JobFilter(state="dead")):
        if job is not None:
            found.append(job.jid)
            library.dead(f"{job.jid}-again")
            library.engine.retry_now(job, library.now)
            assert library.lease("failing") is job
            library.fail(job)
    assert found == ["dead-2", "dead-1", "dead-0"]
