"""The pure wheel needs only pyproject.toml. MILLRACE_WHEEL=compiled adds the compiled modules that
`make build` has created, and the tags of the interpreter and the platform.
"""

import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

COMPILED = Path("src/millrace/_compiled")


class CompiledDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class BuildCompiled(build_py):
    def run(self) -> None:
        super().run()
        shutil.copytree(COMPILED, Path(self.build_lib, "millrace", "_compiled"), dirs_exist_ok=True)


if os.environ.get("MILLRACE_WHEEL") == "compiled":
    if not (COMPILED / "manifest").exists():
        raise SystemExit("There are no compiled modules. Run `make build` first.")
    setup(distclass=CompiledDistribution, cmdclass={"build_py": BuildCompiled})
else:
    setup()
