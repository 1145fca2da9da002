"""Dialect D on the wire: each command with its exact reply, in the order of the sheet."""

from collections.abc import Iterator
from importlib.resources import files

import pytest
from reqless_conversation import SCRIPT_T, Reqless, ReqlessClient
from resp_conversation import NIL, SCRIPT_C, SCRIPT_D

from millrace.protocols.qless.script_catalog import Script, recognise

NO_JOBS = "[]"


@pytest.fixture
def talk() -> Iterator[Reqless]:
    with Reqless() as conversation:
        yield conversation


@pytest.fixture
def client(talk: Reqless) -> ReqlessClient:
    return talk.speaker()


def put(client: ReqlessClient, jid: str, now: float = 1, *options: object) -> None:
    client.calls("queue.put", now, "me", "q", jid, "klass", "{}", 0, *options).hears_text(jid)


def pop(client: ReqlessClient, now: float, count: int = 1) -> list[str]:
    client.calls("queue.pop", now, "q", "w", count)
    return [job["jid"] for job in client.hears_json()]


def job(client: ReqlessClient, jid: str) -> dict:
    client.calls("job.get", 0, jid)
    return client.hears_json()


# config


def test_options_are_text(client: ReqlessClient) -> None:
    client.calls("config.getAll", 0).hears_text(
        '{"application":"reqless","grace-period":"10","heartbeat":"60","jobs-history":"604800",'
        '"jobs-history-count":"50000","max-job-history":"100","max-pop-retry":"1",'
        '"max-worker-age":"86400"}'
    )
    client.calls("config.get", 0, "heartbeat").hears_text("60")
    client.calls("config.get", 0, "stats-history").hears(NIL)
    client.calls("config.set", 0, "heartbeat", 20).hears(NIL)
    client.calls("config.get", 0, "heartbeat").hears_text("20")
    client.calls("config.unset", 0, "heartbeat").hears(NIL)
    client.calls("config.get", 0, "heartbeat").hears_text("60")
    client.calls("config.set", 0, "heartbeat").hears_complaint('config.set(): Arg "value" missing')


# failureGroups, jobs.failedByGroup


def test_failures(client: ReqlessClient) -> None:
    client.calls("failureGroups.counts", 0).hears_text("{}")
    client.calls("jobs.failedByGroup", 0, "g").hears_text('{"total":0,"jobs":{}}')
    put(client, "a")
    pop(client, 2)
    client.calls("job.fail", 3, "a", "w", "g", "why").hears_text("a")
    client.calls("failureGroups.counts", 4, 0, 10).hears_text('{"g":1}')
    client.calls("jobs.failedByGroup", 4, "g", 0, 10).hears_text('{"total":1,"jobs":["a"]}')
    client.calls("job.fail", 5, "a", "w", "g", "why").hears_complaint(
        "Fail(): Job not currently running: failed"
    )


# job


def test_dependencies(client: ReqlessClient) -> None:
    put(client, "a")
    put(client, "b")
    put(client, "c", 1, "depends", ["a"])
    client.calls("job.addDependency", 2, "c", "b").hears(b":1\r\n")
    assert job(client, "c")["dependencies"] == ["a", "b"]
    client.calls("job.removeDependency", 3, "c", "a").hears(b":1\r\n")
    client.calls("job.removeDependency", 3, "c", "all").hears(b":1\r\n")
    assert job(client, "c")["state"] == "waiting"
    client.calls("job.addDependency", 4, "c", "b").hears_complaint(
        "Depends(): Job c not in the depends state: waiting"
    )
    client.calls("job.addDependency", 4).hears_complaint("Job(): no jid provided")


