"""What follows an attempt that did not succeed is the rule of whoever pushed the job, whoever worked
it: how many more there are, how long they take, and where the job ends.
"""

import pytest
from pairs import LONG, PROTOCOLS, able, end_badly, lose, pairs, shown, uid, work

from house import House
from millrace.engine.states import DEAD, READY, SCHEDULED
from speakers import Accepted, Nothing, Result
from wires import SECOND

#: Words in which workers of these protocols can say why.
TELLS = dict.fromkeys(("workq", "faktory", "qless", "http"), b"no luck")
RESULT = b'{"done":1e400,\r\n"a":"<>"}'


# One failure


@pairs(work=("fail",))
def test_when_it_is_tried_again(pair):
    held = pair.push_and_lease(retries=2)
    pair.house.pass_time(3.5)
    now = pair.house.now
    pair.worker.fail(held)
    job, origin = pair.job, pair.pusher.speaker.protocol
    whole = now // SECOND * SECOND
    due = {"masenko": whole + SECOND, "faktory": now + 15 * SECOND}
    due["http"] = due["faktory"]
    due["goqueue"] = job.leased_at + job.lease_for
    assert job.failures == 1
    if origin in due:
        assert (job.state, job.due) == (SCHEDULED, due[origin])
    else:
        assert job.state == READY


@pairs(work=("bury",))
def test_a_worker_cannot_decide_that_another_protocols_job_has_failed_for_good(pair):
    held = pair.push_and_lease(retries=2)
    assert isinstance(pair.worker.asks("bury", held), Accepted)
    own = pair.pusher.speaker.protocol == "qless"
    assert (pair.job.state == DEAD) == own


@pairs()
def test_a_lost_attempt_is_a_failure_but_not_to_workq(pair):
    lose(pair.worker, pair.push_and_lease(retries=2))
    assert pair.job.failures == (pair.pusher.speaker.protocol != "workq")
    assert pair.job.state in {READY, SCHEDULED}


@pairs()
def test_the_job_comes_back_to_where_it_came_from(pair):
    end_badly(pair.worker, pair.push_and_lease(retries=2))
    again = pair.comes_back()
    assert (again.id, again.queue) == (shown(pair.pusher, pair.job), "q")


# The last failure


def fail_twice(pair, **fields) -> None:
    pair.pusher.push(work(retries=1, most_attempts=2, **fields))
    for _ in range(2):
        end_badly(pair.worker, pair.worker.lease("q"))
        pair.house.pass_time(LONG)


@pairs(push=("retries",))
def test_where_a_job_ends(pair):
    fail_twice(pair)
    assert pair.job.state == DEAD
    pair.worker.finds_nothing("q")


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("worker", PROTOCOLS)
def test_where_a_go_job_ends(worker, most):
    """Nowhere: it comes back for ever, unless a limit is set."""
    house = House(goqueue={"max_deliveries": most})
    house.client("goqueue").push(work())
    for _ in range(2):
        client = house.client(worker)
        end_badly(client, client.lease("q"))
        house.pass_time(LONG)
    assert house.job().state == (DEAD if most else READY)


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_failed_workq_job_has_a_result(house, worker):
    """The words of whoever failed it, until its time to live is over."""
    pusher, client = house.client("workq"), house.client(worker)
    pusher.push(work(retries=0, most_attempts=1))
    end_badly(client, client.lease("q"))
    assert pusher.asks("result", uid(1)) == Result("result", uid(1), False, TELLS.get(worker, b""))
    house.pass_time(86_400)
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_failed_masenko_task_goes_to_its_dead_queue(house, worker):
    pusher, client = house.client("masenko"), house.client(worker)
    task = pusher.push(work(retries=0, dead_queue="dead"))
    end_badly(client, client.lease("q"))
    held = pusher.lease("dead")
    assert (held.id, held.payload, held.failures) == (task, b'["x",1]', 0)


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_what_waits_for_a_failed_masenko_task_fails_with_it(house, worker):
    pusher, client = house.client("masenko"), house.client(worker)
    task = pusher.push(work(retries=0))
    pusher.push(work(after=(task,), dead_queue="dead"))
    end_badly(client, client.lease("q"))
    assert pusher.lease("dead").id == "2"


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_faktory_job_that_is_not_to_be_retried(house, worker):
    """0 is discarded, -1 is dead at once."""
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
    end_badly(client, client.lease("q"))
    assert house.job().state == DEAD
    assert house.job().due == (1 << 63) - 1  # until somebody decides
    house.pass_time(365 * 86_400)
    assert house.job().state == DEAD


# Results


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_who_runs_a_job_gets_its_result(house, worker):
    """Workers of Workq, Qless and HTTP can say one; the others say that it succeeded."""
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(), house.now, 60))
    client.complete(client.lease("q"), RESULT)
    content = RESULT if worker in {"workq", "qless", "http"} else b""
    assert pusher.hears() == [Result("run", uid(1), True, content)]
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_a_result_that_nobody_made_is_empty(house, worker):
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(payload=b'{"a": 1}'), house.now, 60))
    held = client.lease("q")
    client.complete(held, b'{"a":1}' if worker == "qless" else b"")  # as its clients write it
    assert pusher.hears() == [Result("run", uid(1), True, b"")]


@pytest.mark.parametrize("worker", able("fail"))
def test_who_runs_a_job_is_told_of_its_failure(house, worker):
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(), house.now, 60))
    client.fail(client.lease("q"), "no luck")
    assert pusher.hears() == [Result("run", uid(1), False, TELLS.get(worker, b""))]
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
def test_who_runs_a_job_is_told_that_its_worker_was_lost(house, worker):
    pusher, client = house.client("workq"), house.client(worker)
    pusher.says(pusher.speaker.run(work(), house.now, 3600))
    lose(client, client.lease("q"))
    assert pusher.hears() == [Nothing("run", uid(1))]
    assert not house.engine.jobs


@pytest.mark.parametrize("worker", PROTOCOLS)
@pytest.mark.parametrize("pusher", PROTOCOLS)
def test_anybody_can_wait_for_the_end_of_any_job(house, pusher, worker):
    house.client(pusher).push(work())
    waiter, client = house.client("workq"), house.client(worker)
    job = shown(waiter, house.job())
    waiter.says(waiter.speaker.result(job, house.now, 60))
    client.complete(client.lease("q"), RESULT)
    says = worker in {"workq", "http"}
    says = says or (worker == "qless" and pusher != "qless")  # there it is the data
    content = RESULT if says else b""
    assert waiter.hears() == [Result("result", job, True, content)]
