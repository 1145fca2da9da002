"""The decisions (section 0) and facts (section 1) of the sheet, on the wire."""

import pytest
from workq_conversation import OK, START, TIMEOUT, Workq, uid

from millrace.engine.job import SECOND, NewJob
from millrace.engine.states import SCHEDULED
from millrace.protocols.registry import FAKTORY, GOQUEUE, HTTP, MASENKO

ID = uid(1)
BIG = 1_048_576
FUTURE = "2026-11-15T19:43:55Z"  # four seconds after the start


def error(text: str) -> bytes:
    return b"-CLIENT-ERROR %b\r\n" % text.encode()


ARGS = error("Invalid command args")
FLAGS = error("Invalid command flags")
UNKNOWN = error("Unknown command")
SIZE = error("Invalid payload size")


def heard(*said: bytes) -> bytes:
    """The replies to a new client; the other runs are also checked."""
    with Workq() as talk:
        client = talk.connect()
        for piece in said:
            client.says(piece)
        reply = bytes(client.wire.heard)
        client.hears(reply)
    return reply


def stays_open(*said: bytes) -> bytes:
    """Like `heard`, for a client with a connection that stays open."""
    with Workq() as talk:
        client = talk.connect()
        for piece in said:
            client.says(piece)
        reply = bytes(client.wire.heard)
        client.hears(reply).says(b"lease still-there 0\r\n").hears(TIMEOUT).is_still_there()
    return reply


# 0. Decisions


def test_d1_the_lease_line_of_the_spec():
    with Workq() as talk:
        talk.connect().adds(1).leases().hears(b"+OK 1\r\n%b ping 4\r\npong\r\n" % ID)


def test_d1_the_lease_line_of_the_original():
    with Workq(dialect="original") as talk:
        client, other = talk.connect(), talk.connect()
        client.adds(1).leases().hears(b"+OK 1\r\n%b ping 1000 4\r\npong\r\n" % ID)
        client.leases(wait=100)
        other.adds(2, ttr=7)
        client.hears(b"+OK 1\r\n%b ping 7 4\r\npong\r\n" % uid(2))


@pytest.mark.parametrize("flags", ["", "-max-fails=0", "-max-fails=1"])
def test_d2_the_first_fail_is_final(flags):
    with Workq() as talk:
        client = talk.connect().adds(1, flags).leases().hears_job(1)
        client.fails_job(1, b"err").hears_ok().asks_result(1).hears_result(
            1, succeeded=False, result=b"err"
        )
        assert client.state_of(1) == "2"
        client.leases().hears_timeout()


def test_d2_the_nth_fail_is_final_and_earlier_ones_keep_the_position():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-fails=3").adds(2)
        for count in (1, 2):
            client.leases().hears_job(1).fails_job(1, b"not yet").hears_ok()
            seen = client.inspects(1)
            assert (seen["state"], seen["fails"], seen["attempts"]) == ("3", str(count), str(count))
            client.asks_result(1).hears_timeout()
        client.leases().hears_job(1).fails_job(1, b"err").hears_ok()
        client.asks_result(1).hears_result(1, succeeded=False, result=b"err")
        assert client.inspects(1)["fails"] == "3"
        client.leases().hears_job(2)


def test_d2_a_fail_that_is_not_the_last_wakes_no_waiter():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.adds(1, "-max-fails=2").asks_result(1, wait=1000)
        worker.fails_job(1, b"one").hears_ok()
        client.hears_nothing()
        worker.fails_job(1, b"two").hears_ok()
        client.hears_result(1, succeeded=False, result=b"two")


def test_d2_a_fail_at_the_last_attempt_is_final():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-fails=9 -max-attempts=2")
        client.leases().hears_job(1).fails_job(1).hears_ok()
        client.leases().hears_job(1).fails_job(1, b"last").hears_ok()
        client.asks_result(1).hears_result(1, succeeded=False, result=b"last")


@pytest.mark.parametrize("ttl", [2_592_000_001, 2**64 - 1])
def test_d3_ttl_up_to_64_bits(ttl):
    with Workq() as talk:
        client = talk.connect().adds(1, ttl=ttl)
        assert client.inspects(1)["ttl"] == str(ttl)
        talk.advance(2_592_000)
        client.leases().hears_job(1)


def test_d3_ttl_beyond_64_bits_is_refused():
    assert stays_open(b"add %b ping 1 %d 0\r\n\r\n" % (ID, 2**64)) == error("Invalid TTL")
    assert stays_open(
        b"schedule %b ping 1 %d %b 0\r\n\r\n" % (ID, 2**64, FUTURE.encode())
    ) == error("Invalid TTL")


@pytest.mark.parametrize("priority", [-(2**31), 2**31 - 1, 0, 5])
def test_d4_priority_of_add(priority):
    with Workq() as talk:
        client = talk.connect().adds(1, f"-priority={priority}")
        assert client.inspects(1)["priority"] == str(priority)


@pytest.mark.parametrize("priority", [-(2**31), 2**32 - 1])
def test_d4_priority_of_schedule_and_run(priority):
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.schedules(1, FUTURE, f"-priority={priority}")
        assert client.inspects(1)["priority"] == str(priority)
        other.says(b"run %b ping 1000 1000 0 -priority=%d\r\n\r\n" % (uid(2), priority))
        assert client.inspects(2)["priority"] == str(priority)
        other.hangs_up()


@pytest.mark.parametrize(
    "priority",
    ["2147483648", "-2147483649", "x", "1.5", "0x1", "1_0", "--1", "+", "99999999999999999999"],
)
def test_d4_bad_priorities_of_add(priority):
    assert stays_open(
        f"add {ID.decode()} ping 1 1 0 -priority={priority}\r\n\r\n".encode()
    ) == error("Invalid Priority")


def test_d4_bad_priorities_of_schedule_and_run():
    for value in (b"4294967296", b"-2147483649"):
        assert stays_open(
            b"schedule %b ping 1 1 %b 0 -priority=%b\r\n\r\n" % (ID, FUTURE.encode(), value)
        ) == error("Invalid Priority")
        assert stays_open(b"run %b ping 1 1 0 -priority=%b\r\n\r\n" % (ID, value)) == error(
            "Invalid Priority"
        )


def test_d4_higher_first():
    with Workq() as talk:
        client = talk.connect()
        for number, priority in enumerate((0, 5, -3, 0, 5), 1):
            client.adds(number, f"-priority={priority}")
        for number in (2, 5, 1, 4, 3):
            client.leases().hears_job(number)


