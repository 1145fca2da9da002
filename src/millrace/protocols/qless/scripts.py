"""Calls of Qless: SCRIPT, EVAL, EVALSHA, and QLESS.<COMMAND> without a script.

The server identifies a script but never runs it; the commands implement its effect. EVALSHA works
for scripts that a client has loaded, including before the last restart: some clients load their
scripts only once. SCRIPT FLUSH removes all loaded scripts.
"""

from typing import TYPE_CHECKING, Final

from millrace.protocols.errors import ClientError

from .commands import ANY, Answer, Command, check_argument_count, parse_integer, unknown_subcommand
from .errors import ScriptError
from .names import decode_name
from .resp import OK
from .script_catalog import SPEC_COMMANDS, Script, recognise, sha_of

if TYPE_CHECKING:
    from .connection import QlessConnection

NO_SCRIPT: Final = "NOSCRIPT No matching script. Please use EVAL."
UNKNOWN_SCRIPT: Final = (
    "ERR Millrace does not run Lua. It recognizes only the scripts of qless-core and reqless-core, "
    "and this is not one of them. See QLESS.PUT and similar commands for calls without a script."
)


def _script(connection: "QlessConnection", args: list[bytes], _now: int) -> Answer:
    hub, what = connection.hub, args[0].upper()
    if what == b"LOAD":
        check_argument_count(args, 2, 2, "script|load")
        return _load(connection, args[1])[0]
    if what == b"EXISTS":
        check_argument_count(args, 2, ANY, "script|exists")
        return [int(sha.lower() in hub.scripts) for sha in args[1:]]
    if what == b"FLUSH":
        check_argument_count(args, 1, 2, "script|flush")
        if len(args) == 2 and args[1].upper() not in {b"SYNC", b"ASYNC"}:
            raise ClientError("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
        hub.flush_scripts()
        return OK
    if what == b"KILL":
        check_argument_count(args, 1, 1, "script|kill")
        raise ClientError("NOTBUSY No scripts in execution right now.")
    raise unknown_subcommand("SCRIPT", args[0])


def _load(connection: "QlessConnection", text: bytes) -> tuple[str, Script]:
    script = recognise(text)
    if script is None:
        raise ClientError(UNKNOWN_SCRIPT)
    sha = sha_of(text)
    connection.hub.load_script(sha, script)
    return sha, script


def _eval(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    keys, rest = _split(args)
    return _run(connection, _load(connection, args[0])[1], keys, rest, now)


def _evalsha(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
    scripts = connection.hub.scripts
    script = scripts.get(args[0]) or scripts.get(args[0].lower())
    if script is None:
        raise ClientError(NO_SCRIPT)
    keys, rest = _split(args)
    return _run(connection, script, keys, rest, now)


def _split(args: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Split keys and arguments. The second argument is the number of keys."""
    if args[1] == b"0":
        return [], args[2:]
    count = parse_integer(args[1])
    if count > len(args) - 2:
        raise ClientError("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise ClientError("ERR Number of keys can't be negative")
    return args[2 : 2 + count], args[2 + count :]


def _run(
    connection: "QlessConnection", script: Script, keys: list[bytes], args: list[bytes], now: int
) -> Answer:
    dialect, command = script
    if dialect != "A":
        if keys:
            raise ScriptError("No Keys should be provided")
        if not args:
            raise ScriptError("Must provide a command")
        command = decode_name(args[0])
        args = args[1:]
    return as_lua_returns(connection.hub.api.call(dialect, command, keys, args, now))


def as_lua_returns(value: Answer) -> Answer:
    """Convert a result as Lua does: true to 1, false to nil, and numbers to integers."""
    if isinstance(value, bool):
        return 1 if value else None
    return int(value) if isinstance(value, float) else value


def _spec_command(name: str) -> Command:
    """Return the command QLESS.<NAME>. Its arguments are the number of keys, the keys and the
    arguments, as in the spec.
    """

    def call(connection: "QlessConnection", args: list[bytes], now: int) -> Answer:
        keys, rest = _split([b"", *args])
        return as_lua_returns(connection.hub.api.call("spec", name, keys, rest, now))

    return Command(call, 1, ANY)


COMMANDS: Final = {
    b"SCRIPT": Command(_script, 1, ANY),
    b"EVAL": Command(_eval, 2, ANY),
    b"EVALSHA": Command(_evalsha, 2, ANY),
    **{b"QLESS.%b" % name.upper().encode(): _spec_command(name) for name in sorted(SPEC_COMMANDS)},
}
