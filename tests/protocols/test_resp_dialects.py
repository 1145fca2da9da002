"""Recognition of scripts by their SHA1 and by their text."""

from importlib.resources import files

import pytest

from millrace.protocols.qless import script_catalog
from millrace.protocols.qless.known_scripts import DIALECT_A_SHAS, DIALECT_B_SHAS, DIALECT_C_SHAS
from millrace.protocols.qless.script_catalog import (
    SPEC_COMMANDS,
    Script,
    find_known_script,
    recognise,
    sha_of,
)


def test_every_known_sha():
    for name, shas in DIALECT_A_SHAS.items():
        for sha in shas.split():
            assert find_known_script(sha) == Script("A", name)
    for sha in DIALECT_B_SHAS.split():
        assert find_known_script(sha) == Script("B")
    for sha in DIALECT_C_SHAS.split():
        assert find_known_script(sha) == Script("C")
    assert find_known_script("0" * 40) is None


def test_the_tables_are_complete():
    per_command = [sha for shas in DIALECT_A_SHAS.values() for sha in shas.split()]
    unified = DIALECT_B_SHAS.split(), DIALECT_C_SHAS.split()
    every = [*per_command, *unified[0], *unified[1]]
    assert (len(per_command), len(unified[0]), len(unified[1])) == (203, 19, 24)
    assert len(set(every)) == len(every)
    assert all(len(sha) == 40 and set(sha) <= set("0123456789abcdef") for sha in every)
    assert set(DIALECT_A_SHAS) == SPEC_COMMANDS - {"consistencycheck"}


@pytest.mark.parametrize(
    ("sha", "script"),
    [
        ("e22308e0c17253ff34e753088c8e9954c52a6dae", Script("B")),  # PyPI qless-py 0.10 to 0.11.4
        ("b900a5d9b8c5acdf375d297755fce3f9d46687a7", Script("B")),  # PyPI qless-py 0.10.2
        ("9f337bb14d1c5685e33df12db0c4cf9b3706ee82", Script("A", "put")),  # PyPI qless-py 0.9
        ("ed7cb6988e28750518b1c1f25c98d865dc370952", Script("C")),  # Ruby 0.14
        ("970c5f4550dc7ef6c4d21493d2d64608de775711", Script("C")),  # Ruby 0.11 to 0.13
        ("4c1cb51a2e148b651af5a273275184abda956a6a", Script("B")),  # Ruby, September 2013
        ("a0972f5b3660159f055ef364b8565764eedd11df", Script("C")),  # PHP
        ("053e9af161c8f649c81309e6153608cdcc71d467", Script("C")),  # qless-core in 2020
    ],
)
def test_the_scripts_of_released_clients(sha, script):
    assert find_known_script(sha) == script


# By the text


def test_the_script_inside_qless_py():
    package = pytest.importorskip("qless")
    text = files(package).joinpath("qless-core/qless.lua").read_bytes()
    assert sha_of(text) == "e22308e0c17253ff34e753088c8e9954c52a6dae"
    assert recognise(text) == Script("B")
    assert recognise(text + b"\n-- a fork\n") == Script("B")


def test_the_script_inside_reqless():
    """The releases up to 0.13.3 still have the old names, and a worker in `put`, but throttles."""
    package = pytest.importorskip("reqless")
    text = files(package).joinpath("lua/qless.lua").read_bytes()
    assert find_known_script(sha_of(text)) is None
    assert recognise(text) == Script("T")


@pytest.mark.parametrize("package", ["qless", "reqless"])
def test_the_library_alone_is_not_recognized(package):
    """A plugin is the library with other code, which cannot be served."""
    folder = "qless-core" if package == "qless" else "lua"
    text = files(pytest.importorskip(package)).joinpath(folder, "qless-lib.lua").read_bytes()
    assert recognise(text) is None
    assert recognise(text + b"\nreturn Qless.queue(KEYS[1]):put(ARGV[1])\n") is None


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (b"QlessAPI.put = function(now, queue, jid, klass, data, delay, ...)", Script("B")),
        (b"QlessAPI.put=function( now ,queue,jid)", Script("B")),
        (b"QlessAPI.put = function(now, me, queue, jid, klass, data, delay, ...)", Script("C")),
        (b"QlessAPI.put = function(now, worker, queue, jid)", Script("C")),
        (b"local ReqlessAPI = {}\nReqlessAPI['queue.put'] = function(now, me)", Script("D")),
        (b"-- Put(1, queue, jid)\nredis.call('x', KEYS[1], ARGV[1])", Script("A", "put")),
        (b"-- priority(0, jid, p)\nredis.call('x', ARGV[1])", Script("A", "priority")),
        (b"-- Takes it\nlocal a = assert(ARGV[1], 'Pop(): Arg') redis.call('x')", Script("A", "pop")),
        (b"error('GetConfig(): No') return redis.call('hget', ARGV[1])", Script("A", "getconfig")),
        (b"error('Pause(): No') redis.call('sadd', 'x', unpack(ARGV))", Script("A", "pause")),
        (b"error('Pause(): No') redis.call('srem', 'x', unpack(ARGV))", Script("A", "unpause")),
        (b"-- DeregisterWorkers(0, w)\nredis.call('zrem', ARGV)", Script("A", "deregister_workers")),
        (b"-- DeregisterWorker(0, w)\nredis.call('zrem', ARGV)", Script("A", "deregister_workers")),
        (b"-- Nonsense(0)\nredis.call('x', ARGV[1])", None),
        (b"-- Put(1, queue, jid)", None),
        (b"return redis.call('get', KEYS[1], ARGV[1])", None),
        (b"QlessAPI.get = function(now, jid) redis.call(ARGV) error('Get(): x')", None),
        (b"", None),
        (b"\xff\x00", None),
    ],
)  # fmt: skip
def test_recognition_by_text(text, script):
    assert recognise(text) == script


def test_a_very_long_text_is_not_read(monkeypatch):
    monkeypatch.setattr(script_catalog, "MAX_SCRIPT_BYTES", 100)
    text = b"local ReqlessAPI = {}".ljust(100)
    assert recognise(text) == Script("D")
    assert recognise(text + b" ") is None