def test_d5_unlimited_attempts_are_more_than_255():
    with Workq() as talk:
        client = talk.connect().adds(1, ttr=1, ttl=10_000)
        for _ in range(300):
            client.leases().hears_job(1)
            talk.pass_ms(1)
        assert client.inspects(1)["attempts"] == "300"


@pytest.mark.parametrize("jid", [
    b"6ba7b810-9dad-11d1-80b4-00c04fd430c4",
    b"6BA7B810-9DAD-11D1-80B4-00C04FD430C4",
    b"00000000-0000-0000-0000-000000000000",
])  # fmt: skip
def test_d6_any_well_formed_uuid(jid):
    with Workq() as talk:
        client = talk.connect()
        client.says(b"add %b ping 1 1000 0\r\n\r\n" % jid).hears(OK)
        client.says(b"lease ping 0\r\n").hears(b"+OK 1\r\n%b ping 0\r\n\r\n" % jid.lower())
        client.says(b"complete %b 0\r\n\r\n" % jid.swapcase()).hears(OK)
        client.says(b"result %b 0\r\n" % jid).hears(b"+OK 1\r\n%b 1 0\r\n\r\n" % jid.lower())


@pytest.mark.parametrize("jid", [
    b"{6ba7b810-9dad-11d1-80b4-00c04fd430c4}",
    b"urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c4",
    b"urn:uuid:",
    b"6ba7b8109dad11d180b400c04fd430c4",
    b"6ba7b810-9dad-11d1-80b4-00c04fd430c4x",
    b"6ba7b810-9dad-11d1-80b4-00c04fd430c",
    b"6ba7b810-9dad-11d1-80b4-00c04fd430cg",
    b"6ba7b8109-dad-11d1-80b4-00c04fd430c4",
    b"x", b"\xff" * 36, b"6ba7b810-9dad-11d1-80b4-00c04fd430\r4", b"6ba7b810-9dad-11d1-80b4-00c04fd430\x004",
])  # fmt: skip
def test_d6_malformed_uuids_are_refused(jid):
    bad = error("Invalid ID")
    assert stays_open(b"add %b ping 1 1000 0\r\n\r\n" % jid) == bad
    assert stays_open(b"run %b ping 1 1000 0\r\n\r\n" % jid) == bad
    assert stays_open(b"schedule %b ping 1 1 %b 0\r\n\r\n" % (jid, FUTURE.encode())) == bad
    for line in (
        b"complete %b 0\r\n\r\n",
        b"fail %b 0\r\n\r\n",
        b"result %b 0\r\n",
        b"delete %b\r\n",
        b"inspect job %b\r\n",
    ):
        assert stays_open(line % jid) == bad


def test_d7_inspect_server_has_three_keys():
    assert b"\r\nserver 3\r\n" in heard(b"inspect server\r\n")


def test_d10_the_end_of_ttr_ends_a_run():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.runs(1, ttr=300, wait=60_000)
        worker.leases().hears_job(1)
        talk.pass_ms(299)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()
        worker.completes(1).hears_not_found().leases().hears_timeout()


def test_d11_all_waiters_receive_the_result():
    with Workq() as talk:
        clients = [talk.connect() for _ in range(5)]
        clients[0].adds(1)
        for client in clients[:4]:
            client.asks_result(1, wait=1000)
        clients[4].completes(1).hears_ok()
        for client in clients[:4]:
            client.hears_result(1)


def test_d12_a_random_name_with_a_ready_job_is_chosen():
    with Workq() as talk:
        client = (
            talk.connect()
            .adds(1, name="b")
            .adds(2, name="d")
            .adds(3, name="d", flags="-priority=9")
        )
        talk.acts(lambda world: setattr(world.dice, "throw", 1))
        client.leases("a", "b", "c", "d").hears_job(3, "d")  # the second of b and d
        talk.acts(lambda world: setattr(world.dice, "throw", 0))
        client.leases("a", "b", "b", "c", "d").hears_job(1, "b")
        client.leases("a", "b", "c", "d").hears_job(2, "d")


def test_d13_delete_of_an_unknown_id():
    assert stays_open(b"delete 6ba7b810-9dad-11d1-80b4-00c04fd430c4\r\n") == b"-NOT-FOUND\r\n"


def test_d14_lease_0_returns_a_ready_job():
    with Workq() as talk:
        client = talk.connect()
        for number in range(1, 50):
            client.adds(number).leases().hears_job(number).leases().hears_timeout()


# 1.2 Framing and connection life


@pytest.mark.parametrize("line", [b"lease q 10\n", b"\n", b"x\n", b"add\n"])
def test_lf_without_cr_closes_without_a_reply(line):
    with Workq() as talk:
        talk.connect().says(b"lease q 0\r\n").hears(TIMEOUT).says(
            line + b"lease q 0\r\n"
        ).hears_the_end()


@pytest.mark.parametrize("line", [
    b"", b"foo", b"ADD", b"Lease q 0", b" lease q 0", b" ", b"inspect SERVER", b"inspect foo 1 2 3", b"inspect foo -a=b",
    b"lease\tq 0", b"\r", b"\x00", b"\xff\xfe", b"x" * 20_000, b"foo -x=1",
])  # fmt: skip
def test_unknown_commands(line):
    assert stays_open(line + b"\r\n") == UNKNOWN


def test_runs_of_spaces_collapse():
    assert stays_open(b"lease   q  0   \r\n") == TIMEOUT
    assert stays_open(b"add  %b  ping 1   1000  4  \r\npong\r\n" % ID) == OK


def test_tab_cr_and_nul_are_not_separators():
    for name in (b"a\tb", b"a\rb", b"a\x00b"):
        assert stays_open(b"lease %b 0\r\n" % name) == error("Invalid Name")


def test_a_lease_of_3000_names():
    with Workq() as talk:
        client = talk.connect().adds(1, name="n2999")
        client.leases(*[f"n{number}" for number in range(3000)]).hears_job(1, "n2999")


def test_a_line_beyond_the_limit_closes_without_a_reply():
    with Workq() as talk:
        client = talk.connect().says(b"lease q 0\r\n").hears(TIMEOUT)
        client.says(b"x" * 1_058_577).hears_the_end()
        client = talk.connect().says(b"x" * 1_058_577 + b"\r\nlease q 0\r\n").hears_the_end()
        talk.connect().says(b"x" * 1_058_575 + b"\r\n").hears(UNKNOWN)


