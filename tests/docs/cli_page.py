"""Generates docs/reference/cli.md from the commands and the notes below.

Regenerate it with `.venv/bin/python tests/docs/cli_page.py > docs/reference/cli.md`.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from millrace.cli.app import app
from millrace.cli.serve import flags

HEAD = """# Command line

`make setup` installs the command as `.venv/bin/millrace`. Every command has a help text: `millrace COMMAND --help`. This
page is generated from the same texts.

| exit code | meaning |
|---|---|
| 0 | success; `serve`: stopped by a signal |
| 1 | the command failed, and printed the reason to standard error |
| 2 | invalid command line or configuration |
| 3 | `serve`: a sync to the disk failed, see [durability](../explanation/durability.md#when-a-sync-fails); an action on jobs: some jobs were skipped |
| 4 | an operator command: the job or queue does not exist |
| 130 | the command was interrupted with Ctrl-C; completed changes remain |

Operator commands (`queues`, `jobs`, `push`, `retry` and so on) use the server that runs on the data folder `--data`, or the
server whose web interface has the address `--url`. The output is the same in both cases; `--json` prints the records of the
[HTTP API](http.md). Commands that change several jobs print their exact number first and ask for confirmation; `--yes` confirms.

`millrace --version` prints the version. `millrace --install-completion` and `--show-completion` set up completion for
your shell.
"""

NOTES = {
    "serve": """
Once every port accepts connections, the server prints one line to standard output. On a terminal:

```text
ready  faktory 127.0.0.1:7419  workq 127.0.0.1:9922  masenko 127.0.0.1:12345  goqueue 127.0.0.1:11223  qless 127.0.0.1:6380  web http://127.0.0.1:7420  data data (durability: fsync)  (press Ctrl-C to stop)
```

Otherwise it prints a JSON object:

<!-- server -->
```console
$ millrace serve | cat
{"ready": true, "ports": {"faktory": 7419, "workq": 9922, "masenko": 12345, "goqueue": 11223, "qless": 6380, "web": 7420}, "host": "127.0.0.1", "data": "data", "durability": "fsync", "version": "0.1.0", "pid": 29545}
```

The log goes to standard error: text on a terminal (without color if `NO_COLOR` is set), otherwise one JSON object per
line with `time`, `level` and `message`.

| signal | effect |
|---|---|
| SIGTERM, SIGINT | Graceful stop: the server accepts no connections, notifies workers at their next heartbeat, waits up to `[server] stop_grace`, writes all data and exits with 0. |
| a second SIGTERM or SIGINT | Stop without waiting for workers. |
| SIGHUP | Reload the configuration. The log lists the changed keys and those that require a restart. |
| SIGKILL | No acknowledged command is lost. |

Only one server can use a data folder. A second one reports the process that holds the lock and exits with status 1.

| file in the data folder | contents |
|---|---|
| `millrace.db` | the database |
| `millrace.db-wal`, `millrace.db-shm` | its write-ahead log and index; removed by a graceful stop |
| `mark` | the number of the last commit, see [durability](../explanation/durability.md#when-data-on-disk-changes) |
| `lock` | the ID of the server process |
| `control` | the admin socket, used by `millrace why` and `millrace ship` |
| `journal-id` | the ID of this folder in the lake, see [exactly once](../explanation/exactly-once.md#the-identity-of-a-server) |
| `shipping` | the lock of the shipper |
| `reserve` | disk space that the server releases on a [full disk](../explanation/durability.md#when-the-store-fails) |
| `web.key` | the key that signs the sessions of browsers |
| `spark.sock` | the socket of the [resident Spark process](../explanation/pipeline.md#measurements-behind-the-design), while it runs |
| `lake` | the lake, unless `[lake] path` names another folder |

Database, log and mark belong together. Copy or move the folder of a stopped server as a whole.
""",
    "config": """
<!-- run -->
```console
$ millrace config --durability os | head -n 4
[server]
host = "127.0.0.1"                # default
data = "data"                     # default
durability = "os"                 # --durability
```

With `--json`, sizes are in bytes, durations in seconds, and a disabled port is null.
""",
    "why": """
With `--json`: `{"jobs": [...], "now": ..., "known": ..., "more": 0}`, with times in microseconds since 1970. A reason has
a `code` (`halted`, `paused`, `limit`, `unasked`, `queued`, `not due`, `blocked`, `staged`, `leased`, `done`, `dead`) and,
if they apply, `since`, `until`, `holder`, `protocol`, `count`, `blockers` and `about`. The exit code is 4 if no job has
this ID, and 1 if no server is running on the folder. See [Find out why a job is not running](../how-to/find-out-why.md).
""",
    "check": """
With `--json`: `{"ok": true, "folder": ..., "server": ..., "format": ..., "turn": ..., "jobs": {"ready": ...}, "queues":
..., "paused": ..., "events": ..., "bytes": ..., "summed": ..., "problems": []}`. Without a running server, the command
locks the folder until it ends. For a million jobs, it needs about ten seconds and 70 MB of memory. See [Back up, check and
restore](../how-to/back-up.md).
""",
    "backup": """
The command writes to `.DEST.partial` next to `DEST`, syncs and verifies the copy, and renames it. See [Back up, check and
restore](../how-to/back-up.md).
""",
    "ship": """
With `--json`: `{"server": ..., "lake": ..., "next_event": ..., "next_shipped": ..., "events": ..., "bytes": ...,
"seconds": ..., "dropped": ..., "files": ..., "failing": ""}`. `events`, `bytes` and `seconds` describe the pending events:
their number, their size in the outbox and the age of the oldest. `dropped` and `files` are counted from the start of the
server. The exit code is 1 if not all events were shipped. See [exactly once](../explanation/exactly-once.md).
""",
    "faktory": """
The password comes from the configuration; it has no flag. See [Stop workers](../how-to/stop-workers.md).
""",
    "worker": """
The exit code is 0 after SIGTERM or SIGINT, and 2 if the application cannot be loaded. See [the Python
SDK](sdk.md#workers).
""",
    "demo": """
![Recording: the demo starts, prints the address of its pages, and ends with Ctrl-C](../pictures/demo.svg)
""",
    "top": """
![Recording: queues with their depth, rates and failures, updated every second](../pictures/top.svg)
""",
    "version": """
<!-- run -->
```console
$ millrace --version
millrace 0.1.0
```
""",
    "pipeline": """
These commands read and write [the lake](lake.md). They require the extra `spark`, which `make setup-dev` installs, and a
Java runtime, which the extra includes.
""",
}


def page() -> str:
    root: Any = typer.main.get_command(app)
    lines = [HEAD.rstrip()]
    for name, command in root.commands.items():
        lines += _section(f"millrace {name}", name, command, "##")
        for each, nested in getattr(command, "commands", {}).items():
            lines += _section(f"millrace {name} {each}", f"{name} {each}", nested, "###")
    return "\n".join(lines) + "\n"


def _section(title: str, key: str, command: Any, level: str) -> Iterator[str]:
    yield from ("", f"{level} {title}", "")
    is_group = hasattr(command, "commands")
    text = command.help if is_group else inspect.cleandoc(command.callback.__doc__)
    words, _, examples = text.partition("\n\nExamples:")
    yield words
    params = [p for p in command.params if p.name not in {"help", "version"} and not is_group]
    params = [p for p in params if not getattr(p, "hidden", False)]
    if key == "config":
        yield from ("", "| flag | description |", "|---|---|", "| the flags of `serve` | |")
        params = [param for param in params if param.opts[0] == "--json"]
        yield from map(_row, params)
    elif params:
        yield from ("", "| flag | description |", "|---|---|", *map(_row, params))
    if examples:
        yield from ("", "Examples:", "", examples.strip())
    if key in NOTES:
        yield NOTES[key].rstrip()


_DEFAULTS = {flag.name: flag.default for flag in flags()}


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"| `{param.metavar or param.name.upper()}` | {param.help or 'Name of the table.'} |"
    name = "/".join([*param.opts, *param.secondary_opts])
    value = "" if param.is_flag else f" {param.metavar or param.opts[0].strip('-').upper()}"
    default = ""
    if isinstance(param.show_default, str):
        path, _, condition = param.show_default.partition(" ")
        default = f" Default: `{path}`{' ' * bool(condition)}{condition}." if path else ""
    elif "--concurrency" in param.opts:
        default = " Default: the number of processors, at least 2."
    elif param.default not in (None, "") and not param.is_flag:
        default = f" Default: `{param.default}`."
    return f"| `{name}{value}` | {param.help}{default} |"


if __name__ == "__main__":
    print(page(), end="")
