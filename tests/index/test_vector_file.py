"""Vectors in files: equal in every format, and embedded once if a process is interrupted."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from winnow import Embedder
from winnow.data import read_collection
from winnow.errors import ConfigError, DataError
from winnow.index import embed_to_file, embedding, update


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="random weights"):
        return Embedder.create(
            {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}, "dim": 8,
             "pooling": "gap"}
        ).eval()  # fmt: skip


def read(path):
    if path.suffix == ".npy":
        rows = list(csv.DictReader(path.with_suffix(".csv").open()))
        return np.load(path), [row["path"] for row in rows], [row["label"] or None for row in rows]
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(path).to_pydict()
        return np.array(table["embedding"], dtype=np.float32), table["path"], table["label"]
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        about = file.metadata()
        return file.get_tensor("embeddings"), json.loads(about["paths"]), json.loads(about["labels"])


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".safetensors"])
def test_files_contain_vectors_paths_and_labels(model, make_folder, tmp_path, suffix, monkeypatch):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.setattr("winnow.index.vector_file._CHUNK", 5)
    photos = make_folder(classes=3, images=3)
    Image.new("RGB", (30, 30), "red").save(photos / "löse, bild.png")
    (photos / "class_00/broken.png").write_bytes(b"no image")
    target = tmp_path / f"vectors{suffix}"
    made = embed_to_file(model, read_collection(photos), target, batch_size=4)
    vectors, paths, labels = read(target)
    assert made.count == made.embedded == len(paths) == 10
    assert [reason for _, reason in made.skipped] == ["not a supported image format"]
    assert str(photos / "löse, bild.png") in paths
    assert labels == [None if "löse" in path else path.split("/")[-2] for path in paths]
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, model.encode(paths), atol=1e-6)
    assert not list(tmp_path.glob(".partial*"))


def test_an_interrupted_call_resumes(model, make_folder, tmp_path, monkeypatch):
    images, target = read_collection(make_folder(classes=3, images=4)), tmp_path / "vectors.npy"
    whole = embed_to_file(model, images, tmp_path / "whole.npy")
    real, batches = update.Journal.add, []

    def stop(self, *batch):
        if batches:
            raise KeyboardInterrupt
        batches.append(len(batch[0]))
        real(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(update.Journal, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            embed_to_file(model, images, target, batch_size=5)
    assert not target.exists()
    counts = []
    pixels = embedding.embed_pixels
    monkeypatch.setattr(embedding, "embed_pixels", lambda m, p: counts.append(len(p)) or pixels(m, p))
    made = embed_to_file(model, images, target, batch_size=5)
    assert sum(counts) == made.embedded == 12 - 5
    assert made.count == whole.count == 12
    assert np.allclose(np.load(target), np.load(tmp_path / "whole.npy"), atol=1e-6)


def test_a_journal_of_another_model_is_emptied(tmp_path):
    file = tmp_path / "journal.sqlite"
    first = update.Journal(file, "one")
    first.add(["a"], np.ones((1, 2), dtype=np.float32), None)
    first.close()
    again = update.Journal(file, "one")
    assert again.hashes() == {"a"}
    assert again.get("a")[0].tolist() == [1, 1]
    again.close()
    other = update.Journal(file, "two")
    assert other.hashes() == set()
    other.close()
    file.write_bytes(b"not a database, and longer than a header" * 10)
    assert update.Journal(file, "two").hashes() == set()


def test_unknown_suffix_and_unreadable_images_raise(model, make_folder, tmp_path):
    images = read_collection(make_folder(classes=2, images=1))
    with pytest.raises(ConfigError, match="parquet"):
        embed_to_file(model, images, tmp_path / "vectors.txt")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 images"):
        embed_to_file(model, read_collection(empty), tmp_path / "vectors.npy")
