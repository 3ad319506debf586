"""Runs as tasks of a real Ray cluster of two nodes on this machine: a lost worker costs nothing that was finished."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeFolder
from tests.protocols.test_runs import WORDS, make_task
from winnow.errors import ConfigError, MissingExtraError
from winnow.protocols import make_table, on_ray, packed
from winnow.protocols.cluster import check_room, connect
from winnow.protocols.engines import Order, train_one
from winnow.protocols.write import comma_separated
from winnow.training import RunOutcome, Trainer

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def lose_a_worker() -> None:
    """End the process once, in the middle of a run; called in every worker before its first task."""
    whole = Trainer.take_step

    def take_step(self: Trainer, step: int) -> None:
        mark = Path(os.environ["WINNOW_TEST_MARK"])
        assert self.run_dir is not None
        if step == 5 and self.run_dir.path.name == "run2" and not mark.exists():
            mark.write_text("lost once")
            os._exit(1)
        whole(self, step)

    Trainer.take_step = take_step  # type: ignore[method-assign]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """Two nodes of one core each, whose workers are lost once, in the middle of a run."""
    ray = pytest.importorskip("ray", reason="needs the ray extra")
    from ray.cluster_utils import Cluster

    root = str(Path(__file__).resolve().parents[2])
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    environment = {
        "PYTHONPATH": f"{root}/src:{root}", "OMP_NUM_THREADS": "1", "WINNOW_TEST_MARK": str(tmp_path / "mark"),
    }  # fmt: skip
    ray.init(
        address=made.address, log_to_driver=False,
        runtime_env={"env_vars": environment, "worker_process_setup_hook": "tests.protocols.test_ray.lose_a_worker"},
    )  # fmt: skip
    try:
        yield tmp_path
    finally:
        ray.shutdown()
        made.shutdown()


def test_a_cluster_of_two_nodes_makes_the_same_table_though_a_worker_is_lost(
    cluster: Path, make_folder: MakeFolder
) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    task = make_task(photos, cluster / "ray", "c2", protocol="conventional")
    ended: list[RunOutcome] = []
    for share, told in (
        ({"gpus": 0.5}, r"--gpus 0\.5: no node"),
        ({"gpus": 0, "cpus": 2}, r"have 0 GPUs and 1 cores\)"),
    ):
        with pytest.raises(ConfigError, match=told):  # two nodes of one core are no node of two
            task.train(task.trials(), on_ray(**share), ended.append)
    assert not ended
    outcomes = task.train(task.trials(), on_ray(gpus=0), ended.append)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert len(ended) == 3
    assert (cluster / "mark").exists()  # a worker was lost
    here = make_task(photos, cluster / "packed", "c2", protocol="conventional")
    here.train(here.trials(), packed())
    tables = [comma_separated(one, make_table(one, one.trials())) for one in (task, here)]
    assert tables[0] == tables[1]


def test_a_worker_answers_in_all_cases(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["winnow", "protocol", "x"])
    photos = make_folder(classes=8, images=3, size=16)
    good, bad = (
        make_task(photos, tmp_path / name, "c2", protocol="conventional", words=[*WORDS, *more], runs=[1])
        for name, more in (("good", []), ("bad", ["train.projection_init=pca", "dim=5000", "train.lr=1e30"]))
    )
    run = good.trials()[0].planned
    answer = train_one(Order.of(run))
    assert answer.outcome(run).result.to_dict() == good.trials()[0].result()
    assert train_one(Order.of(run)) == answer  # told again, as after a worker was lost on its way back
    failed: Any = train_one(Order.of(bad.trials()[0].planned)).outcome(run)
    assert failed.result is None
    assert str(failed.error)


def test_room_is_that_of_one_living_node() -> None:
    def node(alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": resources}

    check_room([node(CPU=4), node(CPU=1, GPU=2)], gpus=0.5, cpus=1)
    check_room([node(CPU=4)], gpus=0, cpus=4)
    for nodes in ([], [node(GPU=1)], [node(CPU=4), node(GPU=1)], [node(alive=False, CPU=4, GPU=1)]):
        with pytest.raises(ConfigError, match=r"--gpus 0\.5: no node of the cluster has that"):
            check_room(nodes, gpus=0.5, cpus=1)


def test_a_cluster_that_does_not_answer_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs the ray extra")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens
        free = f"127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        for address in (free, f"ray://{free}", "127.0.0.1:99999", "nonsense"):
            with pytest.raises(ConfigError, match=f"--address {address}: no Ray cluster answers there"):
                connect(ray, address)
        monkeypatch.setenv("RAY_ADDRESS", free)
        with pytest.raises(ConfigError, match=f"--address {free}: no Ray"):
            connect(ray, None)
        assert time.monotonic() - begun < 10  # Ray itself goes on for minutes
    assert not ray.is_initialized()


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"winnow-dml\[ray\]"):
        on_ray()
