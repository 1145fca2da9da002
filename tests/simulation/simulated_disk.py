"""The disk: a folder in memory with a record of every write. After a crash it contains any state
that a real disk could have. It can be full or broken for a while.

Without a C compiler writes are not recorded. Then a crash keeps all writes so far, and the store
only sees errors at a commit. `limits` reports this.
"""

import contextlib
import errno
import shutil
from pathlib import Path
from random import Random

from disk.crashes import Files, disk_after, read_folder, write_folder
from disk.recording import NOTE, SYNCS, WRITES, Recorder, is_preloaded, missing, read_record
from failing_stores import disk_full
from millrace.store import SqliteStore, SyncFailed


class SimulatedDisk:
    def __init__(self, root: Path, random: Random) -> None:
        self._root = root
        self._random = random
        self._recorder = Recorder() if not missing() and is_preloaded() else None
        self._recording = contextlib.ExitStack()
        self._before: Files = {}
        self._number = 0
        #: The current effect on writes: "", "full", "broken" or "no sync".
        self.state = ""
        self.folder = root / "data-0"

    @property
    def limits(self) -> str:
        """The missing capabilities and the reason; empty if there are none."""
        if self._recorder is not None:
            return ""
        reason = missing() or "not preloaded"
        return f"no torn or lost writes, errors at commits only ({reason})"

    @property
    def _log(self) -> Path:
        return self._root / "writes"

    def start(self) -> None:
        """Prepare for a server that opens its files."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._recorder is not None:
            self._before = read_folder(self.folder)
            self._recording.enter_context(self._recorder.record(self.folder, self._log))
            self._apply()

    def release(self) -> None:
        """Called after a server has closed its files."""
        self._recording.close()

    # Faults

    def become(self, state: str) -> None:
        self.state = state
        self._apply()

    def _apply(self) -> None:
        if self._recorder is None:
            return
        self._recorder.heal()
        after = self._random.randrange(12)
        if self.state == "full":
            self._recorder.fail(WRITES, errno.ENOSPC, after=after)
        elif self.state == "broken":
            self._recorder.fail(WRITES, errno.EIO, after=after)
        elif self.state == "no sync":
            self._recorder.fail(SYNCS, errno.EIO, after=after // 4)

    def commit(self, store: SqliteStore) -> None:
        """COMMIT on this disk."""
        if self._recorder is None and self.state in {"full", "broken"}:
            with store._undoing():
                raise disk_full()
        if self._recorder is None and self.state == "no sync":
            raise SyncFailed("simulated: sync failed")
        store.commit()

    # Crashes

    def position(self) -> int:
        """The length of the record, for `crash`."""
        return len(read_record(self._log)) if self._recorder is not None else 0

    def crash(self, *, power: bool, since: int | None = None) -> None:
        """Continue with the files that remain if the process dies, or the power fails, now or at
        any time after the position `since`.
        """
        if self._recorder is None:
            files = read_folder(self.folder)
        else:
            operations = read_record(self._log)
            if since is not None:
                operations = operations[: self._random.randint(since, len(operations))]
            disk = disk_after((op for op in operations if op.kind != NOTE), self._before)
            files = disk.after_crash(self._random) if power else disk.as_it_is()
        self._recording.close()
        shutil.rmtree(self._root / f"data-{self._number - 1}", ignore_errors=True)
        self._number += 1
        self.folder = self._root / f"data-{self._number}"
        write_folder(files, self.folder)

    def remove(self) -> None:
        self._recording.close()
        shutil.rmtree(self._root, ignore_errors=True)
