"""Who may do what: passwords, tokens, logins, and where requests may come from.

A role may do what those before it may: `read` looks, `operate` changes jobs, queues and workers,
`admin` does what cannot be taken back or shows what is secret. Where neither password nor tokens
are set, everybody is an admin; such a server listens on loopback only, unless it was told
otherwise, and is only heard under names that are its own.

A login is a cookie that says until when and for whom, sealed with a key of ours and the secret that
was shown. What its owner may do is looked up each time: a token that was taken away or changed ends
its logins, one with another role has that role from then on.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from millrace.protocols.logins import LoginLimiter

from .session_key import sealing_key
from .settings import Role, Settings

ROLES: Final[tuple[Role, ...]] = ("read", "operate", "admin")
COOKIE: Final = "millrace_session"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: What the audit log calls whoever knows the password, and everybody where none is asked for. No
#: token is named so.
BY_PASSWORD: Final = "password"  # noqa: S105 - a name
ANYBODY: Final = "anybody"
#: So many logins that were ended are remembered until they would have ended by themselves.
MOST_ENDED: Final = 10_000


class Visitor(NamedTuple):
    role: Role
    #: For the audit log.
    name: str

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class Unknown(Exception):
    """What was shown is nobody's. `again`: as the last time."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again


class Gate:
    """Knows visitors by what they show."""

    def __init__(
        self,
        folder: Path | None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._made: bytes | None = None
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._steady = steady
        self.guesses = LoginLimiter()

    def visitor(self, request: Request, settings: Settings) -> Visitor | None:
        """The visitor; None without a secret or with a login that is over. Raises Unknown or
        TooManyGuesses for a secret that matches no visitor.
        """
        shown = None if settings.is_open else _shown(request)
        if shown is None:
            return self.logged_in(request, settings)
        return self.known(shown, address(request), settings)

    def logged_in(self, request: Request, settings: Settings) -> Visitor | None:
        """The same, by the login alone: nothing can be guessed here."""
        if settings.is_open:
            return Visitor("admin", ANYBODY)
        return self._sealed(request.cookies.get(COOKIE, ""), settings)

    def known(self, secret: str, where: str, settings: Settings) -> Visitor:
        """Whose secret that is. However it is wrong, finding out takes as long.

        Tokens are long, and always heard. A password may be short: where too many wrong ones came
        from, none is heard for a while.
        """
        found = None
        for token in settings.tokens:
            if _same(secret, token.secret):
                found = found or Visitor(token.role, token.name)
        if found is not None:
            return found
        now = self._steady()
        self.guesses.check(where, now)
        if settings.password and _same(secret, settings.password):
            return Visitor("admin", BY_PASSWORD)
        raise Unknown(again=not self.guesses.add(where, secret, now))

    def cookie(self, visitor: Visitor, settings: Settings) -> str:
        """What a browser shows from now on."""
        until = int(self._clock() + settings.session)
        told = f"{until} {secrets.token_hex(8)} {visitor.name}"
        seal = self._seal(told, _secret(visitor.name, settings) or "")
        return urlsafe_b64encode(f"{told} {seal}".encode()).decode().rstrip("=")

    def end(self, request: Request, settings: Settings) -> Visitor | None:
        """Nobody is let in by that login any more, also not by a copy of it; whose it was."""
        cookie = request.cookies.get(COOKIE, "")
        visitor = self._sealed(cookie, settings)
        if visitor is not None:
            self._ended[_parts(cookie)[0]] = None
            while len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)
        return visitor

    def _sealed(self, cookie: str, settings: Settings) -> Visitor | None:
        try:
            told, seal = _parts(cookie)
            until, _, name = told.split(" ")
            over = int(until) <= self._clock() or told in self._ended
        except ValueError:
            return None
        secret = _secret(name, settings)
        if secret is None or not _same(seal, self._seal(told, secret)) or over:
            return None
        return Visitor(_role(name, settings), name)

    def _seal(self, told: str, secret: str) -> str:
        # Not before somebody logs in: most servers need no key.
        if self._made is None:
            self._made = sealing_key(self._folder)
        return hmac.new(self._made, f"{told}\0{secret}".encode(), hashlib.sha256).hexdigest()


def address(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else "?"


def is_foreign(request: Request) -> bool:
    """Does a page of somebody else's want something changed? Scripts send neither header, and no
    page can keep a browser from sending one of them.
    """
    if request.method in SAFE:
        return False
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in {"same-origin", "none"}
    origin = request.headers.get("origin")
    if origin is None:
        return False
    try:
        there = urlsplit(origin).netloc
    except ValueError:
        return True
    return not there or there.lower() != request.headers.get("host", "").lower()


def is_misnamed(request: Request, settings: Settings) -> bool:
    """Is an open server called by a name that is not its own? A stranger's page can be given any
    name that leads here, and would then be heard as if it were ours.
    """
    if not settings.is_open:
        return False
    called = request.headers.get("host", "")
    if not called:
        return False  # no browser does that
    try:
        host = (urlsplit("//" + called).hostname or "").rstrip(".")
        if host in {"localhost", settings.host.lower()} | {n.lower() for n in settings.hosts}:
            return False
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def is_browser(request: Request) -> bool:
    """It asks for passwords with a window of its own, if it is let: ours are asked for on a page,
    where one can log out again.
    """
    headers = request.headers
    return "sec-fetch-mode" in headers or headers.get("user-agent", "").startswith("Mozilla/")


def is_private(request: Request) -> bool:
    """Is everything between us and the browser encrypted? A proxy that says so may be believed: it
    only makes the browser more careful.
    """
    told = request.headers.get("x-forwarded-proto", "")
    return request.scope["scheme"] == "https" or told == "https"


def _shown(request: Request) -> str | None:
    """The secret that was sent along: as a token, or as the password of any name."""
    header = request.headers.get("authorization")
    if header is None:
        return None
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            return b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except ValueError:
            return ""
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1").decode("utf-8", "replace")
    return ""


def _parts(cookie: str) -> tuple[str, str]:
    """What it says, and its seal."""
    told, _, seal = urlsafe_b64decode(cookie.encode() + b"==").decode().rpartition(" ")
    return told, seal


def _secret(name: str, settings: Settings) -> str | None:
    if name == BY_PASSWORD:
        return settings.password or None
    return next((token.secret for token in settings.tokens if token.name == name), None)


def _role(name: str, settings: Settings) -> Role:
    return next((token.role for token in settings.tokens if token.name == name), "admin")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(_digest(one), _digest(other))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
