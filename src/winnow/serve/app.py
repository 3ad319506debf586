"""The service as an ASGI app with its page, and on a port."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import resources

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse

import winnow
from winnow.errors import ConfigError, OutputError
from winnow.index import Index
from winnow.palette import palette_css
from winnow.serve import schemas
from winnow.serve.api import create_router
from winnow.serve.middleware import LOOPBACK, Limits, LimitsMiddleware, Metrics, RequestError
from winnow.serve.prototypes import PrototypeSampler
from winnow.serve.service import SearchService

_PAGE_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_M_MMAP_THRESHOLD = -3  # of malloc.h


def create_app(
    index: Index,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
    addresses: bool = False,
) -> FastAPI:
    """Return the ASGI app that serves an index.

    Args:
        index: The index to search.
        limits: Limits of requests, images, and memory; None for the defaults.
        token: Token that requests must send as `Authorization: Bearer TOKEN`; None for no token.
        hosts: Accepted host names, without port; None accepts any.
        addresses: Whether numeric addresses are accepted in addition to `hosts`.
    """
    limits = limits or Limits()
    metrics = Metrics()
    metrics.entries.set_function(lambda: len(index))
    service = SearchService(index, limits, metrics)
    sampler = PrototypeSampler(service, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await sampler.stop()
        await service.stop()

    app = FastAPI(
        title="winnow",
        summary="Search an image index by image, and inspect the pooling weights of the model.",
        version=winnow.__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
    )
    app.add_middleware(LimitsMiddleware, limits=limits, metrics=metrics, hosts=hosts, addresses=addresses, token=token)
    app.include_router(create_router(service, sampler, limits))

    @app.exception_handler(RequestValidationError)
    async def report_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg']}"}, 422)

    @app.get("/health", tags=["service"])
    async def health() -> schemas.HealthResponse:
        """Return that the service runs; needs no token."""
        return schemas.HealthResponse(entries=len(index))

    @app.get("/ready", tags=["service"], responses={503: {"model": schemas.ErrorResponse}})
    async def ready() -> schemas.HealthResponse:
        """Return that searches are answered: the files of the index are verified; needs no token."""
        if not index.check():
            raise RequestError(503, "index: its files are being verified. Try again later.")
        return schemas.HealthResponse(entries=len(index))

    @app.get("/metrics", response_class=PlainTextResponse, tags=["service"])
    async def show_metrics() -> PlainTextResponse:
        """Return counts, times, and memory in the Prometheus text format."""
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    add_page(app)
    return app


def add_page(app: FastAPI) -> None:
    """Add the files of the page as routes.

    They are read once: no path from a request reaches the disk.
    """
    for file in (resources.files(__package__) / "website").iterdir():
        kind = _PAGE_TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            app.add_route(path, _constant(file.read_bytes(), kind), methods=["GET"], include_in_schema=False)
    palette = _constant(palette_css().encode(), _PAGE_TYPES["css"])
    app.add_route("/palette.css", palette, methods=["GET"], include_in_schema=False)


def _constant(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def respond(_: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

    return respond


def serve(
    index: Index,
    listener: socket.socket,
    host: str,
    *,
    limits: Limits,
    token: str | None,
    names: Sequence[str] = (),
) -> None:
    """Serve an index until Ctrl-C.

    Only this machine's own names are accepted, so a web site whose name resolves to this machine cannot reach the
    service (DNS rebinding). On other addresses than loopback, numeric addresses are accepted too: rebinding needs a
    name, and a machine may be reached by addresses of other machines.

    Args:
        index: The index to search.
        listener: Listening socket; see `bind`.
        host: Address of the socket.
        limits: Limits of requests, images, and memory.
        token: Token that requests must send; None for no token.
        names: Further accepted host names.

    Raises:
        ConfigError: If the token is empty.
    """
    import uvicorn

    from winnow.serve.connections import connection_class

    if token == "":
        raise ConfigError("token: empty. Omit it, or use a long random text.")
    local = is_loopback(host)
    hosts = LOOPBACK | {name.lower() for name in (host, *names)} | (frozenset() if local else machine_names())
    return_freed_memory()
    app = create_app(index, limits=limits, token=token, hosts=hosts, addresses=not local)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="on",
        timeout_keep_alive=15, timeout_graceful_shutdown=5, http=connection_class(limits),
        h11_max_incomplete_event_size=32_768,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """Listen on a port before the service starts, so its number is known.

    The number 0 selects a free port.

    Raises:
        OutputError: If the port is in use, or the address does not belong to this machine.
    """
    try:
        if not host:
            raise UnicodeError  # the empty name would be every address
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=128)
    except UnicodeError:
        raise OutputError(
            f"{host}: expected a host name or an address. Choose another address.", hint="address"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # socket repeats the address after it
        hint = "port" if error.errno == errno.EADDRINUSE else "address"
        raise OutputError(f"{host} port {port}: cannot listen ({reason}). Choose another {hint}.", hint=hint) from None
    # Headers and body of a response are sent separately. By default the second waits until the first is acknowledged,
    # which the other side delays by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def base_url(listener: socket.socket, host: str) -> str:
    """Return the URL of a service."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def machine_names() -> frozenset[str]:
    """Return the names of this machine, in lower case: its own, the first label, and that in the local network."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return frozenset({name, short, f"{short}.local"} - {"", ".local"})


def return_freed_memory() -> None:
    """Let the C library return the memory of decoded images to the system (glibc; elsewhere without effect).

    By default glibc takes blocks of up to 32 MB from its heap once such a block was freed, and each thread keeps its
    heap. With a fixed threshold, blocks of 1 MB and more are mapped and unmapped one by one.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
