"""`millrace pipeline`: what the Spark pipeline does, one module per command.

Only typer and what the flags need is loaded here: `--help` must not wait for Spark.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.serve import complain, read
from millrace.config import Config, ConfigError

app = typer.Typer(
    help="Tables, reports and audits of the whole history, made by Spark.", no_args_is_help=True
)

LakeFolder = Annotated[
    str | None,
    typer.Option("--lake", help="The lake's folder, if not where the configuration says."),
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="The server's data folder, if not where the configuration says."),
]
ConfigFile = Annotated[
    str | None, typer.Option("--config", help="The file that the server was started with.")
]
Days = Annotated[
    str | None,
    typer.Option(
        help="The last so many days that there are, or which ones, as `2026-11-01..2026-11-07`."
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        help="The Spark cluster, as `spark://host:7077`; without it the cores of this machine."
    ),
]
Memory = Annotated[str | None, typer.Option(help="The heap of Spark's driver, as `2GiB`.")]


def settings(
    config: str | None = None,
    data: str | None = None,
    lake: str | None = None,
    master: str | None = None,
    memory: str | None = None,
) -> Config:
    """The configuration with these flags on top; a mistake in it is told, and ends the command."""
    given = {"--config": config, "--data": data, "--lake-path": lake}
    known = {flag: value for flag, value in given.items() if value is not None}
    own = {"pipeline.master": master, "pipeline.memory": memory}
    try:
        return read(
            known, {key: value for key, value in own.items() if value is not None}, listening=False
        ).config
    except ConfigError as error:
        raise typer.Exit(complain(error)) from error


def told(act: Callable[[], int]) -> None:
    """Run a command; what it cannot do is told in one sentence, and makes it end with 1."""
    from millrace.pipeline.errors import PipelineError  # noqa: PLC0415 - see above

    try:
        raise typer.Exit(act())
    except PipelineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    except BrokenPipeError:
        raise  # whoever read has enough, as `head` does: typer ends quietly
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        typer.echo(f"{where}{error.strerror or error}", err=True)
        raise typer.Exit(1) from error


@app.command("run")
def _run(
    config: ConfigFile = None,
    data: Data = None,
    lake: LakeFolder = None,
    master: Master = None,
    memory: Memory = None,
    *,
    fail: Annotated[
        bool, typer.Option("--fail/--no-fail", help="End with 1 if a quality check fails.")
    ] = True,
) -> None:
    """Bring all tables up to date: ship, take in what is new, refresh what it affects, check.

    If there is nothing new it says so at once. Interrupted or killed anywhere, the next run ends
    with the same tables. A check that fails is told, and makes it end with 1.

    For example:

    - `millrace pipeline run`
    - `millrace pipeline run --lake /mnt/lake --master spark://host:7077`: on a cluster
    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.run import run  # noqa: PLC0415

    # A lake that was named by itself is not the place for the journal of whatever server is near.
    told(lambda: run(chosen, ship=lake is None or data is not None, fail=fail))


@app.command("ingest")
def _ingest(
    config: ConfigFile = None,
    data: Data = None,
    lake: LakeFolder = None,
    master: Master = None,
    memory: Memory = None,
    follow: Annotated[
        float | None,
        typer.Option(
            help="Stay, and look again every so many seconds.", min=0.1, metavar="SECONDS"
        ),
    ] = None,
) -> None:
    """Take in what was shipped since: check every row, divide the events by day.

    Rows that are no events go into quarantine, with the reasons. The tables stay as they are; see
    `refresh`, or do both with `run`. Ctrl-C ends it whenever you like.

    For example:

    - `millrace pipeline ingest`
    - `millrace pipeline ingest --follow 30`
    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.ingest import ingest  # noqa: PLC0415

    told(lambda: ingest(chosen, follow=follow))


@app.command("refresh")
def _refresh(
    config: ConfigFile = None,
    data: Data = None,
    lake: LakeFolder = None,
    master: Master = None,
    memory: Memory = None,
    days: Days = None,
) -> None:
    """Make the tables anew for every day that the events taken in since then affect.

    With `--days` also for those, whether they changed or not.

    For example:

    - `millrace pipeline refresh`
    - `millrace pipeline refresh --days 7`
    - `millrace pipeline refresh --days 2026-11-01..2026-11-15`
    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.refresh import refresh  # noqa: PLC0415

    told(lambda: refresh(chosen, None if days is None else parse(days)))


