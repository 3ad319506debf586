"""Runs as tasks of a real Ray cluster of two nodes on this machine: a lost worker costs nothing that was finished."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeFolder
from tests.protocols.test_runs import WORDS, make_task
from winnow.errors import MissingExtraError
from winnow.protocols import make_table, on_ray, packed
from winnow.protocols.engines import Order, train_one
from winnow.protocols.write import comma_separated
from winnow.training import Outcome, Trainer

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")


def lose_a_worker() -> None:
    """End the process once, in the middle of a run; called in every worker before its first task."""
    whole = Trainer.take_step

    def take_step(self: Trainer, step: int) -> None:
        mark = Path(os.environ["WINNOW_TEST_MARK"])
        assert self.folder is not None
        if step == 5 and self.folder.path.name == "run2" and not mark.exists():
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
    ended: list[Outcome] = []
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
        for name, more in (("good", []), ("bad", ["train.start=principal", "dim=5000", "train.lr=1e30"]))
    )
    run = good.trials()[0].planned
    answer = train_one(Order.of(run))
    assert answer.outcome(run).result == good.trials()[0].result()
    assert train_one(Order.of(run)) == answer  # told again, as after a worker was lost on its way back
    failed: Any = train_one(Order.of(bad.trials()[0].planned)).outcome(run)
    assert failed.result is None
    assert str(failed.error)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"winnow-dml\[ray\]"):
        on_ray()
