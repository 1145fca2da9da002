"""URLs of the pages of Faktory and Qless redirect to Millrace pages."""

import pytest
from scripted_app import GUARDED, get, scripted_app


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
def test_an_old_url_redirects(path: str, there: str) -> None:
    answer = get(scripted_app(), path)
    assert answer.status in {302, 303}
    assert answer.headers["location"] == there


def test_an_unknown_url_is_not_found() -> None:
    assert get(scripted_app(), "/nowhere").status == 404


def test_a_redirect_requires_a_login() -> None:
    room = scripted_app(GUARDED)
    answer = get(room, "/workers")
    assert answer.headers["location"].startswith("/login")