def test_tags(client: ReqlessClient) -> None:
    put(client, "a")
    put(client, "b", 1, "tags", ["x"])
    client.calls("job.addTag", 2, "a", "x", "y").hears_text('["x","y"]')
    client.calls("job.removeTag", 3, "a", "y").hears_text('["x"]')
    client.calls("jobs.tagged", 3, "x").hears_text('{"total":2,"jobs":["b","a"]}')
    client.calls("tags.top", 3).hears_text('["x"]')
    client.calls("job.removeTag", 4, "a", "x").hears_text("[]")
    client.calls("tags.top", 4).hears_text("[]")
    client.calls("jobs.tagged", 4, "z").hears_text('{"total":0,"jobs":{}}')
    client.calls("job.addTag", 4, "zz", "x").hears_complaint("Tag(): Job zz does not exist")


def test_cancel(client: ReqlessClient) -> None:
    put(client, "a")
    client.calls("job.cancel", 2, "a", "zz").hears_words("a", "zz")
    client.calls("job.get", 3, "a").hears(NIL)


def test_complete(client: ReqlessClient) -> None:
    put(client, "a")
    client.calls("job.complete", 2, "a", "w", "q", "{}").hears_complaint(
        "Complete(): Job is not currently running: waiting"
    )
    pop(client, 2)
    client.calls("job.complete", 3, "a", "other", "q", "{}").hears_complaint(
        "Complete(): Job has been handed out to another worker: w"
    )
    client.calls("job.complete", 3, "a", "w", "q", "{}").hears_text("complete")
    client.calls("jobs.completed", 4).hears_text('["a"]')
    client.calls("jobs.completed", 4, 1, 5).hears_text("[]")
    client.calls("job.complete", 4, "zz", "w", "q", "{}").hears_complaint(
        "Complete(): Job does not exist"
    )


def test_complete_and_requeue(client: ReqlessClient) -> None:
    put(client, "a")
    pop(client, 2)
    client.calls("job.completeAndRequeue", 3, "a", "w", "q", "{}", "next")
    client.hears_text("waiting")
    client.calls("queue.pop", 4, "next", "w", 1)
    assert client.hears_json()[0]["queue"] == "next"
    client.calls("job.completeAndRequeue", 5, "a", "w", "next", "{}", "q", "delay", 10)
    client.hears_text("scheduled")
    assert pop(client, 15) == ["a"]
    client.calls("job.completeAndRequeue", 16, "a", "w", "q", "{}", "q", "depends", ["a"])
    client.hears_text("depends")


@pytest.mark.parametrize("more_args", [("next", "bar"), ("next", "bar", "delay", 0, "depends", [])])
def test_complete_and_requeue_with_the_argument_next(
    client: ReqlessClient, more_args: tuple
) -> None:
    put(client, "a")
    pop(client, 2)
    client.calls("job.completeAndRequeue", 3, "a", "w", "q", "{}", *more_args).hears_text("waiting")
    assert job(client, "a")["queue"] == "bar"


def test_get(client: ReqlessClient) -> None:
    put(client, "a", 12345.6, "throttles", ["t"])
    client.calls("job.get", 0, "a").hears_text(
        '{"jid":"a","retries":5,"data":"{}","failure":{},"expires":0,"remaining":5,'
        '"spawned_from_jid":false,"dependencies":{},"klass":"klass","tracked":false,"tags":{},'
        '"queue":"q","state":"waiting","history":[{"queue":"q","when":12345,"what":"put"}],'
        '"dependents":{},"priority":0,"worker":"","throttles":["t","ql:q:q"]}'
    )
    client.calls("job.getMulti", 0, "zz").hears_text("[]")
    client.calls("job.getMulti", 0, "zz", "a")
    assert [each["jid"] for each in client.hears_json()] == ["a"]


def test_heartbeat(client: ReqlessClient) -> None:
    put(client, "a")
    client.calls("job.heartbeat", 2, "a", "w").hears_complaint(
        "Heartbeat(): Job not currently running: waiting"
    )
    pop(client, 2)
    client.calls("job.heartbeat", 30, "a", "w").hears(b":90\r\n")
    client.calls("job.heartbeat", 30, "a", "x").hears_complaint(
        "Heartbeat(): Job given out to another worker: w"
    )


