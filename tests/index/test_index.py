"""The index: search, entries, updates, and atomic changes."""

import io
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from winnow import Embedder, Index
from winnow.data import read_collection
from winnow.errors import ConfigError, DataError, ModelError, OutputError
from winnow.evaluation import nearest_neighbors
from winnow.index import embedding, reranked_search, update
from winnow.index.finders import ExactFinder, FaissFinder, measure_recall, open_finder, rank_exactly
from winnow.index.storage import lock_index


def make_model(seed=0, dim=8):
    torch.manual_seed(seed)
    return Embedder.create(
        {
            "backbone": {"name": "resnet20", "weights": "random"},
            "image": {"resize": 32, "crop": 32},
            "pooling": "gap",
            "dim": dim,
        }
    ).eval()


@pytest.fixture(scope="module")
def model():
    with pytest.warns(UserWarning, match="random weights"):
        return make_model()


@pytest.fixture
def photos(make_folder):
    return make_folder(classes=3, images=4)


@pytest.fixture
def index(model, photos, tmp_path):
    return Index.build(model, photos, tmp_path / "index")


def embedded(monkeypatch):
    """Record the sizes of all batches that are embedded from now on."""
    counts = []
    original = embedding.embed_pixels
    monkeypatch.setattr(embedding, "embed_pixels", lambda m, p: counts.append(len(p)) or original(m, p))
    return counts


def test_finds_what_exact_search_finds(index, model, photos):
    files = sorted(photos.rglob("*.png"))
    vectors = model.encode(files)
    distances, positions = nearest_neighbors(vectors, vectors, 5)
    hits = index.search(files, 5)
    assert [[index.entry(i).path for i in row] for row in hits.ids] == [[str(files[p]) for p in r] for r in positions]
    assert np.allclose(hits.distances, distances.numpy(), atol=1e-6)
    again = Index.open(index.path)
    assert np.array_equal(again.search(vectors, 5).ids, hits.ids)
    assert np.array_equal(again.search(torch.from_numpy(vectors), 5).ids, hits.ids)
    assert np.array_equal(again.search(Image.open(files[0]), 3).ids[0], hits.ids[0, :3])


def test_entries_have_path_label_hash_and_thumbnail(index, photos):
    first = index.entry(int(index.ids[0]))
    assert first.path == str(photos / "class_00" / "0.png")
    assert first.label == "class_00"
    assert len(first.hash) == 64
    assert index.find(first.path) == first.id
    assert index.labels.count("class_02") == 4
    assert Image.open(io.BytesIO(first.thumbnail)).size == (32, 32)
    assert len(index) == 12
    assert index.kind == "exact"
    with pytest.raises(DataError, match="no entry 99"):
        index.entry(99)
    with pytest.raises(DataError, match="no entry 99"):
        index.vectors([0, 99])


def test_thumbnails_are_upright(model, tmp_path):
    folder = tmp_path / "turned"
    folder.mkdir()
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[:, :40] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    Image.fromarray(pixels).save(folder / "a.jpg", exif=exif)
    index = Index.build(model, folder, tmp_path / "index")
    shown = Image.open(io.BytesIO(index.entry(0).thumbnail))
    assert shown.height == 2 * shown.width
    assert np.asarray(shown)[:10].mean() > 200
    assert index.entry(0).label is None


def test_only_changed_images_are_embedded(index, photos, monkeypatch):
    counts = embedded(monkeypatch)
    assert index.add(photos).unchanged == 12
    assert counts == []
    changed, gone, moved = photos / "class_00/1.png", photos / "class_01/0.png", photos / "class_02/2.png"
    before = {path: index.find(path) for path in (changed, moved)}
    Image.new("RGB", (40, 40), "red").save(changed)
    gone.unlink()
    moved.rename(photos / "class_02/renamed.png")
    Image.new("RGB", (40, 40), "blue").save(photos / "class_02/new.png")
    changes = index.add(photos, prune=True)
    assert sum(counts) == 2  # red and blue; the renamed file has a known content hash
    assert (changes.added, changes.updated, changes.removed, changes.unchanged) == (2, 1, 2, 9)
    assert index.find(changed) == before[changed]
    assert index.find(gone) is None
    assert index.search(changed, 1).ids[0, 0] == before[changed]
    assert len(Index.open(index.path)) == 12


