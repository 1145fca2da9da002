"""Access: passwords, tokens, sessions, and host names."""

import asyncio
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgi_client import ADMIN, OPERATE, PASSWORD, READ, Answer, AppClient, bearer, web_settings

from millrace.config.values import Token

HTML = {"accept": "text/html", "sec-fetch-mode": "navigate", "user-agent": "Mozilla/5.0"}


def held(conversation: Callable[[AppClient], Awaitable[None]], **settings: Any) -> AppClient:
    """Run a conversation with a new app."""

    async def hold() -> AppClient:
        web_app = AppClient(web_settings(**settings))
        await conversation(web_app)
        await web_app.settle()
        return web_app

    return asyncio.run(hold())


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(text.encode()).decode()}


async def enters(web_app: AppClient, headers: dict[str, str], **more: Any) -> bool:
    """Whether the overview is shown. (The server does not reply.)"""
    status = (await web_app.exchange("GET", "/", headers, **more)).status
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
def test_a_secret_is_accepted_in_every_form(headers: dict[str, str]):
    async def scenario(web_app: AppClient) -> None:
        assert await enters(web_app, headers)

    held(scenario)


def test_a_password_may_have_any_characters():
    async def scenario(web_app: AppClient) -> None:
        for headers in (basic("x:pässwörd:ü"), bearer("pässwörd:ü".encode().decode("latin-1"))):
            assert await enters(web_app, headers)
        assert (await web_app.log_in("p%C3%A4ssw%C3%B6rd%3A%C3%BC")).status == 303

    held(scenario, password="pässwörd:ü")


def test_without_a_password_only_tokens_are_accepted():
    async def scenario(web_app: AppClient) -> None:
        assert await enters(web_app, bearer(READ))
        for empty in (bearer(""), basic(":"), basic("x"), {}):
            assert not await enters(web_app, empty)
        assert (await web_app.log_in("")).status == 403

    held(scenario, password="")


def test_without_any_secret_all_requests_are_allowed():
    async def scenario(web_app: AppClient) -> None:
        for headers in ({}, bearer("whatever"), basic("a:b"), {"cookie": "millrace_session=x"}):
            assert await enters(web_app, headers)
        assert (await web_app.exchange("GET", "/login?next=/queues")).header(
            "location"
        ) == "/queues"
        assert (await web_app.log_in("x")).cookies == {}

    assert held(scenario, password="", tokens=[]).control.noted == []


# Logins


def test_a_session_lasts_for_its_configured_time():
    async def scenario(web_app: AppClient) -> None:
        answer = await web_app.log_in(next="/queues%3Fa=1")
        assert (answer.status, answer.header("location")) == (303, "/queues?a=1")
        cookie_text = answer.cookies["millrace_session"]
        for part in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=3600"):
            assert f"; {part}" in cookie_text
        assert "Secure" not in cookie_text
        cookie = {"cookie": answer.session}
        assert await enters(web_app, cookie)
        web_app.now += 3599
        assert await enters(web_app, cookie)
        web_app.now += 1
        assert not await enters(web_app, cookie)

    web_app = held(scenario)
    assert web_app.control.noted == [("login", "password from 192.0.2.1")]


@pytest.mark.parametrize("secret", [READ, OPERATE, ADMIN])
def test_a_token_logs_in_with_its_role(secret: str):
    async def scenario(web_app: AppClient) -> None:
        cookie = {"cookie": (await web_app.log_in(secret)).session}
        assert await enters(web_app, cookie)
        visitor = web_app.room.authenticator.known(secret, "?", web_app.room.settings)
        page = (await web_app.exchange("GET", "/nowhere", cookie)).body.decode()
        assert f"Signed in as {visitor.name}" in page

    held(scenario)


def test_a_wrong_password_is_reported_and_recorded():
    async def scenario(web_app: AppClient) -> None:
        answer = await web_app.log_in("wrong", next="/queues")
        assert answer.status == 403
        assert answer.cookies == {}
        page = answer.body.decode()
        assert "Invalid password or token" in page
        assert 'name="next" value="/queues"' in page
        assert "wrong" not in page.replace("wrong password", "")
        await web_app.log_in("wrong")  # a repetition is not recorded again
        await web_app.exchange("GET", "/", bearer("w" * 16))

    web_app = held(scenario)
    assert web_app.control.noted == [("login refused", "192.0.2.1")] * 2
    assert "wrong" not in repr(web_app.control.asked)