def test_commands_of_one_connection_run_in_sequence():
    with Workq() as talk:
        client = talk.connect()
        client.says(
            b"lease q 100\r\nadd %b q 1000 1000 1\r\nx\r\nlease q 0\r\n" % ID
        ).hears_nothing()
        talk.pass_ms(100)
        client.hears(TIMEOUT, OK, b"+OK 1\r\n%b q 1\r\nx\r\n" % ID)


def test_a_half_closed_client_receives_all_replies():
    with Workq() as talk:
        client = talk.connect()
        client.says(b"add %b q 1000 1000 1\r\nx\r\nlease q 0\r\nfoo\r\nlease q" % ID)
        client.hears(OK, b"+OK 1\r\n%b q 1\r\nx\r\n" % ID, UNKNOWN)
        client.says_no_more().hears_the_end()


def test_after_a_half_close_leases_wait():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.says(b"lease a 60000\r\nlease b 60000\r\n").says_no_more().hears_nothing()
        talk.pass_ms(60_000)
        client.hears(TIMEOUT)
        other.says(b"add %b b 1000 1000 1\r\nx\r\n" % ID).hears_ok()
        client.hears(b"+OK 1\r\n%b b 1\r\nx\r\n" % ID).hears_the_end()


@pytest.mark.parametrize("block", [b"xy", b"xy\r", b"x\n"])
def test_a_size_below_the_payload_is_refused_immediately(block):
    """With a size of 1 the second byte must be a CR."""
    with Workq() as talk:
        client = talk.connect().says(b"add %b q 1000 1000 1\r\n" % ID + block)
        client.hears(SIZE).hears_the_end()


def test_an_incomplete_block_is_awaited():
    with Workq() as talk:
        client = talk.connect().says(b"add %b q 1000 1000 1\r\nx" % ID).hears_nothing()
        client.says(b"\r").hears_nothing().says(b"\n").hears_ok()


def test_the_backlog_excludes_incomplete_commands():
    with Workq() as talk:
        client = talk.connect()
        client.says(b"lease a 1000\r\n").says(b"foo\r\n" * 1000)
        assert client.connection.unprocessed_bytes == 5000
        talk.pass_ms(1000)
        client.hears(TIMEOUT, UNKNOWN * 1000)
        assert client.connection.unprocessed_bytes == 0
        client.says(b"add %b q 1000 1000 100000\r\n" % ID).says(b"x" * 99_000)
        assert client.connection.unprocessed_bytes == 1
        client.says(b"x" * 1000 + b"\r\n").hears_ok()


def test_a_queue_name_that_is_invalid_in_workq_is_escaped():
    with Workq() as talk:
        talk.acts(
            lambda world: world.engine.push(
                NewJob("", "", b"", GOQUEUE, "a b\r\n%", 0, 1_000_000), world.now
            )
        )
        shown = b"a%20b%0D%0A%25"
        client = talk.connect()
        client.says(b"inspect queues 0 10\r\n").hears(
            b"+OK 1\r\n%b 2\r\nready-len 1\r\nscheduled-len 0\r\n" % shown
        )
        client.says(b"inspect job 00000000-0000-4000-8000-000000000001\r\n")
        client.hears(b"+OK 1\r\n00000000-0000-4000-8000-000000000001 12\r\nname %b\r\n" % shown)
        client.hears(bytes(client.wire.heard[client._taken :]))  # the rest is standard


def test_half_close_while_waiting_for_a_result():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.adds(1).says(b"result %b 5000\r\nlease ping 0\r\n" % ID).says_no_more()
        client.hears_nothing().is_still_there()
        worker.completes(1).hears_ok()
        client.hears_result(1).hears(TIMEOUT).hears_the_end()


def test_eof_inside_a_payload():
    with Workq() as talk:
        talk.connect().says(b"add %b q 1 1 10\r\nabc" % ID).says_no_more().hears(
            SIZE
        ).hears_the_end()
        talk.connect().says(b"complete %b 10\r\nabcdefghij\r" % ID).says_no_more().hears(
            SIZE
        ).hears_the_end()
        talk.connect().says(b"fail %b 10\r\n" % ID).says_no_more().hears(
            error("Invalid result size")
        ).hears_the_end()


def test_eof_inside_a_line():
    with Workq() as talk:
        talk.connect().says(b"add 123").says_no_more().hears_the_end()


def test_the_end_of_a_connection_ends_a_wait_for_a_job():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.leases("ping", "pong", wait=5000).says_no_more().hears_nothing().hangs_up()
        other.adds(1)
        assert other.inspects(1)["attempts"] == "0"
        other.says(b"inspect server\r\n")
        other.hears(
            b"+OK 1\r\nserver 3\r\nactive-clients 1\r\nevicted-jobs 0\r\nstarted 2026-11-15T19:43:51Z\r\n"
        )


def test_a_block_and_its_crlf_are_one_reply():
    with Workq() as talk:
        client = (
            talk.connect().adds(1, payload=b"x" * 5000).leases().hears_job(1, payload=b"x" * 5000)
        )
        client.completes(1, b"y" * 5000).hears_ok().asks_result(1).hears_result(
            1, result=b"y" * 5000
        )
        assert client.wire.replies[1].endswith(b"x\r\n")
        assert client.wire.replies[3].endswith(b"y\r\n")


# 1.3 Payloads after errors


REFUSED = [
    (b"add %b ping 1 1 4 -x=\r\n", FLAGS),
    (b"add %b ping 1 1 4 -a=1 -a=1\r\n", FLAGS),
    (b"add %b ping 1 1 4 5\r\n", ARGS),
    (b"add %b ping 1 1 4 -a=1 -b=1 -c=1 -d=1\r\n", ARGS),
    (b"add %b ping 0 1 4\r\n", error("Invalid TTR")),
    (b"add %b p*ng 1 1 4\r\n", error("Invalid Name")),
    (b"schedule %b ping 1 1 2016-06-14T06:46:46Z 4\r\n", error("Invalid Time")),
    (b"schedule %b ping 1 1 2016-06-14T06:46:46Z 4 more\r\n", ARGS),
    (b"run %b ping 1 x 4\r\n", error("Invalid wait timeout")),
    (b"run %b ping 1 1 4 -a=1 -b=1\r\n", ARGS),
    (b"complete %b 4\r\n", b"-NOT-FOUND\r\n"),
    (b"complete %b 4 4\r\n", ARGS),
    (b"complete %b 4 -a=1\r\n", ARGS),
    (b"fail %b 4 -a=1\r\n", ARGS),
    (b"fail %b 4\r\n", b"-NOT-FOUND\r\n"),
]


