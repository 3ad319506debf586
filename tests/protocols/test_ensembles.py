"""Concatenated embeddings of ensembles, their cache, and runs of other test images."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import winnow.protocols.ensembles as ensembles_module
from tests.protocols.finished import LABELS, NAMES, finish, make_request
from winnow.errors import DataError, ModelError
from winnow.protocols import ProtocolRequest, ProtocolRun, concatenate, ensemble_metrics, make_table
from winnow.protocols.render import render_markdown
from winnow.training import RunDir

OTHERS = (*NAMES[:-1], "class3/new.jpg")


def run_all(request: ProtocolRequest, other: set[tuple[str, int, int]]) -> list[ProtocolRun]:
    runs = request.plan()
    for run in runs:
        names = OTHERS if run.key in other else NAMES
        finish(run, 0.2 + 0.01 * run.run + 0.001 * run.fold, names=names)
    return runs


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=1, keepdim=True)


def test_metrics_are_cached_until_a_model_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(12) // 3
    runs = [[RunDir(tmp_path / f"fold{f}-run{r}") for r in (1, 2)] for f in (1, 2)]

    def fill(run: RunDir) -> None:
        run.path.mkdir(exist_ok=True)
        run.write_embeddings(torch.randn(12, 4, generator=rng), labels, list("abcdefghijkl"))

    for fold in runs:
        for run in fold:
            fill(run)
    evaluated: list[int] = []
    plain = ensembles_module.retrieval_metrics

    def count(*args: Any, **kwargs: Any) -> dict[str, float]:
        evaluated.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(ensembles_module, "retrieval_metrics", count)
    first = ensemble_metrics(runs, normalize="unit", folder=tmp_path)
    assert first["MAP@R"].shape == (2, 2)
    assert len(evaluated) == 4
    again = ensemble_metrics(runs, normalize="unit", folder=tmp_path)
    assert len(evaluated) == 4
    assert all(np.array_equal(first[name], again[name]) for name in first)
    ensemble_metrics([runs[0][:1], runs[1][:1]], normalize="unit", folder=tmp_path)
    ensemble_metrics(runs, normalize="unit", folder=tmp_path)
    assert len(evaluated) == 4  # a request for some forgets none
    fill(runs[0][0])
    changed = ensemble_metrics(runs, normalize="unit", folder=tmp_path)
    assert len(evaluated) == 6
    assert np.array_equal(changed["MAP@R"][1], first["MAP@R"][1])
    gallery = ensemble_metrics(runs, normalize="unit", folder=tmp_path, queries=5)
    assert len(evaluated) == 10
    one = concatenate([run.read_embeddings()[0] for run in (runs[0][0], runs[1][0])], unit)
    near = torch.cdist(one[:5], one[5:]).argmin(dim=1) + 5
    counted = torch.isin(labels[:5], labels[5:])
    assert gallery["P@1"][0, 0] == pytest.approx(float((labels[near] == labels[:5])[counted].double().mean()))


def test_concatenated_embeddings_are_unit_vectors_with_equal_weights() -> None:
    a, b = torch.randn(5, 3), 100 * torch.randn(5, 2)
    together = concatenate([a, b], unit)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(together[:, :3].norm(dim=1), torch.full((5,), 0.5**0.5))


def nearest_is_right(members: list[RunDir]) -> float:
    """P@1 of the concatenated embeddings, in float64 and by all distances."""
    together = unit(torch.cat([unit(run.read_embeddings()[0].double()) for run in members], dim=1))
    labels = members[0].read_embeddings()[1]
    distances = torch.cdist(together, together).fill_diagonal_(torch.inf)
    return float((labels[distances.argmin(dim=1)] == labels).double().mean())


def test_numbers_equal_loops_over_the_ensembles(tmp_path: Path) -> None:
    request = make_request("fair", tmp_path, "c2", "ms")
    runs = [run for run in request.plan() if run.run < 3]
    for run in runs:
        finish(run, 0.2 + 0.01 * run.run + 0.003 * run.fold * (1 + (run.method == "ms")))
    table = make_table(request, runs)
    choices = list(itertools.product((1, 2), repeat=4))
    concatenated: dict[str, list[float]] = {}
    for row in table.rows:
        of = {(run.fold, run.run): run for run in runs if run.method == row.method}
        results = {key: run.result() for key, run in of.items()}
        alone = [
            100 * np.mean([result.metrics["test"]["P@1"] for key in enumerate(chosen, 1) if (result := results[key])])
            for chosen in choices
        ]
        concatenated[row.method] = [
            100 * nearest_is_right([of[key].planned.run_dir for key in enumerate(chosen, 1)]) for chosen in choices
        ]
        for dim, values in ((4, alone), (16, concatenated[row.method])):
            cell = row.find(dim, "P@1")
            assert cell is not None
            assert (cell.value, cell.estimate.std) == pytest.approx((np.mean(values), np.std(values)))
    pair = next(pair for pair in table.pairs if (pair.dim, pair.metric) == (16, "P@1"))
    assert (pair.method, pair.against, pair.models) == ("ms", "c2", 8)
    assert pair.difference.mean == pytest.approx(np.mean(concatenated["ms"]) - np.mean(concatenated["c2"]))


def test_a_run_of_other_images_is_named_and_its_method_excluded(tmp_path: Path) -> None:
    request = make_request("fair", tmp_path, "c2", "ms", "c1")
    runs = run_all(request, {("ms", 2, 3)})
    folds = [[run.planned.run_dir for run in runs if (run.method, run.fold) == ("ms", fold)] for fold in range(1, 5)]
    with pytest.raises(DataError, match="ms/fold2-run3: expected the test images of the other runs"):
        ensemble_metrics(folds, normalize="unit", folder=tmp_path)
    table = make_table(request, runs)
    assert [len(row.cells) > 0 for row in table.rows] == [True, False, True]
    assert list(table.left_out) == ["ms"]
    assert {(pair.method, pair.against) for pair in table.pairs} == {("c1", "c2")}
    page = render_markdown(table)
    assert f"ms is excluded. {tmp_path}/ms/fold2-run3: expected the test images" in page
    assert "once every fold has a finished run" not in page
    assert "fold2-run3" in table.to_dict()["left_out"]["ms"]


def test_methods_of_other_images_are_not_compared(tmp_path: Path) -> None:
    request = make_request("fair", tmp_path, "c2", "ms")
    every = {("ms", fold, run) for fold, run in itertools.product(range(1, 5), (1, 2, 3))}
    table = make_table(request, run_all(request, every))
    assert [len(row.cells) > 0 for row in table.rows] == [True, False]
    assert table.left_out["ms"].count("/ms/fold") == 12
    assert not table.pairs


def test_missing_embeddings_exclude_a_method(tmp_path: Path) -> None:
    request = make_request("fair", tmp_path, "c2", "ms")
    runs = run_all(request, set())
    make_table(request, runs)  # metrics are cached from now on
    (tmp_path / "c2" / "fold1-run1" / "test.safetensors").unlink()
    table = make_table(request, runs)
    assert [len(row.cells) > 0 for row in table.rows] == [False, True]
    assert "fold1-run1/test.safetensors: file missing or damaged" in table.left_out["c2"]


@pytest.mark.parametrize("one_more", [False, True])
def test_files_without_a_fingerprint_are_compared_by_their_labels(tmp_path: Path, one_more: bool) -> None:
    labels = {"a": LABELS, "b": torch.cat([LABELS, LABELS[-1:]]) if one_more else LABELS, "c": LABELS}
    runs = [RunDir(tmp_path / name) for name in labels]
    for run, own in zip(runs, labels.values(), strict=True):
        run.path.mkdir()
        save_file({"embeddings": torch.randn(len(own), 4), "labels": own}, run.embeddings_file)
    runs[2].write_embeddings(torch.randn(12, 4), LABELS, NAMES)  # as runs have it now
    folds = [[run] for run in runs]
    if one_more:
        with pytest.raises(DataError, match=f"^{tmp_path}/b: "):
            ensemble_metrics(folds, normalize="unit", folder=tmp_path)
    else:
        assert ensemble_metrics(folds, normalize="unit", folder=tmp_path)["P@1"].shape == (1, 1, 1)
    with pytest.raises(ModelError, match="missing or damaged"):
        RunDir(tmp_path / "nowhere").read_images()


def test_the_fingerprint_is_of_names_labels_and_order(tmp_path: Path) -> None:
    def written(name: str, labels: torch.Tensor, names: tuple[str, ...]) -> RunDir:
        run = RunDir(tmp_path / name)
        run.path.mkdir()
        run.write_embeddings(torch.randn(len(labels), 4), labels, names)
        return run

    first, same = written("first", LABELS, NAMES).read_images(), written("same", LABELS, NAMES).read_images()
    assert first.matches(same)
    swapped = (NAMES[1], NAMES[0], *NAMES[2:])  # two images of one class: the labels are the same
    for name, labels, names in (
        ("names", LABELS, OTHERS), ("order", LABELS, swapped), ("labels", LABELS.flip(0), NAMES),
        ("count", LABELS[:-1], NAMES[:-1]),
    ):  # fmt: skip
        assert not first.matches(written(name, labels, names).read_images()), name