def test_after_the_logout_a_copied_cookie_is_refused():
    async def scenario(web_app: AppClient) -> None:
        first, second = (await web_app.log_in()).session, (await web_app.log_in()).session
        answer = await web_app.exchange("POST", "/logout", {"cookie": first})
        assert answer.header("location") == "/login"
        assert 'millrace_session=""' in answer.cookies["millrace_session"]
        assert not await enters(web_app, {"cookie": first})
        assert not await enters(web_app, {"cookie": first + "!"})  # decodes to the same bytes
        assert await enters(web_app, {"cookie": second})
        assert (await web_app.exchange("POST", "/logout")).status == 303

    assert held(scenario).control.noted[2:] == [("logout", "password from 192.0.2.1")]


def test_a_session_ends_with_its_secret_and_follows_its_role():
    async def scenario(web_app: AppClient) -> None:
        by_password = {"cookie": (await web_app.log_in()).session}
        by_token = {"cookie": (await web_app.log_in(OPERATE)).session}

        web_app.room.reload(web_settings(password="another"))
        assert not await enters(web_app, by_password)
        assert await enters(web_app, by_token)

        demoted = [Token("read", "operator", OPERATE)]
        web_app.room.reload(web_settings(tokens=demoted))
        assert await enters(web_app, by_password)
        page = await web_app.exchange("GET", "/", by_token)
        assert page.status == 503
        found = web_app.room.authenticator._sealed(
            by_token["cookie"].partition("=")[2], web_app.room.settings
        )
        assert found is not None
        assert found.role == "read"

        web_app.room.reload(web_settings(tokens=[Token("operate", "operator", "n" * 16)]))
        assert not await enters(web_app, by_token)
        web_app.room.reload(web_settings(tokens=[]))
        assert not await enters(web_app, by_token)
        web_app.room.reload(web_settings(password=""))
        assert not await enters(web_app, by_password)

    held(scenario)


def test_a_forged_or_changed_session_is_refused():
    async def scenario(web_app: AppClient) -> None:
        cookie = (await web_app.log_in(READ)).session.partition("=")[2]
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
            assert not await enters(web_app, {"cookie": f"millrace_session={made}"})
        for each in ("", "%", "ä", "====", "\xff" * 100, "x" * 4000):
            assert not await enters(web_app, {"cookie": f"millrace_session={each}"})
        other = AppClient()  # with another key
        assert not await enters(other, {"cookie": f"millrace_session={cookie}"})

    held(scenario)


def test_with_tls_the_session_cookie_is_secure():
    async def scenario(web_app: AppClient) -> None:
        under_tls = await web_app.log_in(scheme="https")
        behind_a_proxy = await web_app.log_in(headers={"x-forwarded-proto": "https"})
        for answer in (under_tls, behind_a_proxy):
            assert "; Secure" in answer.cookies["millrace_session"]

    held(scenario)


# Redirects after a login


@pytest.mark.parametrize(
    ("asked", "path"),
    [("/?x=1&y=%2F", "/?x=1&y=%2F"), ("/live?a", "/live?a")],
)
def test_a_browser_is_redirected_to_the_requested_page(asked: str, path: str):
    async def scenario(web_app: AppClient) -> None:
        sent = (await web_app.exchange("GET", asked, HTML)).header("location") or ""
        page = (await web_app.exchange("GET", sent)).body.decode()
        assert f'name="next" value="{path.replace("&", "&amp;")}"' in page
        target = sent.partition("next=")[2]
        assert (await web_app.log_in(next=target)).header("location") == path

    held(scenario)


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/%5Cevil.example"])
def test_a_login_never_redirects_to_another_site(path: str):
    async def scenario(web_app: AppClient) -> None:
        assert (await web_app.log_in(next=path)).header("location") == "/"
        page = (await web_app.exchange("GET", f"/login?next={path}")).body.decode()
        assert 'name="next" value="/"' in page

    held(scenario)


