"""Attack winnow with damaged files, killed runs, full disks, random input, and hostile clients, and count the outcomes.

    python scripts/attack.py             # all attacks, about two hours on two cores
    python scripts/attack.py --continue  # those that have no complete row of this commit yet
    python scripts/attack.py flips disk  # some of them
    python scripts/attack.py --scale 0.1 # a tenth of the trials, and of the time under load

Writes results/security/attack.json and the table in docs/security.md. Each row has the command and the commit that made
it; changes of these two files do not count as changes of the commit. Each command is called in a separate process, so a
crash is counted. The attack on disks mounts small file systems, which requires root.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import httpx
import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.data import synthetic_datasets  # noqa: E402
from tests.serve.samples import encoded, make_photos, resident_bytes, served  # noqa: E402
from winnow import Embedder  # noqa: E402
from winnow.cli import run  # noqa: E402
from winnow.data import Splits, read_image  # noqa: E402
from winnow.data.emoji import load_emoji  # noqa: E402
from winnow.errors import WinnowError  # noqa: E402
from winnow.index import Index  # noqa: E402
from winnow.index.storage import Verification  # noqa: E402
from winnow.integrity import check_file, write_checked, write_checked_text  # noqa: E402
from winnow.serve import Limits  # noqa: E402
from winnow.training import RunDir, load_config  # noqa: E402
from winnow.training.build import resolve_config  # noqa: E402
from winnow.training.config import config_keys  # noqa: E402
from winnow.training.results import collect_provenance  # noqa: E402
from winnow.training.sweep import plan_runs, write_plan  # noqa: E402

RESULT, PAGE = ROOT / "results/security/attack.json", ROOT / "docs/security.md"
RUN = ["backbone=resnet20", "backbone.weights=random", "image.resize=32", "image.crop=32", "dim=8", "train.device=cpu",
       "train.classes_per_batch=2", "train.samples_per_class=2", "train.max_steps=12", "train.eval_steps=4",
       "train.lr=1e-3", "pooling.num_prototypes=4", "pooling.memory_size=8"]  # fmt: skip
PLAIN = [word for word in RUN if not word.startswith("pooling.")]
CONFIGS = {
    "CCP": ["loss=c2", "references=ccp", "references.proxies_per_class=2", "references.pool_size=4"],
    "memory": ["loss=c1", "references=memory", "references.num_batches=2", "references.start_step=1"],
    "GSP + ZSR, plateau": ["pooling=gsp", "zsr=0.2", "train.schedule=plateau"],
    "CCP, cosine, averaged weights, two passes": [
        "loss=c2",
        "references=ccp",
        "references.proxies_per_class=2",
        "references.pool_size=4",
        "references.patience=1",
        "backbone.train=full",
        "train.schedule=cosine",
        "train.average=0.9",
        "train.chunk_size=3",
        "augment.resize=original",
        "augment.random_erasing=0.5",
    ],
}


@dataclass
class Outcome:
    """Trials of one attack, and descriptions of those that did not end as expected."""

    attack: str
    expected: str
    trials: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""

    def count(self, passed: bool, description: str) -> None:
        self.trials += 1
        if not passed:
            self.failures.append(description)


@dataclass(frozen=True)
class Site:
    """Files that are attacked, in a temporary folder."""

    folder: Path
    rng: random.Random

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def index(self) -> Path:
        return self.folder / "index"

    @property
    def photo(self) -> Path:
        return self.photos / "class_2/1.png"


@dataclass(frozen=True)
class Call:
    """End of a command: exit code, or the negative number of the signal that ended it."""

    code: int
    err: str

    @property
    def is_clean(self) -> bool:
        """Whether the command succeeded, or ended with an exit code and no traceback."""
        return 0 <= self.code < 8 and "Traceback" not in self.err


def start(words: list[object], err: Path) -> int:
    """Call the command line in a forked process; return its id."""
    child = os.fork()
    if child:
        return child
    output = open(err, "w", buffering=1)  # noqa: SIM115
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    sys.stdout = sys.stderr = output
    sys.argv = ["winnow", *map(str, words)]
    code = 70
    try:
        run()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def call(site: Site, *words: object) -> Call:
    """Call the command line and wait for its end."""
    err = site.folder / "output"
    code = os.waitstatus_to_exitcode(os.waitpid(start([*words], err), 0)[1])
    return Call(code, err.read_text(errors="replace"))


@contextmanager
def make_site(seed: int) -> Iterator[Site]:
    """Make photos, a run, and an index in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), random.Random(seed))
        make_photos(site.photos)
        for words in (["train", f"data={site.photos}", *RUN, "--out", site.run],
                      ["index", site.run, site.photos, "-o", site.index]):  # fmt: skip
            made = call(site, *words)
            assert made.code == 0, made.err
        yield site


