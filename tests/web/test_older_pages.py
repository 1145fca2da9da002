"""Addresses of Faktory's and Qless's pages lead to ours."""

import pytest
from pretended import READER, get, pretended
from test_workers_page import row

from millrace.protocols.control.messages import Workers


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/workers", "/busy"),
        ("/track", "/tracked"),
        ("/config", "/configuration/qless"),
        ("/about", "/server"),
        ("/debug", "/server"),
        ("/failed", "/failures"),
        ("/dead", "/morgue"),
        ("/tag", "/tags"),
        ("/tag?tag=a%26b%20c", "/jobs?q=tag%3A%22a%26b%20c%22"),
        ("/workers/w%201", "/workers/faktory/w%201"),
        ("/workers/nobody", "/workers/qless/nobody"),
    ],
)
def test_it_leads_there(path: str, there: str) -> None:
    room = pretended(workers=Workers([row("w 1")], 1, ""))
    answer = get(room, path)
    assert answer.status in {302, 303}
    assert answer.headers["location"] == there


def test_an_unknown_address_is_none_of_ours() -> None:
    assert get(pretended(), "/nowhere").status == 404


def test_nobody_is_led_who_may_not_look() -> None:
    room = pretended({"tokens": [READER]})
    answer = get(room, "/workers")
    assert answer.headers["location"].startswith("/login")
