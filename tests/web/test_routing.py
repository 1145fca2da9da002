"""Every route: requests without permission are refused, and requests with permission are accepted.
The application provides the list, so it contains each new route. A new public route fails here
until it is listed in PUBLIC.
"""

import asyncio
import html
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

import pytest
from asgi_client import (
    ADMIN,
    FORM,
    OPERATE,
    PASSWORD,
    READ,
    Answer,
    AppClient,
    bearer,
    web_settings,
)
from starlette.routing import Match

from millrace.web.api.endpoints import ApiFallback
from millrace.web.app import all_routes
from millrace.web.auth import ROLES, SAFE
from millrace.web.context import Form
from millrace.web.routing import PageRoute
from millrace.web.urls import own_path

#: Routes without a role.
PUBLIC = {
    ("GET", "/static/{name}"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("POST", "/logout"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/api/v1/openapi.json"),
}
TOKEN = {"read": READ, "operate": OPERATE, "admin": ADMIN}
ALL = [
    pytest.param(route, method, id=f"{method} {route.path}")
    for route in all_routes()
    if isinstance(route, PageRoute)
    for method in sorted((route.methods or set()) - {"HEAD"})
]
GUARDED = [each for each in ALL if each.values[0].role is not None]
CHANGING = [each for each in ALL if each.values[1] not in SAFE]
PARTS = {"int": "1", "path": "a/b", "str": "a", "name": "a"}


def path_of(route: PageRoute) -> str:
    """A path that matches the route."""
    return re.sub(
        r"{(\w+)(?::(\w+))?}",
        lambda part: "base.css" if route.path.startswith("/static") else PARTS[part[2] or "str"],
        route.path,
    )


def exchanges(
    route: PageRoute,
    method: str,
    several: Iterable[dict[str, str]],
    web_app: AppClient | None = None,
) -> list[Answer]:
    """The responses to requests with these headers, one after another."""

    async def collect() -> list[Answer]:
        inside = web_app or AppClient()
        # A form or JSON, as the route requires; the body is read after all other checks.
        kind = FORM if route.kind == "page" else {"content-type": "application/json"}
        body = b"" if method in SAFE else b"x=1" if route.kind == "page" else b"{}"
        path = path_of(route)
        return [await inside.exchange(method, path, kind | h, body, pieces=2) for h in several]

    return asyncio.run(collect())


def exchange(
    route: PageRoute,
    method: str,
    web_app: AppClient | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    (answer,) = exchanges(route, method, [headers or {}], web_app)
    return answer


def test_every_route_is_a_page_route():
    assert all(isinstance(route, PageRoute) for route in all_routes())
    assert len(ALL) > 50
    without_methods = [
        route for route in all_routes() if isinstance(route, PageRoute) and not route.methods
    ]
    assert all(isinstance(route, ApiFallback) for route in without_methods)  # without a response


def test_routes_without_a_role_are_listed():
    open_doors = {(m, d.path) for d, m in (e.values for e in ALL) if d.role is None}
    assert open_doors <= PUBLIC


@pytest.mark.parametrize("name", ["mail\n", "a\nb", "\n", "mail", "a/b\n", "..", "%2F"])
@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/queues/{name:path}", "name"),
        ("/jobs/{id:path}", "id"),
        ("/jobs/{id:path}/payload", "id"),
        ("/retries/{key:path}", "key"),
        ("/workers/{protocol}/{wid:path}", "wid"),
        ("/failed/{group:path}", "group"),
        ("/api/v1/queues/{name:name}", "name"),
    ],
)
def test_a_name_is_decoded_exactly(path: str, parameter: str, name: str):
    """This includes newlines, also at the end: otherwise a request for "mail\n" would change
    "mail".
    """
    route = next(
        route for route in all_routes() if isinstance(route, PageRoute) and route.path == path
    )
    url = re.sub(r"{[a-z]+:[a-z]+}", lambda _: quote(name, safe=""), path)
    url = url.replace("{protocol}", "qless")
    scope = {"type": "http", "method": "GET", "path": unquote(url), "raw_path": url.encode()}
    match, found = route.matches(scope)
    assert match is not Match.NONE
    assert found["path_params"][parameter] == name


def test_a_path_with_a_trailing_newline_does_not_match():
    ends = [
        route for route in all_routes() if isinstance(route, PageRoute) and "{" not in route.path
    ]
    for route in ends:
        scope = {"type": "http", "method": "GET", "path": route.path + "\n"}
        assert route.matches(scope)[0] is Match.NONE


@pytest.mark.parametrize(("route", "method"), ALL)
def test_every_change_requires_operate_or_admin(route: PageRoute, method: str):
    """A role that only reads cannot change anything."""
    if method not in SAFE and route.role is not None:
        assert route.role in {"operate", "admin"}


@pytest.mark.parametrize(("route", "method"), GUARDED)
def test_requests_without_credentials_are_refused(route: PageRoute, method: str):
    web_app = AppClient()
    answer = exchange(route, method, web_app)
    assert answer.status == 401
    assert answer.header("www-authenticate") == 'Basic realm="Millrace"'
    assert web_app.control.asked == []
    browser = exchange(route, method, headers={"accept": "text/html", "sec-fetch-mode": "navigate"})
    if method in SAFE and route.kind == "page":
        assert browser.status == 303
        assert (browser.header("location") or "").startswith("/login?next=")
    else:
        assert browser.status == 401
        assert browser.header("www-authenticate") == 'Bearer realm="Millrace"'


WRONG = (
    bearer("x" * 16),
    bearer(""),
    {"authorization": "Basic " + "x" * 16},
    {"authorization": "Negotiate abc"},
    {"authorization": ""},
    {"cookie": "millrace_session=YWRtaW4"},
)


@pytest.mark.parametrize(("route", "method"), GUARDED)
def test_requests_with_wrong_credentials_are_refused(route: PageRoute, method: str):
    web_app = AppClient()
    for answer in exchanges(route, method, WRONG, web_app):
        assert answer.status == 401
    assert [request for request in web_app.control.asked if "note" not in request] == []


@pytest.mark.parametrize(("route", "method"), GUARDED)
def test_requests_with_a_lower_role_are_refused(route: PageRoute, method: str):
    assert route.role is not None
    for role in ROLES[: ROLES.index(route.role)]:
        web_app = AppClient()
        answer = exchange(route, method, web_app, bearer(TOKEN[role]))
        assert answer.status == 403
        text = html.unescape(answer.body.decode()).replace("\\", "")
        assert f'This requires the role "{route.role}"; yours is "{role}".' in text
        assert web_app.control.asked == []


@pytest.mark.parametrize(("route", "method"), GUARDED)
def test_requests_with_the_role_are_accepted(route: PageRoute, method: str):
    """Other tests cover the result: the server here does not reply."""
    assert route.role is not None
    for role in ROLES[ROLES.index(route.role) :]:
        assert exchange(route, method, headers=bearer(TOKEN[role])).status not in {401, 403, 405}
    assert exchange(route, method, AppClient(web_settings(password="", tokens=[]))).status not in {
        401,
        403,
    }


FOREIGN = {
    "another site": {"sec-fetch-site": "cross-site"},
    "another host of this site": {"sec-fetch-site": "same-site"},
    "unheard of": {"sec-fetch-site": "sideways"},
    "origin": {"origin": "https://evil.example"},
    "origin of another port": {"origin": "http://localhost:8000"},
    "origin in a frame": {"origin": "null"},
    "no origin": {"origin": ""},
    "half an origin": {"origin": "http://["},
    "ours as the name": {"origin": "http://localhost:7420@evil.example"},
    "ours in the path": {"origin": "http://evil.example/localhost:7420"},
}


@pytest.mark.parametrize(("route", "method"), CHANGING)
def test_a_cross_site_request_changes_nothing(route: PageRoute, method: str):
    for web_app in (AppClient(), AppClient(web_settings(password="", tokens=[]))):
        sent = [bearer(ADMIN) | headers for headers in FOREIGN.values()]
        for case, answer in zip(FOREIGN, exchanges(route, method, sent, web_app), strict=True):
            assert answer.status == 403, case
            assert answer.cookies == {}
        assert web_app.control.asked == []


SAME_ORIGIN = (
    {"sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
    {"origin": "http://localhost:7420"},
    {"origin": "http://LOCALHOST:7420"},
    {},
)


@pytest.mark.parametrize(("route", "method"), CHANGING)
def test_same_origin_requests_and_scripts_are_accepted(route: PageRoute, method: str):
    for answer in exchanges(route, method, [bearer(ADMIN) | headers for headers in SAME_ORIGIN]):
        assert answer.status not in {401, 403} or route.path == "/login"


@pytest.mark.parametrize(("route", "method"), GUARDED)
def test_read_only_refuses_every_change(route: PageRoute, method: str):
    web_app = AppClient(web_settings(read_only=True))
    answer = exchange(route, method, web_app, bearer(ADMIN))
    if method in SAFE:
        assert answer.status not in {401, 403}
    else:
        assert answer.status == 403
        assert "read-only" in answer.body.decode()
        assert web_app.control.asked == []


@pytest.mark.parametrize(("route", "method"), GUARDED)
def test_an_open_server_accepts_only_its_host_names(route: PageRoute, method: str):
    open_to_all = web_settings(password="", tokens=[], hosts=["queue.lan"])
    web_app = AppClient(open_to_all)
    names = ("evil.example", "evil.example:7420", "localhost.evil.example", "[::", "a b")
    for answer in exchanges(route, method, [{"host": name} for name in names], web_app):
        assert answer.status == 403
    assert web_app.control.asked == []


@pytest.mark.parametrize(("route", "method"), ALL)
def test_no_response_is_shared_or_cached(route: PageRoute, method: str):
    origin = {"origin": "https://evil.example", "access-control-request-method": method}
    for headers in ({}, bearer(ADMIN) | ({} if method not in SAFE else origin)):
        answer = exchange(route, method, headers=headers)
        names = {name for name, _ in answer.headers}
        assert not {name for name in names if name.startswith("access-control-")}
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("x-frame-options") == "DENY"
        policy = answer.header("content-security-policy") or ""
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        if not route.path.startswith("/static"):
            assert "no-store" in (answer.header("cache-control") or "")


@pytest.mark.parametrize(("route", "method"), [e for e in GUARDED if e.values[1] == "GET"])
def test_head_is_like_get_and_ends(route: PageRoute, method: str):
    assert exchange(route, "HEAD").status == 401
    assert exchange(route, "HEAD", headers=bearer(ADMIN)).status not in {401, 403, 405}


@pytest.mark.parametrize("path", sorted({d.path for d, _ in (e.values for e in ALL)}))
def test_other_methods_are_refused(path: str):
    same = [route for route in all_routes() if isinstance(route, PageRoute) and route.path == path]
    allowed = set().union(*(route.methods or () for route in same))
    for method in {"PUT", "PATCH", "DELETE", "TRACE", "BREW"} - allowed:
        answer = exchange(same[0], method, None, bearer(ADMIN) | {"x-http-method-override": "GET"})
        assert answer.status == 405
        allowed_methods = set((answer.header("allow") or "").split(", "))
        assert allowed <= allowed_methods
        assert method not in allowed_methods


# Requests and forms


@pytest.mark.parametrize("path", ["/", "/queues/a%2Fb?x=1#y", "/jobs?q=a b", "/tags/ä"])
def test_a_local_path_is_kept(path: str):
    assert own_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "x",
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/\r\nSet-Cookie: x",
        "javascript:alert(1)",
        "/\u202e",
    ],
)
def test_a_foreign_path_is_replaced(path: str):
    assert own_path(path) == "/"


