"""The commands and examples of the description of the Masenko protocol, in its order. They are
replayed literally, with one change from the sheet: every reply has its JSON.
"""

from conversation import START
from masenko_conversation import EMPTY, OK, PONG, Masenko


def test_ping():
    with Masenko() as talk:
        talk.connect().says("PING").hears(PONG)


def test_push_with_every_attribute():
    with Masenko() as talk:
        client = talk.connect()
        client.says('PUSH {"name":"first"}').hears(b'OK {"id":1}\n')
        client.says(
            'PUSH {"name":"register-user","queue":"users","deadqueue":"broken","payload":{"a":1},'
            '"retry":3,"execute_at":"2026-11-15T20:00:00Z","blocked_by":[1]}'
        ).hears(b'OK {"id":2}\n')
        job = talk.job(2)
        assert (job.kind, job.queue, job.inline_payload, job.retries) == (
            "register-user",
            "users",
            b'{"a":1}',
            3,
        )
        assert job.due_at == START + 969_000_000
        assert (job.extra.blockers, job.extra.dead_queue) == ([1], "broken")


def test_the_defaults_of_push():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes("register-user")
        job = talk.job(1)
        assert (job.queue, job.retries, job.inline_payload, job.extra) == ("default", 20, b"", None)


def test_fetch_from_the_first_queue_with_a_task():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes("a", queue="low", payload=[1])
        client.pushes("b", queue="high")
        client.says('FETCH {"queues":["high","low"],"timeout":"1s"}')
        client.hears(b'OK {"id":2,"queue":"high","name":"b"}\n')
        client.says('FETCH {"queues":["high","low"],"timeout":1000000000}')
        client.hears(b'OK {"id":1,"queue":"low","name":"a","payload":[1]}\n')


def test_fetch_without_a_task():
    with Masenko() as talk:
        client = talk.connect().says('FETCH {"queues":["default"],"timeout":"1s"}').hears_nothing()
        talk.advance(1)
        client.hears(EMPTY)


def test_the_timeout_is_half_of_the_heartbeat():
    with Masenko() as talk:
        client = talk.connect().says('FETCH {"queues":["default"]}')
        talk.advance(22.4)
        client.hears_nothing()
        talk.advance(0.1)
        client.hears(EMPTY)


def test_ack():
    with Masenko() as talk:
        client = talk.connect()
        task = client.pushes()
        client.fetches()
        client.says(f'ACK {{"id":{task}}}').hears(OK)
        assert talk.engine.jobs == {}


def test_nack_makes_a_task_available_again():
    with Masenko() as talk:
        client = talk.connect()
        task = client.pushes()
        client.fetches()
        client.says(f'NACK {{"id":{task}}}').hears(OK)
        client.finds_nothing()
        talk.advance(1)
        assert client.fetches() == {"id": task, "queue": "default", "name": "a", "failures": 1}


def test_nack_fails_blocked_tasks():
    with Masenko() as talk:
        client = talk.connect()
        first = client.pushes(retry=0)
        client.pushes(blocked_by=[first])
        client.fetches()
        client.nacks(first)
        assert talk.dead == [1, 2]


def test_info():
    with Masenko() as talk:
        client = talk.connect()
        client.pushes(queue="q")
        client.pushes(queue="q")
        client.pushes(queue="q", execute_at="2030-01-01T00:00:00Z")
        client.fetches("q")
        found = client.info()
        assert found["queues"] == [{"name": "q", "ready": 1, "delayed": 1, "to_ack": 1}]
        assert set(found) == {"queues", "metrics"}


def test_quit():
    with Masenko() as talk:
        talk.connect().says("QUIT {}").hears(OK).hears_the_end()


def test_atomic():
    with Masenko() as talk:
        client = talk.connect()
        task = client.pushes()
        client.fetches()
        client.says(
            b"ATOMIC \n"
            b'PUSH {"name": "register-user", "payload": {"name": "John", "admin": false}} \n'
            b'PUSH {"name": "send-email", "payload": {"to": "john@example.com", "subject": "Hello"}} \n'
            b'ACK {"id": %d} \n'
            b"DONE \n" % task
        ).hears(b'OK {"ids":[2,3]}\n')
        assert client.fetches()["payload"] == {"name": "John", "admin": False}
        assert client.fetches()["payload"] == {"to": "john@example.com", "subject": "Hello"}


def test_atomic_with_relative_positions():
    with Masenko() as talk:
        client = talk.connect()
        client.says(
            b"ATOMIC \n"
            b'PUSH {"name": "register-user"} \n'
            b'PUSH {"name": "notify-accounting"} \n'
            b'PUSH {"name": "initialize-account", "blocked_by": [-2]} \n'
            b'PUSH {"name": "send-password-reset-email", "blocked_by": [-1, -3]} \n'
            b"DONE \n"
        ).hears(b'OK {"ids":[1,2,3,4]}\n')
        assert client.queues() == {"default": (2, 0, 0)}
        assert client.fetches()["name"] == "register-user"
        assert client.fetches()["name"] == "notify-accounting"
        client.finds_nothing().acks(2).finds_nothing().acks(1)
        assert client.fetches()["name"] == "initialize-account"
        client.finds_nothing().acks(3)
        assert client.fetches()["name"] == "send-password-reset-email"
        client.acks(4).finds_nothing()