def test_log(client: ReqlessClient) -> None:
    put(client, "a")
    client.calls("job.log", 5, "a", "hello", {"k": 1}).hears(NIL)
    assert job(client, "a")["history"][-1] == {"k": 1, "when": 5, "what": "hello"}


def test_requeue(client: ReqlessClient) -> None:
    client.calls("job.requeue", 1, "me", "q", "a", "k", "{}", 0).hears_complaint(
        "Requeue(): Job a does not exist"
    )
    put(client, "a", 1, "throttles", ["t"])
    client.calls("job.requeue", 2, "me", "p", "a", "k", "{}", 0).hears_text("a")
    assert job(client, "a")["throttles"] == ["ql:q:p"]


def test_retry(client: ReqlessClient) -> None:
    put(client, "a", 1, "retries", 1)
    pop(client, 2)
    client.calls("job.retry", 3, "a", "q", "w", 0, "group", "message").hears(b":0\r\n")
    pop(client, 4)
    client.calls("job.retry", 5, "a", "q", "w").hears(b":-1\r\n")
    assert job(client, "a")["history"][-1] == {
        "group": "failed-retries-q",
        "when": 5,
        "what": "failed-retries",
    }


def test_priority(client: ReqlessClient) -> None:
    put(client, "a")
    put(client, "b")
    client.calls("job.setPriority", 2, "b", 5).hears(b":5\r\n")
    assert pop(client, 3) == ["b"]


def test_timeout(client: ReqlessClient) -> None:
    put(client, "a")
    pop(client, 2)
    client.calls("job.timeout", 3, "a").hears(NIL)
    found = job(client, "a")
    assert (found["state"], found["worker"], found["expires"]) == ("stalled", "", 0)


def test_tracking(client: ReqlessClient) -> None:
    client.calls("jobs.tracked", 0).hears_text('{"expired":{},"jobs":{}}')
    put(client, "a")
    client.calls("job.track", 2, "a").hears_text("1")
    client.calls("jobs.tracked", 2)
    found = client.hears_json()["jobs"]
    assert [(each["jid"], each["throttles"]) for each in found] == [("a", ["ql:q:q"])]
    client.calls("job.untrack", 3, "a").hears_text("1")
    client.calls("job.untrack", 3, "a").hears_text("0")
    client.calls("job.track", 3, "zz").hears_complaint("Track(): Job does not exist")


# queue and queues


def test_counts(client: ReqlessClient) -> None:
    client.calls("queues.counts", 0).hears_text("[]")
    client.calls("queues.names", 0).hears_text("[]")
    put(client, "a")
    counts = (
        '{"name":"q","waiting":1,"running":0,"stalled":0,"scheduled":0,"depends":0,"recurring":0,'
        '"throttled":0,"paused":false}'
    )
    client.calls("queue.counts", 2, "q").hears_text(counts)
    client.calls("queues.counts", 2).hears_text(f"[{counts}]")
    client.calls("queues.names", 2).hears_text('["q"]')
    client.calls("queue.length", 2, "q").hears(b":1\r\n")
    client.calls("queue.forget", 3, "q").hears(NIL)
    client.calls("queues.counts", 3).hears_text("[]")


def test_jobs_by_state(client: ReqlessClient) -> None:
    client.calls("queue.jobsByState", 0, "running", "q").hears_text("[]")
    put(client, "a")
    pop(client, 2)
    client.calls("queue.jobsByState", 3, "running", "q").hears_text('["a"]')
    client.calls("queue.jobsByState", 3, "throttled", "q").hears_text("[]")
    client.calls("queue.jobsByState", 3, "waiting", "q").hears_complaint(
        'Jobs(): Unknown type "waiting"'
    )
    client.calls("queue.jobsByState", 3, "running", "q", 0, "x").hears_complaint(
        'Jobs(): Arg "limit" not a number: x'
    )


def test_pause(client: ReqlessClient) -> None:
    put(client, "a")
    client.calls("queue.pause", 2, "q").hears(NIL)
    client.calls("queue.pop", 2, "q", "w", 1).hears_text(NO_JOBS)
    client.calls("queue.unpause", 3, "q").hears(NIL)
    assert pop(client, 3) == ["a"]