@pytest.mark.parametrize(("line", "reply"), REFUSED)
def test_a_refused_command_has_one_reply_and_its_payload_is_skipped(line, reply):
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        other.adds(7)
        client.says(line % ID + b"\r\nxx\r\n").hears(reply).is_still_there()
        assert client.state_of(7) == "0"


def test_an_oversized_payload_is_skipped():
    for size in (BIG + 1, 2_000_000):
        assert stays_open(b"add %b ping 1 1 %d\r\n" % (ID, size) + b"x" * size + b"\r\n") == SIZE
    payload = b"\r\ndelete %b\r\n" % uid(7) * 23_000
    with Workq() as talk:
        client = talk.connect().adds(7)
        client.says(b"complete %b %d\r\n%b\r\n" % (ID, len(payload), payload)).hears(SIZE)
        client.says(b"fail %b %d\r\n%b\r\n" % (ID, len(payload), payload)).hears(
            error("Invalid result size")
        )
        assert client.state_of(7) == "0"


@pytest.mark.parametrize(
    "size",
    [b"x", b"-1", b"1.5", b"0x4", b"1_0", b"", b"99999999999999999999", b"67108865", b"9" * 5000],
)
def test_an_invalid_size_closes(size):
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        other.adds(7)
        said = b"add %b ping 1 1 %b\r\ndelete %b\r\n" % (ID, size, uid(7))
        client.says(said).hears(SIZE if size else ARGS).hears_the_end()
        assert other.state_of(7) == "0"


@pytest.mark.parametrize(
    "line",
    [
        b"add\r\n",
        b"add %b ping 1 60000\r\n",
        b"complete\r\n",
        b"fail %b\r\n",
        b"run %b\r\n",
        b"schedule x\r\n",
    ],
)
def test_a_missing_size_closes(line):
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        other.adds(7)
        line = line.replace(b"%b", ID)
        client.says(line + b"delete %b\r\n" % uid(7)).hears(ARGS).hears_the_end()
        assert other.state_of(7) == "0"


@pytest.mark.parametrize(
    "line", [b"add %b ping 1 1 3\r\n", b"complete %b 3\r\n", b"add %b ping 1 1 3 -x=\r\n"]
)
def test_a_payload_longer_than_its_size_closes(line):
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        other.adds(7)
        reply = FLAGS if b"-x=" in line else SIZE
        client.says(line % ID + b"abcdef\r\ndelete %b\r\n" % uid(7)).hears(reply).hears_the_end()
        assert other.state_of(7) == "0"


@pytest.mark.parametrize("size", [b"+4", b"04", b"0000000000000000000000000000004"])
def test_sizes_may_have_a_plus_and_zeros(size):
    assert stays_open(b"add %b ping 1 1 %b\r\npong\r\n" % (ID, size)) == OK


@pytest.mark.parametrize("total", [4095, 4096, 4097, 4098, 8192, 8193, 8194])
def test_messages_around_the_buffer_size_of_the_original(total):
    head = b"add %b ping 1000 60000 %d\r\n" % (ID, 4000)
    payload = b"x" * (total - len(head) - 2)
    with Workq() as talk:
        client = talk.connect().adds(1, payload=payload, ttr=1000, ttl=60_000)
        client.leases().hears_job(1, payload=payload)


# 1.4 Errors


@pytest.mark.parametrize("line", [
    b"lease", b"lease q", b"lease 0", b"lease q 0 -a=b", b"delete", b"delete %b %b", b"delete %b -a=b", b"result %b", b"result",
    b"result %b 0 0", b"result %b 0 -a=b", b"inspect", b"inspect -a=b", b"inspect server x", b"inspect server -a=b", b"inspect queue",
    b"inspect queue a b", b"inspect queue a -a=b", b"inspect queues", b"inspect queues 0", b"inspect queues 0 1 2", b"inspect queues 0 1 -a=b",
    b"inspect jobs", b"inspect jobs q 0", b"inspect jobs q 0 1 2", b"inspect jobs q 0 1 -a=b", b"inspect scheduled-jobs q 0",
    b"inspect job", b"inspect job %b x", b"inspect job %b -a=b", b"delete -x %b",
])  # fmt: skip
def test_wrong_counts(line):
    assert stays_open(line.replace(b"%b", ID) + b"\r\n") == ARGS


@pytest.mark.parametrize(
    "line",
    [
        b"foo -x=",
        b"foo -=v",
        b"lease q 0 -a=1 -a=2",
        b"inspect server -x=",
        b"delete -==",
        b"lease -a==1 q 0",
        b" -x=",
        b"-x= add",
        b"-=",
        b"-x=1 -x=2",
    ],
)
def test_bad_flags_are_checked_first(line):
    assert stays_open(line + b"\r\n") == FLAGS


def test_a_flag_without_a_value_is_an_argument():
    assert stays_open(b"lease -x 0\r\n") == TIMEOUT
    assert stays_open(b"add %b -x 1 1000 4\r\npong\r\n" % ID) == OK


def test_flags_can_be_anywhere_after_the_name():
    with Workq() as talk:
        client = talk.connect()
        client.says(
            b"add -priority=7 %b -max-attempts=2 ping 1000 1000 -max-fails=3 0\r\n\r\n" % ID
        ).hears(OK)
        seen = client.inspects(1)
        assert (seen["priority"], seen["max-attempts"], seen["max-fails"]) == ("7", "2", "3")


def test_unknown_flags_are_accepted_and_a_second_equals_sign_is_ignored():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.adds(1, "-what=ever -priority=1=2 -other=x")
        assert client.inspects(1)["priority"] == "1"
        other.says(b"run %b ping 1000 1000 0 -max-attempts=3\r\n\r\n" % uid(2))
        assert client.inspects(2)["max-attempts"] == "0"
        other.hangs_up()


@pytest.mark.parametrize(("line", "text"), [
    (b"add %b ping x 1 0", "TTR"), (b"add %b ping 0 1 0", "TTR"), (b"add %b ping 86400001 1 0", "TTR"), (b"add %b ping +1 1 0", "TTR"),
    (b"add %b ping 1_0 1 0", "TTR"), (b"add %b ping 0x1 1 0", "TTR"), (b"add %b ping -1 1 0", "TTR"), (b"add %b ping 1 0 0", "TTL"),
    (b"add %b ping 1 x 0", "TTL"), (b"add %b ping 1 -1 0", "TTL"), (b"add %b p*ng 1 1 0", "Name"), (b"add %b \xc3\xa9 1 1 0", "Name"),
    (b"add %b ping 1 1 0 -max-attempts=256", "Max Attempts"), (b"add %b ping 1 1 0 -max-attempts=-1", "Max Attempts"),
    (b"add %b ping 1 1 0 -max-fails=256", "Max Fails"), (b"add %b ping 1 1 0 -max-fails=x", "Max Fails"),
    (b"add %b " + b"n" * 256 + b" 1 1 0", "Name"), (b"run %b p*ng 1 1 0", "Name"), (b"run %b ping 0 1 0", "TTR"),
])  # fmt: skip
def test_bad_fields(line, text):
    assert stays_open(line.replace(b"%b", ID) + b"\r\n\r\n") == error(f"Invalid {text}")


