"""Writes the tables of docs/reference/sdk.md from the signatures and docstrings of the SDK.

The comment `<!-- generated: NAME NAME ... -->` names the entries of the table below it; the rest of
the page is prose. Regenerate the tables with `.venv/bin/python tests/docs/sdk_page.py`.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from millrace import client
from millrace.client.testing import TestingServer

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "sdk.md"
#: Names of objects in the page, and their classes.
OWNERS: Final = {
    "app": client.Millrace,
    "task": client.Task,
    "handle": client.JobHandle,
    "worker": client.Worker,
    "server": TestingServer,
}
_GENERATED: Final = re.compile(r"(<!-- generated: (.+?) -->\n\n).*?(?=\n\n|\n*\Z)", re.DOTALL)
_MODULE: Final = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z~]|timedelta|datetime)|~")
_FIELD: Final = re.compile(r"((?: +#:.*\n)+) +(\w+):")


def page(text: str) -> str:
    """The page with its tables as the code defines them."""
    return _GENERATED.sub(lambda found: found[1] + "\n".join(_table(found[2].split())), text)


def generated_names(text: str) -> list[str]:
    return [name for found in _GENERATED.finditer(text) for name in found[2].split()]


def _table(names: list[str]) -> Iterator[str]:
    first = _object(names[0])
    if isinstance(first, type) and issubclass(first, BaseException):
        yield from ("| error | meaning |", "|---|---|")
    elif names == ["WorkerOptions"]:
        yield from ("| option | meaning |", "|---|---|", *_options(first))
        return
    else:
        yield from ("| call | result |", "|---|---|")
    for name in names:
        yield _row(name)


def _object(name: str) -> Any:
    owner, _, method = name.partition(".")
    if method:
        return getattr(OWNERS[owner], method)
    return getattr(client, name)


def _row(name: str) -> str:
    found = _object(name)
    if isinstance(found, type) and issubclass(found, BaseException):
        return f"| `{name}` | {_text(found)} |"
    owner, _, method = name.partition(".")
    other = f" Asyncio: `{method}_async`." if hasattr(OWNERS.get(owner), f"{method}_async") else ""
    shown = f"@{name}" if name == "app.task" else name
    call = f"{shown}{signature(found)}".replace("|", r"\|")
    return f"| `{call}` | {_text(found)}{other} |"


def _options(options: Any) -> Iterator[str]:
    comments = {
        name: " ".join(line.strip().removeprefix("#:").strip() for line in text.splitlines())
        for text, name in _FIELD.findall(inspect.getsource(options))
    }
    for field in fields(options):
        # The number of processors differs from machine to machine.
        is_machine = field.name == "concurrency"
        default = (
            "the number of processors, at least 2" if is_machine else f"`{_value(field.default)}`"
        )
        yield f"| `{field.name}: {_type(field.type)}` | {comments[field.name]} Default: {default}. |"


def signature(found: Any) -> str:
    """The parameters with types and defaults, and the type of the result."""
    parts: list[str] = []
    keyword_only = False
    described = inspect.signature(found)
    for parameter in described.parameters.values():
        if parameter.name in {"self", "function"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(part.startswith("*") for part in parts):
                parts.append("*")
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            kind = ": str" if parameter.annotation is str else ""
            parts.append(f"{stars}{parameter.name}{kind}")
            continue
        part = f"{parameter.name}: {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            part += f" = {_value(parameter.default)}"
        parts.append(part)
    result = described.return_annotation
    is_plain = isinstance(found, type) or result in {None, inspect.Signature.empty, Any}
    return f"({', '.join(parts)})" + ("" if is_plain else f" -> {_type(result)}")


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    # Quotes of a forward reference are no part of the type; those of a literal are.
    return _MODULE.sub("", text.replace("'", '"' if "Literal[" in text else ""))


def _value(value: Any) -> str:
    return repr(value).replace("'", '"')


def _text(found: Any) -> str:
    assert found.__doc__, found
    return " ".join(inspect.cleandoc(found.__doc__).split())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
