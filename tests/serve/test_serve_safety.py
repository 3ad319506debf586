"""Rejected requests, after which the service still works: damaged and huge images, other sites, load, slow work."""

import os
import shutil
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, features

from tests.serve.samples import encoded, resident_bytes, served
from winnow.errors import DataError, OutputError
from winnow.index import Entry, Index
from winnow.serve import Limits, create_app
from winnow.serve.api import image_fields
from winnow.serve.app import base_url, bind, is_loopback
from winnow.serve.encoder import QueryEncoder
from winnow.serve.uploads import MEDIA_TYPES

LIMITS = Limits(max_upload_bytes=200_000, max_pixels=1_000_000)


def assert_rejected(client: TestClient, data: bytes, status: int, text: str) -> None:
    answer = client.post("/api/search", content=data)
    assert answer.status_code == status, answer.text
    assert text in answer.json()["detail"]


def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a PNG file with a size in its header, regardless of its data."""

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
    assert_rejected(client, b"\xff\xd8\xff" + bytes(300_000), 413, "200,000 bytes")

    def stream() -> Iterator[bytes]:  # no length is declared
        for _ in range(300):
            yield bytes(1000)

    answer = client.post("/api/search", content=stream())
    assert answer.status_code == 413


@pytest.mark.parametrize("size", [(1001, 1000), (20_000, 20_000), (2**31 - 1, 2**31 - 1), (2**31 - 1, 1)])
def test_too_many_pixels_are_never_decoded(client: TestClient, size: tuple[int, int]) -> None:
    before = resident_bytes()
    assert_rejected(client, png_of(*size, zlib.compress(bytes(100_000))), 413, "1,000,000 pixels")
    assert resident_bytes() - before < 50e6


def test_bombs_of_other_types(client: TestClient) -> None:
    gif = bytearray(encoded(noise().convert("P"), "GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    assert_rejected(client, bytes(gif), 413, "pixels")
    bmp = bytearray(encoded(noise(), "BMP"))
    bmp[18:26] = struct.pack("<ii", 100_000, 100_000)
    assert_rejected(client, bytes(bmp), 413, "pixels")
    white = encoded(Image.new("RGB", (3000, 3000), "white"), "JPEG", quality=1)
    assert len(white) < LIMITS.max_upload_bytes
    assert_rejected(client, white, 413, "pixels")
    if features.check("webp"):
        white = encoded(Image.new("RGB", (16_000, 1000), "white"), "WEBP")
        assert len(white) < LIMITS.max_upload_bytes
        assert_rejected(client, white, 413, "pixels")


def test_an_animation_costs_no_more_than_its_first_frame(client: TestClient) -> None:
    frames = [Image.new("L", (500, 500), shade % 256) for shade in range(200)]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    if len(gif) > LIMITS.max_upload_bytes:
        pytest.fail(f"the GIF has {len(gif)} bytes: make it smaller")
    before = resident_bytes()
    assert client.post("/api/search", content=gif).status_code == 200
    assert resident_bytes() - before < 50e6


def test_a_jpeg_of_endless_scans(client: TestClient) -> None:
    assert_rejected(client, encoded(noise(), "JPEG") + b"\xff\xda\x00\x00" * 1000, 422, "scans")
    assert client.post("/api/search", content=encoded(noise(), "JPEG", progressive=True)).status_code == 200


@pytest.mark.parametrize("kind", MEDIA_TYPES)
def test_cut_off_and_damaged_files(client: TestClient, sound: dict[str, bytes], kind: str) -> None:
    data = sound[kind]
    rng = np.random.default_rng(0)
    for end in (12, 20, len(data) // 3, len(data) * 2 // 3):
        answer = client.post("/api/search", content=data[:end])
        assert answer.status_code == 422, (end, answer.text)
    for _ in range(20):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data), 12):
            damaged[position] = rng.integers(0, 256)
        answer = client.post("/api/search", content=bytes(damaged))
        assert answer.status_code in (200, 413, 415, 422), answer.text
    assert client.post("/api/search", content=data).status_code == 200


SIGNATURES = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x00\x00\x00\x00WEBP", b"GIF87a", b"GIF89a", b"BM"]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_signature_alone_is_a_damaged_image_and_a_part_of_it_another_type(
    client: TestClient, signature: bytes
) -> None:
    assert client.post("/api/search", content=signature).status_code == 422
    assert client.post("/api/search", content=signature + bytes(50)).status_code == 422
    assert client.post("/api/search", content=signature[:1]).status_code == 415
    assert client.post("/api/search", content=b"x" + signature).status_code == 415


def test_other_files_are_rejected(client: TestClient) -> None:
    assert_rejected(client, b"", 415, "no body")
    assert_rejected(client, b"GIF89", 415, "not an accepted image type")
    assert_rejected(client, b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "not an accepted image type")
    assert_rejected(client, b"%PDF-1.7", 415, "JPEG, PNG")
    assert_rejected(client, encoded(noise(), "TIFF"), 415, "not an accepted image type")
    assert_rejected(client, b"\x80\x04\x95pickle", 415, "not an accepted image type")
    files = {"image": ("photo.png", encoded(noise()), "image/png")}
    answer = client.post("/api/search", files=files)
    assert answer.status_code == 415
    assert "--data-binary" in answer.json()["detail"]


def test_the_type_is_detected_by_content(client: TestClient) -> None:
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


def test_security_headers(client: TestClient) -> None:
    for path in ("/", "/api/about", "/api/thumbnail/99999", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    stranger = client.get("/api/about", headers={"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"})
    assert stranger.status_code == 403
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link to the page is fine


def test_other_host_names_are_rejected(index: Index) -> None:
    hosts = frozenset({"localhost", "127.0.0.1", "::1"})
    with TestClient(create_app(index, hosts=hosts), base_url="http://localhost:1234") as client:
        assert client.get("/health").status_code == 200
        for host, status in [
            ("127.0.0.1:99", 200), ("[::1]:99", 200), ("LOCALHOST", 200), ("evil.example", 421),
            ("localhost.evil.example:80", 421), ("", 421), ("[::1", 421), ("127.0.0.1.nip.io", 421),
            ("localhost:", 421), ("localhost:8080:1", 421), ("localhost:evil", 421), ("[localhost]", 421), ("::1", 421),
            ("localhost, evil", 421), ("localhost.", 421),
        ]:  # fmt: skip
            assert client.get("/health", headers={"Host": host}).status_code == status, host


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200), ({"Origin": "http://localhost"}, 200), ({"Origin": "http://LOCALHOST"}, 200),
        ({"Origin": "null"}, 403), ({"Origin": "http://localhost:81"}, 403), ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403), ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200), ({"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"}, 403),
    ],
)  # fmt: skip
def test_uploads_from_other_sites_are_rejected(
    client: TestClient, photo: bytes, headers: dict[str, str], status: int
) -> None:
    answer = client.post("/api/search", content=photo, headers={"Host": "localhost", **headers})
    assert answer.status_code == status, answer.text


def test_readiness_follows_the_verification_of_the_index(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(create_app(index, token="secret")) as client:
        assert client.get("/ready").status_code == 200
        monkeypatch.setattr(Index, "check", lambda self: False)
        assert client.get("/ready").status_code == 503
        assert "being verified" in client.get("/ready").json()["detail"]

        def damaged(self: Index) -> bool:
            raise DataError("/home/me/photos.index/vectors.npy: damaged.")

        monkeypatch.setattr(Index, "check", damaged)
        assert client.get("/ready").status_code == 503
        assert client.get("/ready").json() == {"detail": "index: a file is damaged. See the log of the service."}
        assert client.get("/health").status_code == 200


def test_a_file_cut_short_ends_the_request_and_no_path_is_told(index: Index, tmp_path: Path) -> None:
    shutil.copytree(index.path, tmp_path / "index")
    with TestClient(create_app(Index.open(tmp_path / "index"))) as client:
        assert client.get("/api/similar/0?k=2").status_code == 200
        (vectors,) = (tmp_path / "index").glob("generation-*/vectors.npy")
        os.truncate(vectors, 100)
        failed = client.get("/api/similar/0?k=2")
        assert failed.status_code == 503
        assert "damaged" in failed.json()["detail"]
        assert str(tmp_path) not in failed.text
        assert client.get("/health").status_code == 200


def test_a_cut_table_of_entries_is_damage_and_no_missing_image(index: Index, tmp_path: Path) -> None:
    shutil.copytree(index.path, tmp_path / "index")
    with TestClient(create_app(Index.open(tmp_path / "index"))) as client:
        (entries,) = (tmp_path / "index").glob("generation-*/entries.sqlite")
        content = entries.read_bytes()
        os.truncate(entries, 4096)
        for path in ("/api/thumbnail/0", "/api/similar/0?k=2", "/ready"):
            assert client.get(path).status_code == 503
        entries.write_bytes(content)
        for path in ("/api/thumbnail/0", "/api/similar/0?k=2", "/ready"):
            assert client.get(path).status_code == 200
        assert client.get("/api/thumbnail/99999").status_code == 404


def test_bytes_of_names_are_no_folders() -> None:
    entry = Entry(0, "/photos/c\\udcff/a.png", None, "", b"")
    assert image_fields(entry)["name"] == "c\\udcff/a.png"
    assert image_fields(replace(entry, path="C:\\photos\\oak\\a.png"))["name"] == "oak/a.png"


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


def test_too_many_requests_are_rejected(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    resume, encode = threading.Event(), QueryEncoder.encode

    def slow(self: QueryEncoder, images: object) -> object:
        resume.wait(10)
        return encode(self, images)

    monkeypatch.setattr(QueryEncoder, "encode", slow)
    with TestClient(create_app(index, limits=replace(LIMITS, max_requests=3))) as client:
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
        resume.set()
        for one in crowd:
            one.join()
        assert statuses == [200, 200, 200]
        assert client.get("/api/about").status_code == 200


def test_slow_and_failed_work_ends_in_a_response(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, resume = QueryEncoder.encode, threading.Event()
    monkeypatch.setattr(QueryEncoder, "encode", lambda self, images: resume.wait(5) and encode(self, images))
    with TestClient(create_app(index, limits=replace(LIMITS, timeout=0.3))) as client:
        answer = client.post("/api/search", content=encoded(noise()))
        assert answer.status_code == 503
        assert "0.3 s" in answer.json()["detail"]
        resume.set()

    def broken(self: QueryEncoder, images: object) -> object:
        raise RuntimeError("secret reason")

    monkeypatch.setattr(QueryEncoder, "encode", broken)
    with TestClient(create_app(index, limits=LIMITS)) as client:
        answer = client.post("/api/search", content=encoded(noise()))
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert client.get("/health").status_code == 200


def test_large_and_slow_uploads_over_a_real_connection(index: Index) -> None:
    with served(index, limits=replace(LIMITS, timeout=0.5)) as address:
        url = urlsplit(address)
        for body in (bytes(5_000_000), iter([bytes(50_000)] * 100)):  # with its length declared, and without
            answer = httpx.post(f"{address}/api/search", content=body, timeout=60)
            assert answer.status_code == 413
        with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
            connection.sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
            assert connection.recv(100).startswith(b"HTTP/1.1 503")
        with socket.create_connection((url.hostname, url.port), timeout=60) as connection:  # one that goes away
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
        assert base_url(listening, "127.0.0.1") == f"http://127.0.0.1:{port}"
        with pytest.raises(OutputError, match=r"127.0.0.1 port \d+: cannot listen \(Address already in use\)"):
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
