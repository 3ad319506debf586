"""Training runs: the content of `logs.json` and `files.json`, and the folders in `files`."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import chdir, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.golden import adapters as a
from tests.golden import golden_net

PHOTOS = {"classes": 16, "images": 4, "size": 24}
SHARED = [
    "data=photos", "image.resize=24", "image.crop=24", "augment.resize=24", "dim=8", "train.device=cpu",
    "train.classes_per_batch=3", "train.samples_per_class=3", "train.lr=1e-3",
]  # fmt: skip
RESNET = [*SHARED, "backbone=resnet20", "backbone.weights=random", "backbone.train=full",
          "backbone.freeze_batch_norm=false", "train.steps=40", "train.eval_every=8"]  # fmt: skip
SMALL = [*SHARED, "backbone=golden_net", "backbone.weights=random", "backbone.train=full", "train.steps=24",
         "train.eval_every=4"]  # fmt: skip

LOGS: dict[str, list[str]] = {
    "gsp-zsr": ["loss=c2", "pooling=gsp", "pooling.prototypes=4", "pooling.memory=36", "pooling.mu=0.4", "zsr=0.05",
                "train.lr_multipliers={'*.prototypes': 10}"],
    "proxy-anchor-r1": ["loss=proxy_anchor", "pooling=gemean", "centres=r1", "centres.gamma=5",
                        "train.lr_multipliers={'references.proxies': 100}", "plateau=0.5", "plateau.patience=1"],
    "c1-memory": ["loss=c1", "pooling=gap", "references=memory", "references.batches=3", "references.start=5",
                  "normalise=ball", "mining=semi_hard", "train.optimizer=adamw", "train.warm_up=5"],
    "c2-ccp": ["loss=c2", "loss.positive_margin=0.1", "pooling=gap", "references=ccp", "references.per_class=2",
               "references.pool=3", "references.patience=1", "references.pull=0.01", "train.lr=1e-2",
               "train.precision=64-true"],
}  # fmt: skip

INTERRUPTED = [*SMALL, "loss=c2", "references=ccp", "references.per_class=2", "references.pool=3",
               "references.patience=1", "pooling=gsp", "pooling.prototypes=4", "pooling.memory=36", "zsr=0.05",
               "plateau=0.5", "plateau.patience=1", "seed=3"]  # fmt: skip
FINISHED = [*SMALL, "loss=margin", "loss.per_class=true", "mining=distance_weighted", "centres=mhe", "pooling=gsp",
            "pooling.prototypes=4", "pooling.memory=36", "train.keep_embeddings=true", "normalise=ball", "train.clip=2",
            "train.start=random"]  # fmt: skip
NETVLAD = [*SMALL, "pooling=netvlad", "pooling.clusters=2", "loss=ms", "loss.threshold=0.4", "train.steps=4"]
SWEEP = [*SMALL, "loss=soft_triple", "loss.form=distance", "references.per_class=2", "train.steps=8"]
EACH = ["pooling=gap,gemean", "seed=0,1"]
PROTOCOL = ["backbone=golden_net", "backbone.weights=random", "backbone.train=frozen", "image.resize=24",
            "image.crop=24", "dim=4", "train.classes_per_batch=3", "train.samples_per_class=2", "train.steps=6",
            "train.eval_every=2", "train.lr=1e-2", "train.device=cpu"]  # fmt: skip
METHODS = ["c2", "c2+gsp,pooling.prototypes=4,pooling.memory=16"]
TUNE = ["data=photos", *PROTOCOL, "pooling=gap", "train.lr=1e-4..1e-1:log", "loss=c2|ms"]
NOWHERE = "/golden"
"""The folder that kept paths name in place of the one where they were made."""
QUERIES = ["photos/class_01/2.png", "photos/class_09/0.png"]


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """Work in a folder that holds the photos, with one thread and without warnings."""
    golden_net.make_photos(folder / "photos", **PHOTOS)
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        yield folder


def history(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a log without times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [without_times(a.first_line(line)) for line in lines]


def without_times(tree: Any) -> Any:
    """Return plain values without what differs from run to run."""
    if isinstance(tree, Mapping):
        return {key: without_times(one) for key, one in tree.items() if "second" not in key}
    return [without_times(one) for one in tree] if isinstance(tree, list) else tree


def weights_mark(file: Path, part: str | None = None) -> str:
    """Return a hash of the tensors in a state, or a part of it, in their order and without their names."""
    found = hashlib.sha256()

    def add(tree: Any) -> None:
        if isinstance(tree, torch.Tensor):
            found.update(tree.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(tree, Mapping):
            for one in tree.values():
                add(one)

    state = torch.load(file, map_location="cpu", weights_only=True)
    add(state if part is None else state[part])
    return found.hexdigest()


def summary(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run came to."""
    return {
        "log": history(folder),
        **{key: without_times(result.get(key)) for key in
           ("metrics", "untrained", "left_out", "steps", "best_step", "parameters", "problems", "data",
            "prototypes_ready")},
        "best": weights_mark(folder / "best.pt"),
        "last": weights_mark(folder / "checkpoint.pt", "learner"),
    }  # fmt: skip


def make_log(name: str, folder: Path) -> dict[str, Any]:
    """Train one of the four runs."""
    with workplace(folder):
        where = Path(name)
        return summary(where, a.train(a.load_config(None, [*RESNET, *LOGS[name]]), where))