def test_names_of_255_bytes_and_of_every_character():
    assert stays_open(b"add %b %b 86400000 1000 0\r\n\r\n" % (ID, b"n" * 255)) == OK
    assert stays_open(b"add %b aZ09_-. 00001 1000 0\r\n\r\n" % ID) == OK


@pytest.mark.parametrize(
    "wait", [b"x", b"-1", b"+1", b"86400001", b"1.5", b"99999999999999999999999"]
)
def test_bad_wait_timeouts(wait):
    bad = error("Invalid wait timeout")
    assert stays_open(b"lease q %b\r\n" % wait) == bad
    assert stays_open(b"result %b %b\r\n" % (ID, wait)) == bad
    assert stays_open(b"run %b q 1 %b 0\r\n\r\n" % (ID, wait)) == bad


def test_the_longest_wait():
    with Workq() as talk:
        client = talk.connect().leases(wait=86_400_000)
        talk.advance(86_399.999)
        client.hears_nothing()
        talk.pass_ms(1)
        client.hears_timeout()


@pytest.mark.parametrize("command_args", [b"queues", b"jobs q", b"scheduled-jobs q"])
def test_bad_cursors_and_limits(command_args):
    for offset in (b"x", b"-1", b"4294967296"):
        assert stays_open(b"inspect %b %b 1\r\n" % (command_args, offset)) == error(
            "Invalid cursor offset"
        )
    for limit in (b"x", b"0", b"101", b"-1", b"99999"):
        assert stays_open(b"inspect %b 0 %b\r\n" % (command_args, limit)) == error("Invalid limit")


@pytest.mark.parametrize("time", [
    b"2026-11-15", b"2026-11-15T24:00:00Z", b"2026-11-15T23:60:00Z", b"2026-12-31T23:59:60Z", b"2027-02-30T00:00:00Z", b"x",
    b"2027-01-01T00:00:00+00:00", b"2027-01-01T00:00:00", b"2027-01-01t00:00:00Z", b"2027-01-01T00:00:00z", b"27-01-01T00:00:00Z",
    b"2027-01-01T00:00:00.Z", b"2027-13-01T00:00:00Z", b"2026-11-15T19:43:50Z",
])  # fmt: skip
def test_bad_times(time):
    assert stays_open(b"schedule %b ping 1 1000 %b 0\r\n\r\n" % (ID, time)) == error("Invalid Time")


@pytest.mark.parametrize(
    "time", ["2027-01-01T00:00:00.5Z", "2027-01-01T00:00:00,5Z", "9999-12-31T23:59:59Z"]
)
def test_good_times(time):
    with Workq() as talk:
        client = talk.connect().schedules(1, time)
        assert client.inspects(1)["time"] == time[:19] + "Z"


def test_a_duplicate_is_refused_in_any_state_and_under_any_name():
    duplicate = "Duplicate job"
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()

        def is_refused() -> None:
            client.says(b"add %b other 1 1 4\r\npong\r\n" % ID.upper()).hears_client_error(
                duplicate
            )
            client.says(b"run %b other 1 1 4\r\npong\r\n" % ID).hears_client_error(duplicate)
            client.says(
                b"schedule %b o 1 1 %b 4\r\npong\r\n" % (ID, FUTURE.encode())
            ).hears_client_error(duplicate)

        client.adds(1)
        is_refused()
        client.leases().hears_job(1)
        is_refused()
        client.completes(1).hears_ok()
        is_refused()
        client.deletes(1).hears_ok().schedules(1, FUTURE)
        is_refused()
        client.fails_job(1).hears_ok()
        is_refused()
        client.deletes(1).hears_ok()
        other.runs(1)
        is_refused()
        other.hangs_up()
        client.adds(1)


def test_a_duplicate_result():
    with Workq() as talk:
        client = talk.connect().adds(1).completes(1).hears_ok()
        client.completes(1).hears_client_error("Duplicate result").fails_job(1).hears_client_error(
            "Duplicate result"
        )
        client.adds(2).fails_job(2).hears_ok()
        client.completes(2).hears_client_error("Duplicate result").fails_job(2).hears_client_error(
            "Duplicate result"
        )
        client.asks_result(1).hears_result(1)


@pytest.mark.parametrize(("line", "reply"), [
    (b"add %b * x x 0\r\n\r\n", error("Invalid TTR")),
    (b"add %b * 0 x 0\r\n\r\n", error("Invalid TTL")),
    (b"add %b * 0 0 0\r\n\r\n", error("Invalid Name")),
    (b"add bad * x x 0\r\n\r\n", error("Invalid ID")),
    (b"add bad * x x 0 -a=1 -b=1 -c=1 -d=1\r\n\r\n", ARGS),
    (b"add %b * 0 0 0 -max-attempts=x -max-fails=x -priority=x\r\n\r\n", error("Invalid Max Attempts")),
    (b"add %b * 0 0 0 -max-fails=x -priority=x\r\n\r\n", error("Invalid Max Fails")),
    (b"add %b * 0 0 0 -priority=x\r\n\r\n", error("Invalid Priority")),
    (b"add %b ping 0 0 0\r\n\r\n", error("Invalid TTR")),
    (b"run %b * 0 x 0\r\n\r\n", error("Invalid wait timeout")),
    (b"run %b * x x 0\r\n\r\n", error("Invalid TTR")),
    (b"run %b * 0 x 0 -priority=x\r\n\r\n", error("Invalid Priority")),
    (b"run %b * 0 0 0\r\n\r\n", error("Invalid Name")),
    (b"schedule %b * 0 0 x 0 -priority=x\r\n\r\n", error("Invalid Time")),
    (b"schedule %b * 0 0 2027-01-01T00:00:00Z 0 -priority=x\r\n\r\n", error("Invalid Priority")),
    (b"schedule %b * 0 0 2027-01-01T00:00:00Z 0\r\n\r\n", error("Invalid Name")),
    (b"lease * x\r\n", error("Invalid wait timeout")),
    (b"lease good * 0\r\n", error("Invalid Name")),
    (b"result bad x\r\n", error("Invalid ID")),
    (b"inspect jobs * x x\r\n", error("Invalid Name")),
    (b"inspect jobs q x x\r\n", error("Invalid cursor offset")),
    (b"inspect queue *\r\n", error("Invalid Name")),
])  # fmt: skip
def test_the_order_of_checks(line, reply):
    assert stays_open(line.replace(b"%b", ID)) == reply


