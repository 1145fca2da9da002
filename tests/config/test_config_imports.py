"""Modules that the configuration imports, in a fresh interpreter. It gets the sections of the
protocols from its caller.
"""

import os
import subprocess
import sys
import textwrap


def test_importing_and_loading_without_a_file_leaves_the_slow_modules_alone():
    program = """
        import sys
        from millrace.config import load, use_protocol_sections
        from millrace.protocols.registry import protocol_sections
        use_protocol_sections(protocol_sections)
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


def test_the_configuration_has_the_sections_of_its_caller():
    program = """
        import sys
        from millrace.config import keys, section_types, use_protocol_sections
        from millrace.config.keys import ListenerSection
        try:
            keys()
        except RuntimeError as error:
            print(error)
        use_protocol_sections(lambda: {"mail": ListenerSection})
        print(*list(section_types())[:3], "mail.port" in keys())
        print(*[name for name in sys.modules if name.startswith("millrace.protocols")])
        """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
        text=True,
    )
    expected = ["use_protocol_sections must be called first", "server mail web True", ""]
    assert ran.stdout.splitlines() == expected
