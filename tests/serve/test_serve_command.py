"""`winnow serve` as a command, under load."""

import builtins
import socket
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner, Result

import winnow
from benchmarks import serve as load
from benchmarks.serve import run_serve
from winnow.cli.main import app
from winnow.errors import ConfigError, DataError, MissingExtraError, OutputError, WinnowError
from winnow.index import Index
from winnow.serve import Limits
from winnow.serve.app import bind, serve


def command(*words: object) -> Result:
    return CliRunner().invoke(app, ["serve", *map(str, words)])


@pytest.mark.slow
def test_many_clients_are_served_by_the_real_command(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_WARM_UP_ROUNDS", 2)
    source = Path(winnow.__file__).parents[1]
    benchmark = run_serve(index.path, clients=[3], seconds=0.5, other=source)
    loop, other, served = benchmark.rows
    assert (loop.method, other.method, served.method) == ("plain loop", "3 clients, other version", "3 clients")
    assert benchmark.notes[-1].startswith("The other version is ")
    assert served.facts["queries/s"] * 0.5 >= 3
    assert served.facts["p50 ms"] <= served.facts["p95 ms"] <= served.facts["p99 ms"]
    assert abs(served.facts["growth MB"]) < 500  # read from the service's own metrics


@pytest.mark.slow
def test_a_service_that_fails_ends_the_load_test(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    @contextmanager
    def nowhere(path: Path, clients: int, source: Path | None = None):
        with bind("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
        yield f"http://127.0.0.1:{port}"

    monkeypatch.setattr(load, "serving", nowhere)
    monkeypatch.setattr(load, "resident_bytes", lambda address: None)
    with pytest.raises(WinnowError, match=r"requests failed\. First failure: ConnectionRefused"):
        run_serve(index.path, clients=[1], seconds=0.5)


def test_connections_send_small_packets_at_once() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_folders_and_ports_that_cannot_be_used_are_errors(index: Index, tmp_path: Path) -> None:
    assert isinstance(command(tmp_path).exception, DataError)
    with bind("127.0.0.1", 0) as taken:
        failed = command(index.path, "--port", taken.getsockname()[1])
    assert isinstance(failed.exception, OutputError)


@pytest.mark.parametrize(
    "options",
    [
        ["--host", "evil..name"], ["--host", "a" * 70], ["--host", ""], ["--device", "evil"],
        *([option, value] for option in ("--upload-mb", "--megapixels", "--timeout", "--batch-size", "--requests")
          for value in ("inf", "nan", "1e300", "9" * 30)),
    ],
    ids=lambda words: " ".join(words)[:30],
)  # fmt: skip
def test_odd_values_of_options_are_errors(index: Index, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    from winnow.serve import app as module

    monkeypatch.setattr(module, "serve", lambda *_, **__: pytest.fail("served"))
    result = command(index.path, "--port", "0", *options)
    assert isinstance(result.exception, WinnowError) or result.exit_code == 2


def test_the_extra_is_named(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] == "uvicorn":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    failed = command(index.path)
    assert isinstance(failed.exception, MissingExtraError)
    # of the Python that runs, which need not be the one whose pip is in the path
    checkout = Path(__file__).resolve().parents[2]
    assert str(failed.exception).endswith(f"{sys.executable} -m pip install -e '{checkout}[serve]'")


NEW = [
    "--max-upload-mb",
    "3",
    "--max-megapixels",
    "2",
    "--max-requests",
    "7",
    "--timeout",
    "9",
    "--batch-size",
    "5",
    "--cache-mb",
    "8",
]
OLD = ["--upload-mb", "3", "--megapixels", "2", "--requests", "7", "--seconds", "9", "--batch", "5", "--cache-mb", "8"]


@pytest.mark.parametrize("options", [NEW, OLD], ids=["new", "old"])
def test_options_are_limits(index: Index, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    from winnow.serve import app as module

    given = {}

    def note(
        opened: Index, listener: socket.socket, host: str, *, limits: Limits, token: str | None, names: list[str]
    ) -> None:
        given.update(limits=limits, token=token, host=host, address=listener.getsockname(), names=names)
        listener.close()

    monkeypatch.setattr(module, "serve", note)
    result = command(index.path, "--port", "0", "--token", "secret", "--allow-host", "one.example", *options)
    assert result.exit_code == 0, result.output
    limits = Limits(
        max_upload_bytes=3_000_000, max_pixels=2_000_000, max_requests=7, timeout=9, batch_size=5, cache_bytes=8_000_000
    )
    assert (given["limits"], given["token"], given["host"]) == (limits, "secret", "127.0.0.1")
    assert given["names"] == ["one.example"]
    assert f"http://127.0.0.1:{given['address'][1]}/#token=TOKEN" in result.output


def test_an_empty_token_is_an_error(index: Index) -> None:
    assert isinstance(command(index.path, "--port", "0", "--token", "").exception, ConfigError)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_names_are_checked_on_every_address(index: Index, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    import uvicorn

    made = {}

    def note(self: uvicorn.Server, sockets: object) -> None:
        made["app"] = self.config.app

    monkeypatch.setattr(uvicorn.Server, "run", note)
    with bind(host, 0) as listener:
        serve(index, listener, host, limits=Limits(), token=None, names=["Photos.example"])
    here = socket.gethostname()
    local = host == "127.0.0.1"
    with TestClient(made["app"]) as client:
        for name, is_accepted in [
            ("localhost", True), ("127.0.0.1:8765", True), ("[::1]", True), ("photos.example", True),
            (here, not local), (f"{here}:80".upper(), not local), ("192.0.2.7:8765", not local),
            ("[2001:db8::1]:80", not local), ("evil.example", False), (f"{here}.evil.example", False), ("", False),
            ("2130706433", False), ("0x7f.1", False), ("192.0.2.7.nip.io", False), ("[evil.example]", False),
            ("photos.example.evil", False),
        ]:  # fmt: skip
            status = client.get("/health", headers={"Host": name}).status_code
            assert status == (200 if is_accepted else 421), name
