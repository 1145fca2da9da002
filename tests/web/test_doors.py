"""Every door there is: who may not enter, and that whoever may does.

The list is the application's own. A new door is in it by itself; one that is open to everybody
fails here until it is named in PUBLIC.
"""

import asyncio
import html
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

import pytest
from knocking import ADMIN, FORM, OPERATE, PASSWORD, READ, Answer, House, bearer, told
from starlette.routing import Match

from millrace.web.api.endpoints import ApiFallback
from millrace.web.app import doors
from millrace.web.auth import ROLES, SAFE
from millrace.web.doors import Door, Form
from millrace.web.urls import own_path

#: What needs no role at all.
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
    pytest.param(door, method, id=f"{method} {door.path}")
    for door in doors()
    if isinstance(door, Door)
    for method in sorted((door.methods or set()) - {"HEAD"})
]
GUARDED = [each for each in ALL if each.values[0].role is not None]
CHANGING = [each for each in ALL if each.values[1] not in SAFE]
PARTS = {"int": "1", "path": "a/b", "str": "a", "name": "a"}


def path_of(door: Door) -> str:
    """An address that leads to it."""
    return re.sub(
        r"{(\w+)(?::(\w+))?}",
        lambda part: "base.css" if door.path.startswith("/static") else PARTS[part[2] or "str"],
        door.path,
    )


def knocks(
    door: Door, method: str, several: Iterable[dict[str, str]], house: House | None = None
) -> list[Answer]:
    """What is answered to requests with these headers, one after the other."""

    async def knocked() -> list[Answer]:
        inside = house or House()
        # A form or JSON, as the door wants it; both are read only after everything else is right.
        kind = FORM if door.kind == "page" else {"content-type": "application/json"}
        body = b"" if method in SAFE else b"x=1" if door.kind == "page" else b"{}"
        path = path_of(door)
        return [await inside.knock(method, path, kind | h, body, pieces=2) for h in several]

    return asyncio.run(knocked())


def knock(
    door: Door, method: str, house: House | None = None, headers: dict[str, str] | None = None
) -> Answer:
    (answer,) = knocks(door, method, [headers or {}], house)
    return answer


def test_every_route_is_a_door():
    assert all(isinstance(door, Door) for door in doors())
    assert len(ALL) > 50
    without_methods = [door for door in doors() if isinstance(door, Door) and not door.methods]
    assert all(isinstance(door, ApiFallback) for door in without_methods)  # which answers nothing


def test_doors_without_a_role_are_known():
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
def test_a_name_is_taken_as_it_is(path: str, parameter: str, name: str):
    """Also its newlines, and one at its end: else what is meant for "mail\\n" is done to "mail"."""
    door = next(door for door in doors() if isinstance(door, Door) and door.path == path)
    there = re.sub(r"{[a-z]+:[a-z]+}", lambda _: quote(name, safe=""), path)
    there = there.replace("{protocol}", "qless")
    scope = {"type": "http", "method": "GET", "path": unquote(there), "raw_path": there.encode()}
    match, found = door.matches(scope)
    assert match is not Match.NONE
    assert found["path_params"][parameter] == name


def test_an_address_ends_where_it_ends():
    ends = [door for door in doors() if isinstance(door, Door) and "{" not in door.path]
    for door in ends:
        scope = {"type": "http", "method": "GET", "path": door.path + "\n"}
        assert door.matches(scope)[0] is Match.NONE


@pytest.mark.parametrize(("door", "method"), ALL)
def test_what_needs_no_more_than_looking_changes_nothing(door: Door, method: str):
    """Whoever may only look, looks: what changes something needs more, and says so."""
    if method not in SAFE and door.role is not None:
        assert door.role in {"operate", "admin"}


@pytest.mark.parametrize(("door", "method"), GUARDED)
def test_nobody_enters_without_saying_who_they_are(door: Door, method: str):
    house = House()
    answer = knock(door, method, house)
    assert answer.status == 401
    assert answer.header("www-authenticate") == 'Basic realm="Millrace"'
    assert house.control.asked == []
    browser = knock(door, method, headers={"accept": "text/html", "sec-fetch-mode": "navigate"})
    if method in SAFE and door.kind == "page":
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


@pytest.mark.parametrize(("door", "method"), GUARDED)
def test_nobody_enters_with_what_is_wrong(door: Door, method: str):
    house = House()
    for answer in knocks(door, method, WRONG, house):
        assert answer.status == 401
    assert [request for request in house.control.asked if "note" not in request] == []


@pytest.mark.parametrize(("door", "method"), GUARDED)
def test_nobody_enters_with_too_small_a_role(door: Door, method: str):
    assert door.role is not None
    for role in ROLES[: ROLES.index(door.role)]:
        house = House()
        answer = knock(door, method, house, bearer(TOKEN[role]))
        assert answer.status == 403
        text = html.unescape(answer.body.decode()).replace("\\", "")
        assert f'This requires the role "{door.role}"; yours is "{role}".' in text
        assert house.control.asked == []


@pytest.mark.parametrize(("door", "method"), GUARDED)
def test_whoever_may_enters(door: Door, method: str):
    """What then happens is others' to test: the server behind this one does not answer."""
    assert door.role is not None
    for role in ROLES[ROLES.index(door.role) :]:
        assert knock(door, method, headers=bearer(TOKEN[role])).status not in {401, 403, 405}
    assert knock(door, method, House(told(password="", tokens=[]))).status not in {401, 403}


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


