"""`millrace pipeline`: the commands and their options.

Each command imports its module when it runs, because `--help` must not wait for Spark.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from millrace.cli.options import (
    TYPER_SETTINGS,
    CommandGroup,
    ConfigFile,
    Data,
    Json,
    Lake,
    lake_root,
    load_config,
)
from millrace.config import Config

app = CommandGroup(
    help="Analyze job history with Spark: tables, reports, audits.", **TYPER_SETTINGS
)

Days = Annotated[
    str | None,
    typer.Option(help="Number of most recent days, or a range such as `2026-11-01..2026-11-07`."),
]
From = Annotated[str | None, typer.Option("--from", help="First day, such as `2026-11-01`.")]
To = Annotated[str | None, typer.Option("--to", help="Last day.")]
Start = Annotated[
    str | None, typer.Option("--from", help="Start: `2026-11-16T12:30` (UTC by default), or `-2h`.")
]
End = Annotated[str | None, typer.Option("--to", help="End. Default: the last run.")]
At = Annotated[
    str | None, typer.Option("--at", help="End of the history to use. Default: the last run.")
]
Queue = Annotated[str | None, typer.Option(help="Only this queue.")]
Url = Annotated[
    str | None,
    typer.Option(
        help="Faktory port of the server, such as `tcp://:password@host:7419` or `tcp+tls://...`. "
        "Default: from the configuration."
    ),
]
Format = Annotated[str, typer.Option("--format", help="`parquet`, `json` (lines) or `csv`.")]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark cluster, such as `spark://host:7077`. Default: the cores of this machine."
    ),
]
Memory = Annotated[str | None, typer.Option(help="Heap size of the Spark driver, such as `2GiB`.")]

# Options that select the configuration. A command names the ones that it has.
_OPTIONS: Final[dict[str, Any]] = {
    "config": ConfigFile,
    "data": Data,
    "lake": Lake,
    "master": Master,
    "memory": Memory,
}
SPARK: Final = ("config", "data", "lake", "master", "memory")
LAKE: Final = ("config", "data", "lake")
TRANSFER: Final = ("config", "master", "memory")
SERVER: Final = ("config",)


def settings(
    config: str | None = None,
    data: str | None = None,
    lake: str | None = None,
    master: str | None = None,
    memory: str | None = None,
) -> Config:
    """The configuration with these flags on top."""
    own = {"pipeline.master": master, "pipeline.memory": memory}
    return load_config(config, data, lake, own)


def command(
    name: str, shared: tuple[str, ...], target: str = ""
) -> Callable[[Callable[..., int | None]], None]:
    """Add `function(config, **own, json)` as a command. `config` results from the shared options;
    the function also gets the shared options that it names. A function without a body declares
    the options of `target`, a function in a module of this package.
    """

    def add(function: Callable[..., int | None]) -> None:
        declared = inspect.signature(function).parameters
        option = inspect.Parameter.KEYWORD_ONLY
        own = [each.replace(kind=option) for key, each in declared.items() if key not in _OPTIONS]
        own = [
            each.replace(annotation=Json, default=False) if each.annotation is bool else each
            for each in own
        ]
        more = [
            inspect.Parameter(key, option, default=None, annotation=_OPTIONS[key]) for key in shared
        ]

        def run(**values: Any) -> None:
            flags = {key: values.pop(key) for key in shared}
            if shared:
                values |= {key: flag for key, flag in flags.items() if key in declared}
                values["config"] = settings(**flags)
            raise typer.Exit(_exit_code(_loaded(target) if target else function, values))

        run.__doc__ = function.__doc__
        is_json = [each for each in own if each.name == "json"]
        rest = [each for each in own if each.name != "json"]
        run.__signature__ = inspect.Signature([*rest, *more, *is_json])  # type: ignore[attr-defined]
        app.command(name)(run)

    return add


def _loaded(target: str) -> Callable[..., int]:
    module, _, name = target.partition(".")
    loaded: Callable[..., int] = getattr(import_module(f"{__name__}.{module}"), name)
    return loaded


def _exit_code(function: Callable[..., Any], values: dict[str, Any]) -> int:
    """Run a command. An error is printed as one line, with exit code 1."""
    from millrace.pipeline.errors import PipelineError  # noqa: PLC0415 - see above

    try:
        code: int = function(**values)
    except PipelineError as error:
        reason = str(error)
    except BrokenPipeError:
        raise  # the reader closed the pipe, as `head` does; typer exits quietly
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = f"{where}{error.strerror or error}"
    else:
        return code
    typer.echo(reason, err=True)
    return 1


@command("run", SPARK)
def _run(
    config: Config,
    data: str | None,
    lake: str | None,
    *,
    fail: Annotated[
        bool, typer.Option("--fail/--no-fail", help="Exit with status 1 if a quality check fails.")
    ] = True,
    resident: Annotated[int, typer.Option("--resident", hidden=True)] = 0,
    json: bool,
) -> int:
    """Ship events, then refresh and check all tables.

    Returns quickly if there are no new events. If a run is interrupted or killed, the next run
    produces the same tables. Exits with status 1 if a quality check fails.

    Examples:
    - `millrace pipeline run`
    - `millrace pipeline run --lake /mnt/lake --master spark://host:7077`: on a cluster

    """
    from millrace.cli.pipeline.run import run  # noqa: PLC0415

    # With only --lake, no data folder belongs to the lake, so nothing is shipped.
    ship = lake is None or data is not None
    return run(config, ship=ship, fail=fail, parent=resident, json=json)


@command("convert", LAKE, "convert.convert")
def _convert(*, json: bool) -> None:
    """Convert a lake of an earlier version to Delta tables.

    After an interruption, run the command again to continue. The old files move to the folder
    `old` of the lake. A running server continues to ship.

    Examples:
    - `millrace pipeline convert --lake /var/lib/millrace/lake`

    """


@command("audit", SPARK, "audit.audit")
def _audit(
    *,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Compare the lake with the data of the server.")
    ] = True,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Verify the events of every job one by one.")
    ] = False,
    fail: Annotated[
        bool,
        typer.Option("--fail/--no-fail", help="Exit with status 1 if the audit finds a problem."),
    ] = True,
    json: bool,
) -> None:
    """Verify that the history is complete, consistent, and in agreement with the server.

    Ships the events of the server first; the server may keep running. Then compares
    queues, statistics and the state of every job as of one event. If it finds problems, it reports
    each with a suggestion and exits with status 1.

    Examples:
    - `millrace pipeline audit`
    - `millrace pipeline audit --lake /mnt/lake --no-live`: only the lake
    - `millrace pipeline audit --json | jq .problems`

    """


@command("state", SPARK)
def _state(
    config: Config,
    at: Annotated[
        str, typer.Option(help="Time: `2026-11-16T12:30` (UTC by default), `-2h` or `now`.")
    ] = "now",
    *,
    jobs: Annotated[bool, typer.Option("--jobs", help="List individual jobs.")] = False,
    queue: Annotated[str, typer.Option(help="Only this queue.")] = "",
    state: Annotated[str, typer.Option(help="Only jobs in this state.")] = "",
    limit: Annotated[int, typer.Option(help="Maximum number of jobs to list.", min=1)] = 20,
    to: Annotated[
        Path | None, typer.Option(help="Also write all jobs to this Parquet file.")
    ] = None,
    json: bool,
) -> int:
    """Show the contents of every queue at a point in time, and with `--jobs` each job.

    Reads the events in the lake. To include the newest events, run `millrace ship` first.

    Examples:
    - `millrace pipeline state --at -2h`
    - `millrace pipeline state --at 2026-11-16T12:30:00+01:00 --jobs --queue mail --state dead`
    - `millrace pipeline state --at 2026-11-16 --to jobs.parquet`

    """
    from millrace.cli.pipeline.state import Selection, show_state  # noqa: PLC0415

    return show_state(config, at, Selection(jobs, queue, state, limit, json, to))


@command("report", LAKE)
def _report(
    config: Config,
    days: Days = None,
    first: From = None,
    last: To = None,
    queue: Queue = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Output file; `-` for standard output. Default: `millrace-report.html`, or "
            "standard output with `--json`."
        ),
    ] = None,
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON instead of a page.")
    ] = False,
) -> int:
    """Write a report: throughput, waits, failures, workers. Default: the last seven days.

    The report is one self-contained HTML file. It uses the tables of the last `millrace pipeline
    run` and needs no Java.

    Examples:
    - `millrace pipeline report --out week.html`
    - `millrace pipeline report --days 30 --queue mail`
    - `millrace pipeline report --from 2026-11-01 --to 2026-11-07 --json | jq .headline`

    """
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.report import report  # noqa: PLC0415

    return report(lake_root(config), parse(days, first, last), queue, out, json=json)


@command("export", LAKE)
def _export(
    config: Config,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False)
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="`csv`, `json` (one object per line) or `parquet`.")
    ] = "csv",
    out: Annotated[str, typer.Option(help="Output file; `-` for standard output.")] = "-",
    days: Days = None,
    first: From = None,
    last: To = None,
    *,
    only_list: Annotated[
        bool, typer.Option("--list", help="List the tables and their sizes.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the list or the summary as JSON.")
    ] = False,
) -> int:
    """Export a table of the lake as CSV, JSON lines or one Parquet file.

    Examples:
    - `millrace pipeline export --list`
    - `millrace pipeline export queue_day --out queues.csv`
    - `millrace pipeline export failure_groups --format json --days 7 | jq .sample_message`

    """
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.export import export  # noqa: PLC0415

    period = parse(days, first, last)
    return export(lake_root(config), table, form, out, period, only_list=only_list, json=json)


@command("files", LAKE)
def _files(
    config: Config,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False)
    ],
    *,
    json: bool,
) -> int:
    """Print the Parquet files of a table, as of the last run, one per line.

    Use it for tools that do not support Delta. A glob pattern would also match replaced files.

    Examples:
    - `millrace pipeline files queue_day`
    - `millrace pipeline files jobs --lake /mnt/lake | xargs du -ch`

    """
    from millrace.cli.pipeline.files import print_files  # noqa: PLC0415

    return print_files(lake_root(config), table, json=json)


@command("sql", SPARK, "sql.print_query")
def _sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A SELECT statement.", show_default=False)
    ],
    limit: Annotated[int, typer.Option(help="Maximum number of rows to print.", min=1)] = 1000,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
) -> None:
    """Run a SQL query with Spark on the tables of the last run.

    All tables of the lake and these views exist: `jobs_all`, `attempts_all`, `queue_depth`,
    `protocol_day`, `cost_day`. The query cannot change a table.

    Examples:
    - `millrace pipeline sql "SELECT queue, sum(completed) FROM queue_day GROUP BY queue"`
    - `millrace pipeline sql "SELECT * FROM jobs_all WHERE state = 'dead'" --json`

    """


@command("whatif", SPARK, "whatif.whatif")
def _whatif(
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO",
            show_default=False,
            help="Changes of one scenario, separated by spaces and quoted.",
        ),
    ] = None,
    first: Start = None,
    last: End = None,
    queue: Queue = None,
    *,
    json: bool,
) -> None:
    """Predict waits with other workers, limits, priorities, retries or load.

    Replays a recorded period (default: the last 24 hours) through the engine, without changes and
    with each scenario. A scenario is a list of changes: `workers=8`, `workers:QUEUE=8`,
    `limit:QUEUE=5`, `priority:KIND=10`, `run=0.5`, `run:KIND=0.5`, `arrivals=1.5`,
    `arrivals:QUEUE=2`, `retries=3`, `retry_delay=30s`.

    Examples:
    - `millrace pipeline whatif workers=8 workers=12`: two scenarios
    - `millrace pipeline whatif "arrivals=1.5 workers:mail=6" --from -6h`
    - `millrace pipeline whatif limit:mail=5 --json | jq .scenarios[0].total.wait_p95`

    """


@command("changes", SPARK, "questions.changes")
def _changes(
    first: Start = None,
    last: End = None,
    against: Annotated[
        str | None,
        typer.Option(help="Start of the period to compare with. Default: the period before."),
    ] = None,
    queue: Queue = None,
    *,
    json: bool,
) -> None:
    """Compare two periods and show what explains the difference.

    Compares pushes, completions, failures, deaths, wait time and run time, each per hour, and lists
    the queues, kinds, tags, workers and errors that explain each change. Default: the last 24 hours
    and the 24 hours before.

    Examples:
    - `millrace pipeline changes`
    - `millrace pipeline changes --from -6h --against -30h`: the same hours of the day before
    - `millrace pipeline changes --queue mail --json | jq .explanations`

    """


@command("slo", SPARK, "questions.slo")
def _slo(
    days: Annotated[int, typer.Option(help="Budget period in days.", min=1, max=366)] = 30,
    at: At = None,
    *,
    json: bool,
) -> None:
    """Show the objectives of queues: attainment, error budget and burn rate.

    Set the objectives in the configuration: `[slo] objectives`, such as `mail: 95% within 30s`.

    Examples:
    - `millrace pipeline slo`
    - `MILLRACE_SLO_OBJECTIVES="mail: 95% within 30s" millrace pipeline slo --days 7`
    - `millrace pipeline slo --json | jq '.objectives[] | select(.burn_1h > 14)'`

    """


@command("cost", SPARK)
def _cost(
    config: Config,
    days: Days = None,
    first: From = None,
    last: To = None,
    queue: Queue = None,
    price: Annotated[
        float | None, typer.Option(help="Price of one hour of one worker.", min=0)
    ] = None,
    *,
    json: bool,
) -> int:
    """Show worker time by queue, kind and tag. Default: the last seven days.

    The column `lost hours` shows the time spent on failed attempts.

    Examples:
    - `millrace pipeline cost --days 30 --price 0.04`
    - `millrace pipeline cost --queue mail --json | jq .tags`

    """
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.questions import cost  # noqa: PLC0415

    return cost(config, parse(days, first, last), queue, price, json=json)


@command("forecast", SPARK, "questions.forecast")
def _forecast(
    hours: Annotated[int, typer.Option(help="Hours to forecast.", min=1, max=1344)] = 168,
    queue: Queue = None,
    at: At = None,
    *,
    json: bool,
) -> None:
    """Forecast arrivals and backlog by hour, with the error of a back-test.

    Requires two weeks of history. The back-test repeats the forecast for each of the last weeks.
    The output shows its error next to the error of a seasonal naive forecast.

    Examples:
    - `millrace pipeline forecast`
    - `millrace pipeline forecast --hours 24 --queue mail --json | jq .queues[0].hours`

    """


@command("doctor", (), "doctor.doctor")
def _doctor(
    *,
    archive: Annotated[
        bool,
        typer.Option(
            "--class-archive",
            help="Also create the class archive, which makes Spark start faster (190 MB, once).",
        ),
    ] = False,
    json: bool,
) -> None:
    """Check whether Spark can run here: Java, Python and missing packages.

    Examples:
    - `millrace pipeline doctor`
    - `millrace pipeline doctor --class-archive`: saves a quarter of the CPU time of small runs

    """


@command("enqueue", TRANSFER)
def _enqueue(
    config: Config,
    files: Annotated[
        list[str], typer.Option("--from", help="Files or folders; `*` matches any name.")
    ],
    kind: Annotated[
        str | None, typer.Option(help="Kind of the jobs. Default: the column `kind`.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="Queue. Default: the column `queue`, or `default`.")
    ] = None,
    jid: Annotated[
        str | None, typer.Option(help="Column with the job IDs. Default: `jid`.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(help="Columns for the arguments, such as `user,amount`.")
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            help="Name of the load. Repeating a load under the same name adds no duplicates."
        ),
    ] = None,
    form: Format = "parquet",
    url: Url = None,
    *,
    json: bool,
) -> int:
    """Push one job per row of the files: either all jobs or none.

    Examples:
    - `millrace pipeline enqueue --from users.parquet --queue mail --kind greet`
    - `millrace pipeline enqueue --from 'day/*.json' --format json --kind bill --args user,amount`

    """
    from millrace.cli.pipeline.enqueue import Rows, enqueue  # noqa: PLC0415

    rows = Rows(files, form, kind, queue, jid, args, load)
    return enqueue(config, rows, url, json=json)


@command("drain", TRANSFER, "drain.drain")
def _drain(
    to: Annotated[str, typer.Option("--to", help="Output folder; it must not exist.")],
    queue: Queue = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only this state: `scheduled`, `blocked`, `ready`, `leased`, `done` or `dead`."
        ),
    ] = None,
    form: Format = "parquet",
    url: Url = None,
    *,
    json: bool,
) -> None:
    """Export jobs with their results and failures to files. The jobs stay on the server.

    Examples:
    - `millrace pipeline drain --to dead --queue mail --state dead`

    """


@command("loads", SERVER, "loads.loads")
def _loads(
    release: Annotated[str | None, typer.Option(help="Release the jobs of this load.")] = None,
    discard: Annotated[
        str | None, typer.Option(help="Remove the jobs of this unreleased load.")
    ] = None,
    url: Url = None,
    *,
    json: bool,
) -> None:
    """List bulk loads (see `pipeline enqueue`), or release or discard an unfinished one.

    Examples:
    - `millrace pipeline loads`
    - `millrace pipeline loads --discard spark-6f1c`

    """
