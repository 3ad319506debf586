"""Checks of every request, response headers, and metrics."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("winnow.serve")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# Browsers load scripts and styles only from files of the page, send requests only to the service, and show no frames.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Limits:
    """Limits of one request and of the service as a whole."""

    max_upload_bytes: int = 20_000_000  # size of an uploaded file; larger: 413
    max_pixels: int = 50_000_000  # width x height of an image, regardless of its file size; more: 413
    max_requests: int = 64  # requests that run or wait; more: 429
    timeout: float = 30.0  # seconds for a request, including its upload; longer: 503
    batch_size: int = 16  # images in one forward pass
    batch_wait_ms: float = 4.0  # wait of a forward pass for images that are being decoded
    cache_bytes: int = 64_000_000  # local features of recent images, which other mu and eps are computed from
    prototype_images: int = 1000  # images of the index that are searched for the best matches of the prototypes


class RequestError(HTTPException):
    """A rejected request: status and one line that says what is wrong and what to do."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)


class Metrics:
    """Prometheus metrics of one app.

    The label `route` is a route's template, so it has few values.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "winnow_requests",
            "Responses by method, route, and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "winnow_request_seconds", "Time from request to response.", ["route"], buckets=_SECONDS, registry=registry
        )
        self.batch_images = Histogram(
            "winnow_batch_images", "Images in each forward pass.", buckets=_IMAGES, registry=registry
        )
        self.in_flight = Gauge("winnow_requests_in_flight", "Requests that run or wait.", registry=registry)
        self.entries = Gauge("winnow_index_entries", "Images in the index.", registry=registry)
        ProcessCollector(registry=registry)  # process_resident_memory_bytes and others, on Linux

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry).decode()


class LimitsMiddleware:
    """ASGI middleware that checks, limits, and counts requests.

    Args:
        app: The wrapped app.
        limits: Limits of requests and time.
        metrics: Metrics to update.
        hosts: Accepted host names without port; None accepts any. Protects a service on loopback from web sites whose
            own name resolves to this machine (DNS rebinding).
        token: Token that `/api` and `/metrics` require as `Authorization: Bearer TOKEN`; None for no token.
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, metrics: Metrics, hosts: frozenset[str] | None, token: str | None
    ) -> None:
        self.app, self.limits, self.metrics, self.hosts = app, limits, metrics, hosts
        self.token = None if token is None else token.encode()
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or reject a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response = _Response(send)
        started = time.perf_counter()
        error = self._check(scope)
        is_counted = error is None and _is_api(scope)
        self._count_in_flight(is_counted)
        try:
            if error is not None:
                await response.reject(error)
            else:
                async with asyncio.timeout(self.limits.timeout):
                    await self.app(scope, receive, response)
        except TimeoutError:
            text = f"service: no response within {self.limits.timeout:g} s. Try again later."
            await response.reject(RequestError(503, text))
        except ClientDisconnect:
            response.status = 499
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            await response.reject(RequestError(500, "service: the request failed. See the log of the service."))
        finally:
            self._count_in_flight(-is_counted)
            method = scope["method"] if scope["method"] in _METHODS else "other"  # clients can send any text
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(method, route, response.status).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)

    def _check(self, scope: Scope) -> RequestError | None:
        """Return why a request is rejected; None if it is accepted."""
        headers = dict(scope["headers"])
        if self.hosts is not None and _host(headers.get(b"host", b"")) not in self.hosts:
            return RequestError(421, "Host: name not accepted. Use the address that the service printed at its start.")
        if _is_api(scope) and headers.get(b"sec-fetch-site") == b"cross-site":
            return RequestError(403, "Sec-Fetch-Site: requests from pages of other sites are not accepted.")
        if self.token is not None and (_is_api(scope) or scope["path"] == "/metrics"):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.token):
                text = "Authorization: token missing or wrong. Send Authorization: Bearer TOKEN."
                return RequestError(401, text, {"WWW-Authenticate": "Bearer"})
        if _is_api(scope) and self._in_flight >= self.limits.max_requests:
            return RequestError(429, "service: too many requests. Try again in 1 s.", {"Retry-After": "1"})
        return None

    def _count_in_flight(self, change: int) -> None:
        self._in_flight += change
        self.metrics.in_flight.set(self._in_flight)


class _Response:
    """Response with the common headers; its status is recorded."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self._started = send, 0, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self._started = message["status"], True
            present = {name for name, _ in message["headers"]}
            defaults = {**HEADERS, "cache-control": "no-store"}
            more = [(n.encode(), v.encode()) for n, v in defaults.items() if n.encode() not in present]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)

    async def reject(self, error: RequestError) -> None:
        """Send an error, unless a response was started."""
        if self._started:
            return
        body = json.dumps({"detail": error.detail}).encode()
        headers: MutableMapping[str, Any] = {"Content-Type": "application/json", **(error.headers or {})}
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        encoded.append((b"content-length", str(len(body)).encode()))
        await self({"type": "http.response.start", "status": error.status_code, "headers": encoded})
        await self({"type": "http.response.body", "body": body})


def _is_api(scope: Scope) -> bool:
    return bool(scope["path"].startswith("/api/"))


def _host(value: bytes) -> str:
    """Return the name in a Host header, without its port."""
    host = value.decode("latin-1").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
