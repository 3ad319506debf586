"""Runs on a real Ray cluster of two nodes on this machine: a lost worker loses no finished run."""

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
from tests.protocols.test_plan import SMALL, make_request
from winnow.errors import ConfigError, MissingExtraError
from winnow.protocols import local_executor, make_table, ray_executor
from winnow.protocols.executors import RemoteRun, check_resources, connect, train_remotely
from winnow.protocols.render import render_csv
from winnow.training import RunOutcome, Trainer

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def lose_a_worker() -> None:
    """End the process once, in the middle of a run; called in every worker before its first request."""
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
    hook = "tests.protocols.test_executors.lose_a_worker"
    runtime_env = {"env_vars": environment, "worker_process_setup_hook": hook}
    ray.init(address=made.address, log_to_driver=False, runtime_env=runtime_env)
    try:
        yield tmp_path
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.mark.slow
def test_a_cluster_with_a_lost_worker_makes_the_same_table(cluster: Path, make_folder: MakeFolder) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    request = make_request(photos, cluster / "ray", "c2", protocol="conventional")
    ended: list[RunOutcome] = []
    for resources, text in (
        ({"gpus_per_run": 0.5}, r"no node has 0\.5 GPUs"),
        ({"gpus_per_run": 0, "cpus_per_run": 2}, "nodes have 0 GPUs and 1 cores"),
    ):
        with pytest.raises(ConfigError, match=text):  # two nodes of one core are no node of two
            request.train(request.plan(), ray_executor(**resources), ended.append)
    assert not ended
    outcomes = request.train(request.plan(), ray_executor(gpus_per_run=0), ended.append)
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert len(ended) == 3
    assert (cluster / "mark").exists()  # a worker was lost
    here = make_request(photos, cluster / "local", "c2", protocol="conventional")
    here.train(here.plan(), local_executor())
    tables = [render_csv(make_table(one, one.plan())) for one in (request, here)]
    assert tables[0] == tables[1]


def test_a_worker_answers_in_all_cases(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["winnow", "protocol", "x"])
    photos = make_folder(classes=8, images=3, size=16)
    good, bad = (
        make_request(photos, tmp_path / name, "c2", protocol="conventional", overrides=[*SMALL, *more], runs=[1])
        for name, more in (("good", []), ("bad", ["train.projection_init=pca", "dim=5000", "train.lr=1e30"]))
    )
    run = good.plan()[0].planned
    answer = train_remotely(RemoteRun.of(run))
    assert answer.outcome(run).result == good.plan()[0].result()
    assert train_remotely(RemoteRun.of(run)) == answer  # as after a worker was lost before it answered
    failed: Any = train_remotely(RemoteRun.of(bad.plan()[0].planned)).outcome(run)
    assert failed.result is None
    assert str(failed.error)


def test_resources_are_those_of_one_live_node() -> None:
    def node(alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": resources}

    check_resources([node(CPU=4), node(CPU=1, GPU=2)], gpus=0.5, cpus=1)
    check_resources([node(CPU=4)], gpus=0, cpus=4)
    for nodes in ([], [node(GPU=1)], [node(CPU=4), node(GPU=1)], [node(alive=False, CPU=4, GPU=1)]):
        with pytest.raises(ConfigError, match=r"no node has 0\.5 GPUs and 1 cores"):
            check_resources(nodes, gpus=0.5, cpus=1)


def test_a_cluster_that_does_not_answer_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="needs the ray extra")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the port is taken, and no process listens
        free = f"127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        for address in (free, f"ray://{free}", "127.0.0.1:99999", "nonsense"):
            with pytest.raises(ConfigError, match=f"{address}: no Ray cluster answers"):
                connect(ray, address)
        monkeypatch.setenv("RAY_ADDRESS", free)
        with pytest.raises(ConfigError, match=f"{free}: no Ray cluster"):
            connect(ray, None)
        assert time.monotonic() - started < 10  # Ray itself tries for minutes
    assert not ray.is_initialized()


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        ray_executor()
