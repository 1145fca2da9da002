"""A large PUSH over Faktory is read in slices, with the same result as a small one."""

from random import Random

import pytest

from millrace.engine.engine import Engine
from millrace.engine.job import NewJob
from millrace.protocols.buffers import LARGE_LINE
from millrace.protocols.errors import BadJson, ClientError
from millrace.protocols.faktory import work_unit
from millrace.protocols.registry import FAKTORY, WORKQ
from millrace.protocols.spec import protocol_rules

NOW = 1_700_000_000_000_000
PAD = "x" * (2 * LARGE_LINE)
LINES = [
    '{"jid":"12345678","jobtype":"t","args":["%s"]}',
    '{"jid":"12345678","jobtype":"t","args":["%s"],"queue":"mail","retry":3,"custom":{"a":1}}',
    '{"jid":"12345678","jobtype":"t","args":["%s\u00e9"]}',
    '{"jid":"12345678","jobtype":"t","args":["%s\\ud800"]}',
    '{"jid":"12345678","jobtype":"t",\r"args":["%s"]}',
    '{"jid":"12345678","JobType":"t","args":["%s"],"other":1}',
    '{"jid":"12345678","jobtype":"t","args":["%s"]',
    '{"jid":"1","jobtype":"t","args":["%s"]}',
    '{"jid":"12345678","jobtype":"t","args":"%s"}',
]


def outcome(read):
    try:
        push = read()
    except (BadJson, ClientError) as problem:
        return type(problem), str(problem)
    fields = (
        "jid",
        "kind",
        "payload",
        "queue",
        "retries",
        "lease_duration",
        "wire_fields",
        "due_at",
    )
    return {name: getattr(push, name) for name in fields}


def in_slices(line: bytes, start: int, end: int):
    work, slices = work_unit.read_in_slices(line, start, end, NOW), 0
    while True:
        try:
            next(work)
        except StopIteration as ended:
            assert slices
            return ended.value
        slices += 1


@pytest.mark.parametrize("bad", [b"", b"\xff"])
@pytest.mark.parametrize("form", LINES)
def test_the_slices_read_the_same_work_unit(form: str, bad: bytes) -> None:
    text = (form % PAD).encode().replace(b"xxxx", b"xxx" + bad, 1)
    line = b"PUSH " + text + b"\r"
    whole = outcome(lambda: work_unit.read(text, NOW))
    assert outcome(lambda: in_slices(line, 5, len(line) - 1)) == whole


def test_the_parts_of_a_large_work_unit() -> None:
    """They are the same bytes as the whole."""
    engine = Engine(Random(1), protocol_rules())
    payload = b'["' + PAD.encode() + b'"]'
    for origin, spec in ((FAKTORY, b'{"a":1}\n\n\n,"other":1'), (WORKQ, b"0")):
        job = engine.push(NewJob("some-job", "t", payload, origin, "q", 3, 60, spec), NOW)
        assert b"".join(work_unit.write_large(job, payload)) == work_unit.write(job, payload)
