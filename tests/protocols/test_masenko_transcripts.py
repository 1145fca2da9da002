"""The transcripts of the original (section 8 of the sheet) with the replies of Millrace. Where the
sheet differs, or the original is wrong, a comment has the original reply.
"""

from masenko_conversation import EMPTY, OK, PONG, Masenko, heard

PUSH = 'PUSH {"name":"a"}'


def test_ping():
    assert heard("PING") == PONG


def test_ping_with_crlf():
    # ERR {"msg":"unknown verb PING\r"}
    assert heard(b"PING\r\n") == PONG


def test_push_with_crlf():
    assert heard(b'PUSH {"name":"a"}\r\n') == b'OK {"id":1}\n'


def test_keys_in_any_case():
    with Masenko() as talk:
        client = talk.connect().says('PUSH {"NAME":"a","Queue":"Q"}').hears(b'OK {"id":1}\n')
        assert client.fetches("Q")["name"] == "a"


def test_an_empty_queue():
    # ERR {"msg":"invalid queue name \"\""}
    with Masenko() as talk:
        client = talk.connect().says('PUSH {"name":"a","queue":""}').hears(b'OK {"id":1}\n')
        assert client.fetches("default")["id"] == 1


def test_the_input_of_the_go_client():
    with Masenko() as talk:
        client = talk.connect()
        client.says(
            'PUSH {"name":"register-user","queue":"","deadqueue":"","payload":null,"retry":0}'
        )
        client.hears(b'OK {"id":1}\n').says('FETCH {"queues":["default"],"timeout":"4.999912s"}')
        client.hears(b'OK {"id":1,"queue":"default","name":"register-user","payload":null}\n')
        client.says("PING {}").hears(PONG).says('ACK {"id":1}').hears(OK)
        client.says("QUIT {}").hears(OK).hears_the_end()


def test_a_bad_deadqueue():
    reply = heard('PUSH {"name":"a","deadqueue":"!!!"}')
    assert reply == rb'ERR {"msg":"invalid queue name \"default\""}' + b"\n"


def test_a_bad_name():
    reply = heard('PUSH {"name":"<&>ż!"}')
    assert reply == rb'ERR {"msg":"invalid task name \"\u003c\u0026\u003e' + 'ż!\\""}\n'.encode()


def test_fetch_from_no_queue():
    assert heard('FETCH {"queues":[]}') == EMPTY


def test_fetch_with_a_number():
    with Masenko() as talk:
        client = talk.connect().says('FETCH {"queues":["x"],"timeout":30000000}').hears_nothing()
        talk.advance(0.03)
        client.hears(EMPTY)


def test_fetch_with_a_timeout_above_the_limit():
    assert heard('FETCH {"queues":["x"],"timeout":"1m"}') == (
        b'ERR {"msg":"timeout must be smaller than the heartbeat frequency 45s"}\n'
    )


def test_fetch_as_long_as_the_heartbeat():
    # ERR {"msg":"no heartbeat"}, and closed
    with Masenko(heartbeat=1_000_000) as talk:
        client = talk.connect().says('FETCH {"timeout":"1s"}')
        talk.advance(1)
        client.hears(EMPTY).is_still_there()


def test_transactions():
    assert heard("ATOMIC", "DONE") == OK
    assert heard("ATOMIC", PUSH, "DONE") == b'OK {"ids":[1]}\n'
    nested = b'ERR {"msg":"ATOMIC is not allowed in transaction."}\n'
    assert heard("ATOMIC", "ATOMIC", "DONE") == nested
    assert heard("DONE") == b'ERR {"msg":"unknown verb DONE"}\n'
    assert heard("ATOMIC", 'ACK {"id":55}', "DONE") == b'ERR {"msg":"task 55 not acquired"}\n'


def test_the_same_task_twice():
    # OK {}, and the server never started again
    with Masenko() as talk:
        client = talk.connect()
        client.pushes()
        client.fetches()
        client.commits('ACK {"id":1}', 'ACK {"id":1}').hears_error("task 1 not acquired")
        client.acks(1)


def test_the_specs_transaction():
    # INFO reported 4 ready, and initialize-account was delivered a second time
    with Masenko(dialect="original") as talk:
        client = talk.connect()
        client.commits(
            'PUSH {"name": "register-user"} ',
            'PUSH {"name": "notify-accounting"} ',
            'PUSH {"name": "initialize-account", "blocked_by": [-2]} ',
            'PUSH {"name": "send-password-reset-email", "blocked_by": [-1, -3]} ',
        ).hears(b'OK {"ids":[1,2,3,4]}\n')
        client.says("INFO").hears(
            b'OK {"queues":[{"name":"default","ready":2,"delayed":0,"to_ack":0}]}\n'
        )
        for task in (1, 2, 3, 4):
            assert client.fetches()["id"] == task
            client.acks(task)
        client.finds_nothing()


def test_a_client_that_disconnected_while_waiting():
    # OK {"id":1,...,"failures":1}
    with Masenko() as talk:
        closed, client = talk.connect(), talk.connect()
        closed.says('FETCH {"timeout":"20s"}').hangs_up()
        client.says(PUSH).hears(b'OK {"id":1}\n').says("FETCH")
        client.hears(b'OK {"id":1,"queue":"default","name":"a"}\n')


def test_a_lost_connection_uses_up_the_retries():
    with Masenko(dialect="original") as talk:
        closed, client = talk.connect(), talk.connect()
        client.pushes(retry=0)
        closed.fetches()
        closed.hangs_up()
        client.says("INFO").hears(b'OK {"queues":[]}\n')
        assert talk.dead == [1]


def test_a_payload():
    with Masenko() as talk:
        client = talk.connect()
        client.says('PUSH {"name":"a","payload": {"a": [1, 2.0, 1e400], "a": "dup",  "b": "<&>"}}')
        client.hears(b'OK {"id":1}\n').says("FETCH").hears(
            b'OK {"id":1,"queue":"default","name":"a",'
            rb'"payload":{"a":[1,2.0,1e400],"a":"dup","b":"\u003c\u0026\u003e"}}'
            b"\n"
        )
