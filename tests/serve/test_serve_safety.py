"""What the service refuses, and that it goes on serving after: broken and huge images, strangers, crowds, slow work."""

import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, features

from tests.serve.samples import encoded, served
from winnow.errors import OutputError
from winnow.index import Index
from winnow.serve import Limits, create_app
from winnow.serve.looking import Looker
from winnow.serve.metrics import resident_bytes
from winnow.serve.run import address_of, bind, is_loopback
from winnow.serve.uploads import MEDIA_TYPES, sniff

LIMITS = Limits(upload_bytes=200_000, pixels=1_000_000)


def refused(client: TestClient, data: bytes, status: int, says: str) -> None:
    answer = client.post("/api/search", content=data)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["detail"]


def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a PNG file that claims a size, whatever it holds."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def noise(width: int = 90, height: int = 70) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def sound() -> dict[str, bytes]:
    return {kind: encoded(noise(), kind) for kind in MEDIA_TYPES}


def test_too_many_bytes(client: TestClient) -> None:
    refused(client, b"\xff\xd8\xff" + bytes(300_000), 413, "200,000 bytes")

    def stream() -> Iterator[bytes]:  # no length is declared
        for _ in range(300):
            yield bytes(1000)

    answer = client.post("/api/search", content=stream())
    assert answer.status_code == 413


@pytest.mark.parametrize("size", [(1001, 1000), (20_000, 20_000), (2**31 - 1, 2**31 - 1), (2**31 - 1, 1)])
def test_too_many_pixels_are_never_decoded(client: TestClient, size: tuple[int, int]) -> None:
    before = resident_bytes() or 0
    refused(client, png_of(*size, zlib.compress(bytes(100_000))), 413, "1,000,000 pixels")
    assert (resident_bytes() or 0) - before < 50e6


