"""An environment without any settings and without Java."""

import os
from pathlib import Path


def empty_environment(folder: Path) -> dict[str, str]:
    """Create a folder with the usual tools except Java, and return an environment with only this
    PATH.
    """
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for tool in Path(place).iterdir():
            if not tool.name.startswith("java") and not (folder / tool.name).is_symlink():
                (folder / tool.name).symlink_to(tool)
    empty = {"PATH": str(folder)}
    if path := os.environ.get("PYTHONPATH"):  # where Millrace is tested without being installed
        empty["PYTHONPATH"] = path
    return empty
