"""Login and logout."""

from typing import Final

from starlette.responses import Response

from millrace.protocols.logins import TooManyGuesses
from millrace.web.auth import COOKIE, InvalidCredentials, address, is_https
from millrace.web.context import RequestContext
from millrace.web.render import page
from millrace.web.routing import PageRoute, form_route, too_many
from millrace.web.urls import own_path

#: Maximum size of the login form in bytes. Clients send it without authentication.
MAX_FORM_BYTES: Final = 16_384


async def login(context: RequestContext) -> Response:
    there = own_path(context.query("next"))
    if context.user is not None:
        return context.redirect(there)
    return page(context, "login.html", next=there, wrong=False)


async def enter(context: RequestContext) -> Response:
    form = await context.form(MAX_FORM_BYTES)
    there = own_path(form.one("next"))
    authenticator, settings, app_state = (
        context.app_state.authenticator,
        context.settings,
        context.app_state,
    )
    if settings.is_open:
        return context.redirect(there)
    try:
        user = authenticator.known(form.one("password"), address(context.request), settings)
    except InvalidCredentials as error:
        if not error.again:
            app_state.note("login refused", "", context.by)
        return page(context, "login.html", status=403, next=there, wrong=True)
    except TooManyGuesses as error:
        raise too_many(error) from None
    authenticator.end(context.request, settings)
    context.user = user
    app_state.note("login", "", context.by)
    response = context.redirect(there)
    response.set_cookie(
        COOKIE,
        authenticator.cookie(user, settings),
        max_age=int(settings.session),
        path=context.prefix or "/",
        httponly=True,
        # Links from other sites work; the server checks the origin of requests that change data.
        samesite="lax",
        secure=is_https(context.request),
    )
    return response


async def leave(context: RequestContext) -> Response:
    if context.app_state.authenticator.end(context.request, context.settings) is not None:
        context.app_state.note("logout", "", context.by)
    response = context.redirect("/login")
    response.delete_cookie(COOKIE, path=context.prefix or "/", httponly=True, samesite="lax")
    return response


ROUTES: Final = [
    PageRoute("/login", login, "the sign-in form", role=None),
    form_route("/login", enter, "sign in", role=None),
    form_route("/logout", leave, "sign out", role=None),
]
