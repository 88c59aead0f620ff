"""Guard: who may ask for pages, and what a browser may do with them."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_NOT_LET_IN = "Open the address that was printed when the page was started: it has the token."


class Guard:
    """Lets in whoever has the token, from the page's own origin alone.

    Args:
        token: The token; one is made if it is None, and none is asked for if it is empty.
        hosts: The names under which the page is reached.
    """

    app: ASGIApp

    def __init__(self, token: str | None, hosts: frozenset[str]) -> None:
        self.token = secrets.token_urlsafe(24) if token is None else token
        self.hosts = hosts
        self.csrf = secrets.token_urlsafe(24)
        # Cookies are the same for all ports of a host: another page beside this one has a cookie of its own.
        self._cookie = f"stategraph_{sha256(self.token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if it is one that is let in."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(scope)
        await (refused or self.app)(scope, receive, send_with_headers)

    def _refused(self, scope: Scope) -> Response | None:
        """Return what a request is answered with that does not come to the page; None if it does."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _name_of(f"//{host}") not in self.hosts:  # else any name that resolves to this machine would do
            return PlainTextResponse(f"This page is not reached under this name; {self._reached_under()}", 421)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("Another site may not ask for this page.", 403)
        if scope["method"] not in ("GET", "HEAD") and headers.get("sec-fetch-site", "none") not in (
            "none",
            "same-origin",
        ):
            return PlainTextResponse("Another site may not ask for this page.", 403)
        return self._not_let_in(scope, headers)

    def _reached_under(self) -> str:
        return f"{', '.join(sorted(self.hosts))} is right."

    def _not_let_in(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        if not self.token:
            return None
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if self._is_token(given) and scope["method"] == "GET":
            root = scope.get("root_path", "")
            response = RedirectResponse(f"{root}/", 303)
            response.set_cookie(self._cookie, self.token, path=f"{root}/", httponly=True, samesite="strict")
            return response
        if self._is_token(_cookie_of(headers.get("cookie", ""), self._cookie)):
            return None
        return PlainTextResponse(_NOT_LET_IN, 401)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def _name_of(address: str) -> str:
    """Return the name of the host in an address, without the port."""
    try:
        name = urlsplit(address).hostname or ""
    except ValueError:
        return ""
    return f"[{name}]" if ":" in name else name


def _cookie_of(header: str, name: str) -> str:
    try:
        cookies = SimpleCookie(header)
    except CookieError:
        return ""
    return cookies[name].value if name in cookies else ""
