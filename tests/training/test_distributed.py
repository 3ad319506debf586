"""Training in several processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.conftest import TINY, MakeFolder
from tests.training.test_trainer import CCP, StopAfter, make_trainer, small_config
from winnow.data import CropTransform, ImageCache, load_images
from winnow.errors import ConfigError, TrainingError
from winnow.models import Embedder, Head
from winnow.training import RunDir, Trainer, load_config, train
from winnow.training.engine.distributed import Processes, check_distributed, launched_processes, report_lost_processes
from winnow.training.inputs import CropInputs
from winnow.training.objective import build_objective

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

EXACT = ["train.precision=64-true", "train.max_steps=8", "train.eval_steps=4"]
UNEVEN = ["train.classes_per_batch=5", "train.samples_per_class=3"]  # 7 and 8 images of 2 processes
RAGGED = ["train.classes_per_batch=4", "train.samples_per_class=4"]  # 5, 5 and 6 images of 3 processes
ALTERNATING = [*CCP, "zsr=0.2", "zsr.preset=authors", "train.max_steps=12", "train.eval_steps=2",
               "train.eval_batch_size=7", "train.patience=9", *UNEVEN]  # fmt: skip
CASES = {
    "gsp, zsr": ["loss=c2", "zsr=0.3", "pooling.learn_mu=true", "regularizer=r2", "regularizer.centers=means", *UNEVEN],
    "memory": ["loss=c1", "references=memory", "references.num_batches=2", "references.start_step=1",
               "miner=distance_weighted", "pooling=gap", "libc=0.5", *RAGGED],
    # Raw proxies, with which subproblems are short.
    "ccp": ["loss=ms", "references.normalize_proxies=false", "references.lr_multiplier=1", *ALTERNATING],
    # A query and the proxy that was copied from it coincide but for rounding, which differs with the processes.
    "ccp, c2": ["loss=c2", *ALTERNATING],
    "random batches": ["loss=proxy_nca", "train.sampler=random", "train.batch_size=17"],
    "two passes": ["loss=c2", "zsr=0.3", "libc=0.5", "train.chunk_size=3", *UNEVEN],
    "distill": ["loss=proxy_nca", "zsr=0.3", "distill=3", "distill.decay=0.9", *UNEVEN],
    "proxy anchor": ["loss=proxy_anchor", "regularizer=r1", "regularizer.num_samples=3", *RAGGED],
}  # fmt: skip


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def joined(rank: int, count: int, port: int) -> Iterator[None]:
    """Set the environment of one torchrun process."""
    names = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip
    os.environ |= names
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name in names:
            del os.environ[name]


def trained(trainer: Trainer) -> dict[str, Any]:
    progress = trainer.fit()
    problems = [] if trainer.ccp_solver is None else trainer.ccp_solver.records()
    values = [{key: value for key, value in entry.items() if key != "seconds"} for entry in progress.history]
    return {"last": trainer.last, "best": trainer.objective.state_dict(), "history": values, "problems": problems}


class Remembering(Trainer):
    """Keeps the last weights, which the best weights replace at the end."""

    def _is_over(self) -> bool:
        self.last = {key: value.clone() for key, value in self.objective.state_dict().items()}
        return super()._is_over()


def small(words: list[str], folder: RunDir | None = None, at: int | None = None) -> Trainer:
    trainer = make_trainer(small_config(*EXACT, *words), folder, None if at is None else StopAfter(at))
    trainer.__class__ = Remembering
    return trainer


def on_images(folder: Path) -> Trainer:
    """A trainer of a network on random crops with one warm-up step."""
    words = [w for w in TINY if not w.startswith("train.")]
    config = small_config(
        *words,
        "backbone.train=full",
        "train.freeze_backbone_steps=1",
        "train.eval_batch_size=5",
        "loss=c2",
        "train.lr=1e-4",
        *EXACT,
        "train.max_steps=4",
    )
    torch.manual_seed(0)
    images = load_images(str(folder / "photos"))
    store = ImageCache(images, resize=32, device=torch.device("cpu"))
    inputs = CropInputs(store, CropTransform(resize=32, size=32))
    embedder = Embedder.create(config)
    trainer = Remembering(config, build_objective(config, embedder, 8), inputs, inputs)
    return trainer


def every_case(folder: Path) -> dict[str, Any]:
    return {**{name: trained(small(words)) for name, words in CASES.items()}, "images": trained(on_images(folder))}


def begin(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        small(CASES["ccp"], RunDir(folder / "begun"), at=7).fit()


def resume(folder: Path, copy: str) -> dict[str, Any]:
    trainer = small(CASES["ccp"], RunDir(folder / copy))
    trainer.restore()
    return trained(trainer)


def whole_run(folder: Path) -> dict[str, Any]:
    """Train and test a whole run; every process names another folder, and the first process writes."""
    words = [f"data={folder / 'photos'}", *TINY, "train.save_embeddings=true", "train.device=cpu"]
    result = train(load_config(None, words), RunDir(folder / f"run-{os.environ.get('RANK')}"))
    return {"metrics": result.metrics, "untrained": result.untrained, "processes": result.processes}


def process(rank: int, ports: tuple[int, int], folder: Path) -> None:
    """Run as one of two processes or alone, then as one of three."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    if rank < 2:
        with joined(rank, 2, ports[0]):
            found["2"] = every_case(folder)
            found["run"] = whole_run(folder)
            begin(folder)
    else:
        found["1"], found["run"] = every_case(folder), whole_run(folder)
    with joined(rank, 3, ports[1]):
        found["3"] = every_case(folder)
        dist.barrier()
        if rank == 0:
            shutil.copytree(folder / "begun", folder / "begun-3")
        dist.barrier()
        found["resumed"] = resume(folder, "begun-3")
        torch.save(found, folder / f"{rank}.pt")
        dist.barrier()
        if rank == 2:
            os._exit(0)  # as if killed
        with (
            pytest.raises(TrainingError, match=f"process {rank} of 3: another process has failed"),
            report_lost_processes(launched_processes()),
        ):
            launched_processes().gather(torch.zeros(1, 2), 3)


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_one_two_and_three_processes_reach_the_same_weights(tmp_path: Path, make_folder: MakeFolder) -> None:
    make_folder(images=3, size=36)
    (tmp_path / "begun").mkdir()
    mp.spawn(process, args=((free_port(), free_port()), tmp_path), nprocs=3)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    alone = found[2]["1"]
    for one in (found[0]["2"], found[1]["2"], *(f["3"] for f in found)):
        same(one, alone)
    for one in (resume(tmp_path, "begun"), *(f["resumed"] for f in found)):
        same(one, alone["ccp"])
    # The cases are what they should be: problems followed each other, prototypes were set, the backbone learned.
    assert len(alone["ccp"]["problems"]) > 2
    assert bool(alone["gsp, zsr"]["last"]["model.pooling.ready"])
    start = on_images(tmp_path).objective.state_dict()
    assert any(
        not torch.equal(start[key], value) for key, value in alone["images"]["last"].items() if "norm" not in key
    )

    runs = [f["run"] for f in found]
    assert [run.pop("processes") for run in runs] == [2, 2, 1]
    same(runs[0], runs[1])
    torch.testing.assert_close(runs[0], runs[2], rtol=1e-3, atol=1e-3)  # a neighbour more or less, for rounding
    assert (tmp_path / "run-0/result.json").is_file()
    assert (tmp_path / "run-0/model").is_dir()
    assert not (tmp_path / "run-1").exists()