@pytest.mark.parametrize(("door", "method"), CHANGING)
def test_a_page_of_another_site_changes_nothing(door: Door, method: str):
    for house in (House(), House(told(password="", tokens=[]))):
        sent = [bearer(ADMIN) | headers for headers in FOREIGN.values()]
        for what, answer in zip(FOREIGN, knocks(door, method, sent, house), strict=True):
            assert answer.status == 403, what
            assert answer.cookies == {}
        assert house.control.asked == []


OUR_OWN = (
    {"sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
    {"origin": "http://localhost:7420"},
    {"origin": "http://LOCALHOST:7420"},
    {},
)


@pytest.mark.parametrize(("door", "method"), CHANGING)
def test_our_own_pages_and_scripts_may(door: Door, method: str):
    for answer in knocks(door, method, [bearer(ADMIN) | headers for headers in OUR_OWN]):
        assert answer.status not in {401, 403} or door.path == "/login"


@pytest.mark.parametrize(("door", "method"), GUARDED)
def test_read_only_changes_nothing_whoever_asks(door: Door, method: str):
    house = House(told(read_only=True))
    answer = knock(door, method, house, bearer(ADMIN))
    if method in SAFE:
        assert answer.status not in {401, 403}
    else:
        assert answer.status == 403
        assert "read-only" in answer.body.decode()
        assert house.control.asked == []


@pytest.mark.parametrize(("door", "method"), GUARDED)
def test_an_open_server_is_heard_under_its_own_names_alone(door: Door, method: str):
    open_to_all = told(password="", tokens=[], hosts=["queue.lan"])
    house = House(open_to_all)
    names = ("evil.example", "evil.example:7420", "localhost.evil.example", "[::", "a b")
    for answer in knocks(door, method, [{"host": name} for name in names], house):
        assert answer.status == 403
    assert house.control.asked == []


@pytest.mark.parametrize(("door", "method"), ALL)
def test_no_answer_is_for_other_sites_or_kept(door: Door, method: str):
    origin = {"origin": "https://evil.example", "access-control-request-method": method}
    for headers in ({}, bearer(ADMIN) | ({} if method not in SAFE else origin)):
        answer = knock(door, method, headers=headers)
        names = {name for name, _ in answer.headers}
        assert not {name for name in names if name.startswith("access-control-")}
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("x-frame-options") == "DENY"
        policy = answer.header("content-security-policy") or ""
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        if not door.path.startswith("/static"):
            assert "no-store" in (answer.header("cache-control") or "")


@pytest.mark.parametrize(("door", "method"), [e for e in GUARDED if e.values[1] == "GET"])
def test_head_is_as_get_and_ends(door: Door, method: str):
    assert knock(door, "HEAD").status == 401
    assert knock(door, "HEAD", headers=bearer(ADMIN)).status not in {401, 403, 405}


@pytest.mark.parametrize("path", sorted({d.path for d, _ in (e.values for e in ALL)}))
def test_no_method_is_taken_for_another(path: str):
    same = [door for door in doors() if isinstance(door, Door) and door.path == path]
    allowed = set().union(*(door.methods or () for door in same))
    for method in {"PUT", "PATCH", "DELETE", "TRACE", "BREW"} - allowed:
        answer = knock(same[0], method, None, bearer(ADMIN) | {"x-http-method-override": "GET"})
        assert answer.status == 405
        told_methods = set((answer.header("allow") or "").split(", "))
        assert allowed <= told_methods
        assert method not in told_methods


# What a visit offers


@pytest.mark.parametrize("path", ["/", "/queues/a%2Fb?x=1#y", "/jobs?q=a b", "/tags/ä"])
def test_a_path_of_ours_stays(path: str):
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
def test_nobody_is_sent_elsewhere(path: str):
    assert own_path(path) == "/"


def visited(method: str, path: str, body: bytes, headers: dict[str, str], **more: Any) -> Answer:
    house = House(told(**more))
    return asyncio.run(house.knock(method, path, headers, body))


def test_a_form_is_bounded_and_must_be_one():
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


def test_what_nobody_knows_is_told_as_it_was_asked():
    async def ask(path: str) -> Answer:
        return await House().knock("GET", path, bearer(READ))

    page = asyncio.run(ask("/nowhere"))
    assert (page.status, page.header("content-type")) == (404, "text/html; charset=utf-8")
    api = asyncio.run(ask("/api/v1/nowhere"))
    assert (api.status, api.header("content-type")) == (404, "application/problem+json")
    for path in ("//evil.example/", "/login/", "/%2e%2e/etc/passwd", "/static/../room.py"):
        strange = asyncio.run(ask(path))
        assert strange.status == 404
        assert strange.header("location") is None


def test_settings_never_show_what_is_secret():
    settings = told()
    shown = repr(settings) + str(settings) + f"{settings}"
    assert PASSWORD not in shown
    assert READ not in shown


def test_what_all_send_together_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("millrace.web.doors.MOST_HELD", 10_000)

    async def send() -> None:
        house = House()
        body = b"password=" + b"x" * 6000
        assert (await house.knock("POST", "/login", FORM, body)).status == 403
        assert house.room.held == 0
        house.room.held = 6000  # somebody else's
        answer = await house.knock("POST", "/login", FORM, body)
        assert (answer.status, answer.header("retry-after")) == (503, "1")
        assert house.room.held == 6000

    asyncio.run(send())