@app.command("compact")
def _compact(
    config: ConfigFile = None,
    data: Data = None,
    lake: LakeFolder = None,
    master: Master = None,
    memory: Memory = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also today, which is not over yet.")
    ] = False,
    prune_landing: Annotated[
        bool,
        typer.Option(
            "--prune-landing", help="Remove landing files of which all events are compacted."
        ),
    ] = False,
) -> None:
    """Rewrite the events of closed days: sorted, in few large files.

    Once a day is enough. Events that come late stay right; the next compaction takes them in.

    For example:

    - `millrace pipeline compact`
    - `millrace pipeline compact --prune-landing`: and need less room
    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.compact import compact  # noqa: PLC0415

    told(lambda: compact(chosen, everything=everything, prune_landing=prune_landing))


@app.command("audit")
def _audit(
    config: ConfigFile = None,
    data: Data = None,
    lake: LakeFolder = None,
    master: Master = None,
    memory: Memory = None,
    *,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Compare the lake with the server's own data."),
    ] = True,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Look at every job's events one by one.")
    ] = False,
    fail: Annotated[
        bool, typer.Option("--fail/--no-fail", help="End with 1 if anything is wrong.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Check the whole history: is every event there, can they all be, and does the server agree?

    The server's events are shipped and taken in first; it may go on working. What its queues hold,
    its statistics and the state of every job are compared as of one event. Whatever is wrong is
    told, with what to do, and makes it end with 1.

    For example:

    - `millrace pipeline audit`
    - `millrace pipeline audit --lake /mnt/lake --no-live`: a lake by itself
    - `millrace pipeline audit --json | jq .problems`
    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.audit import audit  # noqa: PLC0415

    told(lambda: audit(chosen, fail=fail, json=json, thorough=thorough, live=live))


@app.command("state")
def _state(
    at: Annotated[
        str, typer.Option(help="When: `2026-11-16T12:30`, in UTC if not told; `-2h`; `now`.")
    ] = "now",
    config: ConfigFile = None,
    data: Data = None,
    lake: LakeFolder = None,
    master: Master = None,
    memory: Memory = None,
    *,
    jobs: Annotated[bool, typer.Option("--jobs", help="Tell of each job.")] = False,
    queue: Annotated[str, typer.Option(help="Only of this queue.")] = "",
    state: Annotated[str, typer.Option(help="Only of jobs in this state.")] = "",
    limit: Annotated[int, typer.Option(help="Tell of so many jobs.", min=1)] = 20,
    to: Annotated[
        Path | None, typer.Option(help="Write all of the jobs to this Parquet file, too.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what was in every queue at a moment, and with `--jobs` where each job was.

    It is made of the events that the lake has; `millrace pipeline run` takes in the newest.

    For example:

    - `millrace pipeline state --at -2h`
    - `millrace pipeline state --at 2026-11-16T12:30:00+01:00 --jobs --queue mail --state dead`
    - `millrace pipeline state --at 2026-11-16 --to jobs.parquet`
    """
    chosen = settings(config, data, lake, master, memory)
    from millrace.cli.pipeline.state import Wanted, tell_state  # noqa: PLC0415

    told(lambda: tell_state(chosen, at, Wanted(jobs, queue, state, limit, json, to)))


From = Annotated[str | None, typer.Option("--from", help="The first day, as `2026-11-01`.")]
To = Annotated[str | None, typer.Option("--to", help="The last day.")]


@app.command("report")
def _report(
    days: Days = None,
    first: From = None,
    last: To = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="The file to write, `-` for the standard output; without it "
            "`millrace-report.html`, or the standard output with `--json`."
        ),
    ] = None,
    lake: LakeFolder = None,
    data: Data = None,
    config: ConfigFile = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="The numbers as JSON, no page.")] = False,
) -> None:
    """Make a page of what the queues did: throughput, waits, failures, workers. A week if no days
    are said.

    One file that asks nothing of the network, to be opened in a browser, mailed or printed. It is
    made of the tables as the last `millrace pipeline run` left them; no Java is needed.

    For example:

    - `millrace pipeline report --out week.html`
    - `millrace pipeline report --days 30 --queue mail`
    - `millrace pipeline report --from 2026-11-01 --to 2026-11-07 --json | jq .headline`
    """
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.report import report  # noqa: PLC0415

    folder = settings(config, data, lake).lake_path
    told(lambda: report(folder, parse(days, first, last), queue, out, json=json))


@app.command("export")
def _export(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", show_default=False)] = None,
    form: Annotated[
        str, typer.Option("--format", help="`csv`, `json` (one object a line) or `parquet`.")
    ] = "csv",
    out: Annotated[str, typer.Option(help="The file to write; `-` is the standard output.")] = "-",
    days: Days = None,
    first: From = None,
    last: To = None,
    lake: LakeFolder = None,
    data: Data = None,
    config: ConfigFile = None,
    *,
    only_list: Annotated[
        bool, typer.Option("--list", help="Say which tables there are, and how large.")
    ] = False,
) -> None:
    """Write a table of the lake as CSV, JSON lines or one Parquet file.

    For example:

    - `millrace pipeline export --list`
    - `millrace pipeline export queue_day --out queues.csv`
    - `millrace pipeline export failure_groups --format json --days 7 | jq .sample_message`
    """
    from millrace.cli.pipeline.days import parse  # noqa: PLC0415
    from millrace.cli.pipeline.export import export  # noqa: PLC0415

    folder = settings(config, data, lake).lake_path
    told(lambda: export(folder, table, form, out, parse(days, first, last), only_list=only_list))


