"""An environment in which nobody has set up anything, and no Java is to be found."""

import os
from pathlib import Path


def empty_environment(folder: Path) -> dict[str, str]:
    """A PATH with the usual tools, but no Java, and nothing else; the tools' folder is made."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for tool in Path(place).iterdir():
            if not tool.name.startswith("java") and not (folder / tool.name).is_symlink():
                (folder / tool.name).symlink_to(tool)
    empty = {"PATH": str(folder)}
    if path := os.environ.get("PYTHONPATH"):  # where Millrace is not installed, but tested
        empty["PYTHONPATH"] = path
    return empty