# 1.5 and 1.6 The life of a job


@pytest.mark.parametrize("payload", [b"", b"\r\n", b"a\r\nb\r\n", bytes(range(256)), b"x" * BIG])
def test_any_bytes_up_to_a_mebibyte(payload):
    with Workq() as talk:
        client = talk.connect().adds(1, payload=payload).leases().hears_job(1, payload=payload)
        client.completes(1, payload).hears_ok().asks_result(1).hears_result(1, result=payload)


def test_complete_and_fail_need_no_lease():
    with Workq() as talk:
        client = talk.connect().adds(1).adds(2).schedules(3, FUTURE).schedules(4, FUTURE)
        client.completes(1).hears_ok().fails_job(2).hears_ok().completes(3).hears_ok().fails_job(
            4
        ).hears_ok()
        client.says(b"inspect queue ping\r\n").hears(
            b"+OK 1\r\nping 2\r\nready-len 0\r\nscheduled-len 0\r\n"
        )
        assert [client.state_of(number) for number in (1, 2, 3, 4)] == ["1", "2", "1", "2"]
        talk.advance(5)
        client.leases().hears_timeout()
        assert [client.state_of(number) for number in (1, 2, 3, 4)] == ["1", "2", "1", "2"]


def test_a_nonfinal_fail_of_a_scheduled_job_keeps_it_scheduled():
    with Workq() as talk:
        client = talk.connect().schedules(1, FUTURE, "-max-fails=2").fails_job(1).hears_ok()
        assert client.state_of(1) == "3"
        client.leases().hears_timeout()
        talk.advance(4)
        client.leases().hears_job(1).fails_job(1, b"end").hears_ok()
        client.asks_result(1).hears_result(1, succeeded=False, result=b"end")
        assert talk.engine.retrying == 0


@pytest.mark.parametrize("origin", [MASENKO, FAKTORY, HTTP, GOQUEUE])
def test_a_fail_of_a_scheduled_job_of_another_protocol_keeps_its_due_time(origin):
    alias = b"00000000-0000-4000-8000-000000000001"
    with Workq() as talk:
        client = talk.connect()
        due = talk.now + 3600 * SECOND
        push = NewJob("", "x", b"1", origin, "ping", 9, 60 * SECOND, due_at=due)
        talk.acts(lambda world: world.engine.push(push, world.now))
        client.says(b"fail %b 4\r\noops\r\n" % alias).hears(OK)
        job = talk.engine.jobs[1]
        assert (job.state, job.due_at, job.failures) == (SCHEDULED, due, 1)
        talk.advance(3599)
        client.leases().hears_timeout()
        talk.advance(1)
        client.says(b"lease ping 0\r\n").hears(b"+OK 1\r\n%b ping 1\r\n1\r\n" % alias)


def test_a_result_from_another_connection_after_the_lease_expired():
    with Workq() as talk:
        worker, late, client = talk.connect(), talk.connect(), talk.connect()
        client.adds(1, ttr=100)
        late.leases().hears_job(1)
        talk.pass_ms(100)
        worker.leases().hears_job(1)
        client.completes(1, b"late").hears_ok()
        worker.completes(1, b"mine").hears_client_error("Duplicate result")
        client.asks_result(1).hears_result(1, result=b"late")
        talk.pass_ms(500)
        assert client.state_of(1) == "1"


def test_delete_in_every_state():
    with Workq() as talk:
        client = talk.connect().adds(1).deletes(1).hears_ok().leases().hears_timeout()
        client.adds(1).leases().hears_job(1).deletes(1).hears_ok().completes(1).hears_not_found()
        client.adds(1).completes(1).hears_ok().deletes(1).hears_ok().asks_result(
            1
        ).hears_not_found()
        client.adds(1).fails_job(1).hears_ok().deletes(1).hears_ok()
        client.schedules(1, FUTURE).deletes(1).hears_ok().says(
            b"inspect job %b\r\n" % ID
        ).hears_not_found()
        assert talk.engine.timers.next() is None


def test_the_states():
    with Workq() as talk:
        client = talk.connect().adds(1, "-max-fails=2")
        assert client.state_of(1) == "0"
        client.leases().hears_job(1)
        assert client.state_of(1) == "4"
        client.fails_job(1).hears_ok()
        assert client.state_of(1) == "3"
        client.completes(1).hears_ok()
        assert client.state_of(1) == "1"
        client.adds(2).fails_job(2).hears_ok()
        assert client.state_of(2) == "2"


def test_a_run_leaves_no_trace():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        for succeeded in (True, False):
            client.runs(1)
            seen = worker.inspects(1)
            assert (seen["ttl"], seen["max-attempts"], seen["state"]) == ("0", "0", "0")
            worker.leases().hears_job(1)
            (worker.completes if succeeded else worker.fails_job)(1, b"ok").hears_ok()
            client.hears_result(1, succeeded=succeeded, result=b"ok")
            client.asks_result(1).hears_not_found()
        worker.says(b"inspect queue ping\r\n").hears(
            b"+OK 1\r\nping 2\r\nready-len 0\r\nscheduled-len 0\r\n"
        )


def test_a_run_for_a_waiting_worker():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        worker.leases(wait=1000)
        client.runs(1, wait=0)
        worker.hears_job(1).completes(1).hears_ok()
        client.hears_result(1)


def test_result():
    with Workq() as talk:
        client = talk.connect().asks_result(1, wait=1000).hears_not_found()
        client.adds(1).asks_result(1).hears_timeout()
        client.completes(1).hears_ok()
        for _ in range(3):
            client.asks_result(1).hears_result(1)


# 1.7 Ordering, queues, inspect


