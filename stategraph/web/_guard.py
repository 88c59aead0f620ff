"""The guard of the page: it lets in known browsers, and limits what they may do with a page."""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Iterable
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stategraph.errors import ConfigError
from stategraph.stores._codec.type_codecs import unknown_shown

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
_MOST_SESSIONS = 1_000  # the oldest session ends first: its browser needs the address with the token again
_OTHER_SITE = "Requests from other sites are refused."
_NOT_LET_IN = "Open the address that was printed at the start of the page: it has the token."


class Guard:
    """Lets in browsers with the token, and only requests from the page itself.

    Args:
        token: The token; None for a new one. An empty token lets everyone in.
        hosts: The names of the page.
        root_path: The path of the page on a reverse proxy.
    """

    app: ASGIApp

    def __init__(self, token: str | None, hosts: Iterable[str], root_path: str) -> None:
        self.token: str = secrets.token_urlsafe(24) if token is None else token
        self.hosts: frozenset[str] = frozenset(map(host_of, hosts))
        self.csrf: str = secrets.token_urlsafe(24)
        self.root_path: str = f"/{root_path.strip('/')}".rstrip("/")
        # Browsers send cookies to all ports of a host, so the page has a path and a cookie that no other server knows.
        self._own_path = f"/{secrets.token_urlsafe(18)}" if self.token else ""
        self._cookie = f"stategraph_{secrets.token_hex(6)}"
        self._sessions: deque[str] = deque(maxlen=_MOST_SESSIONS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        scope = self._placed(scope)
        refused = self._refused(Request(scope))
        with unknown_shown():  # values of unregistered classes are shown with their fields
            await (refused or self.app)(scope, receive, send_with_headers)

    def _placed(self, scope: Scope) -> Scope:
        """Return a scope with the path in the browser, below a random one.

        Some proxies and servers leave out its beginning. The address with the token has no random path yet.
        """
        given = scope.get("root_path", "")
        root, path = f"{self.root_path}{given}", scope["path"]
        for begins in ((root, given), (self._own_path,)):
            path = path.removeprefix(next((begin for begin in begins if path.startswith(f"{begin}/")), ""))
        root += self._own_path
        return {**scope, "root_path": root, "path": f"{root}{path}"}

    def _refused(self, request: Request) -> Response | None:
        """Return the answer to a request that must not reach the page; None if it may."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if _name_of(host) not in self.hosts:  # protects from other names that resolve to this machine
            known = f"{', '.join(sorted(self.hosts))} is right"
            way_out = "--allow-host, or hosts= of stategraph.web.app, adds a name."
            return PlainTextResponse(f"This page has another name; {known}. {way_out}", 421)
        is_foreign = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_foreign and request.method not in ("GET", "HEAD"):
            return PlainTextResponse(_OTHER_SITE, 403)
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse(_OTHER_SITE, 403)
        if not self.token:
            return None
        if request.method == "GET" and _is_same(request.query_params.get("token", ""), self.token):
            return self._let_in(request)
        session = request.cookies.get(self._cookie, "")
        if any(_is_same(session, known) for known in self._sessions):
            return None
        return PlainTextResponse(_NOT_LET_IN, 401)

    def _let_in(self, request: Request) -> Response:
        """Redirect a browser to the same address without the token, with a session cookie."""
        rest = urlencode([item for item in request.query_params.multi_items() if item[0] != "token"])
        path = f"/{quote(request.scope['path'].lstrip('/'))}"  # two leading slashes would name another host
        response = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        session = secrets.token_urlsafe(24)
        self._sessions.append(session)
        response.set_cookie(
            self._cookie,
            session,
            path=f"{request.scope['root_path']}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


def host_of(given: str) -> str:
    """Return the name of a host as in requests.

    Raises:
        ConfigError: the text is not a name.
    """
    name = _name_of(given)
    if not name:
        raise ConfigError("hosts", given, "a name such as 'runs.example' or '[::1]'")
    return name


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port; empty if it has none."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
    return f"[{name}]" if ":" in name else name
