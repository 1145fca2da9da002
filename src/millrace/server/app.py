"""The running server: from a configuration and open ports until the process ends."""

import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from millrace import __version__
from millrace.admin.connection import AdminConnection
from millrace.admin.service import AdminService
from millrace.config import Config, ConfigError, LoadedConfig, apply_reload, changed_keys, keys
from millrace.config.values import parse_tokens
from millrace.engine.engine import Engine
from millrace.engine.idle_queues import IdleQueues
from millrace.engine.queue_rules import rule_for
from millrace.journal.identity import check_restored_copy
from millrace.journal.location import parse_location
from millrace.protocols.registry import PROTOCOLS
from millrace.protocols.spec import HubContext, load_spec, protocol_rules
from millrace.records import AuditEntry
from millrace.store import Store, StoreError, StoreWriteFailed
from millrace.store.folders import open_store

from . import file_limits, logs
from .control_socket import SocketPathInUse, control_socket_path
from .journal_shipper import JournalShipper, ShipperSettings
from .memory_watch import CHECK_INTERVAL as MEMORY_CHECK_INTERVAL
from .memory_watch import MemoryWatch, effective_limit
from .pipeline_runner import NO_LAKE, PipelineRunner, pipeline_command
from .server import Listener, Server
from .status import ProcessStatus
from .systemd import notify
from .web_process import WebProcess

if TYPE_CHECKING:
    from .tls import TlsFiles

log = logging.getLogger(__name__)

#: Seconds between two checks of the TLS files.
TLS_CHECK_INTERVAL = 5.0
#: Seconds between two steps of the search for idle queues.
QUEUE_CHECK_INTERVAL = 5.0
#: The garbage collector does not track compiled jobs, and the objects of the server form no cycles,
#: so full collections are very rare. The others examine 20,000 new objects at most, in 4 to 16 ms.
GC_THRESHOLDS = (5_000, 2, 10_000)
#: Open sockets by section.
Sockets = dict[str, list[socket.socket]]


def clock() -> int:
    return time.time_ns() // 1000


def run(loaded: LoadedConfig, reload: Callable[[], LoadedConfig], sockets: Sockets) -> int:
    """Serve until a signal stops the server; return the exit status of the process."""
    config = loaded.config
    max_files = file_limits.raise_limit()
    os.umask(0o077)  # data, lake and the files of child processes are private to this user
    gc.set_threshold(*GC_THRESHOLDS)
    gc.disable()  # during recovery
    # After a sync, the commit thread must not wait long for the thread of the loop.
    sys.setswitchinterval(0.0005)
    store: Store | None = None
    try:
        if config.server.durability != "memory":
            store = open_store(
                config.server.data,
                sync=config.server.durability == "fsync",
                outbox_max=config.journal.outbox_max,
                max_inline_payload=config.server.max_inline_payload,
            )
        engine = Engine(
            Random(secrets.randbits(64)), protocol_rules(), dead_max=config.faktory.dead_max
        )
        if store is not None:
            _recover_or_close(engine, store)
            check_restored_copy(
                config.server.data, parse_location(config.lake_uri), store.outbox.next_committed
            )
    except StoreWriteFailed as error:
        folder = config.server.data
        log.critical(
            "Cannot open data folder %s: %s. Fix the problem and start again.", folder, error
        )
        return 1
    except StoreError as error:
        log.critical("%s", error)
        return 1
    gc.freeze()
    gc.enable()
    try:
        tls = _open_tls(config)
    except OSError as error:  # includes the errors of ssl
        log.critical(
            "Cannot use tls.cert %s with tls.key %s: %s. Both must be PEM files of one key pair.",
            config.tls.cert,
            config.tls.key,
            error,
        )
        return 1
    # Without a store there is no data folder: the control socket needs another one.
    folder = Path(tempfile.mkdtemp(prefix="millrace-")) if store is None else config.server.data
    try:
        return uvloop.run(_serve(loaded, reload, sockets, engine, store, tls, max_files, folder))
    except SocketPathInUse as error:
        log.critical("%s", error)
        return 1
    finally:
        if store is not None:
            store.close()
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _recover_or_close(engine: Engine, store: Store) -> None:
    """Recover. If that fails, close the store without changing the data folder."""
    try:
        recover(engine, store, clock)
    except StoreError:
        with contextlib.suppress(StoreError):
            store.close()
        raise


def recover(engine: Engine, store: Store, clock: Callable[[], int]) -> None:
    """Load the contents of the store into a new engine."""
    started = time.monotonic()

    def progress(done: int, total: int) -> None:
        if total > 50_000:
            log.info("Reading the store: %s of %s jobs.", f"{done:,}", f"{total:,}")

    recovered = store.load(progress, engine.jobs)
    engine.payloads.reader = store.payload_reader
    recovered.fill(engine)
    count = len(engine.jobs)
    engine.restoration.after_restart(clock())
    if count:
        log.info("Recovered %s jobs in %.1f s.", f"{count:,}", time.monotonic() - started)


