"""An index of vectors that exist already: search, entries, optional model, and checks of the input."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from winnow import Embedder, Index
from winnow.errors import ConfigError, DataError, ModelError
from winnow.evaluation import nearest_neighbors


def make_vectors(count=30, dim=8, dtype=np.float32):
    return np.random.default_rng(0).normal(size=(count, dim)).astype(dtype)


def names_of(count):
    return [f"item {i}" for i in range(count)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="random weights"):
        return Embedder.create(
            {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}, "dim": 8,
             "pooling": "gap"}
        ).eval()  # fmt: skip


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy, lambda rows: rows.astype(np.float64)])
def test_search_equals_exact_search(tmp_path, convert):
    vectors = make_vectors()
    index = Index.build(vectors=convert(vectors), names=names_of(30), path=tmp_path / "index")
    distances, positions = nearest_neighbors(vectors, vectors, 5)
    for opened in (index, Index.open(index.path)):
        hits = opened.search(vectors, 5)
        assert np.array_equal(hits.ids, positions.numpy())
        assert np.allclose(hits.distances, distances.numpy(), atol=1e-6)
        assert np.array_equal(opened.vectors(opened.ids), vectors)
    assert (index.built.added, len(index), index.manifest.model) == (30, 30, "")
    assert index.entry(3).path == "item 3"
    assert Image.open(io.BytesIO(index.entry(3).thumbnail)).format == "JPEG"
    assert index.find("item 3") == 3
    assert index.labels == [None] * 30


@pytest.mark.parametrize("labels", [[0, 1, None], ["0", "1", None]])
def test_labels_become_class_names(tmp_path, labels):
    index = Index.build(vectors=make_vectors(3), names=[7, 8, 9], labels=labels, path=tmp_path / "index")
    assert index.labels == ["0", "1", None]
    assert index.find(8) == 1
    arrays = Index.build(vectors=make_vectors(3), names=["c", "d", "e"], labels=np.arange(3),
                         path=tmp_path / "arrays")  # fmt: skip
    assert arrays.labels == ["0", "1", "2"]


def test_entries_can_be_removed_and_float16_is_stored(tmp_path):
    vectors = make_vectors()
    index = Index.build(vectors=vectors, names=names_of(30), path=tmp_path / "index", dtype="float16")
    assert np.allclose(index.vectors(index.ids), vectors, atol=1e-2)
    assert index.remove(["item 3", "item 4"]).removed == 2
    assert Index.open(index.path).search(vectors[3:4], 1).ids[0, 0] not in (3, 4)


def test_equal_vectors_and_equal_files_stay_separate_entries(make_folder, tmp_path):
    photo = next(iter(make_folder(classes=1, images=1).rglob("*.png")))
    copy = tmp_path / "copy.png"
    copy.write_bytes(photo.read_bytes())
    vectors = make_vectors(2)
    index = Index.build(vectors=vectors, names=[photo, copy], path=tmp_path / "index")
    assert np.array_equal(index.vectors([0, 1]), vectors)
    assert index.entry(0).hash == index.entry(1).hash


def test_image_files_get_thumbnails_and_image_queries_need_a_model(model, make_folder, tmp_path):
    photos = sorted(make_folder(classes=2, images=3).rglob("*.png"))
    vectors = model.encode(photos)
    index = Index.build(vectors=vectors, names=photos, path=tmp_path / "index")
    assert Image.open(io.BytesIO(index.entry(0).thumbnail)).size == (40, 40)
    assert index.find(photos[0]) == 0
    for action in (lambda: index.search(photos[0]), lambda: index.model, lambda: index.add(photos[:1]),
                   lambda: index.check_model(model)):  # fmt: skip
        with pytest.raises(ModelError, match="contains no model"):
            action()
    with_model = Index.open(index.path, model=model)
    assert with_model.search(photos[2], 1).ids.tolist() == [[2]]
    assert with_model.add(photos).unchanged == 6


def test_a_model_makes_image_queries_and_updates_possible(model, make_folder, tmp_path):
    photos = sorted(make_folder(classes=2, images=3).rglob("*.png"))
    vectors = model.encode(photos)
    built = Index.build(model, vectors=vectors[:4], names=photos[:4], labels=["a"] * 4, path=tmp_path / "index")
    assert built.manifest.model == model.fingerprint()
    index = Index.open(built.path)
    assert index.search(photos[1], 1).ids.tolist() == [[1]]
    changes = index.add(photos)
    assert (changes.added, changes.embedded) == (2, 2)
    assert np.allclose(index.vectors(index.ids), vectors, atol=1e-6)
    with pytest.warns(UserWarning, match="random weights"):
        other = Embedder.create(
            {"backbone": {"name": "resnet20", "weights": "random"}, "image": {"resize": 32, "crop": 32}, "dim": 8}
        )
    with pytest.raises(ModelError, match="another model"):
        Index.open(built.path, model=other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": np.zeros(3, dtype=np.float32)}, r"^vectors: expected shape \(N, D\)"),
        ({"vectors": np.zeros((0, 4), dtype=np.float32)}, "^vectors: array is empty"),
        ({"vectors": np.zeros((3, 4), dtype=np.int64)}, "^vectors: expected a float type"),
        ({"vectors": [[0.0]] * 3}, "^vectors: expected a torch tensor or a numpy array, got list"),
        ({"vectors": np.array([[0.0], [np.nan], [np.inf]])}, r"^vectors: 2 of 3 rows .* row 1"),
        ({"vectors": np.full((3, 1), 1e300)}, "^vectors: 3 of 3 rows"),
        ({"vectors": np.full((3, 1), 1e5), "dtype": "float16"}, "^vectors: 100000 is too large for float16"),
        ({"names": ["a", "b"]}, "^names: expected 3 names, one per vector, got 2"),
        ({"names": "abc"}, "^names: expected 3 names, one per vector, got one string"),
        ({"names": ["a", "b", "a"]}, "^names: 'a' is at positions 0 and 2"),
        ({"labels": [1, 2]}, "^labels: expected 3 labels, one per vector, got 2"),
    ],
)
def test_unusable_input_raises_before_anything_is_written(tmp_path, change, message):
    arguments = {"vectors": np.zeros((3, 4), dtype=np.float32), "names": ["a", "b", "c"], "path": tmp_path / "index"}
    with pytest.raises(DataError, match=message):
        Index.build(**{**arguments, **change})
    assert not (tmp_path / "index").exists()


def test_wrong_arguments_raise(model, tmp_path):
    vectors, path = make_vectors(3), tmp_path / "index"
    for wrong in (
        {}, {"vectors": vectors}, {"names": ["a"]}, {"images": ["a.png"]}, {"model": model},
        {"model": model, "images": ["a.png"], "labels": ["x"]},
        {"images": ["a.png"], "vectors": vectors, "names": ["a", "b", "c"]},
    ):  # fmt: skip
        with pytest.raises(TypeError, match="expected model, images, and path"):
            Index.build(path=path, **wrong)
    with pytest.raises(TypeError, match="path"):
        Index.build(vectors=vectors, names=["a", "b", "c"])
    with pytest.raises(DataError, match="model: expected 3 dimensions"):
        Index.build(model, vectors=vectors[:, :3], names=["a", "b", "c"], path=path)
    with pytest.raises(ConfigError, match="kind"):
        Index.build(vectors=vectors, names=["a", "b", "c"], path=path, kind="hnws")
    Index.build(vectors=vectors, names=["a", "b", "c"], path=path)
    with pytest.raises(DataError, match="already contains an index"):
        Index.build(vectors=vectors, names=["a", "b", "c"], path=path)


IMPORTS = """
import sys
import numpy as np
from winnow.index import Index
index = Index.open(sys.argv[1])
index.search(index.vectors(index.ids), 2)
print(*{name.split(".")[1] for name in sys.modules if name.startswith("winnow.")})
"""


@pytest.mark.slow
def test_vector_search_imports_no_models_and_no_training(tmp_path):
    Index.build(vectors=make_vectors(3), names=["a", "b", "c"], path=tmp_path / "index")
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "index")]
    loaded = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    unwanted = {"models", "pooling", "losses", "miners", "references", "regularizers", "training", "report", "serve"}
    assert "index" in loaded
    assert not loaded & unwanted
