"""Login and logout."""

from typing import Final

from starlette.responses import Response

from millrace.protocols.logins import TooManyGuesses
from millrace.web.auth import COOKIE, Unknown, address, is_private
from millrace.web.doors import Door, Visit, too_many
from millrace.web.render import page
from millrace.web.urls import own_path

#: Maximum size of the login form in bytes. Clients send it without authentication.
MOST: Final = 16_384


async def login(visit: Visit) -> Response:
    there = own_path(visit.query("next"))
    if visit.visitor is not None:
        return visit.back(there)
    return page(visit, "login.html", next=there, wrong=False)


async def enter(visit: Visit) -> Response:
    form = await visit.form(MOST)
    there = own_path(form.one("next"))
    gate, settings, room = visit.room.gate, visit.settings, visit.room
    if settings.is_open:
        return visit.back(there)
    try:
        visitor = gate.known(form.one("password"), address(visit.request), settings)
    except Unknown as error:
        if not error.again:
            room.note("login refused", "", visit.by)
        return page(visit, "login.html", status=403, next=there, wrong=True)
    except TooManyGuesses as error:
        raise too_many(error) from None
    gate.end(visit.request, settings)
    visit.visitor = visitor
    room.note("login", "", visit.by)
    response = visit.back(there)
    response.set_cookie(
        COOKIE,
        gate.cookie(visitor, settings),
        max_age=int(settings.session),
        path=visit.prefix or "/",
        httponly=True,
        # Links from other sites work; the server checks the origin of requests that change data.
        samesite="lax",
        secure=is_private(visit.request),
    )
    return response


async def leave(visit: Visit) -> Response:
    if visit.room.gate.end(visit.request, visit.settings) is not None:
        visit.room.note("logout", "", visit.by)
    response = visit.back("/login")
    response.delete_cookie(COOKIE, path=visit.prefix or "/", httponly=True, samesite="lax")
    return response


DOORS: Final = [
    Door("/login", login, role=None),
    Door("/login", enter, role=None, methods=("POST",)),
    Door("/logout", leave, role=None, methods=("POST",)),
]
