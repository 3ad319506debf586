"""Checks of every request, response headers, and metrics."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from winnow.errors import WinnowError

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
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_STALLED = 1.0  # seconds without data after which an upload gives way to another one
_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Limits:
    """Limits of one request and of the service as a whole."""

    max_upload_bytes: int = 20_000_000  # size of an uploaded file; larger: 413
    max_pixels: int = 50_000_000  # width x height of an image, regardless of its file size; more: 413
    max_requests: int = 64  # requests that run or wait, and uploads that arrive; more: 429
    timeout: float = 30.0  # seconds for a request, including its upload; longer: 503
    upload_timeout: float = 10.0  # seconds without data during an upload; longer: 503
    header_timeout: float = 15.0  # seconds for the headers of a request; longer: the connection is closed
    max_connections: int = 128  # connections of one client; more: the one without a request for longest is closed
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

    A request with a body is counted as an upload while the body arrives, and as a request in flight afterwards. Uploads
    without data therefore do not keep other requests out, and give way to other uploads.

    Args:
        app: The wrapped app.
        limits: Limits of requests and time.
        metrics: Metrics to update.
        hosts: Accepted host names without port; None accepts any. Protects a service from web sites whose own name
            resolves to this machine (DNS rebinding).
        addresses: Whether numeric addresses are accepted in addition to `hosts`.
        token: Token that `/api` and `/metrics` require as `Authorization: Bearer TOKEN`; None for no token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        metrics: Metrics,
        hosts: frozenset[str] | None,
        addresses: bool,
        token: str | None,
    ) -> None:
        self.app, self.limits, self.metrics, self.hosts, self.addresses = app, limits, metrics, hosts, addresses
        self.token = None if token is None else token.encode()
        self._in_flight = 0
        self._uploads: set[_Upload] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or reject a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response = _Response(send)
        started = time.perf_counter()
        error = self._check(scope)
        in_flight = _InFlight(self)
        upload: _Upload | None = None
        try:
            async with asyncio.timeout(self.limits.timeout) as deadline:
                if error is None and _is_api(scope):
                    if _has_body(scope):
                        upload = _Upload(receive, deadline, self.limits.upload_timeout, in_flight.start)
                        receive, error = upload.receive, self._admit(upload)
                    else:
                        in_flight.start()
                if error is not None:
                    await response.reject(error)
                else:
                    await self.app(scope, receive, response)
        except TimeoutError:
            await response.reject(RequestError(503, self._describe_timeout(upload)))
        except ClientDisconnect:
            response.status = 499
        except asyncio.CancelledError:  # the service stops while the request runs
            await response.reject(RequestError(503, "service: stopping. Try again later."))
        except RequestError as late:
            await response.reject(late)
        except WinnowError as damage:  # of a file of the index; its path is not for clients
            LOG.error("%s %s failed: %s", scope["method"], scope["path"], damage)
            await response.reject(RequestError(503, "index: a file is damaged. See the log of the service."))
        except Exception:
            LOG.exception("%s %s failed", scope["method"], scope["path"])
            await response.reject(RequestError(500, "service: the request failed. See the log of the service."))
        finally:
            in_flight.end()
            if upload is not None:
                self._uploads.discard(upload)
            method = scope["method"] if scope["method"] in _METHODS else "other"  # clients can send any text
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(method, route, response.status).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)

    def _check(self, scope: Scope) -> RequestError | None:
        """Return why a request is rejected; None if it is accepted."""
        headers = dict(scope["headers"])
        if not self._accepts(_host(headers.get(b"host", b""))):
            text = "Host: name not accepted. Use the address that the service printed, or start it with --allow-host."
            return RequestError(421, text)
        if _is_api(scope) and _is_from_other_site(scope["method"], headers):
            return RequestError(403, "Origin: requests from pages of other sites are not accepted.")
        if self.token is not None and (_is_api(scope) or scope["path"] == "/metrics"):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.token):
                text = "Authorization: token missing or wrong. Send Authorization: Bearer TOKEN."
                return RequestError(401, text, {"WWW-Authenticate": "Bearer"})
        return self.too_many() if _is_api(scope) else None

    def _accepts(self, host: str) -> bool:
        return self.hosts is None or host in self.hosts or (self.addresses and _is_address(host))

    def too_many(self) -> RequestError | None:
        """Return the error of a request beyond the limit of requests in flight."""
        return _too_many() if self._in_flight >= self.limits.max_requests else None

    def count_in_flight(self, change: int) -> None:
        """Add to the number of requests in flight."""
        self._in_flight += change
        self.metrics.in_flight.set(self._in_flight)

    def _admit(self, upload: _Upload) -> RequestError | None:
        """Count an upload; if there are too many, end the one without data for longest."""
        self._uploads = {one for one in self._uploads if not one.is_complete}
        if len(self._uploads) >= self.limits.max_requests:
            slowest = min(self._uploads, key=lambda one: one.last)
            if not slowest.end_if_stalled():
                return _too_many()
            self._uploads.discard(slowest)
        self._uploads.add(upload)
        return None

    def _describe_timeout(self, upload: _Upload | None) -> str:
        if upload is not None and not upload.is_complete:
            return "upload: the body arrived too slowly. Send it again."
        return f"service: no response within {self.limits.timeout:g} s. Try again later."


class _InFlight:
    """Whether one request is counted as in flight."""

    def __init__(self, middleware: LimitsMiddleware) -> None:
        self._middleware, self._is_counted = middleware, False

    def start(self) -> None:
        """Count the request.

        Raises:
            RequestError: If there are too many.
        """
        if (error := self._middleware.too_many()) is not None:
            raise error
        self._is_counted = True
        self._middleware.count_in_flight(1)

    def end(self) -> None:
        """Count the request no longer."""
        self._middleware.count_in_flight(-self._is_counted)
        self._is_counted = False


class _Upload:
    """Body of a request while it arrives.

    Args:
        receive: Receives the next part of the body.
        deadline: Deadline of the request, which is earlier while no data arrive.
        seconds: Longest time without data.
        on_complete: Called at the end of the body.
    """

    def __init__(
        self, receive: Receive, deadline: asyncio.Timeout, seconds: float, on_complete: Callable[[], None]
    ) -> None:
        self._receive, self._deadline, self._seconds, self._on_complete = receive, deadline, seconds, on_complete
        self._loop = asyncio.get_running_loop()
        self._end = deadline.when() or math.inf
        self.last = self._loop.time()  # time of the latest data
        self.is_complete = False

    async def receive(self) -> Message:
        """Receive a part of the body; after it, whether the client went away."""
        if self.is_complete:
            return await self._receive()
        self._deadline.reschedule(min(self._end, self.last + self._seconds))
        message = await self._receive()
        self.last = self._loop.time()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.is_complete = True
            self._deadline.reschedule(self._end)
            self._on_complete()
        return message

    def end_if_stalled(self) -> bool:
        """End the upload if no data arrived for a second; return whether it ends."""
        is_stalled = self._loop.time() - self.last >= _STALLED and not self._deadline.expired()
        if is_stalled:
            self._deadline.reschedule(self._loop.time())
        return is_stalled


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


def _too_many() -> RequestError:
    return RequestError(429, "service: too many requests. Try again in 1 s.", {"Retry-After": "1"})


def _is_api(scope: Scope) -> bool:
    return bool(scope["path"].startswith("/api/"))


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return scope["method"] == "POST" and (
        b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
    )


def _is_from_other_site(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser sent a request for a page of another site.

    Current browsers state it. Others state the origin of requests that change state, which has to be this service.
    """
    site = headers.get(b"sec-fetch-site")
    if method in _SAFE_METHODS:
        return site == b"cross-site"
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host(value: bytes) -> str:
    """Return the name in a Host header, without its port; empty if the header has another form."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::[0-9]{1,5})?", value.decode("latin-1").lower())
    return (found[1] or found[2]) if found else ""
