"""Cross-key rules that must hold before a server opens its ports."""

from collections.abc import Iterator
from pathlib import Path

from millrace.config.sections import Config, keys
from millrace.config.values import quoted, toml_size


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`. Of all names, only localhost qualifies."""
    if host in {"127.0.0.1", "::1", "localhost"}:
        return True
    import ipaddress  # noqa: PLC0415 - rarely needed

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(config: Config, invalid_keys: set[str]) -> Iterator[tuple[str, str]]:
    """Yield each violated rule as a key and a reason. Rules on keys in `invalid_keys` are
    skipped.
    """
    if invalid_keys.isdisjoint({"server.max_line", "server.max_output"}):
        yield from _at_least(
            config, "max_output", "max_line", "a reply can contain the largest job"
        )
    if invalid_keys.isdisjoint({"server.max_output", "server.max_buffered"}):
        reason = "it applies to all connections together"
        yield from _at_least(config, "max_buffered", "max_output", reason)
    if "server.host" not in invalid_keys:
        yield from _check_open_ports(config, invalid_keys)
    if invalid_keys.isdisjoint({"tls.cert", "tls.key", "tls.client_ca"}):
        yield from _check_tls_files(config)


def _at_least(config: Config, name: str, other: str, reason: str) -> Iterator[tuple[str, str]]:
    """Yield a problem if the size `name` in [server] is below the size `other`."""
    size, minimum = getattr(config.server, name), getattr(config.server, other)
    if size < minimum:
        # Report the key that was changed.
        changed = other if size == keys()[f"server.{name}"].default else name
        limits = f"{name} ({toml_size(size)}) to be at least {other} ({toml_size(minimum)})"
        yield f"server.{changed}", f"expected {limits}, because {reason}"


def _check_open_ports(config: Config, invalid_keys: set[str]) -> Iterator[tuple[str, str]]:
    """Beyond loopback, every protocol needs a password or explicit permission."""
    if is_loopback(config.server.host) or config.tls.client_ca:
        return
    for name, section in config.sections.items():
        relevant_keys = {
            f"{name}.{key}" for key in ("port", "password", "tokens", "allow_unauthenticated")
        }
        if getattr(section, "port", None) is None or not invalid_keys.isdisjoint(relevant_keys):
            continue
        # A protocol without authentication has no key for a password.
        secrets = [getattr(section, key, "") for key in ("password", "tokens")]
        if name == "web":
            secrets.append(config.faktory.password)  # the fallback of web.password
        if not any(secrets) and not section.allow_unauthenticated:
            yield "server.host", _open_port_problem(config.server.host, name)


def _open_port_problem(host: str, section: str) -> str:
    ways = []
    if password := keys().get(f"{section}.password"):
        ways.append(f"set {password.dotted_name} (or {password.variable})")
    ways.append(f"set {section}.allow_unauthenticated = true to allow access without a password")
    ways.append("listen on 127.0.0.1")
    return (
        f"{quoted(host)} is reachable from other machines and {section} has no password: "
        + ", or ".join(ways)
    )


def _check_tls_files(config: Config) -> Iterator[tuple[str, str]]:
    tls = config.tls
    files = {"cert": tls.cert, "key": tls.key, "client_ca": tls.client_ca}
    required = {"cert": "key", "key": "cert", "client_ca": "cert"}
    for name, path in files.items():
        other = required[name]
        if path and not files[other]:
            yield f"tls.{name}", f"expected tls.{other} too: TLS requires both"
        try:
            if path:
                Path(path).open("rb").close()
        except OSError as error:
            yield f"tls.{name}", f"cannot read {path}: {error.strerror}"
