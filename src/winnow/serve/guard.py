"""What every request passes: who may ask, how many at a time, for how long; and what every answer says to browsers."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from winnow.serve.limits import Limits, Refusal
from winnow.serve.metrics import Metrics

LOG = logging.getLogger("winnow.serve")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# The browser itself refuses any outside request, any script or style that is not a file of the page, and any frame.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """Middleware around the whole service.

    Args:
        app: The service.
        limits: Of requests and time.
        metrics: Where answers are counted.
        hosts: Names the service may be called by, without port; None for any. A page of another site that has its own
            name point to this machine (DNS rebinding) is refused by it.
        token: What `/api` and `/metrics` ask for as `Authorization: Bearer TOKEN`; None for nothing.
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, metrics: Metrics, hosts: frozenset[str] | None, token: str | None
    ) -> None:
        self.app, self.limits, self.metrics, self.hosts = app, limits, metrics, hosts
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        started = time.perf_counter()
        works = scope["path"].startswith("/api/")
        refusal = self.refuse(scope, works)
        counted = works and refusal is None
        self.metrics.in_flight += counted
        try:
            if refusal is not None:
                await answer.refuse(refusal)
            else:
                async with asyncio.timeout(self.limits.seconds):
                    await self.app(scope, receive, answer)
        except TimeoutError:
            await answer.refuse(Refusal(503, f"no answer within {self.limits.seconds:g} s: try again later"))
        except ClientDisconnect:
            answer.status = 499
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            await answer.refuse(Refusal(500, "the service failed on this request; its log says why"))
        finally:
            self.metrics.in_flight -= counted
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.answer(_method(scope), route, answer.status, time.perf_counter() - started)

    def refuse(self, scope: Scope, works: bool) -> Refusal | None:
        """Return why a request is not served, if it is not."""
        headers = dict(scope["headers"])
        if self.hosts is not None and _host(headers.get(b"host", b"")) not in self.hosts:
            return Refusal(421, "this service is not known by that name: call it by the address it printed")
        if works and headers.get(b"sec-fetch-site") == b"cross-site":
            return Refusal(403, "pages of other sites may not use this service")
        if self.token is not None and (works or scope["path"] == "/metrics"):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.token):
                return Refusal(401, "send the token: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
        if works and self.metrics.in_flight >= self.limits.requests:
            return Refusal(429, "too many requests wait already: try again in a second", {"Retry-After": "1"})
        return None


class _Answer:
    """Sends an answer with the headers that all have, and knows its status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self._begun = send, 0, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self._begun = message["status"], True
            present = {name for name, _ in message["headers"]}
            defaults = {**HEADERS, "cache-control": "no-store"}
            more = [(n.encode(), v.encode()) for n, v in defaults.items() if n.encode() not in present]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal, unless another answer has begun."""
        if self._begun:
            return
        body = json.dumps({"detail": refusal.detail}).encode()
        headers: MutableMapping[str, Any] = {"Content-Type": "application/json", **(refusal.headers or {})}
        listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        listed.append((b"content-length", str(len(body)).encode()))
        await self({"type": "http.response.start", "status": refusal.status_code, "headers": listed})
        await self({"type": "http.response.body", "body": body})


def _host(value: bytes) -> str:
    """Return the name in a Host header, without its port."""
    host = value.decode("latin-1").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _method(scope: Scope) -> str:
    """Return the method, or "other": anybody can make up more of them."""
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"
