"""From a saved model to an index, a search, a page and an exported file, as a user calls it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import MakeFolder
from winnow import Embedder, Index
from winnow.evaluation import retrieval_metrics


def save_model(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    settings = {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}}
    with pytest.warns(UserWarning, match="random weights"):
        Embedder.create({**settings, "pooling": "gap", "dim": 8}).save_pretrained(folder)
    return folder


@pytest.fixture
def photos(make_folder: MakeFolder) -> Path:
    return make_folder(classes=3, images=4)


@pytest.fixture
def indexed(winnow, photos, tmp_path) -> Path:
    code, out, err = winnow("index", save_model(tmp_path / "model"), photos, "-o", "index")
    assert code == 0, err
    assert "12 images; 12 added" in out
    return tmp_path / "index"


def test_index_is_kept_up_to_date(winnow, indexed, photos, tmp_path):
    (photos / "class_00/0.png").unlink()
    Image.new("RGB", (40, 40), "red").save(photos / "class_01/0.png")
    code, out, _ = winnow("index", "model", photos, "-o", "index", "--prune")
    assert code == 0
    assert "11 images; 0 added, 1 changed, 1 removed, 10 unchanged (1 embedded)" in out
    code, _, err = winnow("index", save_model(tmp_path / "other", seed=1), photos, "-o", "index")
    assert code == 4
    assert "made by another model" in err
    assert str(Path("index", "model")) in err
    assert winnow("index", Path("index", "model"), photos, "-o", "index")[0] == 0
    code, out, _ = winnow("index", "model", photos / "class_02", "-o", "index", "--remove")
    assert "7 images" in out
    assert winnow("index", "model", photos, "-o", "index", "--remove", "--prune")[0] == 2
    assert winnow("index", "model", photos, "-o", "nowhere", "--remove")[0] == 2
    assert winnow("index", "model", photos, "-o", "index", "--fp16")[0] == 2
    assert winnow("index", "model", photos, "-o", "index", "--index-type", "hsnw")[0] == 2


def test_an_index_with_another_model_must_be_built_again(winnow, indexed, photos):
    save_model(indexed / "model", seed=1)
    query = photos.parent / "query.png"
    Image.new("RGB", (40, 40), "red").save(query)
    code, _, err = winnow("search", "index", query)
    assert code == 4
    assert "build it again" in err
    code, out, err = winnow("serve", "index", "--port", "0")
    assert code == 4
    assert "build it again" in err
    assert "Ctrl-C" not in out + err  # no address is printed without a service


@pytest.mark.parametrize(("command", "target"), [("index", "new.index"), ("embed", "new.npy")])
def test_an_interrupt_says_how_to_resume(winnow, photos, tmp_path, monkeypatch, command, target):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    model = save_model(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr("winnow.index.embedding.embed_pixels", interrupt)
        code, _, err = winnow(command, model, photos, "-o", target)
    assert code == 130
    assert "Traceback" not in err
    assert winnow(command, model, photos, "-o", target)[0] == 0


def test_approximate_index_reports_its_recall(winnow, photos, tmp_path):
    pytest.importorskip("faiss")
    code, out, _ = winnow("index", save_model(tmp_path / "model"), photos, "-o", "graph", "--index-type", "hnsw")
    assert code == 0
    assert "hnsw: recall 100.0% of the 10 exact nearest" in out


def test_search_prints_a_table_and_json(winnow, indexed, photos, tmp_path):
    query = photos / "class_01/2.png"
    copy = tmp_path / "copy.png"
    copy.write_bytes(query.read_bytes())
    code, out, _ = winnow("search", "index", copy, "-k", "3")
    assert code == 0
    assert str(query) in out
    assert "0.0000" in out
    code, out, _ = winnow("search", "index", copy, query, "-k", "3", "--json")
    outside, inside = json.loads(out)
    assert outside["neighbours"][0]["path"] == str(query)
    assert outside["neighbours"][0]["label"] == "class_01"
    assert len(outside["neighbours"]) == len(inside["neighbours"]) == 3
    # An image of the index is not its own neighbor, and is found by its path even if the file is gone.
    assert [one["path"] for one in inside["neighbours"][:2]] == [one["path"] for one in outside["neighbours"][1:]]
    query.unlink()
    assert json.loads(winnow("search", "index", query, "-k", "3", "--json")[1])[0] == inside
    code, _, err = winnow("search", "index", "nothing.png")
    assert code == 3
    assert "neither an image file nor in the index" in err
    assert winnow("search", "index", copy, "--json", "--html", "x.html")[0] == 2
    assert winnow("search", "model", copy)[0] == 3
    for rerank in ("aqe", "reciprocal"):
        found = json.loads(winnow("search", "index", copy, "--rerank", rerank, "--json")[1])
        assert len(found[0]["neighbours"]) == 10


def test_search_writes_a_self_contained_page(winnow, indexed, photos, tmp_path):
    stranger = tmp_path / "a <b> & c.png"
    Image.new("RGB", (50, 30), "green").save(stranger)
    code, out, _ = winnow("search", "index", photos / "class_00/0.png", stranger, "-k", "5", "--html", "found.html")
    assert code == 0
    assert "found.html" in out
    page = (tmp_path / "found.html").read_text()
    assert page.count("<li ") == 10
    assert page.count("data:image/webp") == 12
    assert "a &lt;b&gt; &amp; c.png" in page
    assert "<b>" not in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert page.count('class="mark"') == 5  # only where the query's class is known


def test_evaluate_takes_an_index(winnow, indexed):
    code, out, _ = winnow("evaluate", "index", "--rerank", "aqe", "--rerank", "reciprocal", "--json")
    assert code == 0
    said = json.loads(out)
    index = Index.open(indexed)
    labels = np.unique(index.labels, return_inverse=True)[1]
    assert said["metrics"]["plain"] == retrieval_metrics(index.vectors(index.ids), labels)
    assert list(said["metrics"]) == ["plain", "aqe", "reciprocal"]
    assert said["queries"] == 12
    assert winnow("evaluate", "index", "--data", "photos")[0] == 2


def test_evaluate_reranks_a_model(winnow, indexed, photos):
    words = ("--rerank", "aqe", "--rerank", "reciprocal", "--json")
    said = json.loads(winnow("evaluate", "index/model", "--data", photos, *words)[1])
    of_index = json.loads(winnow("evaluate", "index", *words)[1])["metrics"]
    assert said["metrics"] == pytest.approx(of_index["plain"])
    assert list(said["reranked"]) == ["aqe", "reciprocal"]
    for rerank, metrics in said["reranked"].items():
        assert metrics == pytest.approx(of_index[rerank])
    code, _, err = winnow("evaluate", "index/model", "--data", photos, "--rerank", "aqee")
    assert code == 2
    assert "did you mean 'aqe'?" in err


def test_embed(winnow, photos, tmp_path):
    code, out, _ = winnow("embed", save_model(tmp_path / "model"), photos, "-o", "vectors.npy")
    assert code == 0
    assert "12 vectors, 12 computed now" in out
    assert np.load(tmp_path / "vectors.npy").shape == (12, 8)
    assert winnow("embed", "model", photos, "-o", "vectors.txt")[0] == 2
    assert winnow("embed", "model", photos, "-o", "v.npy", "--device", "gpu")[0] == 2


def test_export(winnow, tmp_path):
    code, out, _ = winnow("export", save_model(tmp_path / "model"), "--format", "torchscript", "-o", "model.pt")
    assert code == 0
    assert "embedding and weights; batches of any size, images of any size" in out
    assert winnow("export", "model", "--format", "onyx", "-o", "model.onnx")[0] == 2


def test_images_without_classes_are_searched_by_the_pretrained_network(winnow, photos, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, image in enumerate(sorted(photos.glob("*/*.png"))):
        image.rename(flat / f"{number:02d}.png")
    code, _, err = winnow("train", "data=flat")
    assert code != 0
    assert "winnow index pretrained flat" in err
    code, out, err = winnow("index", "pretrained", "flat", "-o", "flat.index")
    assert code == 0, err
    assert "12 images; 12 added" in out
    code, out, err = winnow("search", "flat.index", "flat/00.png", "-k", "3", "--json")
    assert code == 0, err
    assert {Path(one["path"]).name for one in json.loads(out)[0]["neighbours"]} == {"01.png", "02.png", "03.png"}
    code, out, err = winnow("index", "pretrained", "flat", "-o", "flat.index")
    assert "0 embedded" in out, err


def test_a_folder_named_pretrained_is_a_run(winnow, photos, tmp_path):
    save_model(tmp_path / "pretrained")
    code, _, err = winnow("index", "pretrained", photos, "-o", "index")
    assert code == 0, err
    assert Index.open(tmp_path / "index").manifest.dim == 8
