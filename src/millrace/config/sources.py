"""The values of each source of the configuration, and errors for unknown names."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.config.sections import keys, section_types
from millrace.config.values import invalid_value

if TYPE_CHECKING:
    from millrace.config.document import Document

FILE_VARIABLE = "MILLRACE_CONFIG"
#: Variables of clients, workers and commands, and the one that disables compiled code. They are
#: not keys of a server.
OTHER_VARIABLES = frozenset(
    {"MILLRACE_URL", "MILLRACE_TOKEN", "MILLRACE_WORKER_CHILD", "MILLRACE_PURE"}
)
#: The variable of the original Faktory server.
PASSWORD_VARIABLE = "FAKTORY_PASSWORD"  # noqa: S105 - a name


class SourceValue(NamedTuple):
    """A raw value from one source."""

    dotted_name: str
    raw: Any
    source: str


def from_flags(overrides: Mapping[str, str]) -> Iterator[SourceValue]:
    for dotted_name, text in overrides.items():
        yield SourceValue(dotted_name, text, keys()[dotted_name].flag)


def _did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    import difflib  # noqa: PLC0415 - only needed for an error

    return next(iter(difflib.get_close_matches(word, candidates, n=1)), None)


def from_file(document: "Document", problems: list[str]) -> Iterator[SourceValue]:
    for section, table in document.tables.items():
        where = document.source(section)
        if section not in section_types():
            problems.append(f"{where}: {_unknown_section(section, table)}")
        elif not isinstance(table, dict):
            problems.append(f"{where}: {section}: {invalid_value(f'a section [{section}]', table)}")
        else:
            for name, raw in table.items():
                dotted_name, where = f"{section}.{name}", document.source(section, name)
                if dotted_name in keys():
                    yield SourceValue(dotted_name, raw, where)
                else:
                    problems.append(f"{where}: {dotted_name}: {_unknown_key(section, name)}")


def _unknown_section(name: str, table: object) -> str:
    if not isinstance(table, dict):
        matches = [key.dotted_name for key in keys().values() if key.name == name]
        hint = (
            f"did you mean {matches[0]}?" if matches else "keys belong in sections such as [server]"
        )
        return f"{name}: unknown key, {hint}"
    meant = _did_you_mean(name, section_types())
    known = ", ".join(f"[{section}]" for section in section_types())
    return f"[{name}]: unknown section, " + (
        f"did you mean [{meant}]?" if meant else f"known sections are {known}"
    )


def _unknown_key(section: str, name: str) -> str:
    names = [key.name for key in keys().values() if key.section == section]
    if meant := _did_you_mean(name, names):
        return f"unknown key, did you mean {section}.{meant}?"
    if matches := [key.dotted_name for key in keys().values() if key.name == name]:
        return f"unknown key, did you mean {matches[0]}?"
    return f"unknown key, [{section}] has {', '.join(names)}"


def from_environ(environ: Mapping[str, str], problems: list[str]) -> Iterator[SourceValue]:
    # The original server treats an empty value as not set.
    if password := environ.get(PASSWORD_VARIABLE):
        yield SourceValue("faktory.password", password, PASSWORD_VARIABLE)
    variables = {key.variable: key for key in keys().values()}
    ignored = {FILE_VARIABLE, *OTHER_VARIABLES, *_service_links(environ)}
    for name, text in sorted(environ.items()):
        if not name.startswith("MILLRACE_") or name in ignored:
            continue
        if name in variables:
            yield SourceValue(variables[name].dotted_name, text, name)
        else:
            # The common prefix would make all names similar.
            known = {variable.removeprefix("MILLRACE_"): variable for variable in variables}
            meant = _did_you_mean(name.removeprefix("MILLRACE_"), known)
            hint = f"did you mean {known[meant]}?" if meant else "`millrace config` shows the keys"
            problems.append(f"{name}: unknown variable, {hint}")


def secret_variables() -> set[str]:
    """Variables that contain secrets; child processes do not inherit them."""
    named = {key.variable for key in keys().values() if key.value_type.secret}
    return named | {PASSWORD_VARIABLE}


def _service_links(environ: Mapping[str, str]) -> set[str]:
    """Variables that Kubernetes sets in every pod for a Service named `millrace` or `millrace-x`.

    Examples: MILLRACE_PORT=tcp://10.0.0.1:7419, MILLRACE_SERVICE_HOST.
    """
    services = [
        name.removesuffix("_PORT")
        for name, value in environ.items()
        if name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))
    ]
    prefixes = tuple(f"{service}{part}" for service in services for part in ("_SERVICE_", "_PORT"))
    return {name for name in environ if name.startswith(prefixes)} if prefixes else set()