STUDY = "ccp-pool"
"""Study whose published result is opened with a flipped bit, and one of whose runs is trained on small disks."""


def flips(site: Site, scale: float) -> Outcome:
    """Flip one bit of a saved file, and open it."""
    outcome = Outcome(
        "one flipped bit in any file of a run, a sweep, a model, an index, a table, or a study",
        "rejected by name",
    )
    study = site.folder / "studies" / f"{STUDY.replace('-', '_')}.json"
    study.parent.mkdir()
    write_checked_text(study, (ROOT / "results" / study.name).read_text())
    sweep, finished, table, graph = (site.folder / name for name in ("sweep", "finished", "table", "graph"))
    write_plan(sweep, plan_runs(sweep, None, [f"data={site.photos}", *RUN], ["seed=0,1"]))
    split = site.folder / "split"
    for part in ("train", "test"):
        make_photos(split / part)
    for folder in (split / "test").iterdir():
        folder.rename(folder.with_name(f"unseen_{folder.name}"))
    for words in (["train", f"data={split}", *RUN, "train.save_embeddings=true", "--out", finished],
                  ["protocol", "conventional", site.photos, "c1", *PLAIN, "--runs", 1, "-o", table],
                  ["index", site.run, site.photos, "-o", graph, "--kind", "hnsw"]):  # fmt: skip
        made = call(site, *words)
        assert made.code == 0, made.err
    (site.run / "result.json").rename(site.folder / "result.json")  # an unfinished run reads all its files
    resume, search = ["train", "--resume", site.run], ["search", site.index, site.folder / "query.png"]
    (site.folder / "query.png").write_bytes(noise(site.rng))  # not in the index, so the model embeds it
    openers = {site.run / name: resume for name in ("checkpoint.pt", "best.pt", "config.yaml", "data.csv.gz")}
    openers |= {site.run / "model" / name: ["explain", site.run / "model", site.photo, "-o", site.folder / "heat"]
                for name in ("config.json", "model.safetensors")}  # fmt: skip
    openers |= {file: search for file in site.index.rglob("*") if file.suffix in (".npy", ".sqlite", ".safetensors")}
    openers |= dict.fromkeys((site.index / "index.json", site.index / "model/config.json"), search)
    openers[site.run / "log.jsonl"] = ["verify", site.run]
    openers[sweep / "plan.yaml"] = ["train", "--resume", sweep]
    openers |= {finished / name: ["verify", finished] for name in ("result.json", "test.safetensors")}
    openers |= {table / name: ["verify", table] for name in ("table.json", "table.csv")}
    openers |= {file: ["search", graph, site.photo] for file in graph.rglob("faiss.index")}
    openers[study] = ["study", STUDY, "--import-results", study, "--no-train", "-o", site.folder / "imported"]
    outcome.note = f"{len(openers)} kinds of files"
    for number in range(round(200 * scale)):
        file = list(openers)[number % len(openers)]
        content = file.read_bytes()
        bit = site.rng.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        opened = call(site, *openers[file])
        file.write_bytes(content)
        named = file.name in opened.err or file.parent.name in opened.err
        outcome.count(opened.is_clean and opened.code > 0 and named, f"{file.name}, bit {bit}: {opened}")
    (site.folder / "result.json").rename(site.run / "result.json")
    return outcome


