"""Run mypyc's code generation over the modules that are compiled, without a C compiler.

mypyc rejects some valid Python (tables of methods in class bodies, surrogates in literals, subclasses
of str). This check takes four seconds and finds such code before a build does.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mypyc.build import mypyc_build
from mypyc.options import CompilerOptions

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "millrace"
#: Qless is missing: its reply types are subclasses of str and list.
COMPILED = (
    "engine/*.py",
    "protocols/*.py",
    "protocols/faktory/*.py",
    "protocols/workq/*.py",
    "protocols/masenko/*.py",
    "protocols/goqueue/*.py",
)


def main() -> None:
    paths = [str(path) for pattern in COMPILED for path in sorted(PACKAGE.glob(pattern))]
    options = ["--config-file", str(ROOT / "pyproject.toml"), *paths]
    with TemporaryDirectory() as folder:
        mypyc_build(options, CompilerOptions(target_dir=folder))  # exits with 1 on an error
    print(f"codegen: {len(paths)} modules", file=sys.stderr)


if __name__ == "__main__":
    main()
