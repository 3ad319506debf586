"""Tables of runs show the pretrained backbone without training, and what training lowered."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli.conftest import Winnow
from tests.conftest import TINY, MakeFolder
from winnow.cli import console
from winnow.cli.evaluate import DEFAULT_MAP, PRETRAINED, describe_drop
from winnow.cli.train import comparison
from winnow.data import load_images
from winnow.evaluation import retrieval_metrics
from winnow.models import Embedder

LITE = [*TINY, "backbone=tf_efficientnet_lite0", "backbone.weights=auto", "pooling=gap", "train.device=cpu",
        "image.resize=64", "image.crop=64"]  # fmt: skip


def make_noise(root: Path, classes: int = 4) -> Path:
    """Make images whose classes have nothing in common, so no metric is 100%."""
    rng = np.random.default_rng(3)
    for number in range(4 * classes):
        path = root / f"class_{number % classes}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((64, 64)).save(path)
    return root


def slow_baseline(data: Path, stride: int | None) -> dict[str, float]:
    """Return metrics of mean features, image by image."""
    settings = {"backbone": {"stride": stride}, "image": {"resize": 64, "crop": 64}}
    model, images = Embedder.create(settings).eval(), load_images(data)
    maps: list[torch.Tensor] = []
    model.backbone.register_forward_hook(lambda module, inputs, output: maps.append(output))
    for number in range(len(images)):
        model.encode(images.read(number))
    means = torch.cat([one.mean(dim=(2, 3)) for one in maps])
    return retrieval_metrics(torch.nn.functional.normalize(means, dim=1), images.labels)


@pytest.mark.slow
def test_evaluate_shows_the_pretrained_backbone_on_both_maps(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path
) -> None:
    data, other = make_folder(), make_noise(tmp_path / "other")
    said = winnow("train", f"data={data}", *LITE, "backbone.stride=16", "--out", "r")
    assert said.code == 0, said.err
    assert "default map" in said.out  # the label may be folded
    untrained = json.loads((tmp_path / "r/result.json").read_text())["untrained"]["test"]
    rows = json.loads(winnow("evaluate", "r", "--json").out)["pretrained"]
    assert rows["pretrained, no training"] == untrained
    for folder in ("r", "r/model"):
        rows = json.loads(winnow("evaluate", folder, "--data", other, "--json").out)["pretrained"]
        expected = slow_baseline(other, 16), slow_baseline(other, None)
        assert expected[0]["MAP@R"] != expected[1]["MAP@R"]
        assert rows["pretrained, no training"] == pytest.approx(expected[0], abs=1e-6)
        assert rows["pretrained, no training, default map"] == pytest.approx(expected[1], abs=1e-6)


def test_random_weights_have_no_pretrained_row(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    assert winnow("train", f"data={data}", *TINY, "--out", "r").code == 0
    assert json.loads(winnow("evaluate", "r", "--data", data, "--json").out)["pretrained"] == {}


@pytest.mark.parametrize("shared", [True, False])
def test_a_sweep_shows_each_baseline_once(shared: bool) -> None:
    floors = [{"MAP@R": 0.3, "P@1": 0.5, "P@R": 0.4}, {"MAP@R": 0.1, "P@1": 0.2, "P@R": 0.1}]
    trained = {"MAP@R": 0.6, "P@1": 0.7, "P@R": 0.6}
    done = [
        (SimpleNamespace(method=lambda name=name: name),
         SimpleNamespace(metrics={"test": trained}, untrained={"test": floors[0 if shared else number]}))
        for number, name in enumerate(("image.crop=128", "image.crop=224")) for _ in range(2)
    ]  # fmt: skip
    rows, _ = comparison(done)
    found = [(row["method"], row["MAP@R"], row["MAP@R std"]) for row in rows]
    baselines = (
        [("pretrained, no training (2 runs)", 0.3, 0.0)]
        if shared
        else [
            ("pretrained, no training (2 runs): image.crop=128", 0.3, 0.0),
            ("pretrained, no training (2 runs): image.crop=224", 0.1, 0.0),
        ]
    )
    assert found == [*baselines, ("image.crop=128 (2 runs)", 0.6, 0.0), ("image.crop=224 (2 runs)", 0.6, 0.0)]


@pytest.mark.slow
def test_a_sweep_shows_the_baseline_of_the_default_map(
    winnow: Winnow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    render = console.comparison_rows

    def keep(rows: list[dict[str, Any]], title: str) -> object:
        shown.extend(rows)
        return render(rows, title)

    monkeypatch.setattr(console, "comparison_rows", keep)
    data = make_noise(tmp_path / "noise", classes=8)
    sweep = ["--sweep", "backbone.stride=16,null", "--sweep", "seed=0,1"]
    said = winnow("train", f"data={data}", *LITE, *sweep, "--out", "s")
    assert said.code == 0, said.err
    floors = [
        json.loads(winnow("evaluate", f"s/backbone.stride=16,seed={seed}", "--json").out)["pretrained"][DEFAULT_MAP]
        for seed in (0, 1)
    ]
    rows = {row["method"]: row["MAP@R"] for row in shown}
    assert len(rows) == 5  # two baselines, the default map once, two methods
    assert f"{PRETRAINED} (2 runs): backbone.stride=16" in rows
    assert rows[f"{DEFAULT_MAP} (2 runs)"] == pytest.approx(sum(floor["MAP@R"] for floor in floors) / 2)


def test_a_lower_p_at_1_is_reported_only_if_map_at_r_rose() -> None:
    before = {"MAP@R": 0.35, "P@1": 0.73}
    text = describe_drop({"MAP@R": 0.40, "P@1": 0.71}, before)
    assert text is not None
    assert "5.0" in text
    assert "2.0" in text
    assert describe_drop({"MAP@R": 0.40, "P@1": 0.73}, before) is None
    assert describe_drop({"MAP@R": 0.34, "P@1": 0.71}, before) is None
    assert describe_drop({"MAP@R": 0.3502, "P@1": 0.71}, before) is None  # would print 0.0