def test_slices_are_even_and_disjoint() -> None:
    for total in range(9):
        for count in (1, 2, 3, 5):
            rows = [list(range(total))[Processes(rank, count).own_slice(total)] for rank in range(count)]
            assert [row for some in rows for row in some] == list(range(total))
            assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_objectives_that_need_one_process_are_rejected() -> None:
    config = small_config("pooling=gap")
    objective = build_objective(config, Head(16, config.dim, config.pooling), num_classes=10)
    check_distributed(Processes(0, 3), 3, objective)
    with pytest.raises(ConfigError, match="a batch of 3 images is too small for 4 processes"):
        check_distributed(Processes(0, 4), 3, objective)
    config = small_config("pooling=cbam")
    objective = build_objective(config, Head(16, config.dim, config.pooling), num_classes=10)
    with pytest.raises(ConfigError, match=r"norm: several processes cannot train batch norm.*freeze_batch_norm=true"):
        check_distributed(Processes(0, 2), 8, objective)
    check_distributed(Processes(0, 1), 8, objective)


def test_processes_fork_and_restore_random_numbers() -> None:
    own, after = [], []
    for rank in range(3):
        torch.manual_seed(7)
        with Processes(rank, 3).fork_rng(torch.device("cpu")):
            own.append(float(torch.rand(rank + 1)[0]))
        after.append(float(torch.rand(1)))
    assert len(set(own)) == 3
    assert len(set(after)) == 1


@pytest.fixture
def torchrun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "winnow"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment
        )

    return run


@pytest.mark.slow
def test_error_in_one_process_ends_all_with_one_message(
    torchrun: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, make_folder: MakeFolder
) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n\ndef crop(image):\n"
        "    if os.environ['RANK'] == '1':\n        raise ValueError('bad luck')\n    return image[:, :32, :32]\n"
    )
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "augment.transform=mine:crop", "train.device=cpu"]
    said = torchrun("train", *words, "--out", "run")
    assert said.returncode == 1
    assert said.stderr.count("error: ") == 1
    assert "error: augment.transform: failed on an image of shape (3, 32, 32): ValueError('bad luck')" in said.stderr
    assert said.stderr.count("2 processes share the 6 images of a batch") == 1
    assert said.stderr.count("Traceback") <= 1  # torchrun's own, when all have ended
