"""Methods with settings of their own: read, kept apart, compared with what they vary."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.conftest import MakeFolder
from tests.protocols.test_runs import WORDS
from winnow.cli.main import app
from winnow.errors import ConfigError
from winnow.protocols.comparisons import base_of, comparisons
from winnow.protocols.variants import Variant, is_method

NAMES = st.lists(st.sampled_from(["c2", "ms", "xbm", "gsp", "gap_gmp"]), min_size=1, max_size=3).map("+".join)
WORD = st.builds(
    "{}={}".format, st.sampled_from(["train.lr", "pooling.eps", "augment.scale"]), st.sampled_from(["1e-4", "[0.2,1]"])
)


@given(name=NAMES, settings=st.lists(WORD, max_size=3))
def test_what_is_written_is_read_again(name: str, settings: list[str]) -> None:
    variant = Variant(name, tuple(settings))
    assert Variant.read(str(variant)) == variant
    assert is_method(str(variant))
    assert not any(map(is_method, settings))


def test_only_the_name_is_lowered_and_folders_can_be_made_of_it() -> None:
    variant = Variant.read("C2+GSP,backbone.weights=Files/A b.pth,pooling.eps=20")
    assert variant.name == "c2+gsp"
    assert Variant.read("c2,train.lr_multipliers={'a,b=c': 2}").settings == ("train.lr_multipliers={'a,b=c': 2}",)
    assert variant.settings == ("backbone.weights=Files/A b.pth", "pooling.eps=20")
    assert variant.folder.startswith("c2+gsp,backbone.weights=Files-A-b.pth,pooling.eps=20-")
    other = Variant.read("c2+gsp,backbone.weights=Files-A/b.pth,pooling.eps=20")
    assert other.folder != variant.folder
    assert Variant.read("c2,train.lr=1.").folder.startswith("c2,train.lr=1.-")
    assert len(Variant("c2", ("backbone.weights=" + "x" * 300,)).folder) < 120
    assert Variant.read("c2+gsp,pooling.eps=20").folder == "c2+gsp,pooling.eps=20"
    assert Variant.read("c1+xbm").folder == "c1+xbm"  # as runs without settings have always had it


def test_a_variant_is_compared_with_the_method_that_it_varies() -> None:
    methods = ["c2", "c2+gsp", "c2+gsp,pooling.eps=20"]
    assert base_of(methods[2], methods) == "c2+gsp"
    methods = ["c2", "c2,loss.neg_margin=1", "c2+ccp", "c2+ccp,loss.neg_margin=1"]
    assert [base_of(method, methods) for method in methods[1:]] == ["c2", "c2", "c2,loss.neg_margin=1"]
    methods = ["c2,train.lr=1e-4", "c2,train.lr=1e-5"]  # neither is the other's base
    assert base_of(methods[1], methods) is None
    assert comparisons(methods) == [(methods[1], methods[0])]


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_one_table_compares_variants_in_pairs(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=3, size=16)
    base = ["protocol", "conventional", str(photos), "c2", "c2,train.lr=1e-4", "-o", str(tmp_path), *WORDS]
    said = CliRunner().invoke(app, [*base, "--runs", "1"])
    assert said.exit_code == 0
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["method"] for row in table["rows"]] == ["c2", "c2,train.lr=1e-4"]
    # A setting of its own goes before that of all runs.
    assert [run["config"]["train"]["lr"] for run in table["runs"]] == [1e-2, 1e-4]
    assert {(pair["method"], pair["against"]) for pair in table["pairs"]} == {("c2,train.lr=1e-4", "c2")}
    assert (tmp_path / "c2,train.lr=1e-4" / "run1" / "result.json").is_file()
    (missing,) = table["missing"]
    again = CliRunner().invoke(app, [*shlex.split(missing)[1:], "--only-finished"])
    assert again.exit_code == 0
    assert json.loads((tmp_path / "table.json").read_text())["rows"] == table["rows"]


@pytest.mark.parametrize(
    ("method", "told"),
    [("c2,seed=5", "seed=5: a protocol sets seed"), ("c2,pooling=gsp", "pooling=gsp: that is another method"),
     ("c2+gsp,pooling.ep=20", "did you mean"), ("c2,dim=8", "set dim for all runs"),
     ("c2,train.lr=1e-4,train.lr=1e-5", "train.lr is set twice"), ("c2,eps", "method 'c2,eps': 'eps' is no setting")],
)  # fmt: skip
def test_settings_that_a_variant_cannot_have(method: str, told: str) -> None:
    error = CliRunner().invoke(app, ["protocol", "fair", "cub", method, *WORDS]).exception
    assert isinstance(error, ConfigError)
    assert told in str(error)


@pytest.mark.parametrize(
    ("methods", "told"),
    [(["c2", "c2,train.lr=1e-2"], "c2 and c2,train.lr=1e-2 have the same settings"),
     (["c2,train.lr=1e-4,train.max_steps=2", "c2,train.max_steps=2,train.lr=0.0001"], "have the same settings"),
     (["c2,train.lr=1e-4", "C2,train.lr=1e-4"], "is named twice")],
)  # fmt: skip
def test_a_method_is_not_compared_with_itself(methods: list[str], told: str) -> None:
    error = CliRunner().invoke(app, ["protocol", "fair", "cub", *methods, *WORDS]).exception
    assert isinstance(error, ConfigError)
    assert told in str(error)


@pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
def test_ensembles_and_tables_of_a_variant_with_odd_letters(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=3, size=16)
    method = "c2,train.lr_multipliers={'*[p|q]rojection.weight': 2}"
    base = ["protocol", "fair", str(photos), method, "-o", str(tmp_path), *WORDS, "train.max_steps=2"]
    assert CliRunner().invoke(app, [*base, "--runs", "1"]).exit_code == 0
    folder = tmp_path / Variant.read(method).folder
    assert (folder / "ensembles.json").is_file()
    assert not (tmp_path / method).exists()
    table = (tmp_path / "table.md").read_text()
    assert r"| c2,train.lr_multipliers={'*[p\|q]rojection.weight': 2} | 4 of 12 |" in table
    assert r"lr\_multipliers=\{'*[p|q]rojection.weight': 2\} &" in (tmp_path / "table.tex").read_text()
