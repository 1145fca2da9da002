"""What redis-cli prints on a page, compared with what it prints.

    > QLESS.GET 0 nobody
    (nil)
    > QLESS.PUT 1 emails job-1 Mail '{"to":"ada"}' 1352375209 0
    job-1

It is run with --raw, so that JSON can be read: text and numbers stand as they are, an error as its
message, the items of a list each on a line. What it prints as nothing is `(nil)` here, and a line
that ends in `...` goes on as it likes. All commands of a block are said on one connection.
"""

import subprocess
from collections.abc import Iterable
from itertools import pairwise

PROGRAM = "redis-cli"
PATIENCE = 20.0
NOTHING = "(nil)"
PROMPT = "> "
REST = "..."


def commands(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """What is said, and what is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(PROMPT):
            found.append((line.removeprefix(PROMPT), []))
        else:
            assert found, f"nothing was said before {line!r}"
            found[-1][1].append(line)
    return found


def say(said: list[str], port: int) -> list[list[str]]:
    """What is printed for each command."""
    marks = [f"--- {number} ---" for number in range(len(said) + 1)]
    lines = [f'echo "{marks[0]}"']
    for command, mark in zip(said, marks[1:], strict=True):
        lines += [command, f'echo "{mark}"']
    printed = run(lines, port)
    places = [printed.index(mark) for mark in marks if mark in printed]
    assert len(places) == len(marks), f"not all was answered: {printed}"
    replies = [printed[start + 1 : end] for start, end in pairwise(places)]
    return [reply or [NOTHING] for reply in replies]


def run(lines: list[str], port: int) -> list[str]:
    """All that is printed, but for empty lines: one follows every error."""
    ran = subprocess.run(
        [PROGRAM, "-p", str(port), "--raw"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    return [line for line in ran.stdout.splitlines() if line]


def hold(lines: Iterable[str], port: int, *, strange: bool = False) -> None:
    """Say what is said, and expect what is shown. A stranger, who has to say AUTH first, is not even
    told where one reply ends; then each should be one line.
    """
    turns = commands(lines)
    said = [command for command, _ in turns]
    replies = [[line] for line in run(said, port)] if strange else say(said, port)
    for (command, shown), printed in zip(turns, replies, strict=True):
        assert is_shown(printed, shown), f"{command}\nshould print {shown}\nprints {printed}"


def is_shown(printed: list[str], shown: list[str]) -> bool:
    if len(printed) != len(shown):
        return False
    return all(
        line.startswith(page.removesuffix(REST)) if page.endswith(REST) else line == page
        for line, page in zip(printed, shown, strict=True)
    )
