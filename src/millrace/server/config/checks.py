"""What must hold between keys before a server opens its ports."""

from collections.abc import Iterator
from pathlib import Path

from millrace.server.config.sections import Config, keys
from millrace.server.config.values import quoted, write_size


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. A name other than localhost might be anything."""
    if host in {"127.0.0.1", "::1", "localhost"}:
        return True
    import ipaddress  # noqa: PLC0415 - the usual hosts do not need it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(config: Config, broken: set[str]) -> Iterator[tuple[str, str]]:
    """The keys to blame, each with the reason; keys that are `broken` anyway count for nothing."""
    if broken.isdisjoint({"server.max_line", "server.max_output"}):
        yield from _at_least(config, "max_output", "max_line", "a reply may hold the largest job")
    if broken.isdisjoint({"server.max_output", "server.max_buffered"}):
        reason = "it is for all connections together"
        yield from _at_least(config, "max_buffered", "max_output", reason)
    if "server.host" not in broken:
        yield from _open_ports(config, broken)
    if broken.isdisjoint({"tls.cert", "tls.key"}):
        yield from _tls_files(config)


def _at_least(config: Config, name: str, other: str, reason: str) -> Iterator[tuple[str, str]]:
    """One size of the server's may not be below another."""
    size, least = getattr(config.server, name), getattr(config.server, other)
    if size < least:
        # The one that was changed is the one to look at.
        changed = other if size == keys()[f"server.{name}"].default else name
        limits = f"{name} ({write_size(size)}) to be at least {other} ({write_size(least)})"
        yield f"server.{changed}", f"expected {limits}, as {reason}"


def _open_ports(config: Config, broken: set[str]) -> Iterator[tuple[str, str]]:
    """Beyond loopback, no protocol serves just anybody unless it is told to."""
    if is_loopback(config.server.host):
        return
    for name in Config.__struct_fields__:
        section = getattr(config, name)
        deciding = {
            f"{name}.{key}" for key in ("port", "password", "tokens", "allow_unauthenticated")
        }
        if getattr(section, "port", None) is None or not broken.isdisjoint(deciding):
            continue
        # A protocol that has no authentication has no key for a password either.
        secrets = [getattr(section, key, "") for key in ("password", "tokens")]
        if name == "web":
            secrets.append(config.faktory.password)  # which its pages then ask for, too
        if not any(secrets) and not section.allow_unauthenticated:
            yield "server.host", _open_port(config.server.host, name)


def _open_port(host: str, section: str) -> str:
    ways = []
    if password := keys().get(f"{section}.password"):
        ways.append(f"set {password.dotted} (or {password.variable})")
    ways.append(f"set {section}.allow_unauthenticated = true if anybody may use it")
    ways.append("listen on 127.0.0.1")
    return (
        f"{quoted(host)} can be reached from other machines and {section} has no password: "
        + ", or ".join(ways)
    )


def _tls_files(config: Config) -> Iterator[tuple[str, str]]:
    files = {"cert": config.tls.cert, "key": config.tls.key}
    for name, path in files.items():
        other = "key" if name == "cert" else "cert"
        if path and not files[other]:
            yield f"tls.{name}", f"expected tls.{other} too, as TLS needs both"
        try:
            if path:
                Path(path).open("rb").close()
        except OSError as error:
            yield f"tls.{name}", f"cannot read {path}: {error.strerror}"
