"""Who may ask: this machine's own browser, with the token, from our own page."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-roboloop-token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Pass:
    """What a browser shows to be let in: the token of the printed address once, a cookie from then on."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self.cookie_name = f"roboloop-dash-{port}"  # cookies do not know ports: two pages must not undo each other
        self.cookie_value = hmac.new(token.encode(), b"cookie", hashlib.sha256).hexdigest()

    def is_token(self, shown: str) -> bool:
        """Say whether this is the token."""
        return hmac.compare_digest(shown.encode(), self._token.encode())

    def is_cookie(self, header: str) -> bool:
        """Say whether a cookie header has our cookie."""
        try:
            morsel = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self.cookie_value.encode())


class AccessGuard:
    """Refuses what does not come from our page in a browser of this machine; marks all answers as not to be reused."""

    def __init__(self, app: ASGIApp, entry: Pass, names: frozenset[str]) -> None:
        self._app = app
        self._entry = entry
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse in one line."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here
            await send({"type": "websocket.close", "code": 1008})
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        app = PlainTextResponse(refusal[1], refusal[0]) if refusal else self._app
        await app(scope, receive, marked)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 421, "this page is not served under that name"  # a foreign name that points here (rebinding)
        if method not in ("GET", "HEAD", "POST"):
            return 405, "only GET, and POST to stop and resume"
        origin = headers.get("origin")
        if (origin is None and method == "POST") or (origin is not None and origin != f"http://{hosts[0]}"):
            return 403, "only our own page may ask"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "only our own page may ask"
        if path == "/" or path.startswith("/static/"):
            return None
        if path == "/enter":
            return None if self._entry.is_token(headers.get(TOKEN_HEADER, "")) else (401, "the token is not ours")
        if not self._entry.is_cookie(headers.get("cookie", "")):
            return 401, "open the address that roboloop dash printed"
        return None

    def _is_ours(self, host: str) -> bool:
        if host in self._names and host != "*":
            return True
        # of another machine, where that was allowed: only an address, since a name may be anybody's
        if "*" not in self._names:
            return False
        try:
            ipaddress.ip_address(urlsplit(f"//{host}").hostname or "")
        except ValueError:
            return False
        return True