def test_peek_has_an_offset(client: ReqlessClient) -> None:
    client.calls("queue.peek", 0, "q", 0, 5).hears_text(NO_JOBS)
    for number in range(4):
        put(client, f"j{number}", number)

    def peek(offset: int, limit: int) -> list[str]:
        client.calls("queue.peek", 9, "q", offset, limit)
        return [each["jid"] for each in client.hears_json()]

    assert peek(0, 2) == ["j0", "j1"]
    assert peek(1, 2) == ["j1", "j2"]
    assert peek(3, 9) == ["j3"]
    assert peek(4, 9) == []
    assert peek(0, 0) == []
    client.calls("queue.peek", 9, "q").hears_complaint(
        'Peek(): Arg "offset" missing or not a number: nil'
    )
    client.calls("queue.peek", 9, "q", 0).hears_complaint(
        'Peek(): Arg "limit" missing or not a number: nil'
    )


def test_stats_have_no_more_than_the_original(client: ReqlessClient) -> None:
    client.calls("queue.stats", 0, "q", 0)
    stats = client.hears_json()
    assert stats.keys() == {"run", "wait", "failed", "failures", "retries"}
    assert stats["run"].keys() == {"std", "histogram", "mean", "count"}
    assert len(stats["run"]["histogram"]) == 148


def test_unfail(client: ReqlessClient) -> None:
    put(client, "a")
    pop(client, 2)
    client.calls("job.fail", 3, "a", "w", "g", "why").hears_text("a")
    client.calls("queue.unfail", 4, "q", "g", 0).hears_complaint(
        'Unfail(): Arg "count" must be greater than zero'
    )
    client.calls("queue.unfail", 4).hears_complaint('queue.unfail(): Arg "queue" missing')
    client.calls("queue.unfail", 4, "q", "g").hears(b":1\r\n")
    assert pop(client, 5) == ["a"]


# recurring jobs


def test_recurring(client: ReqlessClient) -> None:
    client.calls("recurringJob.get", 0, "r").hears(NIL)
    client.calls(
        "queue.recurAtInterval", 0, "q", "r", "k", "{}", 60, 10, "throttles", ["t", "ql:q:q"]
    )
    client.hears_text("r")
    client.calls("recurringJob.get", 0, "r").hears_text(
        '{"tags":{},"jid":"r","retries":0,"data":"{}","queue":"q","state":"recur","count":0,'
        '"interval":60,"klass":"k","backlog":0,"priority":0,"throttles":["t","ql:q:q"]}'
    )
    client.calls("recurringJob.addTag", 1, "r", "x").hears_text('["x"]')
    client.calls("recurringJob.removeTag", 1, "r", "x").hears_text("[]")
    client.calls("queue.pop", 75, "q", "w", 5)
    first, second = client.hears_json()
    assert (first["jid"], second["jid"]) == ("r-1", "r-2")
    assert first["throttles"] == ["t", "ql:q:q"]
    client.calls("recurringJob.update", 76, "r", "queue", "p", "throttles", ["u"]).hears(b":1\r\n")
    client.calls("recurringJob.get", 76, "r")
    assert client.hears_json()["throttles"] == ["u"]
    client.calls("recurringJob.cancel", 77, "r").hears(b":1\r\n")
    client.calls("recurringJob.get", 77, "r").hears(NIL)
    client.calls("queue.recurAtInterval", 0, "q", "r", "k", "{}", 0, 10).hears_complaint(
        'Recur(): Arg "interval" must be greater than 0'
    )
    client.calls("queue.recurAtInterval", 0, "q").hears_complaint('Recur(): Arg "jid" missing')


# patterns


