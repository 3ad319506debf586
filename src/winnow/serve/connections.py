"""Connections: a deadline for the headers of a request, and limits per client and in total.

A connection waits from its start, or from its last response, to the end of the headers of a request. Bytes that arrive
one by one do not extend the deadline. At a limit the connection that has waited longest is closed, so connections
without requests never keep others out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from winnow.serve.middleware import Limits


class _LimitedConnection(H11Protocol):
    """A connection of a client; subclasses of one service share `waiting`."""

    limits: Limits
    waiting: dict[_LimitedConnection, asyncio.TimerHandle]  # longest first, with the end of its time

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        mine = [one for one in self.connections if _address(one) == _address(self)]
        if len(mine) > self.limits.max_connections:
            _make_room(mine, self.waiting)
        elif len(self.connections) > 8 * self.limits.max_connections:
            _make_room(list(self.connections), self.waiting)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # may begin with the next request of the connection
        if self.cycle.response_complete:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self.waiting[self] = self.loop.call_later(self.limits.header_timeout, self.transport.abort)

    def _stop_waiting(self) -> None:
        if (end := self.waiting.pop(self, None)) is not None:
            end.cancel()


def connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """Return the class of the connections of one service, as `http` of uvicorn's config."""
    return type("LimitedConnection", (_LimitedConnection,), {"limits": limits, "waiting": {}})


def _make_room(connections: list[Any], waiting: dict[_LimitedConnection, asyncio.TimerHandle]) -> None:
    """Close the connection that has waited longest; the new one waits too, so there always is one."""
    closing = next((one for one in connections if one.transport.is_closing()), None)  # its client does not read
    first = closing or next(one for one in waiting if one in connections)
    first.transport.abort()


def _address(connection: Any) -> str:
    return connection.client[0] if connection.client else ""
