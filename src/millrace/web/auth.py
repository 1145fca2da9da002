"""Authentication and authorization: passwords, tokens, login cookies and checks of the origin.

Each role includes the previous ones: `read` views data, `operate` changes jobs, queues and workers,
`admin` performs irreversible actions and views confidential data. If neither a password nor tokens
are set, every client has the role `admin`. By default such a server listens on loopback only, and
it accepts only requests for its own host names.

A login is a cookie with an expiry time and a name, signed with the server's key and the secret of
the login. The server determines the role on each request: removing or changing a token ends its
logins, and a change of its role takes effect immediately.
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
from .settings import Role, WebSettings

ROLES: Final[tuple[Role, ...]] = ("read", "operate", "admin")
COOKIE: Final = "millrace_session"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: Names in the audit log: for a client with the password, and for all clients of a server without
#: authentication. Tokens cannot have these names.
BY_PASSWORD: Final = "password"  # noqa: S105 - a name
ANYBODY: Final = "anybody"
#: Maximum number of ended logins that the process stores to reject copies of their cookies.
MAX_ENDED_SESSIONS: Final = 10_000


class User(NamedTuple):
    role: Role
    #: Name in the audit log.
    name: str

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class InvalidCredentials(Exception):
    """The password or token is invalid. `again`: the same one as in the last attempt."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again


class Authenticator:
    """Authenticates clients by secret or login cookie."""

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

    def user(self, request: Request, settings: WebSettings) -> User | None:
        """Return the client, or None without a secret or a valid login. Raise InvalidCredentials if
        the secret is wrong, or TooManyGuesses while the address is blocked after failures.
        """
        secret = None if settings.is_open else _presented_secret(request)
        if secret is None:
            return self.logged_in(request, settings)
        return self.known(secret, address(request), settings)

    def logged_in(self, request: Request, settings: WebSettings) -> User | None:
        """Return the client of the login cookie, without checking a secret."""
        if settings.is_open:
            return User("admin", ANYBODY)
        return self._sealed(request.cookies.get(COOKIE, ""), settings)

    def known(self, secret: str, where: str, settings: WebSettings) -> User:
        """Return the client with this secret. The time of a comparison is independent of the value.

        Tokens are long and are always checked. A password can be short: after too frequent failures
        from an address, the server rejects passwords from this address for some time.
        """
        found = None
        for token in settings.tokens:
            if _same(secret, token.secret):
                found = found or User(token.role, token.name)
        if found is not None:
            return found
        now = self._steady()
        self.guesses.check(where, now)
        if settings.password and _same(secret, settings.password):
            return User("admin", BY_PASSWORD)
        raise InvalidCredentials(again=not self.guesses.count_wrong_password(where, secret, now))

    def cookie(self, user: User, settings: WebSettings) -> str:
        """Return the value of a new login cookie."""
        until = int(self._clock() + settings.session)
        told = f"{until} {secrets.token_hex(8)} {user.name}"
        seal = self._seal(told, _secret(user.name, settings) or "")
        return urlsafe_b64encode(f"{told} {seal}".encode()).decode().rstrip("=")

    def end(self, request: Request, settings: WebSettings) -> User | None:
        """End a login, including copies of its cookie. Return its client."""
        cookie = request.cookies.get(COOKIE, "")
        user = self._sealed(cookie, settings)
        if user is not None:
            self._ended[_parts(cookie)[0]] = None
            while len(self._ended) > MAX_ENDED_SESSIONS:
                self._ended.popitem(last=False)
        return user

    def _sealed(self, cookie: str, settings: WebSettings) -> User | None:
        try:
            told, seal = _parts(cookie)
            until, _, name = told.split(" ")
            over = int(until) <= self._clock() or told in self._ended
        except ValueError:
            return None
        secret = _secret(name, settings)
        if secret is None or not _same(seal, self._seal(told, secret)) or over:
            return None
        return User(_role(name, settings), name)

    def _seal(self, told: str, secret: str) -> str:
        # Create the key at the first login: most servers need no key.
        if self._made is None:
            self._made = sealing_key(self._folder)
        return hmac.new(self._made, f"{told}\0{secret}".encode(), hashlib.sha256).hexdigest()


def address(request: Request) -> str:
    """Return the client's IP address."""
    return request.client.host if request.client else "?"


def is_cross_site(request: Request) -> bool:
    """Return True if a page of another site sends a request that changes data. Browsers always send
    Sec-Fetch-Site or Origin, and a page cannot prevent this; scripts send neither header.
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


def is_unknown_host(request: Request, settings: WebSettings) -> bool:
    """Return True if a request to a server without authentication has a foreign host name. This
    check prevents DNS rebinding, where the name of a foreign site resolves to this server.
    """
    if not settings.is_open:
        return False
    called = request.headers.get("host", "")
    if not called:
        return False  # browsers always send Host
    try:
        host = (urlsplit("//" + called).hostname or "").rstrip(".")
        if host in {"localhost", settings.host.lower()} | {n.lower() for n in settings.hosts}:
            return False
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def is_browser(request: Request) -> bool:
    """Return True for a browser. Browsers do not receive a Basic challenge, which would open their
    password dialog: they use the login page, which supports logout.
    """
    headers = request.headers
    return "sec-fetch-mode" in headers or headers.get("user-agent", "").startswith("Mozilla/")


def is_https(request: Request) -> bool:
    """Return True if the browser's connection is encrypted. The header of a proxy is trusted,
    because it can only make cookies more restrictive.
    """
    told = request.headers.get("x-forwarded-proto", "")
    return request.scope["scheme"] == "https" or told == "https"


def _presented_secret(request: Request) -> str | None:
    """Return the secret of the Authorization header: a token, or the password of any user name."""
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
    """Return the content of a cookie and its signature."""
    told, _, seal = urlsafe_b64decode(cookie.encode() + b"==").decode().rpartition(" ")
    return told, seal


def _secret(name: str, settings: WebSettings) -> str | None:
    if name == BY_PASSWORD:
        return settings.password or None
    return next((token.secret for token in settings.tokens if token.name == name), None)


def _role(name: str, settings: WebSettings) -> Role:
    return next((token.role for token in settings.tokens if token.name == name), "admin")


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(_digest(one), _digest(other))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
