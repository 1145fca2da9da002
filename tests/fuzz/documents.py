"""The documented errors: the protocols' specifications, and the tables "Errors" of the pages under
docs/reference. A client cannot know any other error.

`...` is the client's input or a detail that the document leaves open, `<n>` a number.
"""

import re


def named(*forms: str) -> re.Pattern[str]:
    """A pattern for all these forms, as written in the document."""
    parts = [re.escape(form).replace(r"\.\.\.", ".*").replace("<n>", "-?[0-9]+") for form in forms]
    return re.compile("|".join(f"(?:{part})" for part in parts), re.DOTALL)


WORKQ = named(
    "CLIENT-ERROR Unknown command",
    "CLIENT-ERROR Invalid command args",
    "CLIENT-ERROR Invalid command flags",
    "CLIENT-ERROR Invalid payload size",
    "CLIENT-ERROR Invalid result size",
    *(
        f"CLIENT-ERROR Invalid {field}"
        for field in ("ID", "Name", "TTR", "TTL", "Time", "Priority", "Max Attempts", "Max Fails")
    ),
    "CLIENT-ERROR Invalid wait timeout",
    "CLIENT-ERROR Invalid cursor offset",
    "CLIENT-ERROR Invalid limit",
    "CLIENT-ERROR Duplicate job",
    "CLIENT-ERROR Duplicate result",
)

_GO_JSON = (
    "unexpected end of JSON input",
    "exceeded max depth",
    "invalid character '...' looking for beginning of value",
    "invalid character '...' looking for beginning of object key string",
    "invalid character '...' after object key",
    "invalid character '...' after object key:value pair",
    "invalid character '...' after array element",
    "invalid character '...' after top-level value",
    "invalid character '...' in string literal",
    "invalid character '...' in string escape code",
    "invalid character '...' in \\u hexadecimal character escape",
    "invalid character '...' in numeric literal",
    "invalid character '...' after decimal point in numeric literal",
    "invalid character '...' in exponent of numeric literal",
    "invalid character '...' in literal ... (expecting '...')",
    "longer than 81920 bytes",
)
_MASENKO_PUSH = (
    "cannot unmarshal payload",
    'invalid queue name "..."',
    'invalid task name "..."',
    "at most 255 blocked by task IDs can be provided",
)
_MASENKO_SIZES = (
    "serialize operation: input: arguments too big",
    "serialize operation: input: queue name too long",
    "serialize operation: input: task name too long",
    "serialize operation: input: deadqueue name too long",
)
_MASENKO_ACK = (
    "missing id",
    *(f"unmarshal payload: {text}" for text in _GO_JSON),
    *(
        f"unmarshal payload: json: cannot unmarshal {what} into {where}"
        for what in ("string", "bool", "array", "object", "number ...")
        for where in (
            "Go struct field ackRequest.id of type uint32",
            "Go struct field nackRequest.id of type uint32",
        )
    ),
    *(
        f"unmarshal payload: json: cannot unmarshal {what} into Go value of type proto.{record}"
        for what in ("string", "bool", "array", "number")
        for record in ("ackRequest", "nackRequest")
    ),
)
MASENKO = named(
    "unknown verb ...",
    "no heartbeat",
    "line longer than <n> bytes",
    *_MASENKO_PUSH,
    "cannot use relative blocked by outside of a transaction",
    *(f"cannot push to queue: wall append: {text}" for text in _MASENKO_SIZES),
    "timeout must be greater than zero",
    "timeout must be smaller than the heartbeat frequency 45s",
    "at most 1000 queues can be given",
    *_MASENKO_ACK,
    "task not acquired",
    "... is not allowed in transaction.",
    "task <n> not acquired",
    *(f"message <n>: PUSH: {text}" for text in _MASENKO_PUSH),
    "message <n>: PUSH: cannot self reference in blocked by",
    "message <n>: PUSH: invalid relative task position in blocked by",
    *(f"message <n>: ACK: {text}" for text in _MASENKO_ACK),
    *(f"commit transaction: write to WAL: {text}" for text in _MASENKO_SIZES),
    "commit transaction: write to WAL: serialize operation: buffer too small: size",
)