def state(folder: Path) -> dict[str, object]:
    """Return the best weights of a run, the last checkpoint, and the log without times."""
    run_dir = RunDir(folder)
    history = [{k: v for k, v in entry.to_dict().items() if k != "seconds"} for entry in run_dir.read_history()]
    best, last = run_dir.load(run_dir.best_file), run_dir.load(run_dir.checkpoint_file)
    kept = {key: last[key] for key in ("learner", "optimizer", "average", "problems", "plateau")}
    return {"history": history, "weights": best.get("learner", best), **kept}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def next_call(command: list[object], folder: Path) -> list[object]:
    """Return the words that train a run, or resume it if it was started."""
    return ["train", "--resume", folder] if (folder / "config.yaml").exists() else [*command, folder]


def kills(site: Site, scale: float) -> Outcome:
    """Kill runs at random times, resume them, and compare them with a run that was never killed."""
    outcome = Outcome(
        "SIGKILL of a run (CCP, memory, GSP+ZSR with a plateau schedule, CCP with averaged weights and two passes)",
        "resumed bit for bit",
    )
    for name, words in CONFIGS.items():
        command = ["train", f"data={site.photos}", *RUN, "train.max_steps=40", "train.patience=100", *words, "--out"]
        whole, broken = site.folder / f"whole {name}", site.folder / f"broken {name}"
        started = time.monotonic()
        made = call(site, *command, whole)
        seconds = time.monotonic() - started
        assert made.code == 0, made.err
        remaining = round(34 * scale)
        while remaining:
            shutil.rmtree(broken, ignore_errors=True)
            killed = 0
            while remaining and not (broken / "result.json").exists():
                child = start(next_call(command, broken), site.folder / "output")
                time.sleep(site.rng.uniform(0.05, 0.6) * seconds)
                os.kill(child, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert code in (0, -signal.SIGKILL), (site.folder / "output").read_text(errors="replace")
                was_killed = code == -signal.SIGKILL
                killed, remaining = killed + was_killed, remaining - was_killed
            if not (broken / "result.json").exists():
                call(site, *next_call(command, broken))
            equal = (broken / "result.json").exists() and same(state(whole), state(broken))
            for _ in range(killed):
                outcome.count(equal, f"{name}: another state after {killed} kills")
    return outcome


WRITERS: dict[str, Callable[[Site, Path], list[object]]] = {
    "train": lambda site, to: ["train", f"data={site.photos}", *RUN, "--out", to / "run"],
    "train with cached features": lambda site, to: ["train", f"data={site.photos}", *RUN, "data.feature_cache=disk",
                                                    "--out", to / "run"],
    "train --sweep": lambda site, to: ["train", f"data={site.photos}", *RUN, "--sweep", "seed=0,1", "--out", to / "s"],
    "tune": lambda site, to: ["tune", f"data={site.photos}", *RUN, "train.lr=1e-4..1e-2:log", "--trials", 2,
                              "-o", to / "tune"],
    "protocol": lambda site, to: ["protocol", "conventional", site.photos, "c1", *PLAIN, "--runs", 1,
                                  "-o", to / "table"],
    "study": lambda site, to: ["study", STUDY, *SMALL_STUDY, "-o", to / "studies"],
    "demo": lambda site, to: ["demo", "--seeds", 1, "--steps", 1, "-o", to / "demo"],
    "datasets get": lambda site, to: ["datasets", "get", "cub200", "--from", site.folder / "birds", "--to", to / "cub",
                                      "--accept-missing"],
    "index": lambda site, to: ["index", site.run, site.photos, "-o", to / "index"],
    "embed (.npy)": lambda site, to: ["embed", site.run, site.photos, "-o", to / "v.npy"],
    "embed (.safetensors)": lambda site, to: ["embed", site.run, site.photos, "-o", to / "v.safetensors"],
    "embed (.parquet)": lambda site, to: ["embed", site.run, site.photos, "-o", to / "v.parquet"],
    "export (TorchScript)": lambda site, to: ["export", site.run, "-o", to / "m.pt", "--format", "torchscript"],
    "export (ONNX)": lambda site, to: ["export", site.run, "-o", to / "m.onnx"],
    "explain": lambda site, to: ["explain", site.run, site.photo, "-o", to / "heat"],
    "search --html": lambda site, to: ["search", site.index, site.photo, "--html", to / "found.html"],
}  # fmt: skip
"""All commands that write, into a folder; `evaluate` and `serve` write nothing."""
SMALL_STUDY = ["--variants", "C2", "--seeds", 0, "backbone=resnet20", "backbone.weights=random",
               "backbone.stride=4", "image.resize=32", "image.crop=32", "train.max_steps=2",
               "train.eval_steps=1"]  # fmt: skip
LOADED = ("winnow.demo", "winnow.export", "winnow.protocols", "winnow.report.figures", "winnow.studies.render",
          "winnow.tuning", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "onnxscript",
          "optuna", "pyarrow.parquet", "torch.onnx", "torch._dynamo")  # fmt: skip
"""Modules that the commands import, loaded once for all calls."""


def few_emoji() -> Splits:
    """Return a small part of the data of the demo, whose features take most of its time."""
    splits = load_emoji()
    assert splits.test is not None, "the bundled dataset has test classes"
    train, val, test = (one.select(range(80)) for one in (splits.train, splits.val, splits.test))
    return replace(splits, train=train, val=val, test=test)


def disk(site: Site, scale: float) -> Outcome:
    """Run every writing command on file systems of several sizes; verify what each leaves."""
    outcome = Outcome(
        f"a disk that fills up in {', '.join(WRITERS)}", "completed, or an error in one line and no damaged file"
    )
    place = site.folder / "disk"
    place.mkdir()
    synthetic_datasets.cub(site.folder / "birds", size=64)
    for module in LOADED:
        importlib.import_module(module)
    few = few_emoji()
    sizes, completed = max(2, round(20 * scale)), dict.fromkeys(WRITERS, 0)
    for name, words in WRITERS.items():
        needed = 2**27  # bytes; the first trial has room for all, and measures
        for number in range(sizes + 1):
            size = needed if number == 0 else round(needed * number / sizes)
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={max(4096, size)}", "tmpfs", place],
                                     capture_output=True)  # fmt: skip
            if mounted.returncode:
                outcome.note = "not run: mounting requires root"
                return outcome
            try:
                with (
                    mock.patch.dict(os.environ, WINNOW_CACHE=str(place / "cache")),
                    mock.patch("winnow.demo.load_emoji", return_value=few),
                ):
                    end = call(site, *words(site, place))
                if number == 0:
                    needed = sum(file.stat().st_blocks * 512 for file in place.rglob("*"))
                completed[name] += end.code == 0
                passed = end.is_clean and (end.code == 0 or (number > 0 and len(end.err.strip()) > 0))
                left = call(site, "verify", place)
                passed &= left.code == 0 or "no file below it has a checksum" in left.err
                outcome.count(passed, f"{name}, {size} bytes: {end}; verified: {left}")
            finally:
                subprocess.run(["umount", place], check=True)
    outcome.note = f"{sum(completed.values())} completed; demo with 240 of its images"
    return outcome


