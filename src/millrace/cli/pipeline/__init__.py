"""`millrace pipeline`: the commands and their options.

Each command imports its module when it runs, because `--help` must not wait for Spark.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.options import ConfigFile, Data, Lake, load_config
from millrace.config import Config

app = typer.Typer(
    help="Analyze job history with Spark: tables, reports, audits.", no_args_is_help=True
)

Days = Annotated[
    str | None,
    typer.Option(help="Number of most recent days, or a range such as `2026-11-01..2026-11-07`."),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark cluster, such as `spark://host:7077`. Default: the cores of this machine."
    ),
]
Memory = Annotated[str | None, typer.Option(help="Heap size of the Spark driver, such as `2GiB`.")]


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


def run_command(act: Callable[[], int]) -> None:
    """Run a command and exit with its code. An error is printed as one line, with exit code 1."""
    from millrace.pipeline.errors import PipelineError  # noqa: PLC0415 - see above

    try:
        raise typer.Exit(act())
    except PipelineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    except BrokenPipeError:
        raise  # the reader closed the pipe, as `head` does; typer exits quietly
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"{where}{error.strerror or error}", err=True)
        raise typer.Exit(1) from error


@app.command("run")
def _run(
    config: ConfigFile = None,
    data: Data = None,
    lake: Lake = None,
    master: Master = None,
    memory: Memory = None,
    *,
    fail: Annotated[
        bool, typer.Option("--fail/--no-fail", help="Exit with status 1 if a quality check fails.")
    ] = True,
) -> None:
    """Ship, ingest, refresh and check all tables.

    Returns quickly if there are no new events. If a run is interrupted or killed, the next run
    produces the same tables. Exits with status 1 if a quality check fails.

    Examples:
    - `millrace pipeline run`
    - `millrace pipeline run --lake /mnt/lake --master spark://host:7077`: on a cluster

    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.run import run  # noqa: PLC0415

    # With only --lake, no data folder belongs to the lake, so nothing is shipped.
    run_command(lambda: run(chosen, ship=lake is None or data is not None, fail=fail))


@app.command("ingest")
def _ingest(
    config: ConfigFile = None,
    data: Data = None,
    lake: Lake = None,
    master: Master = None,
    memory: Memory = None,
    follow: Annotated[
        float | None,
        typer.Option(
            help="Keep running and check again every SECONDS.", min=0.1, metavar="SECONDS"
        ),
    ] = None,
) -> None:
    """Ingest shipped events: validate every row and partition the events by day.

    Invalid rows go to the quarantine table with a reason. This command does not refresh the other
    tables; use `refresh`, or `run` for both. Stop it with Ctrl-C at any time.

    Examples:
    - `millrace pipeline ingest`
    - `millrace pipeline ingest --follow 30`

    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.ingest import ingest  # noqa: PLC0415

    run_command(lambda: ingest(chosen, follow=follow))


@app.command("refresh")
def _refresh(
    config: ConfigFile = None,
    data: Data = None,
    lake: Lake = None,
    master: Master = None,
    memory: Memory = None,
    days: Days = None,
) -> None:
    """Rebuild the tables of days changed by new events.

    With `--days`, rebuild those days as well, changed or not.

    Examples:
    - `millrace pipeline refresh`
    - `millrace pipeline refresh --days 7`
    - `millrace pipeline refresh --days 2026-11-01..2026-11-15`

    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.refresh import refresh  # noqa: PLC0415

    run_command(lambda: refresh(chosen, None if days is None else parse(days)))


