"""Login and logout."""

from typing import Final

from starlette.responses import Response

from millrace.web.access import COOKIE
from millrace.web.doors import Door, Visit
from millrace.web.rendering import page


async def login(visit: Visit) -> Response:
    there = _own(visit.query("next"))
    if visit.visitor is not None:
        return visit.back(there)
    return page(visit, "login.html", next=there, wrong=False)


async def enter(visit: Visit) -> Response:
    form = await visit.form()
    there = _own(form.one("next"))
    visitor = visit.room.gate.known(form.one("password"), visit.settings)
    if visitor is None:
        return page(visit, "login.html", status=403, next=there, wrong=True)
    response = visit.back(there)
    response.set_cookie(
        COOKIE,
        visit.room.gate.cookie(visitor, visit.settings),
        max_age=int(visit.settings.session),
        path=visit.prefix or "/",
        httponly=True,
        samesite="strict",
        secure=visit.request.url.scheme == "https",
    )
    return response


async def leave(visit: Visit) -> Response:
    response = visit.back("/login")
    response.delete_cookie(COOKIE, path=visit.prefix or "/", httponly=True, samesite="strict")
    return response


def _own(path: str) -> str:
    """A path of ours, wherever the visitor was told to go: nobody is sent to another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


DOORS: Final = [
    Door("/login", login, role=None),
    Door("/login", enter, role=None, methods=("POST",)),
    Door("/logout", leave, role=None, methods=("POST",)),
]
