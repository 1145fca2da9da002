"""Data folders with flipped, missing or misplaced bytes. The store either loads the complete
committed state, or refuses the folder and names the file and a remedy. It never loses data
silently. MILLRACE_DAMAGE=all flips every byte.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from recorded import State, Work, record_work
from test_recovery import recovered

from disk.crashes import Disk, Files, read_folder, write_folder
from disk.recording import NOTE, missing
from millrace.store import SqliteStore, StoreDamaged
from millrace.store.sqlite import checksums, wal
from millrace.store.sqlite.check import check_folder
from millrace.store.sqlite.folder import DATABASE
from scene import Scene, commit, recover

ALL = os.environ.get("MILLRACE_DAMAGE") == "all"
WAL = DATABASE + "-wal"
PAGE = 4096
FRAME = 24 + PAGE


class Folder:
    """A folder of a killed server, and its expected state."""

    def __init__(self, files: Files, state: State, turn: int, scratch: Path) -> None:
        self.files, self.state, self.turn, self.scratch = files, state, turn, scratch

    def check(self, files: Files, case: str) -> bool:
        """Return whether the store refused the folder."""
        try:
            turn, state = recovered(files, self.scratch)
        except StoreDamaged as refusal:
            return self._is_clear(str(refusal), case)
        except Exception as error:
            raise AssertionError(f"{case}: {error!r}") from error
        assert turn == self.turn, case
        assert state == self.state, case
        return False

    def _is_clear(self, refusal: str, case: str) -> bool:
        assert str(self.scratch / DATABASE) in refusal, case
        assert "backup" in refusal, case
        return True

    def flip(self, name: str, at: int, bits: int) -> bool:
        content = bytearray(self.files[name])
        content[at] ^= bits
        return self.check({**self.files, name: bytes(content)}, f"{name}, byte {at} ^ {bits}")

    def places(self, name: str, rng: Random) -> list[int]:
        """The bytes to flip: all in headers, samples elsewhere."""
        size = len(self.files[name])
        if ALL:
            return list(range(size))
        step, first = (FRAME, 32) if name == WAL else (PAGE, 0)
        heads = [at + n for at in range(first, size, step) for n in range(0, 24, 5)]
        dense = range(min(100, size))
        if name == WAL and is_copied_back(self.files):
            dense, heads = range(0, 32, 3), heads[:60]
        return sorted(
            {*dense, *rng.sample(heads, min(50, len(heads))), *rng.sample(range(size), 70)}
        )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    if reason := missing():
        pytest.skip(reason)
    return record_work(tmp_path_factory.mktemp("work"), turns=70, seed=1)


def killed(work: Work, scratch: Path, suits: Callable[[Files], bool]) -> Folder:
    """The last point between two commits at which the files match."""
    disk, found = Disk(work.before), None
    for k, operation in enumerate(work.operations):
        disk.do(operation)
        turn = work.acknowledged[k]
        if (
            operation.kind == NOTE
            and suits(files := disk.as_it_is())
            and b"%d " % turn in files["mark"]
        ):
            found = Folder(files, work.states[turn], turn, scratch)
    assert found is not None, "the recorded run has no such point"
    return found


def has_log(files: Files, frames: int) -> bool:
    """Whether this number of log frames is in use. Later frames may be from the previous round."""
    return wal.examine(files.get(WAL, b"")).frames >= frames and len(files[DATABASE]) > 16 * PAGE


def is_copied_back(files: Files) -> bool:
    """Whether the database contains everything in the log."""
    content, database = files[WAL], files[DATABASE]
    pages: dict[int, bytes] = {}
    for n in range(wal.examine(content).frames):
        at = 32 + n * FRAME
        number = int.from_bytes(content[at : at + 4], "big")
        pages[(number - 1) * PAGE] = content[at + 24 : at + FRAME]
    return all(database[at : at + PAGE] == page for at, page in pages.items())


KINDS = ("long log", "copied log", "short log", "closed")


@pytest.fixture(scope="module")
def folders(work: Work, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    """The four folders. The search for each one in the recorded run takes half a second."""
    scratch = tmp_path_factory.mktemp("folders")
    left = killed(work, scratch, lambda files: has_log(files, 3))
    turn, state = recovered(left.files, scratch)  # and closed
    files = read_folder(scratch)
    assert WAL not in files
    return {
        "long log": with_long_log(work, scratch),
        "copied log": killed(work, scratch, lambda f: has_log(f, 20) and is_copied_back(f)),
        "short log": killed(
            work, scratch, lambda files: has_log(files, 3) and not has_log(files, 9)
        ),
        "closed": Folder(files, state, turn, scratch),
    }


@pytest.fixture(params=KINDS)
def folder(
    request: pytest.FixtureRequest, folders: dict[str, Folder], quick_folder: Path
) -> Folder:
    found = folders[request.param]
    return Folder(dict(found.files), found.state, found.turn, quick_folder)


def with_long_log(work: Work, scratch: Path) -> Folder:
    return killed(work, scratch, lambda files: has_log(files, 20) and not is_copied_back(files))


def test_undamaged_folders_are_loaded(folder):
    assert not folder.check(folder.files, "not damaged")


def test_a_flipped_byte_is_refused_or_has_no_effect(folder):
    rng = Random(1)
    refused = 0
    for name in (DATABASE, WAL):
        for at in folder.places(name, rng) if name in folder.files else ():
            refused += folder.flip(name, at, rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 255)))
    assert refused > 50


def test_a_truncated_file_is_refused_or_has_no_effect(folder):
    for name, step, first in ((DATABASE, PAGE, 0), (WAL, FRAME, 32)):
        content = folder.files.get(name, b"")
        for size in range(first, len(content), step):
            folder.check({**folder.files, name: content[:size]}, f"{name} cut at {size}")
            folder.check({**folder.files, name: content[: size + 100]}, f"{name} cut at {size}+100")
    assert folder.check({**folder.files, DATABASE: b""}, "an empty database")


def test_a_missing_file_is_refused_or_has_no_effect(folder):
    for name in folder.files:
        left = {other: content for other, content in folder.files.items() if other != name}
        refused = folder.check(left, f"without {name}")
        expected = name == DATABASE or (name == WAL and not is_copied_back(folder.files))
        assert refused == expected, name


def test_a_page_of_zeros_is_refused_or_has_no_effect(folder):
    for name, step, first in ((DATABASE, PAGE, 0), (WAL, FRAME, 32)):
        content = folder.files.get(name, b"")
        for at in range(first, len(content), step):
            holed = content[:at] + bytes(step) + content[at + step :]
            folder.check({**folder.files, name: holed}, f"{name} without the page at {at}")


def pages_of(content: bytes, step: int, first: int) -> list[int]:
    return list(range(first, len(content) - step + 1, step))


def test_swapped_pages_are_refused_or_have_no_effect(folder):
    rng, refused = Random(2), 0
    for name, step, first in ((DATABASE, PAGE, 0), (WAL, FRAME, 32)):
        content = folder.files.get(name, b"")
        places = pages_of(content, step, first)
        for _ in range(80 if places else 0):
            one, other = sorted(rng.sample(places, 2))
            swapped = bytearray(content)
            swapped[one : one + step] = content[other : other + step]
            if rng.random() < 0.7:  # else: two equal pages
                swapped[other : other + step] = content[one : one + step]
            files = {**folder.files, name: bytes(swapped)}
            refused += folder.check(files, f"{name}: {other} at {one}")
    assert refused > 30


def test_an_outdated_page_is_refused_or_has_no_effect(work, folder):
    """The disk lost a write: every page is valid, but one is old."""
    content = folder.files[DATABASE]
    versions: dict[int, set[bytes]] = {}
    for files in snapshots(work):
        for at in pages_of(files.get(DATABASE, b""), PAGE, 0):
            versions.setdefault(at, set()).add(files[DATABASE][at : at + PAGE])
    rng, refused = Random(3), 0
    for at in pages_of(content, PAGE, 0):
        older = sorted(versions.get(at, set()) - {content[at : at + PAGE]})
        for page in rng.sample(older, min(3, len(older))):
            files = {**folder.files, DATABASE: content[:at] + page + content[at + PAGE :]}
            refused += folder.check(files, f"an older page at {at}")
    assert refused > 10


def snapshots(work: Work) -> Iterator[Files]:
    disk = Disk(work.before)
    for k, operation in enumerate(work.operations):
        disk.do(operation)
        if k % 50 == 0:
            yield disk.as_it_is()


def test_a_damaged_marker_or_log_index_is_not_refused(folder):
    for at in range(0, len(folder.files["mark"]), 1 if ALL else 5):
        assert not folder.flip("mark", at, 1 << at % 8)
    for mark in (b"", b"x", folder.files["mark"] * 2, bytes(96), Random(1).randbytes(5000)):
        assert not folder.check({**folder.files, "mark": mark}, f"mark {mark[:10]!r}")
    for index in (b"", bytes(32768), Random(1).randbytes(32768)):
        files = {**folder.files, DATABASE + "-shm": index}
        assert not folder.check(files, "another index of the log")


def test_a_refused_folder_is_not_changed(folder):
    for name, at in ((DATABASE, 2 * PAGE + 7), (WAL, 32 + 2 * FRAME + 50)):
        if name not in folder.files:
            continue
        content = bytearray(folder.files[name])
        content[at] ^= 255
        damage_error = {**folder.files, name: bytes(content)}
        if folder.check(damage_error, f"{name} at {at}"):
            left = read_folder(folder.scratch)
            assert left.pop(WAL, b"") == damage_error.get(WAL, b"")
            assert left[DATABASE] == damage_error[DATABASE]
            assert left["mark"] == damage_error["mark"]


def test_a_damaged_log_is_named_with_the_position(work, quick_folder):
    folder = with_long_log(work, quick_folder)
    content = bytearray(folder.files[WAL])
    content[32 + 4 * FRAME + 1000] ^= 1
    write_folder({**folder.files, WAL: bytes(content)}, quick_folder)
    store = SqliteStore(quick_folder, sync=False)
    with pytest.raises(StoreDamaged, match=rf"log .*{WAL} is damaged near byte {32 + 4 * FRAME}"):
        store.load()
    store.close()


def test_without_the_marker_a_folder_with_lost_turns_loads(work, quick_folder):
    folder = with_long_log(work, quick_folder)
    closed = {name: content for name, content in folder.files.items() if name != WAL}
    assert folder.check(closed, "without its log")
    del closed["mark"]
    turn, state = recovered(closed, quick_folder)
    assert turn < folder.turn
    assert state == work.states[turn]


# Damage that only the checksums of tables or the structure check of SQLite detect


@pytest.fixture
def closed(work: Work, quick_folder: Path) -> Path:
    """A folder with rows in every table."""
    left = killed(work, quick_folder, lambda files: has_log(files, 3))
    write_folder(left.files, quick_folder)
    store = SqliteStore(quick_folder, sync=False)
    engine = recover(store)
    for n in range(5):  # creates turns again
        scene = Scene(engine)
        scene.push(f"more-{n}", "more")
        scene.complete(scene.lease("more"))
        engine.set_setting(f"note/{n}", b"x")
        commit(engine, store)
        if n == 2:
            store.outbox.mark_shipped(
                store.outbox.next_event
            )  # the next commit writes the statistics
    store.close()
    return quick_folder


def edited(folder: Path, *statements: str) -> None:
    db = sqlite3.connect(folder / DATABASE)
    with db:
        for statement in statements:
            assert db.execute(statement).rowcount > 0, statement
    db.close()


def refusal(folder: Path) -> str:
    store = SqliteStore(folder, sync=False)
    try:
        with pytest.raises(StoreDamaged) as refused:
            store.load()
        return str(refused.value)
    finally:
        store.close()


@pytest.mark.parametrize("which", ["min", "max"])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("turns", "id"),
        ("jobs", "seq"),
        ("queues", "place"),
        ("notes", "key"),
        ("stats", "queue"),
        ("outbox", "first"),
        ("payloads", "seq"),
    ],
)
def test_a_missing_row_is_detected(closed, table, key, which):
    edited(closed, f"DELETE FROM {table} WHERE {key} = (SELECT {which}({key}) FROM {table})")
    assert str(closed / DATABASE) in refusal(closed)
    assert check_folder(closed).problems


def test_an_additional_row_is_detected(closed):
    """A deleted row returned: its own checksum is right."""
    record = b"\x90"
    values = f"(987654, {checksums.state_sum(987654, record)}, x'{record.hex()}')"
    edited(closed, f"INSERT INTO states VALUES {values}")
    refusal(closed)


def test_an_outdated_setting_is_detected(closed):
    value = b"older"
    summed = checksums.note_sum("note/3", value)
    edited(
        closed,
        f"UPDATE notes SET value = x'{value.hex()}', sum = {summed} WHERE key = 'note/3'",
    )
    assert "settings" in refusal(closed)


def test_a_used_page_in_the_free_list_is_detected(closed):
    """Every row is readable, but the next writes would overwrite the page."""
    path = closed / DATABASE
    content = bytearray(path.read_bytes())
    content[32:40] = (3).to_bytes(4, "big") + (1).to_bytes(4, "big")
    path.write_bytes(content)
    assert str(path) in refusal(closed)
    assert check_folder(closed).problems


@pytest.mark.parametrize("size", [512, 3072, PAGE])
def test_a_power_failure_while_the_database_is_created(tmp_path: Path, size: int) -> None:
    """The first page is incomplete. Its journal says that the database was empty before."""
    magic = bytes.fromhex("d9d505f920a163d7")
    numbers = [0, 0x49D64873, 0, 512, PAGE]
    journal = magic + b"".join(number.to_bytes(4, "big") for number in numbers)
    (tmp_path / f"{DATABASE}-journal").write_bytes(journal.ljust(512, b"\0"))
    (tmp_path / DATABASE).write_bytes(bytes(size))
    store = SqliteStore(tmp_path)
    scene = Scene(recover(store))
    assert scene.engine.jobs == {}
    scene.push("a")
    commit(scene.engine, store)
    store.close()
    store = SqliteStore(tmp_path)
    assert len(store.load().jobs) == 1
    store.close()
