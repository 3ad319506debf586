"""Settings of protocols, datasets, and methods; names of methods; which methods are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.conftest import MakeFolder
from tests.protocols.test_plan import SMALL
from winnow.cli.main import app
from winnow.data import load_images, split_by_class
from winnow.errors import ConfigError
from winnow.losses import LOSSES
from winnow.pooling import POOLINGS
from winnow.protocols import (
    DATASETS,
    PROTOCOLS,
    PUBLISHED_METHODS,
    MethodSpec,
    find_backbone,
    find_dataset,
    find_protocol,
    losses,
)
from winnow.protocols.methods import base_of, is_method, paired_methods, present_name
from winnow.registry import RENAMED_KEYS
from winnow.training import RunConfig, make_config
from winnow.training.objective import check_components, check_objective
from winnow.training.overrides import Overrides

RESNET20 = Overrides.parse("backbone=resnet20")  # the settings are checked, whichever backbone is built


def settings(protocol: str, dataset: str, method: str, backbone: str = "resnet50", chapter: int = 5) -> RunConfig:
    kind, on, network = find_protocol(protocol, chapter), find_dataset(dataset), find_backbone(backbone)
    shared, of_method = kind.settings(on, network), MethodSpec.parse(method).overrides(on, kind, network)
    return make_config((shared | of_method | on.settings(kind, 1, None) | RESNET20).tree)


# Settings


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_published_method_can_be_trained(protocol: str, dataset: str) -> None:
    for method in (*PUBLISHED_METHODS, *(f"c2+{name}" for name in POOLINGS)):
        config = settings(protocol, dataset, method)
        check_objective(config)
        check_components(config)


@pytest.mark.parametrize("dataset", DATASETS)
def test_intra_batch_connections_join_any_loss_and_pooling(dataset: str) -> None:
    for method in ("norm_softmax+libc", "norm_softmax+libc+gsp-zsr", "ms+libc"):
        config = settings("conventional", dataset, method)
        check_objective(config)
        assert config.libc.weight == 1
        assert config.train.samples_per_class > 1
    assert settings("fair", "cub", "ms").libc.weight == 0


def batch(config: RunConfig) -> tuple[int, int]:
    return config.train.classes_per_batch, config.train.samples_per_class


def test_fair_settings_are_the_published_ones() -> None:
    c2 = settings("fair", "cub", "c2")
    assert (c2.dim, c2.normalize, c2.train.lr, c2.train.weight_decay) == (128, "unit", 1e-5, 1e-4)
    assert (c2.train.eval_steps, c2.train.patience, c2.train.monitor) == (100, 15, "MAP@R")
    assert batch(c2) == (8, 4)
    assert c2.train.average == 0  # the published numbers are of weights
    assert c2.loss.model_dump() == {"name": "c2", "pos_margin": 0.0, "neg_margin": 0.3841}
    assert (c2.pooling.name, c2.zsr.weight, c2.plateau.factor) == ("gap", 0, 1)
    assert (c2.data.path, c2.data.fold, c2.data.num_folds) == ("cub200", 1, 4)
    assert c2.train.save_embeddings
    gsp = settings("fair", "sop", "pa+gsp-zsr")
    assert (gsp.train.eval_steps, gsp.train.patience, gsp.train.freeze_backbone_steps) == (1000, 10, 1000)
    assert batch(gsp) == (32, 1)
    assert gsp.train.lr_multipliers == {"references.proxies": 100}
    assert gsp.train.lr == 5e-6
    assert (gsp.pooling.num_prototypes, gsp.pooling.mu, gsp.pooling.eps) == (128, 0.3, 0.5)  # type: ignore[attr-defined]
    assert (gsp.zsr.weight, gsp.zsr.logit_scale) == (0.1, 1)
    authors = MethodSpec.parse("c2+gsp-zsr,zsr.preset=authors").own.tree
    assert make_config({"zsr": {"weight": 0.1, **authors["zsr"]}}).zsr.logit_scale == 9.5
    pair: Any = settings("fair", "cub", "c1+xbm+gsp-zsr")
    assert (pair.pooling.num_prototypes, pair.pooling.eps) == (64, 5.0)
    assert (pair.references.num_batches, pair.references.start_step) == (25, 1000)
    references: Any = [settings("fair", *one).references for one in (("sop", "c2+xbm"), ("inshop", "c2+xbm-s"))]
    assert [one.num_batches for one in references] == [1400, 100]
    zsr: Any = settings("fair", "cub", "c2+zsr").pooling
    assert zsr.mu == 1
    assert settings("fair", "cub", "c2+gsp-only").zsr.weight == 0
    references = [settings("fair", on, "softtriple").references for on in ("cub", "sop")]
    assert [one.proxies_per_class for one in references] == [10, 1]


def test_chapter_3_and_ccp() -> None:
    ccp: Any = settings("fair", "cars", "ms+ccp", chapter=3)
    assert (ccp.train.eval_steps, ccp.train.patience, ccp.normalize) == (25, 60, "ball")
    assert (ccp.references.proxies_per_class, ccp.references.pool_size, ccp.references.patience) == (8, 12, 3)
    form = ccp.references.start_from, ccp.references.normalize_proxies, ccp.references.lr_multiplier
    assert form == ("best", True, None)
    literal: Any = settings("fair", "cars", "ms+ccp-literal", chapter=3).references
    assert (literal.start_from, literal.normalize_proxies, literal.lr_multiplier) == ("last", False, 1)
    assert (literal.proxies_per_class, literal.pool_size) == (8, 12)
    assert settings("fair", "cub", "c2+ccp-s-literal").references.proxies_per_class == 1  # type: ignore[attr-defined]
    large: Any = settings("fair", "sop", "c2+ccp", chapter=3).references
    assert large.proxies_per_class == 4
    # In chapter 5 too, subproblems end after three validations that are 25 steps apart.
    later = settings("fair", "cub", "c1+ccp+gsp-zsr")
    assert (later.train.eval_steps, later.train.patience, later.normalize) == (25, 60, "unit")
    ablation = settings("ablation", "cub", "c2+ccp")
    assert (ablation.train.eval_steps, ablation.train.patience, ablation.data.num_folds) == (25, 40, 3)
    conventional = settings("conventional", "cub", "c2+ccp", chapter=3)
    assert (conventional.train.patience, conventional.normalize, conventional.dim) == (15, "ball", 512)
    assert settings("conventional", "cub", "c2+ccp").normalize == "unit"
    assert find_protocol("ablation", 3) is find_protocol("ablation")  # of chapter 3 alone
    assert find_protocol("ablation").chapter == 3
    for name, chapter, text in (("fair", 4, "expected 3 or 5"), ("tuning", 3, "fair, conventional, ablation")):
        with pytest.raises(ConfigError, match=text):
            find_protocol(name, chapter)


def test_conventional_settings_are_the_published_ones() -> None:
    cub = settings("conventional", "cub", "c1+xbm")
    assert (cub.dim, cub.train.monitor, cub.train.eval_steps, cub.train.patience) == (512, "P@1", 25, 15)
    assert batch(cub) == (28, 4)
    assert (cub.train.lr, cub.train.weight_decay) == (1e-5, 4e-4)
    assert cub.pooling.name == "gap_gmp"
    assert cub.data.val_classes == "test"
    assert cub.plateau.model_dump() == {
        "factor": 0.5, "patience": 4, "threshold": 1e-3, "cooldown": 2, "min_lr": 1e-6,
    }  # fmt: skip
    other = settings("conventional", "cars", "c1+xbm+gsp-zsr", backbone="bn_inception")
    assert (batch(other), other.train.lr, other.train.weight_decay) == ((32, 4), 1e-4, 1e-4)
    assert other.pooling.name == "gmp_gsp"
    assert settings("conventional", "sop", "c2").train.patience == 10
    assert batch(settings("conventional", "cub", "pa")) == (100, 1)
    for dataset in ("sop", "inshop"):  # as many images as other losses have
        assert batch(settings("conventional", dataset, "pa")) == (112, 1)
        assert batch(settings("conventional", dataset, "pa", backbone="bn_inception")) == (128, 1)
    tuning = settings("tuning", "sop", "pnca")
    assert (tuning.train.eval_steps, tuning.train.patience, tuning.data.num_folds) == (1000, 7, 5)


def test_a_folder_is_split_like_a_benchmark_dataset(make_folder: MakeFolder) -> None:
    folder = make_folder(classes=18, images=2, size=8)  # 9 to train: parts end at 2, 4, 6, 9
    images, names = load_images(folder), load_images(folder).class_names
    held: list[str] = []
    for fold in range(1, 5):
        found = find_dataset(str(folder)).settings(PROTOCOLS["fair"], fold, None).flat()
        parts: Any = {key.removeprefix("data."): value for key, value in found.items() if key != "data"}
        splits = split_by_class(images, **parts)
        assert splits.test is not None
        assert splits.test.class_names == names[9:]
        assert set(splits.train.class_names) | set(splits.val.class_names) == set(names[:9])
        held = [*splits.val.class_names, *held]
        assert len(splits.val.class_names) == (3 if fold == 1 else 2)
    assert held == list(names[:9])
    with pytest.raises(ConfigError, match="at least 20 classes"):
        find_dataset(str(folder)).settings(PROTOCOLS["tuning"], 1, None)


# Names


@pytest.mark.parametrize(
    ("method", "text"),
    [("c3", "did you mean"), ("c2+gps", "did you mean 'gsp'"), ("gsp+c2", "starts with a loss"),
     ("pa+xbm", "pa and xbm both set the references"), ("c2+gsp+zsr", "both set the pooling"),
     ("c2+", "unknown addition ''")],
)  # fmt: skip
def test_unknown_methods(method: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MethodSpec.parse(method)


def test_other_unknown_names() -> None:
    for find, name, text in (
        (find_dataset, "cub201", "did you mean 'cub200'"), (find_protocol, "fairr", "did you mean 'fair'"),
        (find_backbone, "resnet5", "did you mean 'resnet50'"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=text):
            find(name)


@pytest.mark.parametrize("name", [*LOSSES, *LOSSES.aliases])
def test_methods_have_the_names_of_the_config(name: str) -> None:
    method = MethodSpec.parse(name)
    assert method == MethodSpec.parse(LOSSES.first_name(name))
    assert str(method) in losses()
    assert settings("fair", "cub", name).loss.name == LOSSES.first_name(name)


def test_names_of_version_0_1_0_count_as_the_present_ones() -> None:
    for old, new in (("c2+gsp", "c2+gsp-zsr"), ("C1+XBM+GSP", "c1+xbm+gsp-zsr"), ("c2+gsp-alone", "c2+gsp-only"),
                     ("proxy_anchor+gsp,pooling.eps=20", "pa+gsp-zsr,pooling.eps=20"), ("c2+gem", "c2+gemean"),
                     ("contrastive+gsp-zsr", "c2+gsp-zsr"), ("c1+memory", "c1+xbm"),
                     ("c1+cross_batch_memory+gsp-zsr", "c1+xbm+gsp-zsr")):  # fmt: skip
        assert str(MethodSpec.parse(old)) == present_name(old) == new
    assert RENAMED_KEYS["method +gsp"] == "+gsp-zsr"  # the command line prints a notice
    assert present_name("GSP + ZSR") == "GSP + ZSR"  # a variant of a study
    method = MethodSpec.parse("pa+gsp,pooling.eps=20")
    assert set(method.earlier_folders) == {
        "pa+gsp,pooling.eps=20", "proxy_anchor+gsp,pooling.eps=20", "proxy_anchor+gsp-zsr,pooling.eps=20",
    }  # fmt: skip
    assert MethodSpec.parse("c1+xbm").earlier_folders == []


METHODS = st.tuples(
    st.sampled_from(["c2", "ms", "pa"]), st.lists(st.sampled_from(["libc", "gsp-zsr"]), unique=True).map(tuple)
)
SETTING = st.builds(
    "{}={}".format, st.sampled_from(["train.lr", "pooling.eps", "augment.scale"]), st.sampled_from(["1e-4", "[0.2,1]"])
)


@given(parts=METHODS, own=st.lists(SETTING, max_size=3))
def test_a_written_method_is_read_again(parts: tuple[str, tuple[str, ...]], own: list[str]) -> None:
    method = MethodSpec(*parts, tuple(own))
    assert MethodSpec.parse(str(method)) == method
    assert is_method(str(method))
    assert not any(map(is_method, own))


def test_only_the_name_is_lowered_and_folders_can_be_made_of_it() -> None:
    method = MethodSpec.parse("C2+GSP-ZSR,backbone.weights=Files/A b.pth,pooling.eps=20")
    assert method.name == "c2+gsp-zsr"
    own = "train.lr_multipliers={'a,b=c': 2}"
    assert MethodSpec.parse(f"c2,{own}").settings == (own,)
    assert method.settings == ("backbone.weights=Files/A b.pth", "pooling.eps=20")
    assert method.folder.startswith("c2+gsp-zsr,backbone.weights=Files-A-b.pth,pooling.eps=20-")
    other = MethodSpec.parse("c2+gsp-zsr,backbone.weights=Files-A/b.pth,pooling.eps=20")
    assert other.folder != method.folder
    assert MethodSpec.parse("c2,train.lr=1.").folder.startswith("c2,train.lr=1.-")
    assert len(MethodSpec("c2", (), ("backbone.weights=" + "x" * 300,)).folder) < 120
    assert MethodSpec.parse("c2+gsp-zsr,pooling.eps=20").folder == "c2+gsp-zsr,pooling.eps=20"


@pytest.mark.parametrize(
    ("method", "text"),
    [("c2,seed=5", "seed=5: the protocol sets seed"), ("c2,pooling=gsp", "the override changes the method"),
     ("c2+gsp,pooling.ep=20", "did you mean"), ("c2,dim=8", "Set dim for all runs"),
     ("c2,train.lr=1e-4,train.lr=1e-5", "train.lr is set twice"), ("c2,eps", "expected KEY=VALUE, got 'eps'")],
)  # fmt: skip
def test_settings_that_a_method_cannot_have(method: str, text: str) -> None:
    error = CliRunner().invoke(app, ["protocol", "fair", "cub", method, *SMALL]).exception
    assert isinstance(error, ConfigError)
    assert text in str(error)


# Comparisons


def compared(*methods: str) -> list[tuple[str, str]]:
    return [(str(one), str(base)) for one, base in paired_methods([MethodSpec.parse(method) for method in methods])]


def test_methods_are_compared_with_those_they_extend() -> None:
    assert compared("c2", "c1+xbm", "c2+gsp-zsr", "c1+xbm+gsp-zsr", "pa") == [
        ("c1+xbm", "c2"), ("c2+gsp-zsr", "c2"), ("c1+xbm+gsp-zsr", "c1+xbm"), ("pa", "c2"),
    ]  # fmt: skip
    # The first has a base too, and is not compared with it a second time.
    assert compared("c2+gsp-zsr", "ms", "c2") == [("c2+gsp-zsr", "c2"), ("ms", "c2+gsp-zsr")]
    assert compared("c2") == []


def test_a_method_with_settings_is_compared_with_the_one_without() -> None:
    def bases(*methods: str) -> list[str]:
        specs = [MethodSpec.parse(method) for method in methods]
        return [str(base_of(spec, specs)) for spec in specs[1:]]

    assert bases("c2", "c2+gsp-zsr", "c2+gsp-zsr,pooling.eps=20") == ["c2", "c2+gsp-zsr"]
    margin = "loss.neg_margin=1"
    assert bases("c2", f"c2,{margin}", "c2+ccp", f"c2+ccp,{margin}") == ["c2", "c2", f"c2,{margin}"]
    assert bases("c2", "c2+ccp", f"c2,{margin}", f"c2+ccp,{margin}") == ["c2", "c2", f"c2,{margin}"]
    slow, fast = "c2,train.lr=1e-5", "c2,train.lr=1e-4"
    assert bases(slow, fast) == ["None"]  # neither extends the other
    assert compared(slow, fast) == [(fast, slow)]


@pytest.mark.parametrize(
    ("methods", "text"),
    [(["c2", "c2,train.lr=1e-2"], "c2 and c2,train.lr=1e-2 have the same settings"),
     (["c2,train.lr=1e-4,train.max_steps=2", "c2,train.max_steps=2,train.lr=0.0001"], "have the same settings"),
     (["c2,train.lr=1e-4", "C2,train.lr=1e-4"], "is named twice"), (["c2+gsp", "c2+gsp-zsr"], "is named twice"),
     ([], "expected at least one")],
)  # fmt: skip
def test_a_method_is_not_compared_with_itself(methods: list[str], text: str, tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["protocol", "fair", "cub", *methods, *SMALL, "-o", str(tmp_path)]).exception
    assert isinstance(error, ConfigError)
    assert text in str(error)
