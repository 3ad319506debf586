"""The service on a port, until it is told to stop."""

from __future__ import annotations

import errno
import ipaddress
import socket

from winnow.errors import ConfigError, OutputError
from winnow.index import Index
from winnow.serve.app import create_app
from winnow.serve.guard import LOOPBACK
from winnow.serve.limits import Limits


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Take a port, so that its number is known before the service is up; 0 takes any free one.

    Raises:
        OutputError: when it is taken, or the address is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # what socket adds says the same again
        other = "" if error.errno == errno.EADDRINUSE else " or --host"
        raise OutputError(f"cannot listen on {host} port {port} ({reason}): choose another --port{other}") from None
    # An answer's head and body are sent one after the other. Unless told otherwise, a connection holds the second back
    # until the first is acknowledged, which the other side delays by 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket, host: str) -> str:
    """Return the URL of a service."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def serve(index: Index, listening: socket.socket, host: str, *, limits: Limits, token: str | None) -> None:
    """Serve an index until Ctrl-C.

    On loopback only this machine's own names are answered to, so that no web site can reach the service by having its
    own name point here.
    """
    import uvicorn

    if token == "":
        raise ConfigError("the token is empty: leave it away, or give a long random one")
    hosts = LOOPBACK | {host} if is_loopback(host) else None
    app = create_app(index, limits=limits, token=token, hosts=hosts)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="on",
        timeout_keep_alive=15, timeout_graceful_shutdown=5, limit_concurrency=8 * limits.requests,
        h11_max_incomplete_event_size=32_768,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])
