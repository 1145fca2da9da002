"""npm packages of tests/clients/node, in the versions that package-lock.json names."""

import fcntl
import shutil
import subprocess
from pathlib import Path

NODE = Path(__file__).parent / "clients" / "node"
#: Programs that are not installed.
MISSING = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
WHY_SKIPPED = (
    f"{' and '.join(MISSING)} not found: install Node.js 16 or later with npm "
    "(Debian: apt-get install nodejs npm)"
)


def install() -> None:
    """Install the packages unless they are installed. Test workers take turns."""
    lock = NODE / "package-lock.json"
    stamp = NODE / "node_modules" / ".installed-lock.json"
    with (NODE / ".install").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
            return
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=NODE,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"npm ci failed:\n{done.stdout}{done.stderr}"
        stamp.write_bytes(lock.read_bytes())