def test_identifier_patterns(client: ReqlessClient) -> None:
    client.calls("queueIdentifierPatterns.getAll", 0).hears_text('{"default":"[\\"*\\"]"}')
    client.calls("queueIdentifierPatterns.setAll", 0, "a", '["x*"]', "b", "[]").hears(NIL)
    client.calls("queueIdentifierPatterns.getAll", 0).hears_text(
        '{"default":"[\\"*\\"]","a":"[\\"x*\\"]"}'
    )
    client.calls("queueIdentifierPatterns.setAll", 0, "a").hears_complaint(
        "Odd number of identifier patterns: table: 0x0"
    )


def test_priority_patterns(client: ReqlessClient) -> None:
    default = '"{\\"fairly\\": false, \\"pattern\\": [\\"default\\"]}"'
    client.calls("queuePriorityPatterns.getAll", 0).hears_text(f"[{default}]")
    client.calls("queuePriorityPatterns.setAll", 0, '{"fairly":true,"pattern":["a"]}').hears(NIL)
    client.calls("queuePriorityPatterns.getAll", 0).hears_text(
        '["{\\"fairly\\":true,\\"pattern\\":[\\"a\\"]}",' + default + "]"
    )
    client.calls("queuePriorityPatterns.setAll", 0).hears(NIL)
    client.calls("queuePriorityPatterns.getAll", 0).hears_text(f"[{default}]")
    client.calls("queuePriorityPatterns.setAll", 0, "[]").hears_complaint(
        'queuePriorityPatterns.setAll(): Arg "pattern" missing or not a list'
    )


# throttles


def test_a_throttle(client: ReqlessClient) -> None:
    client.calls("throttle.get", 0, "t").hears_text('{"id":"t","maximum":0,"ttl":-2}')
    client.calls("throttle.set", 0, "t", 3).hears(NIL)
    client.calls("throttle.get", 0, "t").hears_text('{"id":"t","maximum":3,"ttl":-1}')
    client.calls("throttle.set", 0, "t", 4, 100).hears(NIL)
    client.calls("throttle.get", 40, "t").hears_text('{"id":"t","maximum":4,"ttl":60}')
    client.calls("throttle.set", 40, "t", 5).hears(NIL)
    client.calls("throttle.get", 40, "t").hears_text('{"id":"t","maximum":5,"ttl":60}')
    client.calls("throttle.get", 100, "t").hears_text('{"id":"t","maximum":0,"ttl":-2}')
    client.calls("throttle.delete", 50, "t").hears(NIL)
    client.calls("throttle.get", 50, "t").hears_text('{"id":"t","maximum":0,"ttl":-2}')
    client.calls("queue.throttle.set", 0, "q", 2).hears(NIL)
    client.calls("queue.throttle.get", 0, "q").hears_text('{"id":"ql:q:q","maximum":2,"ttl":-1}')
    client.calls("throttle.set", 0, "t", "x").hears_complaint(
        'Throttle(): Arg "maximum" missing or not a number: x'
    )
    client.calls("throttle.get", 0).hears_complaint("Throttle(): no tid provided")


def test_a_full_throttle_delays_jobs(client: ReqlessClient) -> None:
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    put(client, "a", 1, "throttles", ["t"])
    put(client, "b", 2, "throttles", ["t"])
    put(client, "c", 3)
    assert pop(client, 4, 2) == ["a"]
    client.calls("throttle.locks", 5, "t").hears_text('["a"]')
    client.calls("throttle.pending", 5, "t").hears_text('["b"]')
    client.calls("queue.jobsByState", 5, "throttled", "q").hears_text('["b"]')
    client.calls("queue.length", 5, "q").hears(b":2\r\n")
    found = job(client, "b")
    assert found["state"] == "throttled"
    assert found["history"][-1] == {"queue": "q", "when": 4, "what": "throttled"}
    assert pop(client, 6, 9) == ["c"]
    client.calls("job.complete", 7, "b", "w", "q", "{}").hears_complaint(
        "Complete(): Job is not currently running: throttled"
    )
    client.calls("job.complete", 8, "a", "w", "q", "{}").hears_text("complete")
    client.calls("throttle.locks", 8, "t").hears_text("[]")
    client.calls("throttle.pending", 8, "t").hears_text("[]")
    assert job(client, "b")["state"] == "waiting"
    assert pop(client, 9) == ["b"]


