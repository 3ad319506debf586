"""Connections without requests, and bodies that never end, do not keep others out."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest

from tests.serve.samples import served
from winnow.index import Index
from winnow.serve import Limits, middleware

pytestmark = pytest.mark.slow

LIMITS = Limits(max_upload_bytes=200_000, max_pixels=1_000_000)
HALF = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc"


def connect(address: str) -> socket.socket:
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=30)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the service closes a connection without a response."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_silent_and_slow_connections_are_closed(index: Index) -> None:
    with served(index, limits=replace(LIMITS, header_timeout=0.3)) as address:
        with connect(address) as silent:
            assert is_closed(silent)
        with connect(address) as slow, pytest.raises(ConnectionError):  # noqa: PT012
            for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\n" * 100:
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
        with connect(address) as idle:  # also after a response, which bytes do not prolong
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(1000).startswith(b"HTTP/1.1 200")
            idle.sendall(b"G")
            while idle.recv(1000):
                pass


def test_many_silent_connections_do_not_keep_others_out(index: Index) -> None:
    limits = replace(LIMITS, max_connections=10, header_timeout=60)
    with served(index, limits=limits) as address, ExitStack() as stack:
        crowd = [stack.enter_context(connect(address)) for _ in range(100)]
        for path in ("/health", "/ready", "/api/about"):
            assert httpx.get(f"{address}{path}").status_code == 200
        assert is_closed(crowd[0])  # the one that has waited longest
        crowd[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert crowd[-1].recv(1000).startswith(b"HTTP/1.1 200")


def test_half_sent_bodies_do_not_keep_others_out(index: Index, photo: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(LIMITS, max_requests=4, upload_timeout=60, timeout=60)
    monkeypatch.setattr(middleware, "_STALLED", 3600)
    with served(index, limits=limits) as address, ExitStack() as stack:
        crowd = [stack.enter_context(connect(address)) for _ in range(8)]
        for one in crowd[:4]:
            one.sendall(HALF)
        assert httpx.get(f"{address}/api/about").status_code == 200  # uploads are not in flight
        for one in crowd[4:]:  # no other upload has been without data for long
            one.sendall(HALF)
        assert [one.recv(12) for one in crowd[4:]] == [b"HTTP/1.1 429"] * 4
        monkeypatch.setattr(middleware, "_STALLED", 0)
        assert httpx.post(f"{address}/api/search", content=photo).status_code == 200
        assert crowd[0].recv(12) == b"HTTP/1.1 503"
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_body_without_data_ends_before_the_request_would(index: Index, photo: bytes) -> None:
    with served(index, limits=replace(LIMITS, upload_timeout=1)) as address:
        with connect(address) as stalled:
            stalled.sendall(HALF)
            assert stalled.recv(12) == b"HTTP/1.1 503"
        with connect(address) as slow:  # each part renews the time
            head = f"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(photo)}\r\n\r\n"
            slow.sendall(head.encode())
            step = len(photo) // 6 + 1
            for start in range(0, len(photo), step):
                time.sleep(0.2)
                slow.sendall(photo[start : start + step])
            assert slow.recv(12) == b"HTTP/1.1 200"


def test_stopping_during_an_upload_is_a_response_and_no_traceback(
    index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        with served(index, limits=LIMITS) as address:
            upload = stack.enter_context(connect(address))
            upload.sendall(HALF)
            for _ in range(3):  # the upload has been read by then
                assert httpx.get(f"{address}/health").status_code == 200
        assert upload.recv(12) == b"HTTP/1.1 503"
    assert not [record for record in caplog.records if record.exc_info]