def test_behind_a_proxy_all_paths_have_its_prefix():
    async def scenario(web_app: AppClient) -> None:
        proxy = {"x-script-name": "/work/"}
        for target in ("/work/live?x", "/live?x"):
            sent = (await web_app.exchange("GET", target, HTML | proxy)).header("location")
            assert sent == "/work/login?next=%2Flive%3Fx"
        page = (await web_app.exchange("GET", "/work/login", proxy)).body.decode()
        assert 'action="/work/login"' in page
        answer = await web_app.log_in(next="/live", headers=proxy)
        assert answer.header("location") == "/work/live"
        assert "; Path=/work;" in answer.cookies["millrace_session"]
        assert (await web_app.exchange("POST", "/logout", proxy)).header(
            "location"
        ) == "/work/login"

    held(scenario)


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
def test_an_invalid_prefix_of_a_proxy_is_ignored(name: str):
    async def scenario(web_app: AppClient) -> None:
        sent = (await web_app.exchange("GET", "/", HTML | {"x-script-name": name})).header(
            "location"
        )
        assert sent == "/login?next=%2F"

    held(scenario)


# Rate limit for wrong passwords


def test_after_ten_wrong_passwords_only_tokens_and_sessions_are_accepted():
    async def scenario(web_app: AppClient) -> None:
        cookie = {"cookie": (await web_app.log_in()).session}
        for n in range(10):
            assert (await web_app.log_in(f"wrong {n}")).status == 403
        answer = await web_app.log_in()
        assert (answer.status, answer.header("retry-after")) == (429, "60")
        assert "in 60 s" in answer.body.decode()
        by_script = await web_app.exchange("GET", "/", basic(f"x:{PASSWORD}"))
        assert (by_script.status, by_script.header("retry-after")) == (429, "60")
        assert await enters(web_app, bearer(READ))
        assert await enters(web_app, basic(f"x:{ADMIN}"))
        assert await enters(web_app, cookie)
        assert (await web_app.log_in(OPERATE)).status == 303
        assert (await web_app.log_in(client="192.0.2.2")).status == 303  # other clients continue
        web_app.now += 59.5
        assert (await web_app.log_in()).header("retry-after") == "1"
        web_app.now += 0.5
        assert (await web_app.log_in()).status == 303

    noted = held(scenario).control.noted
    assert noted.count(("login refused", "192.0.2.1")) == 10


def test_wrong_passwords_over_basic_and_bearer_count():
    async def scenario(web_app: AppClient) -> None:
        for n in range(5):
            assert not await enters(web_app, bearer(f"guess {n}"))
            assert not await enters(web_app, basic(f"x:guess {n}{n}"))
        assert (await web_app.log_in()).status == 429

    held(scenario)


def test_public_pages_do_not_check_secrets():
    async def scenario(web_app: AppClient) -> None:
        for headers in (bearer(PASSWORD), basic(f"x:{PASSWORD}"), bearer("x"), {}):
            assert (await web_app.exchange("GET", "/login", headers)).status == 200
            assert (
                "Sign out" not in (await web_app.exchange("GET", "/nowhere", headers)).body.decode()
            )

    held(scenario)


# Host names


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
def test_an_open_server_accepts_its_names_and_addresses(host: str):
    async def scenario(web_app: AppClient) -> None:
        assert await enters(web_app, {"host": host})

    held(scenario, password="", tokens=[], hosts=["Queue.lan"], host="millrace.example")


def test_a_server_with_a_password_accepts_any_host_name():
    async def scenario(web_app: AppClient) -> None:
        assert await enters(web_app, {"host": "anything.example"} | bearer(READ))
        assert not await enters(web_app, {"host": "anything.example"})

    held(scenario)


# The password dialog of a browser


def test_a_browser_shows_no_password_dialog():
    async def scenario(web_app: AppClient) -> None:
        stream = HTML | {"accept": "text/event-stream", "sec-fetch-mode": "cors"}
        answer: Answer = await web_app.exchange("GET", "/live", stream)
        assert (answer.status, answer.header("www-authenticate")) == (
            401,
            'Bearer realm="Millrace"',
        )
        script = await web_app.exchange("GET", "/live")
        assert script.header("www-authenticate") == 'Basic realm="Millrace"'

    held(scenario)