@pytest.mark.parametrize(
    "end",
    [
        ("job.fail", 9, "a", "w", "g", "m"),
        ("job.cancel", 9, "a"),
        ("job.retry", 9, "a", "q", "w", 100),
        ("job.completeAndRequeue", 9, "a", "w", "q", "{}", "p"),
        ("queue.put", 9, "me", "p", "a", "k", "{}", 0),
        ("throttle.release", 9, "t", "a"),
        ("throttle.delete", 9, "t"),
        ("throttle.set", 9, "t", 2),
        ("queue.pop", 9000, "q", "v", 1),
    ],
    ids=lambda end: end[0],
)
def test_every_end_of_a_lease_admits_the_next_job(client: ReqlessClient, end: tuple) -> None:
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    client.calls("config.set", 0, "grace-period", 0).hears(NIL)
    put(client, "a", 1, "throttles", ["t"], "retries", 0)
    assert pop(client, 2) == ["a"]
    put(client, "b", 3, "throttles", ["t"])
    assert job(client, "b")["state"] == "throttled"
    client.calls(*end)
    if end[0] == "queue.pop":  # the lock of the first job has expired, and it has no retries left
        assert [each["jid"] for each in client.hears_json()] == ["b"]
        return
    client.hears_whatever()
    assert job(client, "b")["state"] == "waiting"
    assert pop(client, 10) == ["b"]


def test_the_longest_waiting_job_is_first(client: ReqlessClient) -> None:
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    for number in range(4):
        put(client, f"j{number}", number, "throttles", ["t"])
    assert pop(client, 5, 4) == ["j0"]
    client.calls("throttle.pending", 5, "t").hears_text('["j1","j2","j3"]')
    client.calls("job.setPriority", 6, "j3", 9).hears(b":9\r\n")
    client.calls("job.complete", 7, "j0", "w", "q", "{}").hears_text("complete")
    client.calls("throttle.pending", 7, "t").hears_text('["j2","j3"]')
    assert pop(client, 8, 4) == ["j1"]


def test_a_retried_job_goes_behind_jobs_that_wait_for_its_throttle(client: ReqlessClient) -> None:
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    put(client, "a", 1, "throttles", ["t"])
    put(client, "b", 2, "throttles", ["t"])
    assert pop(client, 3, 2) == ["a"]
    client.calls("job.retry", 4, "a", "q", "w").hears(b":4\r\n")
    assert pop(client, 5, 2) == ["b"]
    client.calls("throttle.pending", 5, "t").hears_text('["a"]')


def test_a_queue_has_its_own_throttle(client: ReqlessClient) -> None:
    client.calls("queue.throttle.set", 0, "q", 1).hears(NIL)
    put(client, "a", 1)
    put(client, "b", 2)
    assert pop(client, 3, 2) == ["a"]
    assert job(client, "b")["state"] == "throttled"
    assert pop(client, 4, 2) == []
    client.calls("queue.put", 5, "me", "other", "c", "k", "{}", 0).hears_text("c")
    client.calls("queue.pop", 5, "other", "w", 2)
    assert [each["jid"] for each in client.hears_json()] == ["c"]


def test_a_job_released_from_its_throttle_is_examined_by_the_next_pop(
    client: ReqlessClient,
) -> None:
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    put(client, "a", 1, "throttles", ["t"])
    put(client, "b", 2, "throttles", ["t"])
    assert pop(client, 3, 2) == ["a"]
    client.calls("throttle.release", 4, "t", "b", "a").hears(NIL)
    client.calls("throttle.locks", 5, "t").hears_text("[]")
    client.calls("throttle.pending", 5, "t").hears_text("[]")
    client.calls("queue.peek", 5, "q", 0, 5).hears_text("[]")
    assert pop(client, 6, 5) == ["b"]
    client.calls("throttle.locks", 7, "t").hears_text('["b"]')


