"""Addresses of Faktory's and Qless's pages lead to ours."""

import pytest
from pretended import GUARDED, get, pretended


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
        ("/workers/w%201", "/workers/qless/w%201"),
        ("/failed/a%20b", "/jobs?q=group%3A%22a%20b%22"),
        ("/failed.json", "/api/v1/failures"),
    ],
)
def test_it_leads_there(path: str, there: str) -> None:
    answer = get(pretended(), path)
    assert answer.status in {302, 303}
    assert answer.headers["location"] == there


def test_an_unknown_address_is_none_of_ours() -> None:
    assert get(pretended(), "/nowhere").status == 404


def test_nobody_is_led_who_may_not_look() -> None:
    room = pretended(GUARDED)
    answer = get(room, "/workers")
    assert answer.headers["location"].startswith("/login")