@app.command("doctor")
def _doctor() -> None:
    """Say whether Spark can run here: which Java, which Python, and what is missing.

    For example:

    - `millrace pipeline doctor`
    """
    from millrace.cli.pipeline.doctor import doctor  # noqa: PLC0415

    told(doctor)


@app.command("bench")
def _bench(
    events: Annotated[
        str, typer.Option("--events", "-n", help="How many, as `200k` or `50M`.", metavar="N")
    ] = "10M",
    tables: Annotated[
        list[str] | None,
        typer.Option("--tables", help="Only these, as `ingest,queue_day`.", metavar="NAMES"),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Where to make the lake, which stays there, instead of a temporary one."),
    ] = None,
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Measure how fast each table is made, by Spark and by DuckDB from the same files.

    The events are made for it, in a lake of its own, and take about 100 bytes of disk each. Each
    table is made of a quarter of them, of half, and of all. Without DuckDB, Spark is measured
    alone.

    For example:

    - `millrace pipeline bench -n 1M`
    - `millrace pipeline bench -n 50M --memory 2GiB --tables ingest,queue_day`
    """
    chosen = settings(config, master=master, memory=memory)
    from millrace.cli.pipeline.bench import run  # noqa: PLC0415

    told(lambda: run(chosen, events, tables or (), keep, as_json=as_json))


Url = Annotated[
    str | None,
    typer.Option(
        help="The server's Faktory port, as `tcp://:password@host:7419`, or `tcp+tls://...`; "
        "without it the one that the configuration says."
    ),
]
Format = Annotated[str, typer.Option("--format", help="`parquet`, `json` (lines) or `csv`.")]


@app.command("enqueue")
def _enqueue(
    files: Annotated[list[str], typer.Option("--from", help="Files or folders; `*` is allowed.")],
    kind: Annotated[
        str | None, typer.Option(help="What to run; without it the column `kind` says.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="The queue; without it the column `queue`, or `default`.")
    ] = None,
    jid: Annotated[
        str | None, typer.Option(help="The column with ids, if it is not called `jid`.")
    ] = None,
    args: Annotated[
        str | None, typer.Option(help="The columns that are the arguments, as `user,amount`.")
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(help="A name for all of it: whoever says it again adds nothing twice."),
    ] = None,
    form: Format = "parquet",
    url: Url = None,
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
) -> None:
    """Make a job of every row of some files: all of them, or none.

    For example:

    - `millrace pipeline enqueue --from users.parquet --queue mail --kind greet`
    - `millrace pipeline enqueue --from 'day/*.json' --format json --kind bill --args user,amount`
    """
    chosen = settings(config, master=master, memory=memory)
    from millrace.cli.pipeline.enqueue import Rows, enqueue  # noqa: PLC0415

    rows = Rows(files, form, kind, queue, jid, args, load)
    told(lambda: enqueue(chosen, rows, url))


@app.command("drain")
def _drain(
    to: Annotated[str, typer.Option("--to", help="The folder to write; it must not be there.")],
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="`scheduled`, `blocked`, `ready`, `leased`, `done` or `dead`."),
    ] = None,
    form: Format = "parquet",
    url: Url = None,
    config: ConfigFile = None,
    master: Master = None,
    memory: Memory = None,
) -> None:
    """Write jobs with their results and failures to files. The jobs stay where they are.

    For example:

    - `millrace pipeline drain --to dead --queue mail --state dead`
    """
    chosen = settings(config, master=master, memory=memory)
    from millrace.cli.pipeline.drain import drain  # noqa: PLC0415

    told(lambda: drain(chosen, to, form, queue, state, url))


@app.command("loads")
def _loads(
    release: Annotated[str | None, typer.Option(help="Let the jobs of this load run.")] = None,
    discard: Annotated[
        str | None, typer.Option(help="Remove the jobs of this load, which is not released.")
    ] = None,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Show the loads that were enqueued, or end one whose `enqueue` did not.

    For example:

    - `millrace pipeline loads`
    - `millrace pipeline loads --discard spark-6f1c`
    """
    chosen = settings(config)
    from millrace.cli.pipeline.loads import loads  # noqa: PLC0415

    told(lambda: loads(chosen, release, discard, url))