def test_more_pop_retries_find_more_jobs(client: ReqlessClient) -> None:
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    for number in range(4):
        put(client, f"j{number}", number, "throttles", ["t"])
    put(client, "free", 9)
    assert pop(client, 10) == ["j0"]
    assert pop(client, 11) == []  # the pop examines one job, and parks it
    client.calls("config.set", 12, "max-pop-retry", 9).hears(NIL)
    assert pop(client, 13) == ["free"]


def test_an_expired_limit_admits_all_jobs(client: ReqlessClient) -> None:
    client.calls("throttle.set", 0, "t", 1, 100).hears(NIL)
    for number in range(4):
        put(client, f"j{number}", number, "throttles", ["t"])
    assert pop(client, 5, 9) == ["j0"]
    assert pop(client, 101, 9) == ["j1", "j2", "j3"]


def test_limits_that_have_ended_are_forgotten(talk: Reqless) -> None:
    client = talk.speaker()
    for number in range(200):
        client.calls("throttle.set", number, f"t{number}", 1, 10).hears(NIL)
    assert len(talk.hub.api.qless.throttles.limits) < 100
    assert sum(key.startswith("qless/throttle/") for key in talk.engine.settings) < 100
    client.calls("throttle.get", 200, "t199").hears_text('{"id":"t199","maximum":1,"ttl":9}')


def test_a_worker_of_another_protocol_frees_capacity(talk: Reqless) -> None:
    client = talk.speaker()
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    put(client, "a", 1, "throttles", ["t"])
    assert pop(client, 2) == ["a"]
    put(client, "b", 3, "throttles", ["t"])
    talk.acts(lambda world: world.engine.complete(world.engine.find("a"), world.now, 3))
    assert pop(client, 4) == ["b"]


def test_throttles_survive_a_reverted_commit(talk: Reqless) -> None:
    """All indexes are rebuilt from the stored state."""
    client = talk.speaker()
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    put(client, "a", 1, "throttles", ["t"])
    put(client, "b", 2, "throttles", ["t"])
    assert pop(client, 3, 2) == ["a"]
    talk.acts(lambda world: world.hub.api.qless._build())
    client.calls("throttle.locks", 4, "t").hears_text('["a"]')
    client.calls("throttle.pending", 4, "t").hears_text('["b"]')
    client.calls("throttle.get", 4, "t").hears_text('{"id":"t","maximum":1,"ttl":-1}')
    assert pop(client, 5, 2) == []
    client.calls("job.complete", 6, "a", "w", "q", "{}").hears_text("complete")
    assert pop(client, 7, 2) == ["b"]


def test_flushing_forgets_throttles_and_patterns(client: ReqlessClient) -> None:
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    client.calls("queueIdentifierPatterns.setAll", 0, "a", '["x*"]').hears(NIL)
    client.asks("FLUSHDB").hears_ok()
    client.calls("throttle.get", 0, "t").hears_text('{"id":"t","maximum":0,"ttl":-2}')
    client.calls("queueIdentifierPatterns.getAll", 0).hears_text('{"default":"[\\"*\\"]"}')


# workers


def test_workers(client: ReqlessClient) -> None:
    client.calls("workers.counts", 0).hears_text("[]")
    client.calls("worker.jobs", 0, "w").hears_text('{"jobs":{},"stalled":{}}')
    put(client, "a")
    pop(client, 2)
    client.calls("workers.counts", 3).hears_text('[{"name":"w","jobs":1,"stalled":0}]')
    client.calls("worker.jobs", 3, "w").hears_text('{"jobs":["a"],"stalled":{}}')
    client.calls("worker.forget", 4, "w").hears(NIL)
    client.calls("workers.counts", 4).hears_text("[]")


# names


def test_unknown_commands(client: ReqlessClient) -> None:
    client.calls("queue.frobnicate", 0).hears_complaint("Unknown command queue.frobnicate")


