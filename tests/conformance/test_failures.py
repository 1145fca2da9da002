"""The consequences of a failed attempt follow the rules of the pushing protocol, for any worker:
the number of retries, their delays, and the final state of the job.
"""

import pytest
from pairs import LONG, PROTOCOLS, able, fail_attempt, lose, pairs, shown, uid, work

from house import House
from millrace.engine.states import DEAD, READY, SCHEDULED
from speakers import Accepted, Nothing, Result
from wires import SECOND

#: Protocols in which a worker reports an error message.
ERROR_MESSAGES = dict.fromkeys(("workq", "faktory", "qless", "http"), b"no luck")
RESULT = b'{"done":1e400,\r\n"a":"<>"}'


# One failure


@pairs(work=("fail",))
def test_the_retry_delay_follows_the_pushers_rule(pair):
    held = pair.push_and_lease(retries=2)
    pair.house.pass_time(3.5)
    now = pair.house.now
    pair.worker.fail(held)
    job, origin = pair.job, pair.pusher.speaker.protocol
    whole = now // SECOND * SECOND
    due = {"masenko": whole + SECOND, "faktory": now + 15 * SECOND}
    due["http"] = due["faktory"]
    due["goqueue"] = job.leased_at + job.lease_duration
    assert job.failures == 1
    if origin in due:
        assert (job.state, job.due_at) == (SCHEDULED, due[origin])
    else:
        assert job.state == READY


@pairs(work=("bury",))
def test_a_worker_cannot_bury_a_job_of_another_protocol(pair):
    held = pair.push_and_lease(retries=2)
    assert isinstance(pair.worker.asks("bury", held), Accepted)
    own = pair.pusher.speaker.protocol == "qless"
    assert (pair.job.state == DEAD) == own


@pairs()
def test_a_lost_attempt_is_a_failure_except_in_workq(pair):
    lose(pair.worker, pair.push_and_lease(retries=2))
    assert pair.job.failures == (pair.pusher.speaker.protocol != "workq")
    assert pair.job.state in {READY, SCHEDULED}


@pairs()
def test_a_retried_job_returns_to_its_queue(pair):
    fail_attempt(pair.worker, pair.push_and_lease(retries=2))
    again = pair.lease_again()
    assert (again.id, again.queue) == (shown(pair.pusher, pair.job), "q")


# The last failure


def fail_twice(pair, **fields) -> None:
    pair.pusher.push(work(retries=1, most_attempts=2, **fields))
    for _ in range(2):
        fail_attempt(pair.worker, pair.worker.lease("q"))
        pair.house.pass_time(LONG)


@pairs(push=("retries",))
def test_the_final_state_follows_the_pushers_rule(pair):
    fail_twice(pair)
    assert pair.job.state == DEAD
    pair.worker.finds_nothing("q")


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("worker", PROTOCOLS)
def test_the_final_state_of_a_go_job(worker, most):
    """It has no final state: it is retried for ever, unless a limit is set."""
    house = House(goqueue={"max_deliveries": most})
    house.client("goqueue").push(work())
    for _ in range(2):
        client = house.client(worker)
        fail_attempt(client, client.lease("q"))
        house.pass_time(LONG)
    assert house.job().state == (DEAD if most else READY)


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_failed_workq_job_has_a_result(house, worker):
    """The error message of the failed attempt, until the time to live expires."""
    pusher, client = house.client("workq"), house.client(worker)
    pusher.push(work(retries=0, most_attempts=1))
    fail_attempt(client, client.lease("q"))
    assert pusher.asks("result", uid(1)) == Result(
        "result", uid(1), False, ERROR_MESSAGES.get(worker, b"")
    )
    house.pass_time(86_400)
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_failed_masenko_task_goes_to_its_dead_queue(house, worker):
    pusher, client = house.client("masenko"), house.client(worker)
    task = pusher.push(work(retries=0, dead_queue="dead"))
    fail_attempt(client, client.lease("q"))
    held = pusher.lease("dead")
    assert (held.id, held.payload, held.failures) == (task, b'["x",1]', 0)


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_dependents_of_a_failed_masenko_task_fail(house, worker):
    pusher, client = house.client("masenko"), house.client(worker)
    task = pusher.push(work(retries=0))
    pusher.push(work(after=(task,), dead_queue="dead"))
    fail_attempt(client, client.lease("q"))
    assert pusher.lease("dead").id == "2"


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_faktory_job_without_retries(house, worker):
    """0 is discarded, -1 is dead immediately."""
    pusher, client = house.client("faktory"), house.client(worker)
    pusher.push(work(1, retries=0))
    pusher.push(work(2, retries=-1))
    held = [client.lease("q") for _ in range(2)]
    for each in held:
        if "fail" in client.speaker.can:
            client.fail(each)
    house.pass_time(LONG)
    assert [(job.jid, job.state) for job in house.engine.jobs.values()] == [(uid(2), DEAD)]


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_failed_qless_job_is_in_a_failure_group(house, worker):
    pusher, client = house.client("qless"), house.client(worker)
    pusher.push(work(retries=0))
    fail_attempt(client, client.lease("q"))
    assert house.job().state == DEAD
    assert house.job().due_at == (1 << 63) - 1  # until an operator decides
    house.pass_time(365 * 86_400)
    assert house.job().state == DEAD


# Results


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_run_returns_the_result(house, worker):
    """Workers of Workq, Qless and HTTP can send one; all other workers report success."""
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(), house.now, 60))
    client.complete(client.lease("q"), RESULT)
    content = RESULT if worker in {"workq", "qless", "http"} else b""
    assert pusher.hears() == [Result("run", uid(1), True, content)]
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_missing_result_is_empty(house, worker):
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(payload=b'{"a": 1}'), house.now, 60))
    held = client.lease("q")
    client.complete(held, b'{"a":1}' if worker == "qless" else b"")  # as its clients write it
    assert pusher.hears() == [Result("run", uid(1), True, b"")]


@pytest.mark.parametrize("worker", able("fail"))
def test_run_returns_the_failure(house, worker):
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(), house.now, 60))
    client.fail(client.lease("q"), "no luck")
    assert pusher.hears() == [Result("run", uid(1), False, ERROR_MESSAGES.get(worker, b""))]
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_run_reports_a_lost_worker(house, worker):
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(), house.now, 3600))
    lose(client, client.lease("q"))
    assert pusher.hears() == [Nothing("run", uid(1))]
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_any_client_can_wait_for_the_result_of_any_job(house, pusher, worker):
    house.client(pusher).push(work())
    waiter, client = house.client("workq"), house.client(worker)
    job = shown(waiter, house.job())
    waiter.says(waiter.speaker.result(job, house.now, 60))
    client.complete(client.lease("q"), RESULT)
    says = worker in {"workq", "http"}
    says = says or (worker == "qless" and pusher != "qless")  # there it is the data
    content = RESULT if says else b""
    assert waiter.hears() == [Result("result", job, True, content)]
