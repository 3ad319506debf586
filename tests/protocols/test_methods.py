"""What the protocols, sets and methods mean in settings; what the documents report for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeFolder
from winnow.data import load_images, split_by_class
from winnow.errors import ConfigError
from winnow.pooling import POOLINGS
from winnow.protocols import (
    BACKBONES,
    PROTOCOLS,
    ROWS,
    SETS,
    Task,
    find_backbone,
    find_protocol,
    find_set,
    method_words,
)  # fmt: skip
from winnow.protocols.comparisons import comparisons
from winnow.protocols.documents import reported
from winnow.protocols.runs import seed_of_run
from winnow.training import RunConfig, load_config
from winnow.training.objective import check_components, check_objective

TIMM = "backbone=resnet20"  # whatever backbones are built, these settings are checked


def settings(protocol: str, target: str, method: str, backbone: str = "resnet50", chapter: int = 5) -> RunConfig:
    kind, on = find_protocol(protocol, chapter), find_set(target)
    network = find_backbone(backbone)
    words = [*kind.words(on, network), *method_words(method, on, kind, network)]
    return load_config(None, [*words, *on.data_words(kind, 1, None), TIMM])


@pytest.mark.parametrize("target", SETS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_row_of_the_tables_can_be_trained(protocol: str, target: str) -> None:
    for method in (*ROWS, *(f"c2+{name}" for name in POOLINGS)):
        config = settings(protocol, target, method)
        check_objective(config)
        check_components(config)


@pytest.mark.parametrize("target", SETS)
def test_intra_batch_connections_join_any_loss_and_pooling(target: str) -> None:
    for method in ("norm_softmax+libc", "norm_softmax+libc+gsp", "ms+libc"):
        config = settings("conventional", target, method)
        check_objective(config)
        assert config.libc.weight == 1
        assert config.train.samples_per_class > 1
    assert settings("fair", "cub", "ms").libc.weight == 0


def batch(config: RunConfig) -> tuple[int, int]:
    return config.train.classes_per_batch, config.train.samples_per_class


def test_fair_settings_are_the_documents() -> None:
    c2 = settings("fair", "cub", "c2")
    assert (c2.dim, c2.normalize, c2.train.lr, c2.train.weight_decay) == (128, "unit", 1e-5, 1e-4)
    assert (c2.train.eval_steps, c2.train.patience, c2.train.monitor) == (100, 15, "MAP@R")
    assert batch(c2) == (8, 4)
    assert c2.loss.model_dump() == {"name": "c2", "pos_margin": 0.0, "neg_margin": 0.3841}
    assert (c2.pooling.name, c2.zsr.weight, c2.plateau.factor) == ("gap", 0, 1)
    assert (c2.data.path, c2.data.fold, c2.data.num_folds) == ("cub200", 1, 4)
    assert c2.train.save_embeddings
    gsp = settings("fair", "sop", "pa+gsp")
    assert (gsp.train.eval_steps, gsp.train.patience, gsp.train.freeze_backbone_steps) == (1000, 10, 1000)
    assert batch(gsp) == (32, 1)
    assert gsp.train.lr_multipliers == {"references.proxies": 100}
    assert gsp.train.lr == 5e-6
    assert {key: getattr(gsp.pooling, key) for key in ("num_prototypes", "mu", "eps")} == {
        "num_prototypes": 128,
        "mu": 0.3,
        "eps": 0.5,
    }
    assert gsp.zsr.weight == 0.1
    pair = settings("fair", "cub", "c1+xbm+gsp")
    assert (pair.pooling.num_prototypes, pair.pooling.eps) == (64, 5.0)
    assert (pair.references.num_batches, pair.references.start_step) == (25, 1000)
    assert settings("fair", "sop", "c2+xbm").references.num_batches == 1400
    assert settings("fair", "inshop", "c2+xbm-s").references.num_batches == 100
    assert settings("fair", "cub", "c2+zsr").pooling.mu == 1
    assert settings("fair", "cub", "c2+gsp-alone").zsr.weight == 0
    assert settings("fair", "cub", "softtriple").references.proxies_per_class == 10
    assert settings("fair", "sop", "softtriple").references.proxies_per_class == 1


def test_chapter_3_and_ccp() -> None:
    ccp = settings("fair", "cars", "ms+ccp", chapter=3)
    assert (ccp.train.eval_steps, ccp.train.patience, ccp.normalize) == (25, 60, "ball")
    assert (ccp.references.proxies_per_class, ccp.references.pool_size, ccp.references.patience) == (8, 12, 3)
    assert ccp.references.start_from == "last"
    assert settings("fair", "sop", "c2+ccp", chapter=3).references.proxies_per_class == 4
    # In chapter 5 too, problems end after three validations that are 25 steps apart.
    later = settings("fair", "cub", "c1+ccp+gsp")
    assert (later.train.eval_steps, later.train.patience, later.normalize) == (25, 60, "unit")
    ablation = settings("ablation", "cub", "c2+ccp")
    assert (ablation.train.eval_steps, ablation.train.patience, ablation.data.num_folds) == (25, 40, 3)
    conventional = settings("conventional", "cub", "c2+ccp", chapter=3)
    assert (conventional.train.patience, conventional.normalize, conventional.dim) == (15, "ball", 512)
    assert settings("conventional", "cub", "c2+ccp").normalize == "unit"
    with pytest.raises(ConfigError, match="chapters 3 and 5"):
        find_protocol("fair", 4)
    assert find_protocol("ablation", 3) is find_protocol("ablation")  # of chapter 3 alone
    assert find_protocol("ablation").chapter == 3
    with pytest.raises(ConfigError, match=r"--chapter 3: .* fair, conventional, ablation"):
        find_protocol("tuning", 3)


def test_conventional_settings_are_the_documents() -> None:
    cub = settings("conventional", "cub", "c1+xbm")
    assert (cub.dim, cub.train.monitor, cub.train.eval_steps, cub.train.patience) == (512, "P@1", 25, 15)
    assert batch(cub) == (28, 4)
    assert (cub.train.lr, cub.train.weight_decay) == (1e-5, 4e-4)
    assert cub.pooling.name == "gap_gmp"
    assert cub.data.val_classes == "test"
    assert cub.plateau.model_dump() == {
        "factor": 0.5, "patience": 4, "threshold": 1e-3, "cooldown": 2, "min_lr": 1e-6,
    }  # fmt: skip
    other = settings("conventional", "cars", "c1+xbm+gsp", backbone="bn_inception")
    assert (batch(other), other.train.lr, other.train.weight_decay) == ((32, 4), 1e-4, 1e-4)
    assert other.pooling.name == "gmp_gsp"
    assert settings("conventional", "sop", "c2").train.patience == 10
    assert batch(settings("conventional", "cub", "pa")) == (100, 1)
    for target in ("sop", "inshop"):  # as many images as other losses have
        assert batch(settings("conventional", target, "pa")) == (112, 1)
        assert batch(settings("conventional", target, "pa", backbone="bn_inception")) == (128, 1)
    tuning = settings("tuning", "sop", "pnca")
    assert (tuning.train.eval_steps, tuning.train.patience, tuning.data.num_folds) == (1000, 7, 5)


@pytest.mark.parametrize(
    ("method", "told"),
    [("c3", "did you mean"), ("c2+gps", "did you mean 'gsp'"), ("gsp+c2", "begins with a loss"),
     ("pa+xbm", "pa and xbm both bring references"), ("c2+gsp+zsr", "both bring pooling"),
     ("c2+", "nothing is called")],
)  # fmt: skip
def test_names_that_are_none(method: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        method_words(method, SETS["cub200"], PROTOCOLS["fair"], BACKBONES["resnet50"])


def test_other_names_that_are_none() -> None:
    for find, name, told in (
        (find_set, "cub201", "did you mean 'cub200'"), (find_protocol, "fairr", "did you mean 'fair'"),
        (find_backbone, "resnet5", "did you mean 'resnet50'"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            find(name)


def test_a_set_of_ones_own_is_cut_like_theirs(make_folder: MakeFolder) -> None:
    folder = make_folder(classes=18, images=2, size=8)  # 9 to train: parts end at 2, 4, 6, 9
    images, names = load_images(folder), load_images(folder).class_names
    held: list[str] = []
    for model in range(1, 5):
        words = dict(
            w.removeprefix("data.").split("=") for w in find_set(str(folder)).data_words(PROTOCOLS["fair"], model, None)
        )
        parts: dict[str, Any] = {key: value for key, value in words.items() if key != "path"}
        splits = split_by_class(images, **parts)
        assert splits.test is not None
        assert splits.test.class_names == names[9:]
        assert set(splits.train.class_names) | set(splits.val.class_names) == set(names[:9])
        held = [*splits.val.class_names, *held]
        assert len(splits.val.class_names) == (3 if model == 1 else 2)
    assert held == list(names[:9])
    with pytest.raises(ConfigError, match="needs at least 20"):
        find_set(str(folder)).data_words(PROTOCOLS["tuning"], 1, None)


def test_the_documents_numbers() -> None:
    def value(protocol: str, *key: Any, chapter: int = 5) -> tuple[float, str] | None:
        found = reported(find_protocol(protocol, chapter), *key)
        return None if found is None else (found.value, found.table)

    assert value("conventional", "cub200", "c1+xbm", "resnet50", 512, "P@1") == (66.68, "5.2")
    assert value("conventional", "cars196", "c1+xbm+gsp", "resnet50", 512, "MAP@R") == (25.76, "5.2")
    assert value("conventional", "cub200", "c2+ccp", "resnet50", 512, "P@1") == (71.04, "3.2")
    assert value("conventional", "cars196", "ms+ccp", "resnet50", 512, "P@1") == (89.02, "3.2")
    # BN-Inception's stands beside any network's in the fair protocol; the chapter asked for goes first.
    assert value("fair", "cub200", "c2", "resnet50", 128, "MAP@R") == (20.58, "5.1")
    assert value("fair", "cub200", "c2", "resnet50", 128, "MAP@R", chapter=3) == (21.01, "3.1")
    assert value("fair", "cub200", "c2+zsr", "resnet50", 512, "MAP@R") == (26.49, "5.3")
    assert value("fair", "cub200", "c2+ccp", "resnet50", 512, "MAP@R") == (28.02, "3.1")
    assert value("fair", "cub200", "c2+gemean", "resnet50", 512, "MAP@R") is None
    assert reported(find_protocol("fair"), "cub200", "c2+gsp", "resnet50", 128, "MAP@R").std == 0.24  # type: ignore[union-attr]
    misprint = reported(find_protocol("conventional"), "cars196", "c1+xbm+gsp", "bn_inception", 512, "MAP@R")
    assert misprint is not None
    assert "misprint" in misprint.doubt
    for method in ROWS:
        assert reported(find_protocol("fair"), "cub200", method, "resnet50", 512, "MAP@R") is not None, method


def test_methods_are_compared_with_what_they_add_to() -> None:
    methods = ["c2", "c1+xbm", "c2+gsp", "c1+xbm+gsp", "pa"]
    assert comparisons(methods) == [
        ("c1+xbm", "c2"), ("c2+gsp", "c2"), ("c1+xbm+gsp", "c1+xbm"), ("pa", "c2"),
    ]  # fmt: skip
    # The first has a base too, which is not compared with it once more.
    assert comparisons(["c2+gsp", "ms", "c2"]) == [("c2+gsp", "c2"), ("ms", "c2+gsp")]
    assert comparisons(["c2"]) == []


def test_seeds_differ_between_models_and_not_between_methods(tmp_path: Path) -> None:
    task = Task(PROTOCOLS["fair"], SETS["cub200"], ["c2", "ms"], tmp_path, BACKBONES["resnet50"], words=[TIMM])
    trials = task.trials()
    assert len(trials) == 24
    seeds = {m: [t.planned.config.seed for t in trials if t.method == m] for m in ("c2", "ms")}
    assert seeds["c2"] == seeds["ms"]
    assert len(set(seeds["c2"])) == 12
    assert [seed_of_run(2, run) for run in range(1, 10)] == list(range(21, 30))  # as in kept runs
    every = [seed_of_run(model, run) for model in range(1, 10) for run in range(1, 1001)]
    assert len(set(every)) == len(every)
    assert [(t.model, t.run) for t in trials[:5]] == [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2)]
    for protocol, wrong, told in (
        ("fair", {"models": [5]}, "--folds 5: the fair protocol has folds 1-4"),
        ("conventional", {"models": [2]}, "--folds 2: the conventional protocol has one model: leave --folds out"),
        ("fair", {"runs": [0]}, "--runs 0: runs are counted from 1"),
    ):
        with pytest.raises(ConfigError, match=told):
            Task(PROTOCOLS[protocol], SETS["cub200"], ["c2"], tmp_path, BACKBONES["resnet50"], **wrong).trials()
    for methods, told in (([], "at least one"), (["c2", "c2"], "twice")):
        with pytest.raises(ConfigError, match=told):
            Task(PROTOCOLS["fair"], SETS["cub200"], methods, tmp_path, BACKBONES["resnet50"]).trials()