def test_the_order_of_a_queue():
    with Workq() as talk:
        client = talk.connect()
        for number, priority in enumerate((0, 5, -3, 0, 5), 1):
            client.adds(number, f"-priority={priority}")
        client.schedules(6, "2026-11-15T19:43:00Z").adds(7)
        shown = []
        client.says(b"inspect jobs ping 0 10\r\n").hears(b"+OK 7\r\n")
        for _ in range(7):
            shown.append(client._line().split(b" ")[0])
            keys = [client._line() for _ in range(13 if shown[-1] == uid(6) else 12)]
            assert keys[0] == b"name ping"
        assert shown == [uid(number) for number in (2, 5, 1, 4, 7, 6, 3)]
        for number in (2, 5, 1, 4, 7, 6, 3):
            client.leases().hears_job(number)


def test_due_jobs_are_behind_added_ones_and_in_order_of_time():
    with Workq() as talk:
        client = talk.connect()
        client.schedules(1, "2026-11-15T19:43:54Z").schedules(2, "2026-11-15T19:43:53Z").schedules(
            3, "2026-11-15T19:43:54Z"
        )
        client.schedules(4, "2026-11-15T19:43:54Z", "-priority=1")
        talk.advance(10)
        client.adds(5)
        for number in (4, 5, 2, 1, 3):
            client.leases().hears_job(number)
        talk.advance(1)  # TTR is over: all jobs are at their old positions
        for number in (4, 5, 2, 1, 3):
            client.leases().hears_job(number)


def test_a_waiter_gets_the_highest_priority_of_the_jobs_whose_leases_end_at_the_same_time():
    with Workq() as talk:
        client, worker = talk.connect(), talk.connect()
        client.adds(1).leases().hears_job(1)
        client.adds(2, "-priority=1").leases().hears_job(2)
        client.adds(3).leases().hears_job(3)
        worker.leases(wait=60_000)
        talk.advance(10)
        worker.hears_job(2)


def test_a_waiter_gets_the_highest_priority_of_the_jobs_due_at_the_same_time():
    with Workq() as talk:
        client, worker, other = talk.connect(), talk.connect(), talk.connect()
        client.schedules(1, FUTURE).schedules(2, FUTURE, "-priority=1").schedules(3, FUTURE)
        client.schedules(4, FUTURE, "-priority=2", name="pong")
        worker.leases(wait=60_000)
        other.leases("pong", wait=60_000)
        talk.advance(4)
        worker.hears_job(2)
        other.hears_job(4, "pong")
        client.leases().hears_job(1).leases().hears_job(3)


def test_the_order_of_scheduled_jobs():
    with Workq() as talk:
        client = talk.connect()
        client.schedules(1, "2026-11-15T20:00:02Z").schedules(2, "2026-11-15T20:00:01Z")
        client.schedules(3, "2026-11-15T20:00:09Z", "-priority=1").schedules(
            4, "2026-11-15T20:00:01Z"
        )
        client.schedules(5, "2026-11-15T20:00:00Z", name="other")
        order = []
        for offset in range(4):
            client.says(b"inspect scheduled-jobs ping %d 1\r\n" % offset).hears(b"+OK 1\r\n")
            order.append(client._line().split(b" ")[0])
            keys = [client._line() for _ in range(13)]
            assert keys[0] == b"name ping"
        assert order == [uid(number) for number in (3, 2, 4, 1)]
        client.says(b"inspect scheduled-jobs ping 4 1\r\n").hears(b"+OK 0\r\n")


def test_unknown_queues():
    with Workq() as talk:
        client = talk.connect()
        for command_args in (b"queue q", b"jobs q 0 1", b"scheduled-jobs q 0 1"):
            client.says(b"inspect %b\r\n" % command_args).hears_not_found()
        client.leases("q").hears_timeout()
        client.says(b"inspect queue q\r\n").hears(
            b"+OK 1\r\nq 2\r\nready-len 0\r\nscheduled-len 0\r\n"
        )
        client.says(b"inspect jobs q 0 1\r\ninspect scheduled-jobs q 0 1\r\n").hears(
            b"+OK 0\r\n+OK 0\r\n"
        )
        client.says(b"inspect jobs q 4294967295 100\r\n").hears(b"+OK 0\r\n")


def test_queues_are_sorted_by_their_bytes():
    with Workq() as talk:
        client = talk.connect().leases("b", "a", "B", "A", ".", "-lead", "_", "0").hears_timeout()
        client.says(b"inspect queues 0 100\r\n")
        names = [b"-lead", b".", b"0", b"A", b"B", b"_", b"a", b"b"]
        lengths = b"".join(b"%b 2\r\nready-len 0\r\nscheduled-len 0\r\n" % name for name in names)
        client.hears(b"+OK 8\r\n", lengths)
        client.says(b"inspect queues 2 1\r\n").hears(
            b"+OK 1\r\n0 2\r\nready-len 0\r\nscheduled-len 0\r\n"
        )
        client.says(b"inspect queues 8 1\r\n").hears(b"+OK 0\r\n")


def test_lengths_exclude_leased_jobs():
    with Workq() as talk:
        client = talk.connect().adds(1).adds(2).schedules(3, FUTURE).leases().hears_job(1)
        client.says(b"inspect queue ping\r\n").hears(
            b"+OK 1\r\nping 2\r\nready-len 1\r\nscheduled-len 1\r\n"
        )
        client.says(b"inspect jobs ping 1 10\r\n").hears(b"+OK 0\r\n")


def test_payloads_are_shown_unchanged():
    with Workq() as talk:
        client = talk.connect().adds(1, payload=b"")
        client.says(b"inspect job %b\r\n" % ID)
        for line in (
            b"+OK 1",
            b"%b 12" % ID,
            b"name ping",
            b"ttr 1000",
            b"ttl 60000",
            b"payload-size 0",
            b"payload ",
        ):
            client.hears(line, b"\r\n")
        for _ in range(7):
            client._line()
        client.adds(2, payload=b"a\r\nb").says(b"inspect job %b\r\n" % uid(2))
        for _ in range(5):
            client._line()
        client.hears(b"payload-size 4\r\npayload a\r\nb\r\n")
        for _ in range(7):
            client._line()


def test_a_woken_job_still_shows_its_time():
    with Workq() as talk:
        client = talk.connect().schedules(1, FUTURE)
        talk.advance(5)
        seen = client.leases().hears_job(1).inspects(1)
        assert seen["time"] == FUTURE
        assert len(seen) == 13


def test_a_hundred_mebibytes_of_jobs_are_sent_in_parts():
    talk = Workq()
    client = talk.connect()
    for number in range(30):
        client.adds(number, payload=b"x" * BIG)
    client.says(b"inspect jobs ping 0 100\r\n")
    assert client.wire.heard.startswith(b"+OK\r\n" * 30 + b"+OK 30\r\n")
    assert len(client.wire.heard) > 30 * BIG
    assert max(map(len, client.wire.replies)) < 1.2 * BIG


