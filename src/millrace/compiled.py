"""The compiled modules: `tools/compile.py` builds them into the folder `_compiled`.

Python imports them instead of the sources if the folder was built by this version of Python and
from exactly these sources. Otherwise, and with MILLRACE_PURE=1, it uses the sources.
The compiled modules depend on each other, so either all of them are used or none.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final
from zlib import crc32

#: Selects the sources if it is set and not 0.
PURE_VARIABLE: Final = "MILLRACE_PURE"
FOLDER: Final = Path(__file__).parent / "_compiled"
#: The first line has `BUILD`, each other line the checksum of a source and the module's name.
MANIFEST: Final = "manifest"
#: The library that contains the code of all compiled modules.
LIBRARY: Final = "millrace__mypyc"
#: The file name suffix of the modules that this interpreter can load.
BUILD: Final = EXTENSION_SUFFIXES[0]
#: Packages that have compiled modules. The sources are not examined before one of them is imported.
PACKAGES: Final = ("millrace.engine.", "millrace.protocols.", "millrace.server.", "millrace.store.")


def source_path(module: str) -> Path:
    return FOLDER.parent.parent / (module.replace(".", "/") + ".py")


def source_sum(module: str) -> str:
    """The checksum and the size of a source. `hashlib` would load OpenSSL before the ports open."""
    source = source_path(module).read_bytes()
    return f"{crc32(source):08x}-{len(source)}"


def make_manifest(modules: Sequence[str]) -> str:
    """The manifest of a build from the present sources. A build makes it before it reads them: an
    edit during the build must not pass as compiled.
    """
    lines = [BUILD, *(f"{source_sum(module)} {module}" for module in modules)]
    return "\n".join(lines) + "\n"


def fresh_modules() -> frozenset[str]:
    """The compiled modules; empty if they are missing, or not built from the present sources."""
    try:
        build, *lines = (FOLDER / MANIFEST).read_text().splitlines()
        if build != BUILD:
            return frozenset()
        rows = [line.split(" ") for line in lines]
        if any(source_sum(module) != recorded for recorded, module in rows):
            return frozenset()
    except (OSError, ValueError):
        return frozenset()
    return frozenset(module for _, module in rows)


class CompiledFinder:
    """Finds the compiled modules; it stands before the finders of the sources."""

    def __init__(self) -> None:
        self._modules: frozenset[str] | None = None

    @property
    def modules(self) -> frozenset[str]:
        if self._modules is None:
            self._modules = fresh_modules()
        return self._modules

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != LIBRARY and (not name.startswith(PACKAGES) or name not in self.modules):
            return None
        file = str(FOLDER / (name + BUILD))
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


_finder = CompiledFinder()


def install() -> None:
    """Use the compiled modules, unless the user has selected the sources."""
    if os.environ.get(PURE_VARIABLE, "0") in {"", "0"} and FOLDER.is_dir():
        sys.meta_path.insert(0, _finder)


def is_in_use() -> bool:
    """Whether this process uses the compiled modules."""
    return _finder in sys.meta_path and bool(_finder.modules)
