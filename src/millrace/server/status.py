"""The status of the server process: configuration, folders, disk space and pipeline."""

import os
from collections.abc import Callable
from pathlib import Path

from millrace import __version__
from millrace.config import HIDDEN, LoadedConfig, keys, quoted, value_of
from millrace.records import PipelineRun, ServerStatus, Setting

from .pipeline_runner import PipelineRunner


class ProcessStatus:
    """Answers requests from the control socket. `loaded` returns the effective configuration."""

    def __init__(
        self,
        loaded: Callable[[], LoadedConfig],
        runner: PipelineRunner,
        *,
        started_at: int,
        memory_mb: Callable[[], int],
    ) -> None:
        self._loaded = loaded
        self._runner = runner
        self._started_at = started_at
        self._memory_mb = memory_mb

    def server_status(self) -> ServerStatus:
        """The status. The admin service fills in the time and the engine and port fields."""
        config = self._loaded().config
        is_durable = config.server.durability != "memory"
        data = config.server.data.absolute()
        free, size = _disk_space(data) if is_durable else (0, 0)
        return ServerStatus(
            version=__version__,
            pid=os.getpid(),
            host=config.server.host,
            started_at=self._started_at,
            now=0,
            memory_mb=self._memory_mb(),
            data=_shown(data) if is_durable else "",
            lake=_shown(config.lake_uri) if is_durable else "",
            durability=config.server.durability,
            halted="",
            sizes={},
            store_bytes=_store_size(data) if is_durable else 0,
            disk_free=free,
            disk_size=size,
            tls=bool(config.tls.cert),
            settings=settings(self._loaded()),
            qless={},
            protocols=[],
            pipeline=self.pipeline(),
        )

    def pipeline(self) -> PipelineRun:
        return self._runner.status()

    def run_pipeline(self) -> str:
        return self._runner.run_now()


def settings(loaded: LoadedConfig) -> list[Setting]:
    """Every key as `millrace config` shows it; secrets are hidden."""
    found = []
    for dotted_name, key in keys().items():
        value = value_of(loaded.config, dotted_name)
        shown = quoted(HIDDEN) if key.value_type.secret and value else key.value_type.write(value)
        source = _printable(loaded.sources[dotted_name])
        found.append(Setting(dotted_name, shown, source, key.doc.text, key.doc.reload))
    return found


def _disk_space(folder: Path) -> tuple[int, int]:
    """Free and total bytes of the disk of a folder."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0, 0
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def _store_size(folder: Path) -> int:
    """The size of the files of the store, without the lake."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:  # a file or the folder was deleted
        return total
    return total


def _shown(path: Path | str) -> str:
    return _printable(str(path))


def _printable(text: str) -> str:
    """Escape the bytes of a path that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
