"""The notebooks run from the first cell to the last, at a small size, and are committed without outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.reader import NETWORK, TINY, in_small
from winnow.index import Index

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
PARAMETERS: dict[str, dict[str, Any]] = {
    "folder_to_search": {"classes": 12, "steps": 2},
    "own_loop": {"train_classes": 12, "test_classes": 6, "prototypes": 8, "steps": 3},
    "reproduce_a_table": {"settings": [*TINY, *NETWORK], "seeds": [0]},
}
"""Values of the cell with the tag `parameters` that make a notebook small."""


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def run(path: Path) -> dict[str, Any]:
    """Run the code of a notebook in the current folder, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(path):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert PARAMETERS[path.stem].keys() <= names.keys(), "a parameter has another name"
            names.update(PARAMETERS[path.stem])
    return names


def check_folder_to_search(names: dict[str, Any]) -> None:
    """The query finds itself, and the heat map has its size."""
    index = Index.open("photos.index")
    assert index.entry(int(names["hits"].ids[0, 0])).path.endswith(names["query"].name)
    assert names["hits"].distances[0, 0] == pytest.approx(0, abs=1e-3)
    assert names["heat_map"].size == names["found"].image.size
    assert len(index) == sum(path.is_file() for path in names["folder"].rglob("*"))


def check_own_loop(names: dict[str, Any]) -> None:
    """Both methods are evaluated, and the prototypes are set."""
    assert names["gsp"].prototypes_ready
    assert all(0 <= values["MAP@R"] <= values["P@R"] <= 1 for values in names["metrics"].values())


def check_reproduce_a_table(names: dict[str, Any]) -> None:
    """Each method has a row, and one seed supports no verdict."""
    assert {row["method"] for row in names["report"].rows} >= {"GAP", "GSP", "GSP + ZSR"}
    assert {claim.verdict for claim in names["report"].claims} == {"Incomplete"}
    assert all(path.is_file() for path in names["paths"])


CHECKS = {check.__name__.removeprefix("check_"): check
          for check in (check_folder_to_search, check_own_loop, check_reproduce_a_table)}  # fmt: skip


def test_all_notebooks_are_checked() -> None:
    assert set(CHECKS) == set(PARAMETERS) == {path.stem for path in NOTEBOOKS}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["notebook"])
    with pytest.MonkeyPatch.context() as patch:
        in_small(patch)
        CHECKS[path.stem](run(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_format_of_nbformat_and_no_output(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    assert text == json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in content["cells"]]
    assert len(ids) == len(set(ids))
    assert sum("parameters" in cell["metadata"].get("tags", ()) for cell in content["cells"]) == 1
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
