"""Compile the hot path with mypyc into src/millrace/_compiled (see src/millrace/compiled.py).

    python tools/compile.py           build, unless the folder is up to date
    python tools/compile.py --check   only generate the C code, which shows the errors of mypyc;
                                      unless it was generated from the same sources before

Without a C compiler or mypyc the build is skipped, and the server runs from the sources.
"""

import argparse
import contextlib
import hashlib
import io
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
os.environ["MILLRACE_PURE"] = "1"
sys.path.insert(0, str(SOURCES))

from millrace import compiled  # noqa: E402 - after its folder is on the path

#: The hot path. Qless is missing: its reply types are subclasses of str and list.
PATTERNS = (
    "engine/*.py",
    "protocols/*.py",
    "protocols/faktory/*.py",
    "protocols/workq/*.py",
    "protocols/masenko/*.py",
    "protocols/goqueue/*.py",
    "server/session.py",
    "server/closed_connection.py",
    "server/delivery.py",
    "server/output.py",
    "server/turns.py",
    "server/run_queue.py",
    "store/records.py",
)
#: Modules of declarations, which would not be faster. Modules with msgspec structs are left out as
#: well: mypyc drops the keywords of a class.
LEFT_OUT = (
    "__init__.py",
    "engine/consistency.py",
    "engine/tables.py",
    "protocols/registry.py",
    "protocols/spec.py",
    "protocols/*/settings.py",
    "protocols/*/spec.py",
)
#: Half of the time of -O3, and no slower: most of the time is spent in the interpreter's own code.
OPTIMISATION = "1"
#: The state of the sources at the last successful check.
CHECKED = ROOT / ".mypy_cache" / "codegen"
#: Packages that the compiled modules do not import, so that the result does not depend on them.
NOT_IMPORTED = ("admin", "cli", "client", "migration", "pipeline", "web")


def sources() -> list[Path]:
    package = SOURCES / "millrace"
    found = [path for pattern in PATTERNS for path in sorted(package.glob(pattern))]
    return [
        path
        for path in found
        if not any(path.match(pattern) for pattern in LEFT_OUT)
        and "msgspec.Struct" not in path.read_text()
    ]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts)


def state() -> str:
    """A digest of everything on which the generated code depends."""
    package = SOURCES / "millrace"
    used = [
        path
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] not in NOT_IMPORTED
    ]
    digest = hashlib.sha256(f"{sys.version} {metadata.version('mypy')}".encode())
    for path in (Path(__file__), ROOT / "pyproject.toml", *used):
        digest.update(b"%b %d " % (str(path).encode(), path.stat().st_size) + path.read_bytes())
    return digest.hexdigest()


def check(count: int) -> None:
    """Generate the C code of `count` modules, unless the last check had the same sources."""
    now = state()
    if CHECKED.exists() and CHECKED.read_text() == now:
        print(f"codegen: {count} modules, unchanged", file=sys.stderr)
        return
    with TemporaryDirectory() as folder:
        generate(Path(folder))
    CHECKED.parent.mkdir(exist_ok=True)
    CHECKED.write_text(now)
    print(f"codegen: {count} modules", file=sys.stderr)


def generate(folder: Path) -> list[Any]:
    """Generate the C code; exits with 1 if mypyc rejects a module."""
    from mypyc.build import mypycify  # noqa: PLC0415 - it may be missing

    arguments = ["--config-file", str(ROOT / "pyproject.toml"), *map(str, sources())]
    output = io.StringIO()
    try:
        with contextlib.chdir(SOURCES), contextlib.redirect_stdout(output):
            return mypycify(
                arguments,
                opt_level=OPTIMISATION,
                debug_level="0",
                target_dir=str(folder),
                multi_file=True,
                group_name="millrace",
            )
    except SystemExit:
        # tests/test_compiled.py checks the generator expressions.
        lines = output.getvalue().splitlines()
        print("\n".join(line for line in lines if "Treating generator" not in line))
        raise


def build(folder: Path, target: Path) -> None:
    """Compile and link the C code on all cores. setuptools would use one per library."""
    from setuptools._distutils.ccompiler import new_compiler  # noqa: PLC0415
    from setuptools._distutils.sysconfig import customize_compiler, get_python_inc  # noqa: PLC0415

    extensions = generate(folder)
    compiler: Any = new_compiler()
    customize_compiler(compiler)

    def compile_one(source: str, extension: Any) -> str:
        return compiler.compile(
            [source],
            output_dir=str(folder),
            include_dirs=[*extension.include_dirs, get_python_inc()],
            extra_postargs=extension.extra_compile_args,
        )[0]

    def link(extension: Any, objects: list[str]) -> None:
        # Without the symbols of functions that no other library calls, it is a tenth smaller.
        options = ["-s"] if sys.platform == "linux" else []
        path = str(target / (extension.name + compiled.BUILD))
        compiler.link_shared_object(objects, path, extra_postargs=options)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            (extension, [pool.submit(compile_one, source, extension) for source in each])
            for extension in extensions
            for each in [sorted(extension.sources, key=size, reverse=True)]
        ]
        for extension, objects in jobs:
            link(extension, [each.result() for each in objects])


def size(source: str) -> int:
    return Path(source).stat().st_size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only generate the C code")
    parser.add_argument("--fresh", action="store_true", help="exit with 0 if it is up to date")
    parser.add_argument("--force", action="store_true", help="build even if it is up to date")
    options = parser.parse_args()
    modules = [module_name(path) for path in sources()]
    if options.check:
        check(len(modules))
        return 0
    is_fresh = compiled.fresh_modules() == set(modules)
    if options.fresh:
        return 0 if is_fresh else 1
    if is_fresh and not options.force:
        print("compile: the compiled modules are up to date")
        return 0
    if missing := missing_tool():
        print(f"compile: {missing} is missing; the server runs from the sources")
        return 0
    began = time.monotonic()
    manifest = compiled.make_manifest(modules)
    with TemporaryDirectory() as folder:
        target = Path(folder) / "target"
        target.mkdir()
        build(Path(folder), target)
        (target / compiled.MANIFEST).write_text(manifest)
        shutil.rmtree(compiled.FOLDER, ignore_errors=True)
        shutil.copytree(target, compiled.FOLDER)
    print(f"compile: {len(modules)} modules in {time.monotonic() - began:.0f} s")
    return 0


def missing_tool() -> str:
    """The tool that a build needs and this machine does not have, or empty."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return "a C compiler"
    try:
        import mypyc  # noqa: F401, PLC0415
    except ImportError:
        return "mypyc"
    return ""


if __name__ == "__main__":
    sys.exit(main())