def test_older_and_intermediate_names(client: ReqlessClient) -> None:
    put(client, "a")
    client.calls("queues.list", 0)
    assert client.hears_json()[0]["name"] == "q"
    client.calls("job.tag", 0, "a", "x").hears_text('["x"]')
    client.calls("job.depends", 0, "a", "on", "b").hears_complaint(
        "Depends(): Job a not in the depends state: waiting"
    )
    client.calls("get", 0, "a")
    assert client.hears_json()["history"] == [{"queue": "q", "when": 1, "what": "put"}]


def test_the_oldest_names(talk: Reqless) -> None:
    """Dialect T: C with throttles, an offset in peek, and lists as arrays."""
    client = talk.speaker(SCRIPT_T)
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    for jid in ("a", "b"):
        client.calls("put", 1, "me", "q", jid, "k", "{}", 0, "throttles", ["t"]).hears_text(jid)
    client.calls("peek", 2, "q", 1, 5)
    assert [each["jid"] for each in client.hears_json()] == ["b"]
    client.calls("pop", 3, "q", "w", 2)
    assert client.hears_json()[0]["throttles"] == ["t", "ql:q:q"]
    client.calls("throttle.locks", 4, "t").hears_words("a")
    client.calls("throttle.pending", 4, "t").hears_words("b")
    client.calls("jobs", 4, "throttled", "q").hears_words("b")
    client.calls("throttle.ttl", 4, "t").hears(b":-1\r\n")
    client.calls("pop", 5, "q", "w", 2).hears_text("{}")
    client.calls("config.get", 5, "heartbeat").hears(b":60\r\n")
    client.calls("queues", 5, "q")
    assert client.hears_json()["throttled"] == 1
    client.calls("queue.counts", 5, "q")
    assert client.hears_json()["throttled"] == 1


def test_scripts_are_recognized() -> None:
    package = files("reqless").joinpath("lua/qless.lua").read_bytes()
    assert recognise(package) == Script("T")
    assert recognise(SCRIPT_T) == Script("T")
    assert recognise(SCRIPT_D) == Script("D")
    assert recognise(SCRIPT_C) == Script("C")


# While the store fails


def test_reads_are_answered_while_the_store_fails(talk: Reqless) -> None:
    client = talk.speaker()
    client.calls("throttle.set", 0, "t", 1).hears(NIL)
    put(client, "a", 1, "throttles", ["t"])
    put(client, "b", 2, "throttles", ["t"])
    assert pop(client, 3, 2) == ["a"]
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", "the disk is full"))
    client.calls("throttle.pending", 4, "t").hears_text('["b"]')
    client.calls("throttle.get", 4, "t").hears_text('{"id":"t","maximum":1,"ttl":-1}')
    client.calls("queue.jobsByState", 4, "throttled", "q").hears_text('["b"]')
    client.calls("queueIdentifierPatterns.getAll", 4).hears_text('{"default":"[\\"*\\"]"}')
    client.calls("queues.names", 4).hears_text('["q"]')
    assert job(client, "b")["state"] == "throttled"
    for call in (
        ("queue.put", 5, "me", "q", "c", "klass", "{}", 0),
        ("queue.pop", 5, "q", "w", 1),
        ("job.complete", 5, "a", "w", "q", "{}"),
        ("throttle.set", 5, "t", 2),
        ("throttle.delete", 5, "t"),
        ("throttle.release", 5, "t", "a"),
        ("queue.throttle.set", 5, "q", 2),
        ("queueIdentifierPatterns.setAll", 5, "a", '["x"]'),
        ("queuePriorityPatterns.setAll", 5),
    ):
        client.calls(*call).hears_resp_error(
            "MISCONF the disk is full: nothing was changed, try again later"
        )
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", ""))
    client.calls("throttle.locks", 6, "t").hears_text('["a"]')


def test_a_put_without_an_id_respects_a_full_throttle(client: ReqlessClient) -> None:
    client.calls("throttle.set", 1, "t", 1).hears_whatever()
    for _ in range(2):
        client.calls("queue.put", 1, "me", "q", "", "klass", "{}", 0, "throttles", '["t"]')
        client.hears_whatever()
    assert len(pop(client, 2, 5)) == 1