def visited(method: str, path: str, body: bytes, headers: dict[str, str], **more: Any) -> Answer:
    web_app = AppClient(web_settings(**more))
    return asyncio.run(web_app.exchange(method, path, headers, body))


def test_a_form_is_limited_and_validated():
    login = ("POST", "/login")
    assert visited(*login, b"password=" + b"x" * 16_384, FORM).status == 413
    act = ("POST", "/jobs/act", b"&".join([b"a=1"] * 10_001), FORM | bearer(OPERATE))
    assert visited(*act).status == 400
    assert visited(*login, b"password=\xff", FORM).status == 400
    assert visited(*login, b"{}", {"content-type": "application/json"}).status == 400
    assert visited(*login, b"x", {"content-type": "text/plain"}).status == 400


def test_a_form_keeps_order_and_repeats():
    form = Form([("a", "1"), ("b", "2"), ("a", "3")])
    assert (form.one("a"), form.all("a"), form.one("c", "?")) == ("1", ["1", "3"], "?")


def test_an_unknown_path_is_answered_in_the_form_of_the_request():
    async def ask(path: str) -> Answer:
        return await AppClient().exchange("GET", path, bearer(READ))

    page = asyncio.run(ask("/nowhere"))
    assert (page.status, page.header("content-type")) == (404, "text/html; charset=utf-8")
    api = asyncio.run(ask("/api/v1/nowhere"))
    assert (api.status, api.header("content-type")) == (404, "application/problem+json")
    for path in ("//evil.example/", "/login/", "/%2e%2e/etc/passwd", "/static/../room.py"):
        strange = asyncio.run(ask(path))
        assert strange.status == 404
        assert strange.header("location") is None


def test_settings_never_show_secrets():
    settings = web_settings()
    shown = repr(settings) + str(settings) + f"{settings}"
    assert PASSWORD not in shown
    assert READ not in shown


def test_the_total_size_of_bodies_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("millrace.web.context.MAX_BUFFERED_BYTES", 10_000)

    async def send() -> None:
        web_app = AppClient()
        body = b"password=" + b"x" * 6000
        assert (await web_app.exchange("POST", "/login", FORM, body)).status == 403
        assert web_app.room.held == 0
        web_app.room.held = 6000  # of another request
        answer = await web_app.exchange("POST", "/login", FORM, body)
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        assert web_app.room.held == 6000

    asyncio.run(send())
