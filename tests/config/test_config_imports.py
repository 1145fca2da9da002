"""Modules that the configuration imports, in a fresh interpreter."""

import os
import subprocess
import sys
import textwrap


def test_importing_and_loading_without_a_file_leaves_the_slow_modules_alone():
    program = """
        import sys
        from millrace.config import load
        load({}, {})
        print(*sorted({"asyncio", "difflib", "rich", "tomllib", "typer"} & set(sys.modules)))
        """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
        text=True,
    )
    assert ran.stdout == "\n"
