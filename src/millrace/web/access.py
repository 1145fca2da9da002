"""Who may do what: passwords, tokens, logins, and where requests may come from.

A role may do what those before it may: `read` looks, `operate` changes jobs, queues and workers,
`admin` does what cannot be taken back or shows what is secret. Where neither password nor tokens
are set, everybody is an admin; such a server listens on loopback only, unless it was told
otherwise, and is only heard under names that are its own.
"""

import hashlib
import hmac
import ipaddress
import os
import secrets
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from .settings import Role, Settings

ROLES: Final[tuple[Role, ...]] = ("read", "operate", "admin")
COOKIE: Final = "millrace_session"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
KEY_FILE: Final = "web.key"


class Visitor(NamedTuple):
    role: Role
    #: For the audit log.
    name: str

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class Gate:
    """Knows visitors by what they show."""

    def __init__(self, folder: Path | None) -> None:
        self._key = _key(folder)

    def visitor(self, request: Request, settings: Settings) -> Visitor | None:
        """Who that is; None if nobody knows."""
        if settings.is_open:
            return Visitor("admin", "anybody")
        scheme, _, value = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.known(value.strip(), settings)
        if scheme.lower() == "basic":
            return self.known(_password(value), settings)
        return self._logged_in(request.cookies.get(COOKIE, ""), settings)

    def known(self, secret: str, settings: Settings) -> Visitor | None:
        """Whose secret that is. However it is wrong, finding out takes as long."""
        found = None
        if settings.password and _same(secret, settings.password):
            found = Visitor("admin", "password")
        for token in settings.tokens:
            if _same(secret, token.secret):
                found = found or Visitor(token.role, token.name)
        return found

    def cookie(self, visitor: Visitor, settings: Settings) -> str:
        """What a browser shows from now on. It ends with the secret that it was given for."""
        until = int(time.time() + settings.session)
        told = f"{until} {visitor.role} {visitor.name}"
        return urlsafe_b64encode(f"{told} {self._seal(told, settings)}".encode()).decode()

    def _logged_in(self, cookie: str, settings: Settings) -> Visitor | None:
        try:
            text = urlsafe_b64decode(cookie.encode()).decode()
            told, _, seal = text.rpartition(" ")
            until, role, name = told.split(" ", 2)
            valid = _same(seal, self._seal(told, settings)) and int(until) > time.time()
        except ValueError:
            return None
        return Visitor(ROLES[ROLES.index(role)], name) if valid else None

    def _seal(self, told: str, settings: Settings) -> str:
        name = told.split(" ", 2)[2]
        secret = next((t.secret for t in settings.tokens if t.name == name), settings.password)
        return hmac.new(self._key, f"{told}\0{secret}".encode(), hashlib.sha256).hexdigest()


def is_foreign(request: Request) -> bool:
    """Does a page of somebody else's want something changed? Scripts send neither header."""
    if request.method in SAFE:
        return False
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")


def is_misnamed(request: Request, settings: Settings) -> bool:
    """Is an open server called by a name that is not its own? A stranger's page can be given any
    name that leads here, and would then be heard as if it were ours.
    """
    if not settings.is_open:
        return False
    host = urlsplit("//" + request.headers.get("host", "")).hostname or ""
    if host == "localhost" or host in settings.hosts or host == settings.host:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(
        hashlib.sha256(one.encode("utf-8", "surrogateescape")).digest(),
        hashlib.sha256(other.encode("utf-8", "surrogateescape")).digest(),
    )


def _password(basic: str) -> str:
    try:
        return b64decode(basic, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _key(folder: Path | None) -> bytes:
    """Kept in the data folder, so that logins outlive a restart."""
    if folder is None:
        return secrets.token_bytes(32)
    path = folder / KEY_FILE
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    key = path.read_bytes()
    return key if len(key) == 32 else secrets.token_bytes(32)
