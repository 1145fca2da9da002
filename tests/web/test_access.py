"""Who is let in: passwords, tokens, logins, and names that are not ours."""

import asyncio
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from knocking import ADMIN, OPERATE, PASSWORD, READ, Answer, House, bearer, told

from millrace.web.settings import Token

HTML = {"accept": "text/html", "sec-fetch-mode": "navigate", "user-agent": "Mozilla/5.0"}


def held(conversation: Callable[[House], Awaitable[None]], **settings: Any) -> House:
    """A conversation with a room of its own."""

    async def hold() -> House:
        house = House(told(**settings))
        await conversation(house)
        await house.settle()
        return house

    return asyncio.run(hold())


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(text.encode()).decode()}


async def enters(house: House, headers: dict[str, str], **more: Any) -> bool:
    """Is the overview shown? (Behind it nobody answers.)"""
    status = (await house.knock("GET", "/", headers, **more)).status
    assert status in {401, 429, 503}
    return status == 503


# Secrets


@pytest.mark.parametrize(
    "headers",
    [
        bearer(READ),
        bearer(PASSWORD),
        {"authorization": f"bearer  {READ} "},
        basic(f":{PASSWORD}"),
        basic(f"faktory:{PASSWORD}"),
        basic(f"any name:{READ}"),
        {"authorization": "BASIC " + b64encode(f"x:{OPERATE}".encode()).decode()},
    ],
)
def test_a_secret_is_known_however_it_is_sent(headers: dict[str, str]):
    async def talk(house: House) -> None:
        assert await enters(house, headers)

    held(talk)


def test_a_password_may_have_any_letters():
    async def talk(house: House) -> None:
        for headers in (basic("x:pässwörd:ü"), bearer("pässwörd:ü".encode().decode("latin-1"))):
            assert await enters(house, headers)
        assert (await house.log_in("p%C3%A4ssw%C3%B6rd%3A%C3%BC")).status == 303

    held(talk, password="pässwörd:ü")


def test_without_a_password_tokens_are_all_there_is():
    async def talk(house: House) -> None:
        assert await enters(house, bearer(READ))
        for empty in (bearer(""), basic(":"), basic("x"), {}):
            assert not await enters(house, empty)
        assert (await house.log_in("")).status == 403

    held(talk, password="")


def test_without_any_secret_everybody_may_do_everything():
    async def talk(house: House) -> None:
        for headers in ({}, bearer("whatever"), basic("a:b"), {"cookie": "millrace_session=x"}):
            assert await enters(house, headers)
        assert (await house.knock("GET", "/login?next=/queues")).header("location") == "/queues"
        assert (await house.log_in("x")).cookies == {}

    assert held(talk, password="", tokens=[]).control.noted == []


# Logins


def test_a_login_lasts_as_long_as_it_is_said():
    async def talk(house: House) -> None:
        answer = await house.log_in(next="/queues%3Fa=1")
        assert (answer.status, answer.header("location")) == (303, "/queues?a=1")
        said = answer.cookies["millrace_session"]
        for part in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=3600"):
            assert f"; {part}" in said
        assert "Secure" not in said
        cookie = {"cookie": answer.session}
        assert await enters(house, cookie)
        house.now += 3599
        assert await enters(house, cookie)
        house.now += 1
        assert not await enters(house, cookie)

    house = held(talk)
    assert house.control.noted == [("login", "password from 192.0.2.1")]


@pytest.mark.parametrize("secret", [READ, OPERATE, ADMIN])
def test_a_token_logs_in_with_its_role(secret: str):
    async def talk(house: House) -> None:
        cookie = {"cookie": (await house.log_in(secret)).session}
        assert await enters(house, cookie)
        visitor = house.room.gate.known(secret, "?", house.room.settings)
        page = (await house.knock("GET", "/nowhere", cookie)).body.decode()
        assert f"Sign out {visitor.name}" in page

    held(talk)


def test_a_wrong_password_is_told_and_noted():
    async def talk(house: House) -> None:
        answer = await house.log_in("wrong", next="/queues")
        assert answer.status == 403
        assert answer.cookies == {}
        page = answer.body.decode()
        assert "Invalid password or token" in page
        assert 'name="next" value="/queues"' in page
        assert "wrong" not in page.replace("wrong password", "")
        await house.log_in("wrong")  # the same again is no news
        await house.knock("GET", "/", bearer("w" * 16))

    house = held(talk)
    assert house.control.noted == [("login refused", "192.0.2.1")] * 2
    assert "wrong" not in repr(house.control.asked)