async def _serve(
    loaded: LoadedConfig,
    reload: Callable[[], LoadedConfig],
    sockets: Sockets,
    engine: Engine,
    store: Store | None,
    tls: "TlsFiles | None",
    max_files: int,
    folder: Path,
) -> int:
    config = loaded.config
    loop = asyncio.get_running_loop()
    stop, force_stop = asyncio.Event(), asyncio.Event()

    def on_fatal_error(reason: str) -> None:
        """The state of the store is unknown: exit without further acknowledgements."""
        log.critical(
            "%s. The server exits and sends no more acknowledgements. Check the disk and the "
            "kernel log, then start again: every acknowledged change is in the data folder.",
            reason,
        )
        os._exit(3)

    max_connections = file_limits.usable_connections(config.server.max_connections, max_files)
    server = Server(
        engine,
        store,
        clock,
        max_connections=max_connections,
        max_output=config.server.max_output,
        max_buffered=config.server.max_buffered,
        max_unauthenticated=file_limits.max_unauthenticated_connections(max_files),
        on_fatal_error=on_fatal_error,
    )

    def request_stop() -> None:
        if stop.is_set():
            force_stop.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, request_stop)
    current = [loaded]

    started_at = clock()
    serving = listeners(config, engine, started_at, max_connections)
    control = AdminService(
        engine, max_connections, lambda: 1 if store is None else store.outbox.next_event
    )
    path = control_socket_path(folder)
    serving.append(Listener("control", None, control, lambda: AdminConnection(control), path))
    ports = await server.listen(serving, sockets, None if tls is None else tls.context)
    control.memory_mb = _memory()
    control.samples.measured = server.server_durations
    control.audit.heard = _log_audit_entry
    control.tokens.make_key = lambda: secrets.token_bytes(32)
    control.begin(started_at)
    web: WebProcess | None = None
    if "web" in sockets:
        ports["web"] = sockets["web"][0].getsockname()[1]
        web = WebProcess(sockets["web"], lambda: web_settings(current[0].config, path))
        web.start()
    control.ports = ports
    runner = PipelineRunner(
        config.pipeline.every,
        pipeline_command(config),
        unavailable_reason=NO_LAKE if store is None else "",
    )
    control.host = ProcessStatus(
        lambda: current[0], runner, started_at=started_at, memory_mb=control.memory_mb
    )

    def reload_all() -> None:
        _reload(current, reload, server, store, max_files)
        if tls is not None:
            tls.reload_if_changed()
        if web is not None:
            web.reload()

    def watch_tls_files() -> None:
        if tls is not None:
            if tls.reload_if_changed() and web is not None:
                web.reload()
            loop.call_later(TLS_CHECK_INTERVAL, watch_tls_files)

    memory = MemoryWatch(
        engine, server.gate, control.memory_mb, effective_limit(config.server.max_memory), store
    )

    def watch_memory() -> None:
        memory.limit = effective_limit(current[0].config.server.max_memory)
        memory.check()
        loop.call_later(MEMORY_CHECK_INTERVAL, watch_memory)

    idle = IdleQueues(engine)

    def forget_queues() -> None:
        period = current[0].config.server.forget_queues
        if period:
            now = clock()
            for name in idle.remove_idle_batch(now, round(period * 1_000_000)):
                for hub in server.hubs:
                    hub.queue_forgotten(name)
            server.after_commands(now)
        loop.call_later(QUEUE_CHECK_INTERVAL, forget_queues)

    forget_queues()
    watch_memory()
    loop.add_signal_handler(signal.SIGHUP, reload_all)
    watch_tls_files()
    _announce(config, ports)
    if store is not None:
        control.keeper = server.shipper = _make_shipper(config, server, store)
        server.shipper.check_pending()
        runner.start()
    elif config.pipeline.every:
        log.warning("Scheduled pipeline runs are disabled: %s", NO_LAKE)
    await stop.wait()
    notify("STOPPING=1")
    log.info(
        "Stopping: no longer accepting connections; workers are notified at their next heartbeat."
    )
    await runner.stop()
    if web is not None:
        await web.stop()
    await server.stop(config.server.stop_grace, force_stop)
    log.info("Stopped.")
    return 0