def cuts(site: Site, scale: float) -> Outcome:
    """Cut a file of an index short under a running service, and restore it, while 4 clients search."""
    outcome = Outcome(
        "a file of an index cut short for up to 50 ms while a service searches it for 4 clients",
        "the usual answer, or status 503, and the service runs",
    )
    large = site.folder / "large"
    model = Embedder.from_pretrained(site.run)
    vectors = np.random.default_rng(0).standard_normal((100_000, model.config.dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    Index.build(model, vectors=vectors, names=[str(number) for number in range(len(vectors))], path=large)
    files = [next(large.rglob(name)) for name in ("vectors.npy", "entries.sqlite")]
    paths = [f"/api/similar/{number}?k=5" for number in range(0, len(vectors), 997)]
    paths += [f"/api/thumbnail/{number}" for number in range(0, len(vectors), 499)]
    statuses: dict[int, int] = {}
    with command(site, index=large) as (address, process):
        usual = {path: httpx.get(address + path, timeout=60).content for path in paths}
        wrong: list[str] = []
        ended = threading.Event()

        def search(seed: int) -> None:
            rng = random.Random(seed)
            with httpx.Client(base_url=address, timeout=60) as client:
                while not ended.is_set():
                    path = rng.choice(paths)
                    try:
                        answer = client.get(path)
                    except httpx.HTTPError as error:
                        wrong.append(f"{path}: {error!r}")
                        time.sleep(0.1)
                        continue
                    statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                    if answer.status_code not in (200, 503) or (answer.is_success and answer.content != usual[path]):
                        wrong.append(f"{path}: {answer.status_code}")

        clients = [threading.Thread(target=search, args=(number,)) for number in range(4)]
        for client in clients:
            client.start()
        for _ in range(round(300 * scale)):
            file = site.rng.choice(files)
            content = file.read_bytes()
            length = site.rng.randrange(len(content))
            before = len(wrong)
            os.truncate(file, length)
            time.sleep(site.rng.uniform(0, 0.05))
            with open(file, "r+b") as cut:
                cut.seek(length)
                cut.write(content[length:])
            time.sleep(site.rng.uniform(0, 0.05))
            alive = process.poll() is None
            outcome.count(
                alive and len(wrong) == before, f"{file.name} cut to {length}: {process.poll()} {wrong[before:]}"
            )
            if not alive:
                break
        ended.set()
        for client in clients:
            client.join()
        alive = process.poll() is None
        same = alive and all(httpx.get(address + path, timeout=60).content == usual[path] for path in paths)
        outcome.count(same, f"after the last cut: {'other answers' if alive else process.returncode}")
    outcome.note = f"{sum(statuses.values()):,} requests, {statuses.get(503, 0):,} with status 503"
    return outcome


def configs(site: Site, scale: float) -> Outcome:
    """Set random keys to random values."""
    outcome = Outcome("random keys and values of a config", "accepted, or an error in one line")
    keys = sorted({key.name for key in config_keys()})
    values = [
        "", "null", "[]", "{}", "[1]", "{1: 2}", "[" * 300, ".nan", ".inf", "-1", "0", "1e400", "9" * 5000, "true",
        "1:2:3", "2024-01-01", "'", ": :", "!!python/object:os.system", "\x00", "\u202e", "/dev/zero", "..", "1", "2",
        "0.5", "gsp", "ccp", "c2", "ms",
    ]  # fmt: skip
    for _ in range(round(10_000 * scale)):
        words = [f"{site.rng.choice(keys)}={site.rng.choice(values)}" for _ in range(site.rng.randint(1, 4))]
        try:
            with suppress(WinnowError):
                resolve_config(load_config(None, ["train.device=cpu", *words]))
            outcome.count(True, "")
        except Exception as error:
            outcome.count(False, f"{words}: {error!r}")
    return outcome


def images(site: Site, scale: float) -> Outcome:
    """Change random bytes of image files, or cut them."""
    outcome = Outcome("a damaged image file", "decoded, or skipped with a reason")
    pixels = np.random.default_rng(0).integers(0, 255, (60, 70, 3), dtype=np.uint8)
    kinds = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA")
    sound = [encoded(Image.fromarray(pixels), kind) for kind in kinds]
    file = site.folder / "damaged.img"
    for _ in range(round(5000 * scale)):
        content = bytearray(site.rng.choice(sound))
        for _ in range(site.rng.randint(0, 12)):
            content[site.rng.randrange(len(content))] = site.rng.randrange(256)
        file.write_bytes(content[: site.rng.choice([len(content), site.rng.randrange(len(content))])])
        try:
            with suppress(WinnowError):
                read_image(file)
            outcome.count(True, "")
        except Exception as error:
            outcome.count(False, repr(error))
    return outcome


def requests(site: Site, scale: float) -> Outcome:
    """Send requests of random methods, paths, headers, and bodies."""
    outcome = Outcome("a random request to the service", "status below 500")
    photo = site.photo.read_bytes()
    paths = [
        "/", "/api/about", "/api/search", "/api/search/" + "0" * 64, "/api/similar/0", "/api/similar/" + "9" * 20,
        "/api/weights?id=0&id=-1", "/api/thumbnail/..%2f..%2fetc", "/api/prototypes/0", "/metrics", "/health",
        "/ready", "/%00", "//", "/openapi.json", "/api/search?k=-1", "/api/search?mu=nan", "/api/" + "a" * 5000,
    ]  # fmt: skip
    gif = encoded(Image.new("L", (1, 1)), "GIF")
    bodies = [b"", b"{", photo, photo[:50], bytes(1000), gif, b"\xff\xd8\xff\xda" * 100]
    headers = [{}, {"Host": "evil"}, {"Origin": "null"}, {"Content-Type": "multipart/form-data"}, {"X": "x" * 900}]
    with served(Index.open(site.index)) as address, httpx.Client(base_url=address, timeout=30) as client:
        for _ in range(round(2000 * scale)):
            method = site.rng.choice(["GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "X"])
            path, body = site.rng.choice(paths), site.rng.choice(bodies)
            status = client.request(method, path, content=body, headers=site.rng.choice(headers)).status_code
            outcome.count(status < 500, f"{method} {path}: {status}")
    return outcome


def slowloris(site: Site, scale: float) -> Outcome:
    """Hold 300 connections with half a request, and send other requests."""
    outcome = Outcome("a request while 300 connections have sent half of a request", "status 200")
    post = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\na"
    halves = [b"", b"GET / HTTP/1.1\r\nHost: loc", post]
    photo = site.photo.read_bytes()
    with served(Index.open(site.index), limits=Limits()) as address, ExitStack() as stack:
        url = urlsplit(address)
        for number in range(300):
            one = stack.enter_context(socket.create_connection((url.hostname, url.port)))
            with suppress(OSError):
                one.sendall(halves[number % 3])
        time.sleep(1.2)  # uploads without data for a second give way
        for number in range(round(90 * scale)):
            path = ("/health", "/api/about", "/api/search")[number % 3]
            status = 0
            with suppress(httpx.HTTPError):
                answer = httpx.request("POST" if number % 3 == 2 else "GET", address + path,
                                       content=photo if number % 3 == 2 else None, timeout=20)  # fmt: skip
                status = answer.status_code
            outcome.count(status == 200, f"{path}: {status}")
    return outcome


def noise(rng: random.Random) -> bytes:
    """Return a small image file that no other call returns."""
    return encoded(Image.frombytes("RGB", (60, 48), rng.randbytes(60 * 48 * 3)))


@contextmanager
def command(site: Site, *options: object, index: Path | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve an index by the command in a process; yield its address and the process."""
    words = [sys.executable, "-m", "winnow", "serve", str(index or site.index), "--port", "0", *map(str, options)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None, "it is a pipe"
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://[^ ]+", line)))
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield address, process
    finally:
        process.terminate()
        process.wait(30)


def photos_of_many_sizes(rng: random.Random) -> list[bytes]:
    """Return JPEG files from 0.02 to 12 megapixels."""
    found = []
    for _ in range(24):
        width = rng.randint(150, 4000)
        height = round(width * rng.uniform(0.5, 1))
        small = Image.frombytes("RGB", (width // 8, height // 8), rng.randbytes(width // 8 * (height // 8) * 3))
        found.append(encoded(small.resize((width, height)), "JPEG"))
    return found


def load(site: Site, scale: float) -> Outcome:
    """Search for new images of many sizes by 4 clients, and compare the memory of the service.

    The cache of images is full after the warm-up, so its growth is not counted. Memory is compared without requests.
    """
    outcome = Outcome("a search under load by 4 clients", "status 200")
    photos, seconds = photos_of_many_sizes(site.rng), 300 * scale
    with command(site, "--cache-mb", 1) as (address, process):

        def search(seed: int, end: float) -> None:
            rng = random.Random(seed)
            with httpx.Client(base_url=address, timeout=60) as client:
                while time.monotonic() < end:
                    content = rng.choice(photos) + rng.randbytes(16)  # a new file, so no answer is cached
                    status = client.post("/api/search", content=content).status_code
                    outcome.count(status == 200, f"{status}")

        memory, peak = [resident_bytes(process.pid)], 0
        for part in (20, seconds):
            end = time.monotonic() + part
            clients = [threading.Thread(target=search, args=(number, end)) for number in range(4)]
            for client in clients:
                client.start()
            while any(client.is_alive() for client in clients):
                time.sleep(0.5)
                peak = max(peak, resident_bytes(process.pid))
            time.sleep(2)
            memory.append(resident_bytes(process.pid))
    started, before, after = (value / 1e6 for value in memory)
    outcome.note = (
        f"memory {started:.0f} MB at the start, {before:.0f} MB after 20 s, {after:.0f} MB after {seconds:g} s more, "
        f"at most {peak / 1e6:.0f} MB"
    )
    return outcome


def cost(vectors: int = 1_000_000, dim: int = 128) -> dict[str, float]:
    """Return the seconds that checksums take: of an index and of a checkpoint of 100 MB, in the cache of the system."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> object:
        started = time.perf_counter()
        made = work()
        seconds[name] = round(time.perf_counter() - started, 3)
        return made

    with tempfile.TemporaryDirectory() as folder:
        rows = np.random.default_rng(0).standard_normal((vectors, dim), dtype=np.float32)
        Index.build(vectors=rows, names=[str(number) for number in range(vectors)], path=f"{folder}/index")
        query = rows[:1].copy()
        with mock.patch.object(Verification, "_check"):  # as before there were checksums
            index = timed("open an index, not verified", lambda: Index.open(f"{folder}/index"))
            timed("first search, not verified", lambda: index.search(query))
        index = timed("open an index", lambda: Index.open(f"{folder}/index"))
        timed("first search, which waits for the checksums", lambda: index.search(query))
        timed("later search", lambda: index.search(query))
        file = Path(folder) / "checkpoint.pt"
        write_checked(file, lambda partial: torch.save(torch.zeros(25_000_000), partial))
        timed("load a checkpoint, not verified", lambda: torch.load(file, weights_only=True))
        timed("load the checkpoint", lambda: check_file(file) and torch.load(file, weights_only=True))
    return seconds


ATTACKS: dict[str, Callable[[Site, float], Outcome]] = {
    one.__name__: one for one in (flips, kills, disk, cuts, configs, images, requests, slowloris, load)
}


def render(attacks: dict[str, dict[str, Any]]) -> str:
    """Return the table of the page, and the commits of its rows."""
    rows = ["| attack | expected | trials | as expected |", "|---|---|--:|--:|"]
    for one in attacks.values():
        passed = one["trials"] - len(one["failures"])
        note = f" ({one['note']})" if one["note"] else ""
        rows.append(f"| {one['attack']} | {one['expected']}{note} | {one['trials']:,} | {passed:,} |")
    names: dict[str, list[str]] = {}
    for name, one in attacks.items():
        names.setdefault(one["commit"], []).append(name)
    if len(names) == 1:
        return "\n".join([*rows, "", f"All rows were measured at commit `{next(iter(names))}`."])
    commits = "; ".join(f"`{commit}`: {', '.join(which)}" for commit, which in names.items())
    return "\n".join([*rows, "", f"Commits of the rows: {commits}."])


def render_cost(cost: dict[str, Any]) -> str:
    """Return the table of the cost of checksums, and its commit."""
    rows = [f"| {name} | {value:.3f} |" for name, value in cost["seconds"].items()]
    return "\n".join(["| step | seconds |", "|---|--:|", *rows, "", f"Measured at commit `{cost['commit']}`."])


def tree_commit() -> str:
    """Return the commit of the checkout; marked if files other than the result and the page differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    own = [f":(exclude){path.relative_to(ROOT)}" for path in (RESULT, PAGE)]
    return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".", *own) else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", help=f"of {', '.join(ATTACKS)}, cost; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the number of trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--continue", action="store_true", help="skip attacks with a row of this commit and scale",
                        dest="resumed")  # fmt: skip
    options = parser.parse_args()
    chosen = options.attacks or [*ATTACKS, "cost"]
    unknown = sorted(set(chosen) - {*ATTACKS, "cost"})
    if unknown:
        parser.error(f"unknown attacks {', '.join(unknown)}")
    torch.set_num_threads(1)
    # Before the first trial: later changes of the checkout do not change the code that was imported.
    provenance = {**collect_provenance().to_dict(), "commit": tree_commit(),
                  "command": shlex.join(["python", "scripts/attack.py", *sys.argv[1:]])}  # fmt: skip
    if options.resumed:
        chosen = [name for name in chosen if not is_recorded(name, provenance["commit"], options.scale)]
    with make_site(options.seed) as site:
        for name in chosen:
            started = time.monotonic()
            if name == "cost":
                seconds = cost()
                record(name, {"seconds": seconds}, provenance)
                print(seconds)
                continue
            outcome = ATTACKS[name](replace(site, rng=random.Random(options.seed)), options.scale)
            took = round(time.monotonic() - started)
            record(name, {**asdict(outcome), "scale": options.scale, "seconds": took}, provenance)
            passed = outcome.trials - len(outcome.failures)
            print(f"{name}: {passed} of {outcome.trials} {outcome.expected} {outcome.note}, {took} s", flush=True)
            for failure in outcome.failures[:5]:
                print(f"  {failure}")


def read_recorded() -> dict[str, Any]:
    """Return the content of the result file."""
    content: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.is_file() else {"attacks": {}}
    if "cost" in content and "seconds" not in content["cost"]:  # earlier files have the commit of the cost at the top
        origin = {key: content[key] for key in ("commit", "command", "machine")}
        content["cost"] = {"seconds": content["cost"], **origin}
    return content


def is_recorded(name: str, commit: str, scale: float) -> bool:
    """Return whether the result file has a row of an attack of a commit and scale."""
    recorded = read_recorded()
    row = recorded.get("cost", {}) if name == "cost" else recorded["attacks"].get(name, {})
    return bool(row.get("commit") == commit and row.get("scale", scale) == scale)


def record(name: str, found: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write the outcome of an attack, or the cost, into the result file, and the tables into the page.

    Other rows stay as they are, with the commit and the command that made them.
    """
    recorded = read_recorded()
    row = {**found, "commit": provenance["commit"], "command": provenance["command"]}
    if name == "cost":
        recorded["cost"] = {**row, "machine": provenance["machine"]}
    else:
        attacks = {**recorded["attacks"], name: row}
        recorded["attacks"] = {one: attacks[one] for one in ATTACKS if one in attacks}
    RESULT.write_text(json.dumps({**recorded, **provenance}, indent=2) + "\n")
    tables = {"attack": render(recorded["attacks"])}
    if "cost" in recorded:
        tables["cost"] = render_cost(recorded["cost"])
    page = PAGE.read_text()
    for name, table in tables.items():
        block = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        page = block.sub(lambda _, table=table: f"\n{table}\n\n", page)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