def test_after_logging_out_not_even_a_copy_is_let_in():
    async def talk(house: House) -> None:
        first, second = (await house.log_in()).session, (await house.log_in()).session
        answer = await house.knock("POST", "/logout", {"cookie": first})
        assert answer.header("location") == "/login"
        assert 'millrace_session=""' in answer.cookies["millrace_session"]
        assert not await enters(house, {"cookie": first})
        assert not await enters(house, {"cookie": first + "!"})  # which decodes to the same
        assert await enters(house, {"cookie": second})
        assert (await house.knock("POST", "/logout")).status == 303

    assert held(talk).control.noted[2:] == [("logout", "password from 192.0.2.1")]


def test_a_login_ends_with_its_secret_and_follows_its_role():
    async def talk(house: House) -> None:
        by_password = {"cookie": (await house.log_in()).session}
        by_token = {"cookie": (await house.log_in(OPERATE)).session}

        house.room.reload(told(password="another"))
        assert not await enters(house, by_password)
        assert await enters(house, by_token)

        demoted = [Token("read", "operator", OPERATE)]
        house.room.reload(told(tokens=demoted))
        assert await enters(house, by_password)
        page = await house.knock("GET", "/", by_token)
        assert page.status == 503
        found = house.room.gate._sealed(by_token["cookie"].partition("=")[2], house.room.settings)
        assert found is not None
        assert found.role == "read"

        house.room.reload(told(tokens=[Token("operate", "operator", "n" * 16)]))
        assert not await enters(house, by_token)
        house.room.reload(told(tokens=[]))
        assert not await enters(house, by_token)
        house.room.reload(told(password=""))
        assert not await enters(house, by_password)

    held(talk)


def test_a_login_cannot_be_made_up_or_changed():
    async def talk(house: House) -> None:
        cookie = (await house.log_in(READ)).session.partition("=")[2]
        text = urlsafe_b64decode(cookie + "==").decode()
        until, nonce, _name, seal = text.split(" ")
        changed = [
            f"{until} {nonce} chief {seal}",
            f"{until} {nonce} password {seal}",
            f"{int(until) + 1} {nonce} reader {seal}",
            f"{until} x reader {seal}",
            f"{until} {nonce} reader {'0' * 64}",
            f"{until} {nonce} reader ",
            f"{until} {nonce} nobody {seal}",
            f"{until} reader {seal}",
            "",
            " ",
            "x y z w",
        ]
        for each in changed:
            made = urlsafe_b64encode(each.encode()).decode()
            assert not await enters(house, {"cookie": f"millrace_session={made}"})
        for each in ("", "%", "ä", "====", "\xff" * 100, "x" * 4000):
            assert not await enters(house, {"cookie": f"millrace_session={each}"})
        other = House()  # with a key of its own
        assert not await enters(other, {"cookie": f"millrace_session={cookie}"})

    held(talk)


def test_under_tls_the_login_is_never_sent_in_the_clear():
    async def talk(house: House) -> None:
        under_tls = await house.log_in(scheme="https")
        behind_a_proxy = await house.log_in(headers={"x-forwarded-proto": "https"})
        for answer in (under_tls, behind_a_proxy):
            assert "; Secure" in answer.cookies["millrace_session"]

    held(talk)


# Where a login leads


@pytest.mark.parametrize(
    ("asked", "path"),
    [("/?x=1&y=%2F", "/?x=1&y=%2F"), ("/live?a", "/live?a")],
)
def test_a_browser_that_logs_in_gets_what_it_asked_for(asked: str, path: str):
    async def talk(house: House) -> None:
        sent = (await house.knock("GET", asked, HTML)).header("location") or ""
        page = (await house.knock("GET", sent)).body.decode()
        assert f'name="next" value="{path.replace("&", "&amp;")}"' in page
        target = sent.partition("next=")[2]
        assert (await house.log_in(next=target)).header("location") == path

    held(talk)


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/%5Cevil.example"])
def test_a_login_leads_nowhere_else(path: str):
    async def talk(house: House) -> None:
        assert (await house.log_in(next=path)).header("location") == "/"
        page = (await house.knock("GET", f"/login?next={path}")).body.decode()
        assert 'name="next" value="/"' in page

    held(talk)


