"""Compares the redis-cli transcripts of a page with the real output.

    > QLESS.GET 0 missing
    (nil)
    > QLESS.PUT 1 emails job-1 Mail '{"to":"ada"}' 1352375209 0
    job-1

redis-cli runs with --raw, so that JSON is readable: text and numbers are unchanged, an error is its
message, and the items of a list are on separate lines. An empty output is `(nil)` here, and a line
that ends in `...` matches any continuation. All commands of a block use one connection.
"""

import subprocess
from collections.abc import Iterable
from itertools import pairwise

PROGRAM = "redis-cli"
TIMEOUT = 20.0
NOTHING = "(nil)"
PROMPT = "> "
REST = "..."


def commands(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The commands, each with the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(PROMPT):
            found.append((line.removeprefix(PROMPT), []))
        else:
            assert found, f"no command before {line!r}"
            found[-1][1].append(line)
    return found


def run_commands(actual: list[str], port: int) -> list[list[str]]:
    """The output of each command."""
    marks = [f"--- {number} ---" for number in range(len(actual) + 1)]
    lines = [f'echo "{marks[0]}"']
    for command, mark in zip(actual, marks[1:], strict=True):
        lines += [command, f'echo "{mark}"']
    printed = run(lines, port)
    places = [printed.index(mark) for mark in marks if mark in printed]
    assert len(places) == len(marks), f"not all was answered: {printed}"
    replies = [printed[start + 1 : end] for start, end in pairwise(places)]
    return [reply or [NOTHING] for reply in replies]


def run(lines: list[str], port: int) -> list[str]:
    """The output without empty lines: one follows every error."""
    ran = subprocess.run(
        [PROGRAM, "-p", str(port), "--raw"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ran.returncode == 0, ran.stderr
    return [line for line in ran.stdout.splitlines() if line]


def hold(lines: Iterable[str], port: int, *, unauthenticated: bool = False) -> None:
    """Run the commands, and compare the output. Before AUTH, replies cannot be separated; then each
    must be one line.
    """
    turns = commands(lines)
    actual = [command for command, _ in turns]
    replies = (
        [[line] for line in run(actual, port)] if unauthenticated else run_commands(actual, port)
    )
    for (command, shown), printed in zip(turns, replies, strict=True):
        assert is_shown(printed, shown), f"{command}\nshould print {shown}\nprints {printed}"


def is_shown(printed: list[str], shown: list[str]) -> bool:
    if len(printed) != len(shown):
        return False
    return all(
        line.startswith(page.removesuffix(REST)) if page.endswith(REST) else line == page
        for line, page in zip(printed, shown, strict=True)
    )
