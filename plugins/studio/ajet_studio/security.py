"""Who may ask: only a browser that was given the token, on a page of ours, on this machine.

Another site's page that runs in the same browser can send requests to the loopback address, but its cookie is not sent
(SameSite), its origin is refused, and a name of its own that it resolves to this machine is not a name that we answer to.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ajet_studio.answers import error

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_LOCKED = """<!doctype html><html lang=en><meta charset=utf-8><title>AgentJet studio</title>
<h1>This page needs its token</h1>
<p>Open the address that <code>ajet studio</code> has printed in its terminal: it ends with <code>?token=…</code>."""


class Guarded:
    """An application behind a token. ``hosts`` are the names, without a port, by which it may be addressed."""

    def __init__(self, app: App, token: str, hosts: frozenset[str]) -> None:
        self._app, self._token, self._hosts = app, token, LOOPBACK | hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _name_of(host) not in self._hosts:
            return error(403, f"the studio does not answer to the name {host[:80]!r}")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(bearer):
            return (
                None if self._own_page(scope, headers, host) else error(403, "another site's page sent this")
            )
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(asked).get("token")
        if given is not None and scope["method"] == "GET" and self._is_token(given):
            rest = urlencode([(name, value) for name, value in asked if name != "token"])
            # Not from the path as it was sent: //host would lead to another site.
            path = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
            response: Response = RedirectResponse(path, 303)
            response.set_cookie(self._cookie(scope), self._token, httponly=True, samesite="strict", path="/")
            return response
        if not self._is_token(self._cookie_of(scope, headers)):
            return HTMLResponse(_LOCKED, 401)
        if not self._own_page(scope, headers, host, needed=scope["method"] not in ("GET", "HEAD")):
            return error(403, "another site's page sent this")
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _cookie(self, scope: Scope) -> str:
        """Browsers give the cookies of one port to all ports of a host, so each has a name of its own."""
        return f"ajet_studio_{(scope.get('server') or ('', 0))[1]}"

    def _cookie_of(self, scope: Scope, headers: Headers) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie(scope))
        except CookieError:
            return ""
        return cookie.value if cookie else ""

    def _own_page(self, scope: Scope, headers: Headers, host: str, needed: bool = False) -> bool:
        """Whether a request that names an origin names ours; with ``needed`` it must name one."""
        origin = headers.get("origin")
        if origin is None:
            return not needed
        return origin == f"{scope['scheme']}://{host}"


def _name_of(host: str) -> str:
    """The name in a Host header, without its port and brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""
