"""What a process has cost: processor time and memory, as Linux tells them; elsewhere nothing."""

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Process:
    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)

    def cpu(self) -> float:
        """Seconds of processor time until now, of all its threads."""
        try:
            fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        try:
            (self._folder / "clear_refs").write_text("5")
        except OSError:
            return

    def peak(self) -> int:
        """The most memory that it had since, in bytes."""
        try:
            lines = (self._folder / "status").read_text().splitlines()
        except OSError:
            return 0
        found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(found[0]) * 1024 if found else 0