# Replies that wait for a commit


def test_which_replies_wait_for_the_disk():
    with Workq() as talk:
        client = talk.connect()

        def waits(said: bytes) -> bool:
            before = len(client.wire.replies)
            client.says(said)
            client.hears(*client.wire.replies[before:])
            return len(client.wire.replies) - 1 in client.wire.durable

        assert not waits(b"lease nothing 0\r\n")
        assert waits(b"add %b q 1000 60000 0\r\n\r\n" % ID)
        assert not waits(b"lease q 0\r\n")
        assert not waits(b"inspect server\r\n")
        assert not waits(b"result %b 0\r\n" % ID)
        talk.acts(lambda world: world.hold_commits())
        assert waits(b"schedule %b q 1000 60000 %b 0\r\n\r\n" % (uid(2), FUTURE.encode()))
        assert waits(b"add %b q 1000 60000 0\r\n\r\n" % uid(2))  # Duplicate job
        assert waits(b"complete %b 0\r\n\r\n" % ID)
        assert waits(b"complete %b 0\r\n\r\n" % ID)  # Duplicate result
        assert waits(b"result %b 0\r\n" % ID)
        assert waits(b"fail %b 0\r\n\r\n" % uid(2))
        assert waits(b"delete %b\r\n" % ID)
        assert waits(b"delete %b\r\n" % ID)  # -NOT-FOUND
        assert waits(b"complete %b 0\r\n\r\n" % ID)  # -NOT-FOUND
        assert not waits(b"nonsense\r\n")


def test_replies_to_waiters_wait_for_the_commit():
    with Workq() as talk:
        client, other, worker = talk.connect(), talk.connect(), talk.connect()
        client.adds(1).asks_result(1, wait=1000)
        other.runs(2, wait=100)
        talk.acts(lambda world: world.hold_commits())
        worker.completes(1).hears_ok()
        client.hears_result(1)
        talk.pass_ms(100)
        other.hears_timeout()
        assert client.wire.durable == [0, 1]
        assert other.wire.durable == [0]


def halts(talk: Workq, reason: str = "disk full") -> None:
    talk.acts(lambda world: setattr(world.engine, "unavailable_reason", reason))


def test_a_full_disk_refuses_only_changes():
    refusal = b"-SERVER-ERROR disk full: nothing was changed, try again later\r\n"
    with Workq() as talk:
        client = talk.connect().adds(1).completes(1).hears_ok().adds(2)
        halts(talk)
        for said in (
            b"add %b q 1 1 4\r\npong\r\n", b"schedule %b q 1 1 2027-01-01T00:00:00Z 4\r\npong\r\n", b"run %b q 1 1 4\r\npong\r\n",
            b"complete %b 4\r\npong\r\n", b"fail %b 4\r\npong\r\n", b"delete %b\r\n",
        ):  # fmt: skip
            client.says(said % uid(2)).hears(refusal)
        client.says(b"lease ping 10\r\n").hears(refusal)
        client.asks_result(1).hears_result(1)
        assert client.state_of(2) == "0"
        talk.acts(lambda world: world.engine.resume(world.now))
        client.leases().hears_job(2)


def test_a_waiter_on_a_full_disk_receives_its_job_later():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.adds(1, ttr=1000).leases().hears_job(1)
        other.leases(wait=60_000)
        halts(talk)
        talk.advance(5)
        other.hears_nothing()
        talk.acts(lambda world: world.engine.resume(world.now))
        talk.advance(2)
        other.hears_job(1)


def test_a_run_abandoned_on_a_full_disk_is_removed_later():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.runs(1)
        halts(talk)
        client.hangs_up()
        assert other.state_of(1) == "0"
        talk.acts(lambda world: world.engine.resume(world.now))
        talk.advance(2)
        other.says(b"inspect job %b\r\n" % ID).hears_not_found()
        other.says(b"inspect server\r\n").hears(
            b"+OK 1\r\nserver 3\r\nactive-clients 1\r\nevicted-jobs 0\r\nstarted 2026-11-15T19:43:51Z\r\n"
        )


# Jobs of other protocols


def test_a_job_with_a_jid_that_is_not_a_uuid():
    from scene import unit

    alias = b"00000000-0000-4000-8000-000000000001"
    with Workq() as talk:
        client = talk.connect()
        talk.acts(
            lambda world: world.engine.push(
                unit("some-jid-of-faktory", "ping", payload=b"[1]"), world.now
            )
        )
        client.says(b"lease ping 0\r\n").hears(b"+OK 1\r\n%b ping 3\r\n[1]\r\n" % alias)
        client.says(b"inspect job %b\r\n" % alias).hears(
            b"+OK 1\r\n%b 12\r\nname ping\r\nttr 1800000\r\nttl 0\r\n" % alias
        )
        for _ in range(9):
            client._line()
        client.says(b"add %b ping 1 1 0\r\n\r\n" % alias).hears_client_error("Duplicate job")
        client.says(b"fail %b 4\r\noops\r\n" % alias).hears(OK)
        assert next(iter(talk.engine.scheduled.values())).failure.message == "oops"
        client.says(b"complete %b 4\r\ndone\r\n" % alias).hears(OK)
        client.says(b"result %b 0\r\n" % alias).hears(b"+OK 1\r\n%b 1 4\r\ndone\r\n" % alias)
        client.says(b"result 00000000-0000-4000-8000-0000000000ff 0\r\n").hears_not_found()


def test_too_many_connections():
    with Workq(max_connections=1) as talk:
        talk.connect()
        talk.connect().hears(b"-SERVER-ERROR too many connections\r\n").hears_the_end()


def test_a_stopping_server_delivers_no_job():
    with Workq() as talk:
        client, other = talk.connect(), talk.connect()
        client.leases(wait=1000)
        talk.acts(lambda world: world.hub.stop())
        other.adds(1).leases().hears_timeout()
        talk.advance(1)
        client.hears_timeout()


def test_the_clock_of_the_tests():
    assert START // 1_000_000 == 1_794_771_831


def test_names_of_one_lease_are_bounded():
    with Workq() as talk:
        client = talk.connect()
        names = [f"q{number}" for number in range(10_000)]
        client.leases(*names).hears_timeout()
        client.leases(*names, "more").hears_client_error("Invalid command args")
        assert len(talk.engine.queues) == 10_000
