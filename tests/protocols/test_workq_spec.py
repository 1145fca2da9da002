"""The examples of the description of the Workq protocol, in its order, byte for byte.
They are replayed literally, with the changes of the sheet: `+OK` always has its plus, the number of
keys is right, and the times are those of the test clock.
"""

from workq_conversation import OK, Workq

ID4 = b"6ba7b810-9dad-11d1-80b4-00c04fd430c4"
ADD = b"add %b ping 1000 60000 4 -priority=10 -max-attempts=3 -max-fails=1\r\npong\r\n" % ID4


def test_add():
    with Workq() as talk:
        talk.connect().says(ADD).hears(OK)
        job = talk.engine.find(ID4.decode())
        assert (job.queue, job.rank, job.max_attempts, job.retries) == ("ping", 10, 3, 1)
        assert (job.lease_duration, job.inline_payload) == (1_000_000, b"pong")
        assert job.expires_at == talk.now + 60_000_000


def test_schedule():
    # The example's time is 2016; with its TTL of two seconds it would be over.
    with Workq() as talk:
        client = talk.connect()
        client.says(
            b"schedule 6ba7b810-9dad-11d1-80b4-00c04fd430c7 ping 1000 2000 2016-06-14T06:46:46Z 4\r\npong\r\n"
        ).hears_client_error("Invalid Time")
        client.says(
            b"schedule 6ba7b810-9dad-11d1-80b4-00c04fd430c7 ping 1000 2000 2026-11-16T06:46:46Z 4\r\npong\r\n"
        ).hears(OK)


def test_run():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.says(b"run %b ping 1000 60000 4\r\nping\r\n" % ID4).hears_nothing()
        worker.says(b"lease ping1 ping 60000\r\n").hears(b"+OK 1\r\n%b ping 4\r\nping\r\n" % ID4)
        worker.says(b"complete %b 4\r\npong\r\n" % ID4).hears(OK)
        client.hears(b"+OK 1\r\n%b 1 4\r\npong\r\n" % ID4)


def test_result():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.says(ADD).hears(OK)
        client.says(b"result %b 60000\r\n" % ID4).hears_nothing()
        worker.says(b"complete %b 4\r\npong\r\n" % ID4).hears(OK)
        client.hears(b"+OK 1\r\n%b 1 4\r\npong\r\n" % ID4)


def test_lease():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        worker.says(b"lease ping1 ping2 ping3 60000\r\n").hears_nothing()
        client.says(b"add %b ping2 1000 60000 4\r\nping\r\n" % ID4).hears(OK)
        worker.hears(b"+OK 1\r\n%b ping2 4\r\nping\r\n" % ID4)


def test_complete():
    with Workq() as talk:
        client = talk.connect()
        client.says(ADD).hears(OK)
        client.says(b"complete %b 4\r\npong\r\n" % ID4).hears(OK)


def test_fail():
    with Workq() as talk:
        client = talk.connect()
        client.says(ADD).hears(OK)
        client.says(b"fail %b 4\r\noops\r\n" % ID4).hears(OK)
        client.says(b"result %b 0\r\n" % ID4).hears(b"+OK 1\r\n%b 0 4\r\noops\r\n" % ID4)


def test_delete():
    with Workq() as talk:
        client = talk.connect()
        client.says(ADD).hears(OK)
        client.says(b"delete %b\r\n" % ID4).hears(OK)
        client.says(b"delete %b\r\n" % ID4).hears_not_found()


def described(jid: bytes, ttl: int, created: str, time: str = "") -> bytes:
    lines = [
        f"{jid.decode()} {13 if time else 12}",
        "name ping",
        "ttr 1000",
        f"ttl {ttl}",
        "payload-size 4",
        "payload ping",
        "max-attempts 0",
        "attempts 0",
        "max-fails 0",
        "fails 0",
        "priority 0",
        "state 0",
        f"created {created}",
        *([f"time {time}"] if time else []),
    ]
    return "".join(f"{line}\r\n" for line in lines).encode()


def test_inspect_job():
    with Workq() as talk:
        client = talk.connect()
        client.says(b"add %b ping 1000 600000 4\r\nping\r\n" % ID4).hears(OK)
        client.says(b"inspect job %b\r\n" % ID4)
        client.hears(b"+OK 1\r\n", described(ID4, 600_000, "2026-11-15T19:43:51Z"))


def test_inspect_jobs():
    other = ID4[:-1] + b"6"
    with Workq() as talk:
        client = talk.connect()
        client.says(b"add %b ping 1000 60000 4\r\nping\r\n" % ID4).hears(OK)
        talk.advance(9)
        client.says(b"add %b ping 1000 60000 4\r\nping\r\n" % other).hears(OK)
        client.says(b"inspect jobs ping 0 10\r\n").hears(
            b"+OK 2\r\n",
            described(ID4, 60_000, "2026-11-15T19:43:51Z"),
            described(other, 60_000, "2026-11-15T19:44:00Z"),
        )


def test_inspect_scheduled_jobs():
    nine, eight = ID4[:-1] + b"9", ID4[:-1] + b"8"
    with Workq() as talk:
        client = talk.connect()
        for jid, time in ((eight, b"2026-12-01T19:00:00Z"), (nine, b"2026-12-01T18:00:00Z")):
            client.says(b"schedule %b ping 1000 60000 %b 4\r\nping\r\n" % (jid, time)).hears(OK)
        client.says(b"inspect scheduled-jobs ping 0 10\r\n").hears(
            b"+OK 2\r\n",
            described(nine, 60_000, "2026-11-15T19:43:51Z", "2026-12-01T18:00:00Z"),
            described(eight, 60_000, "2026-11-15T19:43:51Z", "2026-12-01T19:00:00Z"),
        )
        client.says(b"inspect jobs ping 0 10\r\n").hears(b"+OK 0\r\n")


def test_inspect_queue():
    with Workq() as talk:
        client = talk.connect()
        for number in range(3):
            client.adds(number)
        client.says(b"inspect queue ping\r\n")
        client.hears(b"+OK 1\r\nping 2\r\nready-len 3\r\nscheduled-len 0\r\n")


def test_inspect_queues():
    with Workq() as talk:
        client = talk.connect()
        for number in range(12):
            client.adds(number, name="ping1" if number < 3 else "ping2")
        client.says(b"inspect queues 0 10\r\n").hears(
            b"+OK 2\r\nping1 2\r\nready-len 3\r\nscheduled-len 0\r\n"
            b"ping2 2\r\nready-len 9\r\nscheduled-len 0\r\n"
        )


def test_inspect_server():
    with Workq() as talk:
        clients = [talk.connect() for _ in range(32)]
        clients[0].says(b"inspect server\r\n").hears(
            b"+OK 1\r\nserver 3\r\nactive-clients 32\r\nevicted-jobs 0\r\n"
            b"started 2026-11-15T19:43:51Z\r\n"
        )