def test_bombs_of_other_types(client: TestClient) -> None:
    gif = bytearray(encoded(noise().convert("P"), "GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    refused(client, bytes(gif), 413, "pixels")
    bmp = bytearray(encoded(noise(), "BMP"))
    bmp[18:26] = struct.pack("<ii", 100_000, 100_000)
    refused(client, bytes(bmp), 413, "pixels")
    white = encoded(Image.new("RGB", (3000, 3000), "white"), "JPEG", quality=1)
    assert len(white) < LIMITS.upload_bytes
    refused(client, white, 413, "pixels")
    if features.check("webp"):
        white = encoded(Image.new("RGB", (16_000, 1000), "white"), "WEBP")
        assert len(white) < LIMITS.upload_bytes
        refused(client, white, 413, "pixels")


def test_an_animation_costs_no_more_than_its_first_frame(client: TestClient) -> None:
    frames = [Image.new("L", (500, 500), shade % 256) for shade in range(200)]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    if len(gif) > LIMITS.upload_bytes:
        pytest.fail(f"the GIF has {len(gif)} bytes: make it smaller")
    before = resident_bytes() or 0
    assert client.post("/api/search", content=gif).status_code == 200
    assert (resident_bytes() or 0) - before < 50e6


def test_a_jpeg_of_endless_scans(client: TestClient) -> None:
    refused(client, encoded(noise(), "JPEG") + b"\xff\xda\x00\x00" * 1000, 422, "scans")
    assert client.post("/api/search", content=encoded(noise(), "JPEG", progressive=True)).status_code == 200


@pytest.mark.parametrize("kind", MEDIA_TYPES)
def test_cut_off_and_damaged_files(client: TestClient, sound: dict[str, bytes], kind: str) -> None:
    data = sound[kind]
    assert sniff(data) == kind
    rng = np.random.default_rng(0)
    for end in (12, 20, len(data) // 3, len(data) * 2 // 3):
        answer = client.post("/api/search", content=data[:end])
        assert answer.status_code == (422 if sniff(data[:end]) else 415), (end, answer.text)
    for _ in range(20):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 12):
            damaged[place] = rng.integers(0, 256)
        answer = client.post("/api/search", content=bytes(damaged))
        assert answer.status_code in (200, 413, 415, 422), answer.text
    assert client.post("/api/search", content=data).status_code == 200


def test_what_is_no_image(client: TestClient) -> None:
    refused(client, b"", 415, "no body")
    refused(client, b"GIF89", 415, "none of the image types")
    refused(client, b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "none of the image types")
    refused(client, b"%PDF-1.7", 415, "JPEG, PNG")
    refused(client, encoded(noise(), "TIFF"), 415, "none of the image types")
    refused(client, b"\x80\x04\x95pickle", 415, "none of the image types")
    files = {"image": ("photo.png", encoded(noise()), "image/png")}
    answer = client.post("/api/search", files=files)
    assert answer.status_code == 415
    assert "--data-binary" in answer.json()["detail"]


def test_the_type_is_told_by_content_alone(client: TestClient) -> None:
    data = encoded(noise(), "WEBP")
    assert client.post("/api/search", content=data, headers={"Content-Type": "text/html"}).status_code == 200
    answer = client.post("/api/search", content=b"<html>", headers={"Content-Type": "image/png"})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "query",
    [
        "k=0",
        "k=101",
        "k=x",
        "mu=0",
        "mu=1.01",
        "mu=nan",
        "mu=-1",
        "mu=5e-324",
        "eps=-1",
        "eps=inf",
        "eps=1001",
        "k=" + "9" * 5000,
    ],
)
def test_numbers_out_of_range(client: TestClient, query: str) -> None:
    answer = client.post(f"/api/search?{query}", content=encoded(noise()))
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(query.partition("=")[0])


@pytest.mark.parametrize(
    "path",
    [
        "/..%2f..%2fetc%2fpasswd",
        "/api/thumbnail/..%2f..%2fetc%2fpasswd",
        "/static/../app.py",
        "/app.py",
        "//etc/passwd",
    ],
)
def test_no_path_reaches_the_disk(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 422)
    assert "root:" not in answer.text


def test_browsers_are_told_what_they_may_do(client: TestClient) -> None:
    for path in ("/", "/api/about", "/api/thumbnail/99999", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    stranger = client.get("/api/about", headers={"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"})
    assert stranger.status_code == 403
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the page is fine


def test_only_known_names_are_answered_to(index: Index) -> None:
    hosts = frozenset({"localhost", "127.0.0.1", "::1"})
    with TestClient(create_app(index, hosts=hosts), base_url="http://localhost:1234") as client:
        assert client.get("/health").status_code == 200
        for host, status in [
            ("127.0.0.1:99", 200), ("[::1]:99", 200), ("LOCALHOST", 200), ("evil.example", 421),
            ("localhost.evil.example:80", 421), ("", 421), ("[::1", 200), ("127.0.0.1.nip.io", 421),
        ]:  # fmt: skip
            assert client.get("/health", headers={"Host": host}).status_code == status, host


def test_the_token(index: Index) -> None:
    with TestClient(create_app(index, token="pässword")) as client:
        for path in ("/api/about", "/metrics", "/api/thumbnail/0"):
            assert client.get(path).status_code == 401
            assert client.get(path).headers["www-authenticate"] == "Bearer"
            for wrong in ("Bearer", "Bearer passwor", "Basic pässword", "Bearer pässword2"):
                assert client.get(path, headers={"Authorization": wrong.encode()}).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer pässword".encode()}).status_code != 401
        assert client.post("/api/search", content=b"").status_code == 401
        assert client.get("/health").status_code == 200
        assert client.get("/").status_code == 200  # the page asks for the token itself


def test_a_crowd_is_told_to_come_back(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, look = threading.Event(), Looker.look

    def slow(self: Looker, images: object) -> object:
        go_on.wait(10)
        return look(self, images)

    monkeypatch.setattr(Looker, "look", slow)
    with TestClient(create_app(index, limits=replace(LIMITS, requests=3))) as client:
        statuses: list[int] = []

        def ask(shade: int) -> None:
            image = encoded(Image.new("RGB", (40, 40), (shade, 0, 0)))
            statuses.append(client.post("/api/search", content=image).status_code)

        crowd = [threading.Thread(target=ask, args=(shade,)) for shade in range(3)]
        for one in crowd:
            one.start()
        deadline = time.monotonic() + 10
        while "winnow_requests_in_flight 3" not in client.get("/metrics").text and time.monotonic() < deadline:
            time.sleep(0.01)
        answer = client.get("/api/about")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        go_on.set()
        for one in crowd:
            one.join()
        assert statuses == [200, 200, 200]
        assert client.get("/api/about").status_code == 200


def test_slow_work_and_failures_end_in_an_answer(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    look, go_on = Looker.look, threading.Event()
    monkeypatch.setattr(Looker, "look", lambda self, images: go_on.wait(5) and look(self, images))
    with TestClient(create_app(index, limits=replace(LIMITS, seconds=0.3))) as client:
        answer = client.post("/api/search", content=encoded(noise()))
        assert answer.status_code == 503
        assert "0.3 s" in answer.json()["detail"]
        go_on.set()

    def broken(self: Looker, images: object) -> object:
        raise RuntimeError("secret reason")

    monkeypatch.setattr(Looker, "look", broken)
    with TestClient(create_app(index, limits=LIMITS)) as client:
        answer = client.post("/api/search", content=encoded(noise()))
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert client.get("/health").status_code == 200


def test_large_and_slow_uploads_over_a_real_connection(index: Index) -> None:
    with served(index, limits=replace(LIMITS, seconds=0.5)) as address:
        place = urlsplit(address)
        for body in (bytes(5_000_000), iter([bytes(50_000)] * 100)):  # with its length declared, and without
            answer = httpx.post(f"{address}/api/search", content=body, timeout=60)
            assert answer.status_code == 413
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:
            connection.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
            assert connection.recv(100).startswith(b"HTTP/1.1 503")
        with socket.create_connection((place.hostname, place.port), timeout=60) as connection:  # one that goes away
            connection.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
        assert httpx.get(f"{address}/health").status_code == 200
        assert "winnow_requests_in_flight 0" in settled(address)


def settled(address: str) -> str:
    """Return the metrics, once nothing is in flight; a connection that was closed is noticed a little later."""
    for _ in range(100):
        text = httpx.get(f"{address}/metrics").text
        if "winnow_requests_in_flight 0" in text:
            break
        time.sleep(0.05)
    return text


def test_ports() -> None:
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert address_of(listening, "127.0.0.1") == f"http://127.0.0.1:{port}"
        with pytest.raises(OutputError, match=r"\(Address already in use\): choose another --port$"):
            bind("127.0.0.1", port)
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert is_loopback("127.8.8.8")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("localhost.evil.example")


def test_uploads_are_upright_and_laid_on_white(client: TestClient) -> None:
    """The same image turned by EXIF is the same query."""
    image = noise(80, 60)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = image.transpose(Image.Transpose.ROTATE_90)
    plain = client.post("/api/search", content=encoded(image, "PNG")).json()
    tagged = client.post("/api/search", content=encoded(turned, "PNG", exif=exif)).json()
    assert plain["query"]["heat_map"] == tagged["query"]["heat_map"]
    clear = Image.new("RGBA", (50, 50), (255, 0, 0, 0))
    white = Image.new("RGB", (50, 50), "white")
    one, other = (client.post("/api/search", content=encoded(i)).json() for i in (clear, white))
    assert one["neighbours"] == other["neighbours"]