def test_missing_files_keep_their_entries_without_prune(index, photos):
    (photos / "class_00/0.png").unlink()
    assert index.add(photos).removed == 0
    assert len(index) == 12


def test_remove(index, photos, monkeypatch):
    paths = [photos / "class_00/0.png", str(photos / "class_02/3.png")]
    vectors, ids = index.vectors(index.ids), index.ids
    assert index.remove(paths).removed == 2
    kept = [i for i in range(12) if i not in (0, 11)]
    assert np.array_equal(index.ids, ids[kept])
    assert np.array_equal(index.vectors(index.ids), vectors[kept])
    with pytest.raises(DataError, match="not in the index"):
        index.remove(paths)
    monkeypatch.chdir(photos)
    index.remove([os.path.join("class_01", "0.png")])
    assert len(index) == 9
    new = index.add([photos / "class_00/0.png"])
    assert (new.added, new.embedded) == (1, 1)
    assert max(index.ids) == 12  # ids are never reused


def test_an_index_may_become_empty(index):
    index.remove([index.entry(i).path for i in index.ids])
    again = Index.open(index.path)
    assert len(again) == 0
    assert again.search(np.zeros((2, 8), dtype=np.float32), 5).ids.shape == (2, 0)


def test_only_a_label_changes(index, photos, tmp_path):
    table = tmp_path / "table.csv"
    rows = [f"{path},same" for path in sorted(photos.rglob("*.png"))]
    table.write_text("path,label\n" + "\n".join(rows) + "\n")
    changes = index.add(table)
    assert (changes.updated, changes.embedded) == (12, 0)
    assert set(index.labels) == {"same"}


def test_another_model_raises(index, photos, tmp_path):
    with pytest.warns(UserWarning, match="random weights"):
        other = make_model(seed=1)
    with pytest.raises(ModelError, match="another model"):
        index.check_model(other)
    other.save_pretrained(index.path / "model")
    with pytest.raises(ModelError, match="build it again"):
        Index.open(index.path).search([photos / "class_00/0.png"])


def test_float16(model, photos, tmp_path, index):
    half = Index.build(model, photos, tmp_path / "half", dtype="float16")
    assert half._opened.generation.vectors.dtype == np.float16
    assert np.allclose(half.vectors(half.ids), index.vectors(index.ids), atol=1e-3)
    assert half.search(index.vectors(index.ids), 1).ids[:, 0].tolist() == index.ids.tolist()


def test_unreadable_files_are_skipped_and_listed(model, photos, tmp_path):
    (photos / "class_00/broken.png").write_bytes(b"no image")
    index = Index.build(model, photos, tmp_path / "index")
    assert len(index) == 12
    assert [(Path(p).name, "not a supported image" in reason) for p, reason in index.built.skipped] == [
        ("broken.png", True)
    ]
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "broken.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 images"):
        Index.build(model, alone, tmp_path / "nothing")


def test_a_failed_change_keeps_the_old_index(index, photos, monkeypatch):
    Image.new("RGB", (40, 40), "red").save(photos / "class_00/new.png")
    before = (index.path / "index.json").read_text()

    def fail(*_, **__):
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("winnow.index.update.np.save", fail)
        with pytest.raises(OutputError, match="no room"):
            index.add(photos)
    assert (index.path / "index.json").read_text() == before
    assert len(Index.open(index.path)) == 12
    counts = embedded(monkeypatch)
    assert Index.open(index.path).add(photos).added == 1
    assert counts == []  # the image was embedded before the disk was full