GOQUEUE = named(
    "Unknown Command ...",
    "Error adding new job to queue ",
    "The queue name is not UTF-8",
    "Job <n> already deleted",
    "Malformed ADD command: the queue name is longer than 255 bytes",
    "Malformed RESERVE command: the queue name is longer than 255 bytes",
    "Malformed ADD command: the data is larger than <n> bytes",
    "Malformed ... command: it is not complete",
)

FAKTORY = named(
    "expected HELLO {...} first, got ...",
    "invalid HELLO: ...",
    "Invalid password",
    "command too long: the limit is <n> bytes",
    "unknown command ...",
    "internal error",
    "invalid JSON: ...",
    "jobs must have a reasonable jid parameter",
    "jobs must have a jobtype parameter",
    "jobs must have an args parameter",
    "jobs cannot be reserved for more than one day",
    "invalid timestamp for 'at': ...",
    "cannot get ... queue: queue names must match \\A[a-zA-Z0-9._-]+\\z",
    "invalid ACK ...",
    "invalid FAIL ...",
    "invalid BEAT ...",
    "too many queues: at most 1000, not <n>",
    "queue names too long: at most <n> bytes",
    "missing JID",
    "Job not found ...",
    "unknown worker ...",
    "no such QUEUE subcommand: ...",
    "QUEUE LATENCY does not support wildcards",
    "invalid format",
    "unknown mutate operation",
    "invalid target for mutation command",
    "expected WORKER QUIET|TERMINATE <wid>|*",
    "worker ... is not connected",
    "batch subsystem is only available in Faktory Enterprise",
    "tracking subsystem is only available in Faktory Enterprise",
    "invalid MILLRACE: ...",
    "no such load: ...",
    "the load ... is ...: nothing can be added to it",
    "the load ... is ...: it cannot be discarded any more",
    "no such cursor on this connection: read from the beginning",
)

