"""The fields of the engine's plain classes: their names, copies and comparisons."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import millrace
from millrace.engine.jobs_by_seq import JobsBySeq

SOURCES = Path(millrace.__file__).parents[1]


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """The parameters of the constructor, in order. A compiled class does not have them, so they are
    read from the source.
    """
    source = (SOURCES / kind.__module__.replace(".", "/")).with_suffix(".py")
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    return tuple(a.arg for a in each.args.args[1:] + each.args.kwonlyargs)
    raise LookupError(kind)


def is_plain(thing: object) -> bool:
    """Whether it is an object of one of the engine's records."""
    return type(thing).__module__.startswith("millrace.engine.")


def copy_of(thing: Any, **changes: Any) -> Any:
    """A copy of an object with changed fields; rare objects of a job are copied too."""
    fields = {name: _copied(getattr(thing, name)) for name in field_names(type(thing))}
    return type(thing)(**{**fields, **changes})


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return list(value)
    return copy_of(value) if is_plain(value) else value


def values(thing: Any) -> Any:
    """The fields of an object as a dictionary, to compare two objects."""
    if isinstance(thing, dict | JobsBySeq):
        return {key: values(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return list(thing)
    if not is_plain(thing):
        return thing
    return {name: values(getattr(thing, name)) for name in field_names(type(thing))}
