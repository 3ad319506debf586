"""Attack winnow with damaged files, killed runs, full disks, random input, and hostile clients, and count the outcomes.

    python scripts/attack.py             # all attacks, about an hour on two cores
    python scripts/attack.py flips disk  # some of them
    python scripts/attack.py --scale 0.1 # a tenth of the trials, and of the time under load

Writes results/security/attack.json and the table in docs/security.md. Each command is called in a separate process,
so a crash is counted. The attack on disks mounts small file systems, which requires root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
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

from tests.serve.samples import encoded, make_photos, resident_bytes, served  # noqa: E402
from winnow.cli import run  # noqa: E402
from winnow.data import read_image  # noqa: E402
from winnow.errors import WinnowError  # noqa: E402
from winnow.index import Index  # noqa: E402
from winnow.index.storage import Verification  # noqa: E402
from winnow.integrity import check_file, write_checked, write_checked_text  # noqa: E402
from winnow.serve import Limits  # noqa: E402
from winnow.training import RunDir, load_config  # noqa: E402
from winnow.training.build import resolve_config  # noqa: E402
from winnow.training.config import config_keys  # noqa: E402
from winnow.training.results import collect_provenance  # noqa: E402

RESULT, PAGE = ROOT / "results/security/attack.json", ROOT / "docs/security.md"
RUN = ["backbone=resnet20", "backbone.weights=random", "image.resize=32", "image.crop=32", "dim=8", "train.device=cpu",
       "train.classes_per_batch=2", "train.samples_per_class=2", "train.max_steps=12", "train.eval_steps=4",
       "train.lr=1e-3", "pooling.num_prototypes=4", "pooling.memory_size=8"]  # fmt: skip
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


def flips(site: Site, scale: float) -> Outcome:
    """Flip one bit of a saved file, and open it."""
    outcome = Outcome(
        "one flipped bit in any file of a run, a model, an index, or a table",
        "rejected by name",
    )
    (site.run / "result.json").rename(site.folder / "result.json")  # an unfinished run reads all its files
    (site.folder / "table").mkdir()
    write_checked_text(site.folder / "table/table.json", json.dumps({"runs": []}) * 20)
    resume, search = ["train", "--resume", site.run], ["search", site.index, site.folder / "query.png"]
    (site.folder / "query.png").write_bytes(noise(site.rng))  # not in the index, so the model embeds it
    openers = {site.run / name: resume for name in ("checkpoint.pt", "best.pt", "config.yaml", "data.csv.gz")}
    openers |= {site.run / "model" / name: ["explain", site.run / "model", site.photo, "-o", site.folder / "heat"]
                for name in ("config.json", "model.safetensors")}  # fmt: skip
    openers |= {file: search for file in site.index.rglob("*") if file.suffix in (".npy", ".sqlite", ".safetensors")}
    openers |= dict.fromkeys((site.index / "index.json", site.index / "model/config.json"), search)
    openers[site.run / "log.jsonl"] = ["verify", site.run]
    openers[site.folder / "table/table.json"] = ["verify", site.folder / "table"]
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
    "index": lambda site, to: ["index", site.run, site.photos, "-o", to / "index"],
    "embed (.npy)": lambda site, to: ["embed", site.run, site.photos, "-o", to / "v.npy"],
    "embed (.safetensors)": lambda site, to: ["embed", site.run, site.photos, "-o", to / "v.safetensors"],
    "embed (.parquet)": lambda site, to: ["embed", site.run, site.photos, "-o", to / "v.parquet"],
    "export (TorchScript)": lambda site, to: ["export", site.run, "-o", to / "m.pt", "--format", "torchscript"],
    "export (ONNX)": lambda site, to: ["export", site.run, "-o", to / "m.onnx"],
    "explain": lambda site, to: ["explain", site.run, site.photo, "-o", to / "heat"],
    "search --html": lambda site, to: ["search", site.index, site.photo, "--html", to / "found.html"],
    "protocol": lambda site, to: ["protocol", "conventional", "cub200", "c1", "--no-train", "-o", to / "protocol"],
}
"""Commands that write, into a folder."""


def disk(site: Site, scale: float) -> Outcome:
    """Run every writing command on file systems of several sizes."""
    outcome = Outcome(f"a disk that fills up in {', '.join(WRITERS)}", "completed, or an error in one line")
    place = site.folder / "disk"
    place.mkdir()
    sizes, completed = max(2, round(20 * scale)), 0
    for name, words in WRITERS.items():
        needed = 2**25  # bytes; the first trial has room for all, and measures
        for number in range(sizes + 1):
            size = needed if number == 0 else round(needed * number / sizes)
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={max(4096, size)}", "tmpfs", place],
                                     capture_output=True)  # fmt: skip
            if mounted.returncode:
                outcome.note = "not run: mounting requires root"
                return outcome
            try:
                end = call(site, *words(site, place))
                if number == 0:
                    needed = sum(file.stat().st_blocks * 512 for file in place.rglob("*"))
                completed += end.code == 0
                outcome.count(end.is_clean and (number > 0 or end.code == 0), f"{name}, {size} bytes: {end}")
            finally:
                subprocess.run(["umount", place], check=True)
    outcome.note = f"{completed} completed"
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
def command(site: Site, *options: object) -> Iterator[tuple[str, int]]:
    """Serve the index by the command in a process; yield its address and process id."""
    words = [sys.executable, "-m", "winnow", "serve", str(site.index), "--port", "0", *map(str, options)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None, "it is a pipe"
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://[^ ]+", line)))
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield address, process.pid
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

        memory, peak = [resident_bytes(process)], 0
        for part in (20, seconds):
            end = time.monotonic() + part
            clients = [threading.Thread(target=search, args=(number, end)) for number in range(4)]
            for client in clients:
                client.start()
            while any(client.is_alive() for client in clients):
                time.sleep(0.5)
                peak = max(peak, resident_bytes(process))
            time.sleep(2)
            memory.append(resident_bytes(process))
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
    one.__name__: one for one in (flips, kills, disk, configs, images, requests, slowloris, load)
}


def render(outcomes: list[dict[str, object]]) -> str:
    """Return the table of the page."""
    rows = ["| attack | expected | trials | as expected |", "|---|---|--:|--:|"]
    for one in outcomes:
        trials = int(str(one["trials"]))
        passed = trials - len(list(one["failures"]))  # type: ignore[call-overload]
        note = f" ({one['note']})" if one["note"] else ""
        rows.append(f"| {one['attack']} | {one['expected']}{note} | {trials:,} | {passed:,} |")
    return "\n".join(rows)


def render_cost(seconds: dict[str, float]) -> str:
    """Return the table of the cost of checksums."""
    return "\n".join(
        ["| step | seconds |", "|---|--:|", *(f"| {name} | {value:.3f} |" for name, value in seconds.items())]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", help=f"of {', '.join(ATTACKS)}, cost; default all")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the number of trials")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = options.attacks or [*ATTACKS, "cost"]
    unknown = sorted(set(chosen) - {*ATTACKS, "cost"})
    if unknown:
        parser.error(f"unknown attacks {', '.join(unknown)}")
    torch.set_num_threads(1)
    with make_site(options.seed) as site:
        for name in chosen:
            if name == "cost":
                seconds = cost()
                record(name, seconds)
                print(seconds)
                continue
            outcome = ATTACKS[name](replace(site, rng=random.Random(options.seed)), options.scale)
            record(name, {**asdict(outcome), "scale": options.scale})
            passed = outcome.trials - len(outcome.failures)
            print(f"{name}: {passed} of {outcome.trials} {outcome.expected} {outcome.note}")
            for failure in outcome.failures[:5]:
                print(f"  {failure}")


def record(name: str, found: dict[str, Any]) -> None:
    """Write the outcome of an attack, or the cost, into the result file, and the tables into the page.

    Attacks may run in several processes: other outcomes stay as they are in the file.
    """
    recorded = json.loads(RESULT.read_text()) if RESULT.is_file() else {"attacks": {}}
    provenance = {**collect_provenance().to_dict(), "command": "python scripts/attack.py"}
    if name == "cost":
        recorded["cost"] = found
    else:
        attacks = {**recorded["attacks"], name: {**found, "commit": provenance["commit"]}}
        recorded["attacks"] = {one: attacks[one] for one in ATTACKS if one in attacks}
    RESULT.write_text(json.dumps({**recorded, **provenance}, indent=2) + "\n")
    tables = {"attack": render(list(recorded["attacks"].values())), "cost": render_cost(recorded.get("cost", {}))}
    page = PAGE.read_text()
    for name, table in tables.items():
        block = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        page = block.sub(f"\n{table}\n\n", page)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