def encoded(model: Path) -> dict[str, Any]:
    """Return what a saved model makes of photos, and its fingerprint."""
    embedder = a.Embedder.from_pretrained(model)
    vectors = np.asarray(embedder.encode(QUERIES), dtype=np.float64)
    return {"vectors": vectors.tolist(), "fingerprint": fingerprint(embedder)}


def fingerprint(embedder: Any) -> str:
    """Return the fingerprint of a model."""
    found = embedder.fingerprint
    return str(found() if callable(found) else found)


def relocate(folder: Path, old: str, new: str) -> None:
    """Write another folder of the photos into an index and a file of vectors, which hold whole paths."""
    for file in (folder / "index").rglob("entries.sqlite"):
        with closing(sqlite3.connect(file)) as entries:
            entries.execute("UPDATE entries SET path = replace(path, ?, ?)", (f"{old}/photos/", f"{new}/photos/"))
            entries.commit()
    file = folder / "vectors.safetensors"
    with safe_open(file, "np") as content:
        tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
        metadata = {key: text.replace(f"{old}/photos/", f"{new}/photos/") for key, text in content.metadata().items()}
    save_file(tensors, file, metadata)


def searched(index: Path) -> dict[str, Any]:
    """Return what an index finds for photos, by image and by number, with and without re-ranking."""
    record: dict[str, Any] = {}
    for name, options in {"plain": [], "aqe": ["--rerank", "aqe"], "reciprocal": ["--rerank", "reciprocal"]}.items():
        made = a.run_command("search", str(index), *QUERIES, "-k", "5", "--json", *options)
        assert made.exit_code == 0, made.output
        record[name] = json.loads(made.stdout.replace(f"{Path.cwd()}/photos/", f"{NOWHERE}/photos/"))
    return record


def outcome_of_sweep(folder: Path) -> dict[str, Any]:
    """Return the results of the runs of a sweep."""
    return {
        a.run_path(run).name: without_times(json.loads((a.run_path(run) / "result.json").read_text())["metrics"])
        for run in a.read_sweep(folder)
    }


def outcome_of_protocol(folder: Path) -> dict[str, Any]:
    """Return what the table of a protocol holds of numbers."""
    table = a.first_table(json.loads((folder / "table.json").read_text(encoding="utf-8")))
    keys = ("protocol", "set", "rows", "pairs", "differences", "metrics", "dims", "network")
    return {"keys": sorted(table), **{key: without_times(table[key]) for key in keys if key in table}}


def outcome_of_tune(folder: Path) -> list[str]:
    """Return the table of trials."""
    return (folder / "trials.csv").read_text(encoding="utf-8").splitlines()


def tune_words() -> list[str]:
    """Return the words of the search."""
    return TUNE


def make_files(folder: Path) -> dict[str, Any]:
    """Make all folders, half done where that is what they are for, in `folder`; return what they must come to."""
    record: dict[str, Any] = {}
    with workplace(folder):
        config = a.load_config(None, INTERRUPTED)
        record["interrupted"] = summary(Path("whole"), a.train(config, Path("whole")))
        with suppress(KeyboardInterrupt):
            a.train(a.load_config(None, INTERRUPTED), Path("interrupted"), monitor=a.Killed(15))

        record["finished"] = summary(Path("finished"), a.train(a.load_config(None, FINISHED), Path("finished")))
        for file in ("checkpoint.pt", "best.pt"):
            (Path("finished") / file).unlink()
        record["finished"]["encoded"] = encoded(Path("finished/model"))
        a.train(a.load_config(None, NETVLAD), Path("vlad"))
        Path("vlad/model").rename("netvlad")
        record["netvlad"] = encoded(Path("netvlad"))

        runs = a.plan_sweep(Path("sweep-whole"), SWEEP, EACH)
        for run in runs:
            a.train(run.config, a.run_path(run))
        record["sweep"] = outcome_of_sweep(Path("sweep-whole"))
        runs = a.plan_sweep(Path("sweep"), SWEEP, EACH)
        a.train(runs[0].config, a.run_path(runs[0]))
        with suppress(KeyboardInterrupt):
            a.train(runs[1].config, a.run_path(runs[1]), monitor=a.Killed(6))

        for command in (["index", "finished/model", "photos", "-o", "index"],
                        ["embed", "finished/model", "photos", "-o", "vectors.safetensors"]):  # fmt: skip
            made = a.run_command(*command)
            assert made.exit_code == 0, made.output
        record["index"] = searched(Path("index"))
        relocate(Path(), str(Path.cwd()), NOWHERE)

        words = ["protocol", "ablation", "photos", *METHODS, *PROTOCOL]
        made = a.run_command(*words, "-o", "protocol-whole")
        assert made.exit_code == 0, made.output
        record["protocol"] = outcome_of_protocol(Path("protocol-whole"))
        task = a.protocol_task("ablation", 3, "photos", METHODS, Path("protocol"), words=PROTOCOL)
        with suppress(KeyboardInterrupt):
            a.train_protocol(
                task, lambda run: a.Killed(5) if "gsp" in str(a.run_path(run)) else a.Monitor()
            )  # fmt: skip
        Path("protocol-whole/table.json").rename("table.json")

        with suppress(KeyboardInterrupt):
            a.tune(Path("tune"), TUNE, 3, killed=1)
        made = a.run_command("tune", *TUNE, "--trials", "3", "-o", "tune-whole")
        assert made.exit_code == 0, made.output
        record["tune"] = outcome_of_tune(Path("tune-whole"))
    return record


KEPT = ("interrupted", "finished", "netvlad", "sweep", "index", "vectors.safetensors", "protocol", "table.json", "tune")
