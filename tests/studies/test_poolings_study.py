"""The comparison of poolings: which runs it plans, and what it says of their results."""

import pytest

from winnow.pooling import POOLINGS
from winnow.studies import poolings
from winnow.studies.base import Task
from winnow.training.objective import check_components, check_objective


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
def test_every_registered_pooling_takes_part_with_both_losses(small, tmp_path):
    compared = poolings.comparison(small)
    planned = [
        compared.plan(method, seed, Task(True, runs=tmp_path)) for method in compared.methods for seed in compared.seeds
    ]
    for run in planned:
        check_objective(run.config)
        check_components(run.config)
    tried = {(run.config.pooling.name, run.config.loss.name) for run in planned}
    assert tried == {(name, loss) for name in POOLINGS for loss in ("c2", "proxy_nca")}
    assert {run.config.seed for run in planned} == ({0} if small else {0, 1, 2})
    names = [run.run_dir.path.name for run in planned]
    assert len(set(names)) == len(names)


def test_vectors_of_parts_are_those_the_names_say(tmp_path):
    compared = poolings.comparison(small=False)
    shapes = {}
    for method in compared.methods:
        config = compared.plan(method, 0, Task(True, runs=tmp_path)).config
        local = POOLINGS[config.pooling.name].local_width(config.dim, config.pooling)
        shapes[method.name.split(",")[0]] = f"{config.dim // local}x{local}"
    for name in ("OTP 8x16", "NetVLAD 8x16", "OTP 64x128", "NetVLAD 64x128"):
        assert shapes[name] == name.split()[1]


def test_the_text_ranks_what_is_there():
    rows = [
        {"method": "GAP, C2", "MAP@R": 2.0, "MAP@R sd": 0.5},
        {"method": "GMP, projected, C2", "MAP@R": 9.0, "MAP@R sd": 2.0},
        {"method": "GSP, C2", "MAP@R": 20.0, "MAP@R sd": 0.1},
        {"method": "GSP + ZSR, C2", "MAP@R": 7.5, "MAP@R sd": 0.1},
        {"method": "NetVLAD 8x16, C2", "MAP@R": 9.5, "MAP@R sd": 0.1},
        {"method": "DeLF, C2", "MAP@R": None},
        {"method": "GAP, PNCA", "MAP@R": 4.0},
    ]
    assert poolings.ranking(rows) == [  # by what the documents call GSP, which is not GSP alone
        "- With C2 GSP + ZSR is ahead of average pooling: +5.5; agrees.",
        "- With C2 it is far ahead of all others but NetVLAD: from the best, GMP, projected, -1.5; cannot be told from "
        "what seeds deviate by. It is number 4 of 5, and first is GSP.",
    ]