def web_settings(config: Config, control: Path) -> dict[str, Any]:
    """The settings of the web process; see web/settings.py."""
    web = config.web
    is_durable = config.server.durability != "memory"
    return msgspec.structs.asdict(web) | {
        "control": str(control.absolute()),
        "data": str(config.server.data.absolute()) if is_durable else "",
        "lake": config.lake_uri if is_durable else "",
        "host": config.server.host,
        "password": web.password or config.faktory.password,
        "tokens": parse_tokens(web.tokens),
        "hosts": web.hosts.split(),
        "cert": str(Path(config.tls.cert).absolute()) if config.tls.cert else "",
        "key": str(Path(config.tls.key).absolute()) if config.tls.key else "",
        "client_ca": str(Path(config.tls.client_ca).absolute()) if config.tls.client_ca else "",
    }


def _make_shipper(config: Config, server: Server, store: Store) -> JournalShipper:
    lake = config.lake
    settings = ShipperSettings(
        config.server.data, config.lake_uri, lake.ship_every, lake.ship_events
    )
    return JournalShipper(
        store.outbox,
        settings,
        trim=server.turns.schedule,
        on_request_done=lambda: server.after_commands(clock()),
    )


def listeners(
    config: Config, engine: Engine, started_at: int, max_connections: int
) -> list[Listener]:
    """The enabled protocols."""
    context = HubContext(
        engine, started_at, max_connections, config.server.max_line, _memory(), secrets.randbits
    )
    found = []
    for row in PROTOCOLS:
        if not row.listens:
            continue
        spec, section = load_spec(row), config.sections[row.name]
        assert spec.make_hub is not None
        assert spec.make_connection is not None
        # A hub also serves the jobs of its protocol, so it exists even without a listener.
        limited = context._replace(rule=rule_for(section.queues))
        hub = spec.make_hub(section, limited)
        assert hub.rule is limited.rule, f"{row.name} ignores the rule for queues"
        connect = functools.partial(spec.make_connection, hub)
        port: int | None = section.port
        if port is not None or section.socket:
            found.append(Listener(row.name, port, hub, connect))
    return found


def _log_audit_entry(entry: AuditEntry) -> None:
    """Copy an audit entry to the log. Clients choose the names in it, so they stay fields."""
    fields = {"number": entry.number, "by": entry.by, "did": entry.action, "target": entry.target}
    log.info("audit", extra={"fields": fields})


def _announce(config: Config, ports: dict[str, int]) -> None:
    """Print the ready line with the ports, and notify systemd."""
    notify("READY=1")
    if not logs.is_console(sys.stdout):
        ready = {
            "ready": True,
            "ports": ports,
            "host": config.server.host,
            "data": str(config.server.data),
            "durability": config.server.durability,
            "version": __version__,
            "pid": os.getpid(),
        }
        print(json.dumps(ready), flush=True)  # noqa: T201
        return
    host, scheme = config.server.host, "https" if config.tls.cert else "http"
    host = f"[{host}]" if ":" in host else host
    where = "  ".join(
        f"{name} {f'{scheme}://' if name == 'web' else ''}{host}:{port}"
        for name, port in ports.items()
    )
    data = (
        "in memory only: all data is lost at exit"
        if config.server.durability == "memory"
        else f"{config.server.data} (durability: {config.server.durability})"
    )
    print(f"ready  {where}  data {data}  (press Ctrl-C to stop)", flush=True)  # noqa: T201


def _reload(
    current: list[LoadedConfig],
    reload: Callable[[], LoadedConfig],
    server: Server,
    store: Store | None,
    max_files: int,
) -> None:
    """SIGHUP: apply the reloadable keys, and log all changed keys."""
    try:
        loaded = reload()
    except ConfigError as error:
        for problem in error.problems:
            log.error("Configuration not reloaded: %s", problem)  # noqa: TRY400 - no trace
        return
    for key in changed_keys(current[0].config, loaded.config):
        if keys()[key].doc.reload:
            log.info("Reloaded %s.", key)
        else:
            log.warning("%s changed. Restart the server to apply the new value.", key)
    effective = apply_reload(current[0], loaded)
    new = effective.config
    logs.set_level(new.server.log_level)
    max_connections = file_limits.usable_connections(new.server.max_connections, max_files)
    server.max_connections = max_connections
    server.buffers.limit = new.server.max_buffered
    for hub in server.hubs:
        hub.max_connections = max_connections
        if hub.protocol in new.sections:
            hub.reload(new.sections[hub.protocol])
    server.engine.retention.dead_max = new.faktory.dead_max
    if store is not None:
        store.outbox.max_bytes = new.journal.outbox_max
    current[0] = effective


def _open_tls(config: Config) -> "TlsFiles | None":
    if not config.tls.cert:
        return None
    from .tls import TlsFiles  # noqa: PLC0415 - without TLS, ssl is not loaded

    return TlsFiles(config.tls)


@functools.cache
def _memory() -> Callable[[], int]:
    """A function that returns the memory of the process in MiB. Its file stays open, because the
    function is called often, and even when no more files can be opened.
    """
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    page = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(os.pread(statm, 100, 0).split()[1]) * page >> 20