def test_behind_a_proxy_everything_is_below_its_path():
    async def talk(house: House) -> None:
        proxy = {"x-script-name": "/work/"}
        for target in ("/work/live?x", "/live?x"):
            sent = (await house.knock("GET", target, HTML | proxy)).header("location")
            assert sent == "/work/login?next=%2Flive%3Fx"
        page = (await house.knock("GET", "/work/login", proxy)).body.decode()
        assert 'action="/work/login"' in page
        answer = await house.log_in(next="/live", headers=proxy)
        assert answer.header("location") == "/work/live"
        assert "; Path=/work;" in answer.cookies["millrace_session"]
        assert (await house.knock("POST", "/logout", proxy)).header("location") == "/work/login"

    held(talk)


@pytest.mark.parametrize(
    "name",
    [
        "//evil.example",
        "https://evil.example",
        "evil",
        "/a//b",
        "/a b",
        "/../x",
        "/a/..",
        "/a\\b",
        '/"><script>',
        "/a;Domain=evil",
        "/ä",
        "/a?b",
        "/a#b",
        "/%2f",
        "/" + "a" * 300,
        "",
        "/",
    ],
)
def test_a_strange_path_of_a_proxy_is_passed_over(name: str):
    async def talk(house: House) -> None:
        sent = (await house.knock("GET", "/", HTML | {"x-script-name": name})).header("location")
        assert sent == "/login?next=%2F"

    held(talk)


# Guessing


def test_after_ten_wrong_passwords_none_is_heard_but_tokens_and_logins_are():
    async def talk(house: House) -> None:
        cookie = {"cookie": (await house.log_in()).session}
        for n in range(10):
            assert (await house.log_in(f"wrong {n}")).status == 403
        answer = await house.log_in()
        assert (answer.status, answer.header("retry-after")) == (429, "60")
        assert "in 60 s" in answer.body.decode()
        by_script = await house.knock("GET", "/", basic(f"x:{PASSWORD}"))
        assert (by_script.status, by_script.header("retry-after")) == (429, "60")
        assert await enters(house, bearer(READ))
        assert await enters(house, basic(f"x:{ADMIN}"))
        assert await enters(house, cookie)
        assert (await house.log_in(OPERATE)).status == 303
        assert (await house.log_in(client="192.0.2.2")).status == 303  # others are not concerned
        house.now += 59.5
        assert (await house.log_in()).header("retry-after") == "1"
        house.now += 0.5
        assert (await house.log_in()).status == 303

    noted = held(talk).control.noted
    assert noted.count(("login refused", "192.0.2.1")) == 10


def test_guesses_over_basic_and_bearer_count_as_those_on_the_page():
    async def talk(house: House) -> None:
        for n in range(5):
            assert not await enters(house, bearer(f"guess {n}"))
            assert not await enters(house, basic(f"x:guess {n}{n}"))
        assert (await house.log_in()).status == 429

    held(talk)


def test_nothing_can_be_guessed_where_everybody_may_enter():
    async def talk(house: House) -> None:
        for headers in (bearer(PASSWORD), basic(f"x:{PASSWORD}"), bearer("x"), {}):
            assert (await house.knock("GET", "/login", headers)).status == 200
            assert "Sign out" not in (await house.knock("GET", "/nowhere", headers)).body.decode()

    held(talk)


# Names


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:7420",
        "LOCALHOST:1",
        "localhost.",
        "127.0.0.1:7420",
        "[::1]:7420",
        "10.0.0.7",
        "queue.lan:80",
        "Queue.LAN",
        "millrace.example",
        "",
    ],
)
def test_an_open_server_is_called_by_its_names_and_addresses(host: str):
    async def talk(house: House) -> None:
        assert await enters(house, {"host": host})

    held(talk, password="", tokens=[], hosts=["Queue.lan"], host="millrace.example")


def test_a_server_that_asks_for_a_password_may_have_any_name():
    async def talk(house: House) -> None:
        assert await enters(house, {"host": "anything.example"} | bearer(READ))
        assert not await enters(house, {"host": "anything.example"})

    held(talk)


# A browser's own window for passwords


def test_a_browser_is_not_made_to_ask_for_a_password_by_itself():
    async def talk(house: House) -> None:
        stream = HTML | {"accept": "text/event-stream", "sec-fetch-mode": "cors"}
        answer: Answer = await house.knock("GET", "/live", stream)
        assert (answer.status, answer.header("www-authenticate")) == (
            401,
            'Bearer realm="Millrace"',
        )
        script = await house.knock("GET", "/live")
        assert script.header("www-authenticate") == 'Basic realm="Millrace"'

    held(talk)