@app.command("compact")
def _compact(
    config: ConfigFile = None,
    data: Data = None,
    lake: Lake = None,
    master: Master = None,
    memory: Memory = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Include the current day.")] = False,
    prune_landing: Annotated[
        bool,
        typer.Option(
            "--prune-landing", help="Remove landing files whose events are all compacted."
        ),
    ] = False,
) -> None:
    """Rewrite the events of past days as a few large, sorted files.

    Run it once a day. The next compaction includes events that arrive late.

    Examples:
    - `millrace pipeline compact`
    - `millrace pipeline compact --prune-landing`: free disk space

    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.compact import compact  # noqa: PLC0415

    run_command(lambda: compact(chosen, everything=everything, prune_landing=prune_landing))


@app.command("audit")
def _audit(
    config: ConfigFile = None,
    data: Data = None,
    lake: Lake = None,
    master: Master = None,
    memory: Memory = None,
    *,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Compare the lake with the data of the server."),
    ] = True,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Verify the events of every job one by one.")
    ] = False,
    fail: Annotated[
        bool,
        typer.Option("--fail/--no-fail", help="Exit with status 1 if the audit finds a problem."),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify that the history is complete, consistent, and in agreement with the server.

    Ships and ingests the events of the server first; the server may keep running. Then compares
    queues, statistics and the state of every job as of one event. Reports each problem with a
    suggestion and exits with status 1.

    Examples:
    - `millrace pipeline audit`
    - `millrace pipeline audit --lake /mnt/lake --no-live`: only the lake
    - `millrace pipeline audit --json | jq .problems`

    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.audit import audit  # noqa: PLC0415

    run_command(lambda: audit(chosen, fail=fail, json=json, thorough=thorough, live=live))


@app.command("state")
def _state(
    at: Annotated[
        str, typer.Option(help="Time: `2026-11-16T12:30` (UTC by default), `-2h` or `now`.")
    ] = "now",
    config: ConfigFile = None,
    data: Data = None,
    lake: Lake = None,
    master: Master = None,
    memory: Memory = None,
    *,
    jobs: Annotated[bool, typer.Option("--jobs", help="List individual jobs.")] = False,
    queue: Annotated[str, typer.Option(help="Only this queue.")] = "",
    state: Annotated[str, typer.Option(help="Only jobs in this state.")] = "",
    limit: Annotated[int, typer.Option(help="Maximum number of jobs to list.", min=1)] = 20,
    to: Annotated[
        Path | None, typer.Option(help="Also write all jobs to this Parquet file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the contents of every queue at a point in time, and with `--jobs` each job.

    Computed from the events in the lake. `millrace pipeline run` ingests the newest ones.

    Examples:
    - `millrace pipeline state --at -2h`
    - `millrace pipeline state --at 2026-11-16T12:30:00+01:00 --jobs --queue mail --state dead`
    - `millrace pipeline state --at 2026-11-16 --to jobs.parquet`

    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.state import Selection, show_state  # noqa: PLC0415

    run_command(lambda: show_state(chosen, at, Selection(jobs, queue, state, limit, json, to)))


From = Annotated[str | None, typer.Option("--from", help="First day, such as `2026-11-01`.")]
To = Annotated[str | None, typer.Option("--to", help="Last day.")]


@app.command("report")
def _report(
    days: Days = None,
    first: From = None,
    last: To = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Output file; `-` for standard output. Default: `millrace-report.html`, or "
            "standard output with `--json`."
        ),
    ] = None,
    lake: Lake = None,
    data: Data = None,
    config: ConfigFile = None,
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON instead of a page.")
    ] = False,
) -> None:
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

    folder = settings(config, data, lake).lake_path
    run_command(lambda: report(folder, parse(days, first, last), queue, out, json=json))


@app.command("export")
def _export(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", show_default=False)] = None,
    form: Annotated[
        str, typer.Option("--format", help="`csv`, `json` (one object per line) or `parquet`.")
    ] = "csv",
    out: Annotated[str, typer.Option(help="Output file; `-` for standard output.")] = "-",
    days: Days = None,
    first: From = None,
    last: To = None,
    lake: Lake = None,
    data: Data = None,
    config: ConfigFile = None,
    *,
    only_list: Annotated[
        bool, typer.Option("--list", help="List the tables and their sizes.")
    ] = False,
) -> None:
    """Export a table of the lake as CSV, JSON lines or one Parquet file.

    Examples:
    - `millrace pipeline export --list`
    - `millrace pipeline export queue_day --out queues.csv`
    - `millrace pipeline export failure_groups --format json --days 7 | jq .sample_message`

    """
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.export import export  # noqa: PLC0415

    folder = settings(config, data, lake).lake_path
    run_command(
        lambda: export(folder, table, form, out, parse(days, first, last), only_list=only_list)
    )


@app.command("doctor")
def _doctor() -> None:
    """Check whether Spark can run here: Java, Python and missing packages.

    Examples:
    - `millrace pipeline doctor`

    """
    from millrace.cli.pipeline.doctor import doctor  # noqa: PLC0415

    run_command(doctor)


Url = Annotated[
    str | None,
    typer.Option(
        help="Faktory port of the server, such as `tcp://:password@host:7419` or `tcp+tls://...`. "
        "Default: from the configuration."
    ),
]
Format = Annotated[str, typer.Option("--format", help="`parquet`, `json` (lines) or `csv`.")]


@app.command("enqueue")
def _enqueue(
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
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
) -> None:
    """Push one job per row of the files, all or none.

    Examples:
    - `millrace pipeline enqueue --from users.parquet --queue mail --kind greet`
    - `millrace pipeline enqueue --from 'day/*.json' --format json --kind bill --args user,amount`

    """
    chosen = settings(config, master=master, memory=memory)
    from millrace.cli.pipeline.enqueue import Rows, enqueue  # noqa: PLC0415

    rows = Rows(files, form, kind, queue, jid, args, load)
    run_command(lambda: enqueue(chosen, rows, url))


@app.command("drain")
def _drain(
    to: Annotated[str, typer.Option("--to", help="Output folder; it must not exist.")],
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only this state: `scheduled`, `blocked`, `ready`, `leased`, `done` or `dead`."
        ),
    ] = None,
    form: Format = "parquet",
    url: Url = None,
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
) -> None:
    """Export jobs with their results and failures to files. The jobs stay on the server.

    Examples:
    - `millrace pipeline drain --to dead --queue mail --state dead`

    """
    chosen = settings(config, master=master, memory=memory)
    from millrace.cli.pipeline.drain import drain  # noqa: PLC0415

    run_command(lambda: drain(chosen, to, form, queue, state, url))


@app.command("loads")
def _loads(
    release: Annotated[str | None, typer.Option(help="Release the jobs of this load.")] = None,
    discard: Annotated[
        str | None, typer.Option(help="Remove the jobs of this unreleased load.")
    ] = None,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """List the loads, or release or discard an unfinished one.

    Examples:
    - `millrace pipeline loads`
    - `millrace pipeline loads --discard spark-6f1c`

    """
    chosen = settings(config)
    from millrace.cli.pipeline.loads import loads  # noqa: PLC0415

    run_command(lambda: loads(chosen, release, discard, url))