_WANTED = ("value", "object key string", "colon", "comma or object end", "comma or array end", "the end")  # fmt: skip
_ENDED = ("does not exist", "is not currently running: ...", "not currently running: ...")
_QLESS = (
    *('...(): Arg "..." missing', '...(): Arg "..." not a number: ...', '...(): Arg "..." is not a number: ...'),
    '...(): Arg "..." missing or not a number: ...',
    *('...(): Arg "priority" not a number...', '...(): Arg "priority" must be a number: ...'),
    'Arg "now" missing or not a number: ...',
    "Odd number of additional args: table: 0x0",
    *(f"Expected {wanted} but found ... at character <n>" for wanted in _WANTED),
    "Found too many nested data structures (<n>)",
    "bad argument #1 to 'decode' (string expected, got nil)",
    "bad argument #1 to 'tonumber' (value expected)",
    "bad argument #1 to 'ipairs' (table expected, got ...)",
    "Lua redis() command arguments must be strings or integers",
    "Wrong number of args calling Redis command from script",
    "assertion failed!",
    *("Must provide a command", "Unknown command ...", "No Keys should be provided"),
    *(
        f"{who}(): Job ...{ended}"
        for who in ("Complete", "Heartbeat", "Priority", "Requeue", "Retry", "Tag", "Untag", "Timeout", "Log", "Fail", "Track")
        for ended in _ENDED
    ),
    "Timeout(): Job ... not running",
    "Complete(): Job ... has been handed out to another worker: ...",
    "Complete(): Job has been handed out to another worker: ...",
    "Retry(): Job ... has been given to another worker: ...",
    "Heartbeat(): Job ... given out to another worker: ...",
    "Fail(): Job ... running with another worker: ...",
    "Complete(): Job ... running in another queue: ...",
    'Complete(): "delay" cannot be used without a "next".',
    'Complete(): "depends" cannot be used without a "next".',
    "Cancel(): ... is a dependency of ... but is not mentioned to be canceled",
    "Depends(): Job ... not in the depends state: ...",
    'Depends(): Argument "command" must be "on" or "off"',
    'Jobs(): Unknown type "..."',
    'Track(): Unknown action "..."',
    'Tag(): First argument must be "add", "remove" or "get"',
    'Tag(): Arg "command" must be "add", "remove", "get" or "top"',
    'Recur(): schedule type "..." unknown',
    'Recur(): Arg "interval" must be greater than 0',
    "Recur(): No recurring job ...",
    'Recur(): Unrecognized option "..."',
    "No value provided for ...",
    "Recur(): First argument must be one of on, off, get, update, tag, untag",
    "Config(): Unrecognized action ...",
    'Put(): Arg "tags" must be a JSON array of strings',
    "Odd number of identifier patterns: table: 0x0",
    'queuePriorityPatterns.setAll(): Arg "pattern" missing or not a list',
    *("Queue(): no queue name provided", "Job(): no jid provided"),
    "Log(): Argument 'message' missing",
    'Heatbeat(): Arg "worker" missing',
    'Unfail(): Arg "count" must be greater than zero',
)  # fmt: skip
_REDIS = (
    "NOSCRIPT No matching script. Please use EVAL.",
    "NOAUTH Authentication required.",
    "NOAUTH HELLO must be called with the client already authenticated, ...",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "ERR '...' belongs to Qless: only Qless commands can change it",
    "OOM ...",
    "EXECABORT Transaction discarded because of previous errors.",
    "NOPROTO unsupported protocol version",
    "NOTBUSY No scripts in execution right now.",
    "ERR Protocol error: ...",
    "ERR unknown command '...', with args beginning with: ...",
    "ERR unknown subcommand '...'. Try ... HELP.",
    "ERR wrong number of arguments for '...' command",
    "ERR value is not an integer or out of range",
    "ERR syntax error",
    "ERR timeout is not a float or out of range",
    "ERR timeout is negative",
    "ERR invalid expire time in '...' command",
    "ERR value is not a valid float",
    "ERR value is out of range, must be positive",
    "ERR invalid cursor",
    "ERR a throttle has no field '...'",
    "ERR the maximum of a throttle must be a number",
    "ERR the commands of this transaction examine too much: run them one by one",
    "ERR DB index is out of range",
    *("ERR MULTI calls can not be nested", "ERR EXEC without MULTI", "ERR DISCARD without MULTI"),
    "ERR WATCH inside MULTI is not allowed",
    "ERR Command not allowed inside a transaction",
    "ERR Can't execute '...': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
    "ERR Number of keys can't be greater than number of args",
    "ERR Number of keys can't be negative",
    "ERR SCRIPT FLUSH only support SYNC|ASYNC option",
    "ERR Client names cannot contain spaces, newlines or special characters.",
    "ERR Protocol version is not an integer or out of range",
    "ERR Syntax error in HELLO option '...'",
    "ERR Unrecognized option '...'",
    "ERR AUTH <password> called without any password configured for the default user. ...",
    "ERR Millrace does not run Lua. ...",
    "ERR a client may watch at most <n> keys",
    "ERR a client may have at most <n> subscriptions",
    "ERR a pattern may have at most <n> bytes",
    "ERR a transaction may have at most <n> commands and must not exceed the maximum request size",
    "ERR the name of a channel may have at most <n> bytes",
    "ERR more than <n> keys match",
    "ERR the reply would exceed <n> bytes",
    "ERR the name of a watched key may have at most <n> bytes",
    "ERR at most <n> scripts can be loaded; SCRIPT FLUSH removes them",
)
QLESS = named(*_REDIS, *(f"ERR user_script:1: {text}" for text in _QLESS))