KILLED = """
import os, sys
from winnow import Embedder, Index
from winnow.index import storage, update
model, photos, folder, where = sys.argv[1:]
if where == "embedding":
    add, calls = update.Journal.add, []
    def stop(self, *batch):
        add(self, *batch)
        calls.append(1)
        if len(calls) == 2:
            os._exit(9)
    update.Journal.add = stop
else:
    storage.Manifest.write = lambda self, folder: os._exit(9)
if os.path.exists(os.path.join(folder, "index.json")):
    Index.open(folder).add(photos, batch_size=3)
else:
    Index.build(Embedder.from_pretrained(model), photos, folder, batch_size=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["embedding", "switch"])
def test_a_killed_process_keeps_the_old_index_and_its_vectors(model, photos, tmp_path, where, monkeypatch):
    model.save_pretrained(tmp_path / "model")
    folder = tmp_path / "index"
    Index.build(model, photos / "class_00", folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "model"), str(photos), str(folder), where]
    assert subprocess.run(command, env=environment, timeout=120).returncode == 9
    index = Index.open(folder)
    assert len(index) == 4
    assert len(index.search(index.vectors(index.ids), 2).ids) == 4
    counts = embedded(monkeypatch)
    changes = index.add(photos)
    assert len(index) == 12
    assert sum(counts) == changes.embedded == (0 if where == "switch" else 12 - 4 - 2 * 3)
    assert sorted(p.name for p in folder.iterdir()) == [".lock", index.manifest.generation, "index.json", "model"]


def test_one_writer_at_a_time(index, photos):
    pytest.importorskip("fcntl")
    with lock_index(index.path), pytest.raises(OutputError, match="another process"):
        Index.open(index.path).add(photos)


def test_an_open_reader_keeps_its_generation(index, photos):
    reader = Index.open(index.path)
    index.remove([photos / "class_00/0.png"])
    assert len(reader) == 12
    assert reader.entry(0).path == str(photos / "class_00/0.png")
    assert reader.search(reader.vectors([0]), 1).ids[0, 0] == 0


@pytest.mark.parametrize("wrong", [
    {"generation": True}, {"generation": []}, {"generation": ""}, {"generation": "../other/generation-000001"},
    {"kind": "hnws"}, {"kind": []}, {"dtype": "object"}, {"count": -1}, {"count": 10**30}, {"count": None},
    {"dim": 1.5}, {"next_id": "3"}, {"model": 3}, {"recall": "1"},
])  # fmt: skip
def test_a_manifest_with_wrong_values_is_damaged(tmp_path, index, wrong):
    content = json.loads((index.path / "index.json").read_text())
    del content["sha256"]  # as version 0.1.0 wrote it
    (index.path / "index.json").write_text(json.dumps(content))
    assert len(Index.open(index.path)) == len(index)
    (index.path / "index.json").write_text(json.dumps({**content, **wrong}))
    with pytest.raises(DataError, match=r"index\.json: file is damaged|expected .* of shape"):
        Index.open(index.path)


def test_entries_that_are_computed_for_ever_are_refused(index):
    (file,) = index.path.rglob("entries.sqlite")
    (file.parent / "SHA256SUMS").unlink()
    file.unlink()
    with closing(sqlite3.connect(file)) as db:
        endless = (
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT n AS id FROM numbers"
        )
        db.execute(f"CREATE VIEW entries AS {endless}")
    with pytest.raises(DataError, match=r"entries\.sqlite: file is damaged \(no table"):
        Index.open(index.path)


def test_a_graph_that_is_missing_is_named(index):
    pytest.importorskip("faiss", reason="needs the faiss extra")
    content = json.loads((index.path / "index.json").read_text())
    del content["sha256"]
    (index.path / "index.json").write_text(json.dumps({**content, "kind": "hnsw"}))
    with pytest.raises(DataError, match=r"faiss\.index: file missing or damaged"):
        Index.open(index.path)


def test_unusable_folders_and_kinds_raise(tmp_path, index, model, photos):
    with pytest.raises(DataError, match="not an index"):
        Index.open(tmp_path)
    with pytest.raises(DataError, match="already contains an index"):
        Index.build(model, photos, index.path)
    content = json.loads((index.path / "index.json").read_text())
    (index.path / "index.json").write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(ModelError, match="99"):
        Index.open(index.path)
    (index.path / "index.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        Index.open(index.path)
    with pytest.raises(ConfigError, match="hnsw"):
        Index.build(model, photos, tmp_path / "x", kind="hnws")
    with pytest.raises(ConfigError, match="10000"):
        Index.build(model, photos, tmp_path / "y", kind="ivfpq")


def test_wrong_queries_raise(index):
    with pytest.raises(DataError, match="queries: expected 8 dimensions"):
        index.search(np.zeros((1, 5), dtype=np.float32))
    with pytest.raises(DataError, match="NaN"):
        index.search(np.full((1, 8), np.nan, dtype=np.float32))
    with pytest.raises(ConfigError, match=r"^k: "):
        index.search(np.zeros((1, 8), dtype=np.float32), 0)
    assert index.search(np.zeros((0, 8), dtype=np.float32), 3).ids.shape == (0, 3)


def test_exact_search_in_blocks_with_ties(monkeypatch):
    """Compare with a sort of all distances, with equal vectors and blocks smaller than k."""
    monkeypatch.setattr("winnow.index.finders._BLOCK", 7)
    monkeypatch.setattr("winnow.index.finders._QUERIES", 4)
    rng = np.random.default_rng(0)
    vectors = rng.integers(-2, 3, (60, 3)).astype(np.float32)
    queries = rng.integers(-2, 3, (9, 3)).astype(np.float32)
    for k in (1, 20, 60):
        distances, positions = rank_exactly(vectors, queries, ExactFinder(vectors).candidates(queries, k), k)
        true = np.sqrt(((queries[:, None] - vectors) ** 2).sum(2))
        assert np.allclose(distances, np.sort(true, axis=1)[:, :k])
        assert np.allclose(np.take_along_axis(true, positions, axis=1), distances)
        assert all(len(set(row)) == k for row in positions.tolist())


@pytest.mark.parametrize("kind", ["hnsw", pytest.param("ivfpq", marks=pytest.mark.slow)])
def test_approximate_kinds_find_nearly_all(kind, tmp_path):
    pytest.importorskip("faiss")
    from winnow.index.finders import build_finder

    rng = np.random.default_rng(0)
    centers = rng.normal(size=(200, 16))
    vectors = (centers[rng.integers(0, 200, 10_000)] + 0.3 * rng.normal(size=(10_000, 16))).astype(np.float32)
    build_finder(kind, vectors, tmp_path)
    finder = open_finder(kind, vectors, tmp_path)
    assert isinstance(finder, FaissFinder)
    recall = measure_recall(finder, vectors, sample=100)
    assert 0.85 < recall <= 1.0

    class Blind:
        def candidates(self, queries, k):
            return np.zeros((len(queries), k), dtype=np.int64)

    assert measure_recall(Blind(), vectors, sample=100) < 0.2
    assert measure_recall(ExactFinder(vectors), vectors, sample=100) == 1.0


def test_convert_changes_the_kind(index, photos):
    pytest.importorskip("faiss")
    expected = index.search(index.vectors(index.ids), 4)
    index.convert("hnsw")
    again = Index.open(index.path)
    assert again.kind == "hnsw"
    assert again.manifest.recall == 1.0
    assert np.array_equal(again.search(again.vectors(again.ids), 4).ids, expected.ids)
    again.remove([photos / "class_00/0.png"])
    assert again.search(again.vectors([3]), 20).ids.shape == (1, 11)


def test_reranked_search(index):
    vectors = index.vectors(index.ids)
    plain = index.search(vectors, 12)
    for rerank in ("aqe", "reciprocal"):
        hits = reranked_search(index, vectors, 12, rerank)
        assert np.array_equal(np.sort(hits.ids, axis=1), np.sort(plain.ids, axis=1))
        assert (np.diff(hits.distances, axis=1) >= 0).all()
    assert np.array_equal(reranked_search(index, vectors, 3, "aqe", num_neighbors=1, alpha=0.0).ids, plain.ids[:, :3])
    with pytest.raises(ConfigError, match="aqe"):
        reranked_search(index, vectors, 3, "aqee")


def test_images_from_paths_folders_and_names(model, photos, tmp_path):
    paths = sorted(photos.rglob("*.png"))[:3]
    assert len(update.as_image_set([*paths, str(paths[0])])) == 4
    index = Index.build(model, [*paths, str(paths[0])], tmp_path / "listed")
    assert len(index) == 3  # a path that is listed twice has one entry
    assert index.labels == [None] * 3
    loose = tmp_path / "loose"
    (loose / "cats").mkdir(parents=True)
    paths[0].rename(loose / "a.png")
    paths[1].rename(loose / "cats" / "b.png")
    mixed = read_collection(loose)
    assert [mixed.class_names[c] for c in mixed.labels] == ["", "cats"]
    assert len(read_collection("emoji")) == 2080
    with pytest.raises(DataError, match="neither a folder"):
        read_collection(loose / "a.png")
