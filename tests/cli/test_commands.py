"""The commands as a user calls them: what they print, what they write, how they fail."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from tests.cli.conftest import Said, Winnow
from tests.conftest import TINY, MakeFolder
from winnow.cli.console import comparison_rows, metrics_table
from winnow.cli.progress import ConsoleCallback, bars
from winnow.cli.train import advise, check_inputs
from winnow.integrity import SUMS
from winnow.losses import LOSSES
from winnow.pooling import POOLINGS
from winnow.training import RunDir, load_config
from winnow.training.sweep import plan_runs, write_plan


def one_line_error(said: Said) -> str:
    """Check that a failure is reported in one line, and return it."""
    lines = [line for line in said.err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, said.err
    assert "Traceback" not in said.err
    return lines[0]


def test_train_evaluate_and_explain_a_folder(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    said = winnow("train", f"data={data}", *TINY, "zsr=0.1", "train.device=cpu", "--out", "r")
    assert said.code == 0, said.err
    assert "MAP@R" in said.out
    folder = tmp_path / "r"
    names = {p.name for p in folder.iterdir()}
    assert {"config.yaml", "log.jsonl", "checkpoint.pt", "best.pt", "model", "result.json", "curves.png"} <= names
    result = json.loads((folder / "result.json").read_text())
    assert result["command"].startswith("winnow train data=")
    assert {"commit", "machine", "versions", "config", "metrics", "untrained"} <= result.keys()
    assert result["config"]["backbone"]["train"] == "frozen"
    assert yaml.safe_load((folder / "config.yaml").read_text()) == result["config"]

    said = winnow("evaluate", "r", "--json")
    assert said.code == 0, said.err
    measured = json.loads(said.out)["metrics"]
    assert measured == pytest.approx(result["metrics"]["test"], abs=1e-6)
    assert winnow("evaluate", "r", "--data", data).code == 0
    said = winnow("evaluate", "r/model", "--data", data, "--json")  # a saved model without a run
    assert said.code == 0, said.err
    assert json.loads(said.out)["queries"] == 32
    assert "every neighbor is relevant" not in winnow("evaluate", "r", "--data", data).out
    (tmp_path / "alone").mkdir()
    (data / "class_00").rename(tmp_path / "alone" / "class_00")
    assert "all images have one class, so every neighbor is relevant" in winnow("evaluate", "r", "--data", "alone").out
    (tmp_path / "alone" / "class_00").rename(data / "class_00")
    assert "saved model without data" in one_line_error(winnow("evaluate", "r/model"))

    image = data / "class_00" / "0.png"
    said = winnow("explain", "r", image, data / "class_01" / "0.png")  # two of one name
    assert said.code == 0, said.err
    assert {p.name for p in (tmp_path / "explained").iterdir()} == {"0.png", "0-2.png"}
    with Image.open(tmp_path / "explained" / f"{image.stem}.png") as shown:
        assert min(shown.size) > 100


def test_an_unknown_component_of_the_user_gets_advice(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_folder()
    words = [f"data={data}", *(word for word in TINY if "pooling" not in word), "train.device=cpu"]
    with monkeypatch.context() as patch:
        for registry, name in ((POOLINGS, "gap"), (LOSSES, "c2")):
            patch.setattr(registry, "_components", {**registry._components, "mine": registry[name]})
        assert winnow("train", *words, "pooling=mine", "--out", "r").code == 0
        assert winnow("train", *words, "pooling=gap", "loss=mine", "--out", "loss").code == 0
        assert winnow("index", "r", data, "--out", "i").code == 0
        plan = Path("several")
        write_plan(plan, plan_runs(plan, None, [*words, "pooling=mine"], ["seed=0,1"]))
    image = Path("new.png")  # one of the index would be found without the model
    Image.new("RGB", (40, 40), "teal").save(image)
    for kind, *command in (
        ("pooling", "evaluate", "r"),
        ("pooling", "evaluate", "r/model", "--data", data),
        ("pooling", "explain", "r", image),
        ("pooling", "embed", "r", data, "--out", "v.npy"),
        ("pooling", "search", "i", image),
        ("pooling", "export", "r", "--out", "m.onnx"),
        ("pooling", "train", "--resume", plan),
        ("loss", "evaluate", "loss"),
    ):
        error = one_line_error(winnow(*command))
        assert f"{kind}: unknown name 'mine'" in error, command
        assert "`python YOURS.py`" in error, command
    # No saved file here could contain a component of the user.
    assert "YOURS.py" not in one_line_error(winnow("train", f"data={data}", "pooling=mine"))


@pytest.mark.slow
def test_fine_tuning_trains_the_backbone_and_freezing_does_not(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path
) -> None:
    data = make_folder()
    for rate in ("1e-3", "1e-12"):
        words = [f"data={data}", *TINY, "backbone.train=full", "pooling=gmp", f"train.lr={rate}", "--out", rate]
        assert winnow("train", *words).code == 0
    moved, still = (RunDir(tmp_path / r).load(tmp_path / r / "checkpoint.pt")["learner"] for r in ("1e-3", "1e-12"))
    key = "model.backbone.network.0.0.weight"
    assert float((moved[key] - still[key]).abs().max()) > 1e-3
    assert winnow("train", f"data={data}", *TINY, "backbone.train=frozen", "--out", "frozen").code == 0
    assert key not in RunDir(tmp_path / "frozen").load(tmp_path / "frozen" / "checkpoint.pt")["learner"]


def test_a_csv_and_disk_features_work_and_are_reused(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    rows = [f"{p.relative_to(tmp_path)},{p.parent.name}" for p in sorted(data.rglob("*.png"))]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    words = ["data=list.csv", *TINY, "data.feature_cache=disk", "train.device=cpu"]
    assert winnow("train", *words, "--out", "a").code == 0
    folder = tmp_path / "cache" / "features"
    maps = sorted(folder.glob("*/*.npy"))
    assert len(maps) == len(list(folder.glob("*/*.json"))) == 3  # training, validation, and test
    times = [path.stat().st_mtime_ns for path in maps]
    assert winnow("train", *words, "--out", "b").code == 0
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*/*.npy"))] == times
    a, b = (json.loads((tmp_path / r / "result.json").read_text())["metrics"] for r in "ab")
    assert a == b


def test_cache_shows_and_clears_features(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "data.feature_cache=disk", "train.device=cpu"]
    assert winnow("train", *words, "--out", "a").code == 0
    size = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.*") if path.is_file())
    assert f"{size / 1e9:.2f} GB of features" in winnow("cache").out
    assert f"removed {size / 1e9:.2f} GB" in winnow("cache", "--clear").out
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_tensorboard_logs_are_written_on_request(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    said = winnow("train", f"data={make_folder()}", *TINY, "train.tensorboard=true", "--out", "r")
    assert said.code == 0, said.err
    assert any(p.name.startswith("events") for p in (tmp_path / "r" / "tensorboard").iterdir())


def test_a_users_own_transform_is_used_in_training(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "calls = []\ndef crop(image):\n    calls.append(tuple(image.shape))\n    return image[:, :24, :24]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "augment.transform=mine:crop", "--out", "r"]
    assert winnow("train", *words).code == 0
    import mine  # type: ignore[import-not-found]

    assert set(mine.calls) == {(3, 32, 32)}
    said = winnow("train", f"data={tmp_path / 'photos'}", *TINY, "augment.transform=mine:nothing", "--out", "q")
    assert said.code == 2
    assert "module:function" in one_line_error(said)


@pytest.mark.slow
def test_code_that_a_run_folder_names_is_imported_on_trust_only(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text(
        "from pathlib import Path\nPath('imported').touch()\ndef crop(image):\n    return image\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "augment.transform=theirs:crop"]
    assert winnow("train", *words, "--out", "one").code == 0
    assert winnow("train", *words, "--sweep", "seed=0,1", "--out", "several", "train.max_steps=4").code == 0
    for file in ("one/result.json", "several/seed=0/result.json"):
        (tmp_path / file).unlink()
    (tmp_path / "imported").unlink()
    for call in (["--resume", "one"], ["--resume", "several"], ["one/config.yaml"], ["one/config.yaml", "seed=1"]):
        monkeypatch.delitem(sys.modules, "theirs", raising=False)
        said = winnow("train", *call)
        assert said.code == 2
        assert "theirs:crop" in one_line_error(said)
        assert "--trust" in said.err
        assert not (tmp_path / "imported").exists()
    assert winnow("train", "--resume", "one", "--trust").code == 0
    assert (tmp_path / "imported").exists()


# Bad input: each a one-line message that says what to do, and the exit code of its kind.


def test_a_missing_folder(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    make_folder("photos")
    said = winnow("train", f"data={tmp_path / 'photo'}")
    assert said.code == 3
    assert "photo" in one_line_error(said)
    assert "photos" in one_line_error(said)
    assert not (tmp_path / "runs").exists()


def test_data_of_one_class(winnow: Winnow, make_folder: MakeFolder) -> None:
    said = winnow("train", f"data={make_folder(classes=1)}")
    assert said.code == 3
    assert "at least 4 required" in one_line_error(said)


def test_a_truncated_jpeg_stops_or_is_skipped_and_named(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path
) -> None:
    data = make_folder()
    bad = data / "class_03" / "bad.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)).save(bad)
    bad.write_bytes(bad.read_bytes()[:3000])
    said = winnow("train", f"data={data}", *TINY, "--out", "r")
    assert said.code == 3
    assert "bad.jpg" in one_line_error(said)
    assert "data.unreadable_images=skip" in one_line_error(said)
    said = winnow("train", f"data={data}", *TINY, "data.unreadable_images=skip", "--out", "q")
    assert said.code == 0
    assert "skipped" in said.err
    assert "bad.jpg" in said.err


def test_a_text_file_named_jpg(winnow: Winnow, make_folder: MakeFolder) -> None:
    data = make_folder()
    (data / "class_01" / "notes.jpg").write_text("hello")
    said = winnow("train", f"data={data}", *TINY, "--out", "r")
    assert said.code == 3
    assert "notes.jpg" in one_line_error(said)


def test_an_image_of_one_pixel_is_an_image(winnow: Winnow, make_folder: MakeFolder) -> None:
    data = make_folder()
    Image.new("RGB", (1, 1), "red").save(data / "class_01" / "dot.png")
    assert winnow("train", f"data={data}", *TINY, "--out", "r").code == 0
    assert winnow("explain", "r", data / "class_01" / "dot.png").code == 0


def test_a_config_typo(winnow: Winnow) -> None:
    said = winnow("train", "data=x", "train.stpes=3")
    assert said.code == 2
    assert "did you mean 'train.max_steps'" in one_line_error(said)


def test_a_checkpoint_of_another_model(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    assert winnow("train", f"data={data}", *TINY, "--out", "a").code == 0
    assert winnow("train", f"data={data}", *TINY, "pooling=gap", "--out", "b").code == 0
    os.replace(tmp_path / "a" / "checkpoint.pt", tmp_path / "b" / "checkpoint.pt")
    (tmp_path / "b" / SUMS).unlink()  # folders of version 0.1.0 have no checksums, so the content decides
    (tmp_path / "b" / "result.json").unlink()
    said = winnow("train", "--resume", "b")
    assert said.code == 4
    assert "made with another pooling.name" in one_line_error(said)
    os.replace(tmp_path / "a" / "model" / "model.safetensors", tmp_path / "b" / "model" / "model.safetensors")
    (tmp_path / "b" / "model" / SUMS).unlink()
    said = winnow("explain", "b/model", next((data / "class_00").iterdir()))
    assert said.code == 4
    assert "another model" in one_line_error(said)


def test_runs_are_never_overwritten_nor_finished_twice(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    assert winnow("train", f"data={data}", *TINY, "--out", "r").code == 0
    said = winnow("train", f"data={data}", *TINY, "--out", "r")
    assert said.code == 2
    assert "already contains a run" in one_line_error(said)
    assert "is finished" in one_line_error(winnow("train", "--resume", "r"))
    (tmp_path / "r" / "result.json").write_text("")  # as a full disk leaves it; the checkpoint is still there
    assert winnow("train", "--resume", "r").code == 0
    (tmp_path / "r" / "config.yaml").write_text("")
    said = winnow("train", "--resume", "r")
    assert said.code == 4
    assert "config.yaml: content does not match its checksum" in one_line_error(said)
    assert "no saved model" in one_line_error(winnow("evaluate", data))
    assert "no saved model" in one_line_error(winnow("explain", data, data))


def test_random_weights_are_never_silent(winnow: Winnow, make_folder: MakeFolder) -> None:
    said = winnow("train", f"data={make_folder()}", *TINY, "--out", "r")
    assert "warning: backbone resnet20 starts from random weights" in said.err
    said = winnow("train", f"data={make_folder('other')}", "backbone=resnet20", "--out", "q")
    assert said.code == 4
    assert "backbone.weights" in one_line_error(said)


def test_without_a_gpu_cuda_is_rejected(
    winnow: Winnow, make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = winnow("train", f"data={make_folder()}", *TINY, "train.device=cuda", "--out", "r")
    assert said.code == 2
    assert "train.device=cpu" in one_line_error(said)


def test_an_unfinished_run_cannot_be_evaluated(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    assert winnow("train", f"data={make_folder()}", *TINY, "--out", "r").code == 0
    (tmp_path / "r" / "result.json").unlink()
    for command in (["evaluate", "r"], ["explain", "r", "x.png"]):
        said = winnow(*command)
        assert said.code == 4
        assert "not finished" in one_line_error(said)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("loss=3", "loss: expected a name, got 3"),
        ("pooling=[1]", "pooling: expected a name, got [1]"),
        ("seed=99999999999999999999999", "seed="),
        ("train.lr_multipliers={'*': -1}", "train.lr_multipliers.*=-1"),
        ("backbone=vit_tiny_patch16_224 image.crop=227 backbone.weights=random", "Set image.crop"),
    ],
)
def test_values_of_the_wrong_kind(winnow: Winnow, make_folder: MakeFolder, word: str, message: str) -> None:
    words = [word] if "{" in word else word.split()
    said = winnow("train", f"data={make_folder()}", *words, "--out", "r")
    assert said.code == 2
    assert message in one_line_error(said)


def test_a_folder_given_without_its_key(winnow: Winnow, make_folder: MakeFolder) -> None:
    said = winnow("train", make_folder())
    assert said.code == 2
    assert "data=" in one_line_error(said)


def test_paths_that_cannot_be_written_to(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    (tmp_path / "file").write_text("")
    for command in (["train", f"data={data}", *TINY], ["demo"]):
        said = winnow(*command, "--out", tmp_path / "file" / "run")
        assert said.code == 7
        assert "file" in one_line_error(said)
    assert winnow("train", f"data={data}", *TINY, "--out", "r").code == 0
    said = winnow("explain", "r", data / "class_00" / "0.png", "--out", "file")
    assert said.code == 7
    one_line_error(said)


def test_names_with_brackets_are_shown_whole(winnow: Winnow, make_folder: MakeFolder) -> None:
    data = make_folder("photos[raw]")
    (data / "class_00" / "z[final].jpg").write_text("no image")
    said = winnow("train", f"data={data}", *TINY, "--out", "r")
    assert "photos[raw]" in one_line_error(said)
    assert "z[final].jpg" in one_line_error(said)
    said = winnow("train", f"data={data}", *TINY, "data.unreadable_images=skip", "--out", "q[1]")
    assert "skipped class_00/z[final].jpg" in said.err
    assert "q[1]" in said.out


def test_a_run_killed_before_its_first_checkpoint_can_be_resumed(winnow: Winnow, make_folder: MakeFolder) -> None:
    data = make_folder()
    assert winnow("train", f"data={data}", *TINY, "--out", "whole").code == 0
    Path("killed").mkdir()
    shutil.copy("whole/config.yaml", "killed")  # the only file by then
    said = winnow("train", "--resume", "killed")
    assert said.code == 0, said.err
    weights = [load_file(f"{name}/model/model.safetensors") for name in ("whole", "killed")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_run_that_fails_before_its_first_step_can_be_started_again(winnow: Winnow, make_folder: MakeFolder) -> None:
    data = make_folder()
    (data / "class_00" / "bad.jpg").write_text("no image")
    assert winnow("train", f"data={data}", *TINY, "--out", "r").code == 3
    said = winnow("train", f"data={data}", *TINY, "data.unreadable_images=skip", "--out", "r")
    assert said.code == 0, said.err
    assert winnow("evaluate", "r").code == 0


def test_a_class_emptied_by_skipping_is_not_in_batches(winnow: Winnow, make_folder: MakeFolder) -> None:
    data = make_folder(classes=9)
    for image in (data / "class_01").iterdir():
        image.write_text("no image")
    splits = ["data.train_classes=1-3", "data.val_classes=4-6", "data.test_classes=7-9"]
    said = winnow(
        "train", f"data={data}", *TINY, *splits, "data.unreadable_images=skip", "--out", "r"
    )  # 3 classes per batch
    assert said.code == 0, said.err
    assert said.err.count("skipped class_01") == 4


@pytest.mark.parametrize("word", ["pooling.mu=2", "pooling.num_prototypes=0", "pooling.memory_size=3"])
def test_a_value_out_of_range(winnow: Winnow, make_folder: MakeFolder, word: str) -> None:
    said = winnow("train", f"data={make_folder()}", *TINY, word, "--out", "r")
    assert said.code == 2
    assert "pooling 'gsp'" in one_line_error(said)


def test_settings_without_effect_are_reported(winnow: Winnow, make_folder: MakeFolder) -> None:
    said = winnow("train", f"data={make_folder()}", *TINY, "augment.hflip=false", "backbone.train=frozen", "--out", "r")
    assert "augment.* has no effect" in said.err
    said = winnow("train", "data=emoji", "data.test_classes=1-5", "--out", "q")
    assert said.code == 2
    assert "its own splits" in one_line_error(said)


def test_a_resumed_run_reports_the_same_pretrained_metrics(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path
) -> None:
    words = [f"data={make_folder()}", *TINY, "backbone.train=full", "train.lr=1e-2", "train.device=cpu"]
    assert winnow("train", *words, "--out", "r").code == 0
    before = json.loads((tmp_path / "r" / "result.json").read_text())
    (tmp_path / "r" / "result.json").unlink()
    assert winnow("train", "--resume", "r").code == 0
    after = json.loads((tmp_path / "r" / "result.json").read_text())
    assert after["untrained"] == before["untrained"]
    assert after["metrics"] == before["metrics"]


def test_an_interrupt_says_how_to_resume(
    winnow: Winnow, make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.training.trainer.Trainer.take_step", interrupt)
    data = make_folder()
    said = winnow("train", f"data={data}", *TINY, "--out", "my run")
    assert said.code == 130
    assert "`winnow train --resume 'my run'`" in said.err
    said = winnow("train", f"data={data}", *TINY, "pooling=gap")
    assert f"`winnow train --resume runs/{data.name}-gap-1`" in said.err  # the default name
    said = winnow("train", f"data={data}", *TINY, "--sweep", "seed=0,1", "--out", "all")
    assert "`winnow train --resume all`" in said.err


def test_advice_is_given_where_training_gained_nothing() -> None:
    assert advise(0.8, 0.7, 40) is None
    for trained, untrained, step in ((0.7, 0.7, 40), (0.8, 0.7, 0)):  # the projection alone may gain a little
        assert "Try train.lr" in (advise(trained, untrained, step) or "")
    perfect = advise(1.0, 1.0, 0) or ""
    assert "data.val_fraction" in perfect
    assert "train.lr" not in perfect  # no gain is possible


def test_training_requires_data(winnow: Winnow, tmp_path: Path) -> None:
    for words in ([], ["seed=1"], ["data.val_fraction=0.2"], ["--sweep", "seed=0,1"]):
        said = winnow("train", *words)
        assert said.code == 2
        assert "winnow train data=photos" in one_line_error(said)
        assert "data=emoji" in one_line_error(said)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "c.yaml").write_text("data: photos\n")
    for file, overrides in ((None, ["data=emoji"]), (None, ["data.path=photos"]), ("c.yaml", [])):
        check_inputs([load_config(file, overrides)])


@pytest.mark.slow
def test_several_runs_are_trained_concurrently_and_compared(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path
) -> None:
    data = make_folder()
    words = [f"data={data}", *TINY, "train.device=cpu"]
    said = winnow("train", *words, "--sweep", "pooling=gap,gsp", "--sweep", "seed=0,1", "--jobs", 2, "--out", "all")
    assert said.code == 0, said.err
    assert "pooling=gap (2 runs)" in said.out
    assert "±" in said.out
    assert "pooling=gsp,seed=1: step 4: loss" in said.err
    names = {p.name for p in (tmp_path / "all").iterdir()}
    assert names == {"plan.yaml", "SHA256SUMS", *(f"pooling={p},seed={s}" for p in ("gap", "gsp") for s in (0, 1))}
    assert (tmp_path / "all" / "pooling=gap,seed=0" / "curves.png").is_file()
    assert winnow("evaluate", "all/pooling=gsp,seed=1").code == 0
    assert "already contains runs" in one_line_error(winnow("train", *words, "--sweep", "seed=0,1", "--out", "all"))


def test_of_several_runs_one_may_fail_and_is_resumed(winnow: Winnow, make_folder: MakeFolder) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu"]
    said = winnow("train", *words, "--sweep", "train.lr_multipliers={},{nothing: 2}", "--out", "all")
    assert said.code == 5
    assert "failed: train.lr_multipliers={nothing: 2}: train.lr_multipliers: 'nothing' matches no" in said.err
    error = one_line_error(said)
    assert "1 of 2 runs failed (train.lr_multipliers={nothing: 2})" in error
    assert "winnow train --resume all" in error
    assert "train.lr_multipliers={}" in said.out
    again = winnow("train", "--resume", "all")
    assert again.code == 5
    assert "val MAP@R" not in again.err  # the finished run is not trained again


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sweep", "seed=0,1", "--resume", "x"], "Remove the other arguments"),
        (["--jobs", "2"], "Name them with --sweep"),
        (["--sweep", "train.stpes=1,2"], "did you mean 'train.max_steps'"),
        (["data=x", "--sweep", "pooling.mu=0.3,7"], "mu: expected a fraction in (0, 1]"),
        (["data=emoji", "pooling.mu=7", "backbone=resnet20", "train.max_steps=1"], "mu: expected a fraction in (0, 1]"),
    ],
)
def test_invalid_sweeps(winnow: Winnow, tmp_path: Path, words: list[str], message: str) -> None:
    said = winnow("train", *words)
    assert said.code == 2
    assert message in one_line_error(said)
    assert not (tmp_path / "runs").exists()


def test_lines_of_runs_with_long_names_are_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("winnow.cli.console.err", Console(stderr=True, width=40))
    name = "train.lr_multipliers={'*.prototypes': 10},seed=0"
    with bars() as shared:
        monitor = ConsoleCallback(name, shared)
        monitor.progress("training features")(24, 24)
        monitor.validated({"step": 4, "loss": 0.5, "val/MAP@R": 0.25}, True)
        assert capsys.readouterr().err.splitlines() == [
            f"{name}: training features: 24 done",
            f"{name}: step 4: loss 0.5000 val MAP@R 25.00 (best)",
        ]
        monitor.validated({"step": 5, "val/MAP@R": 0.2, "val/P@1": 0.75}, True, "P@1")  # the metric that selects
        assert capsys.readouterr().err.splitlines() == [f"{name}: step 5: val P@1 75.00 (best)"]


def test_a_run_that_fails_early_leaves_no_bar(winnow: Winnow, make_folder: MakeFolder) -> None:
    data = make_folder()
    (data / "class_00" / "0.png").write_bytes(b"no image")
    shown = bars()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("winnow.cli.progress.bars", lambda: shown)
        assert winnow("train", f"data={data}", *TINY, "--sweep", "seed=0,1", "--out", "all").code == 5
    assert not shown.tasks


def test_a_pattern_that_matches_nothing_leaves_the_folder_free(
    winnow: Winnow, make_folder: MakeFolder, tmp_path: Path
) -> None:
    words = ["train", f"data={make_folder()}", *TINY, "loss=proxy_anchor", "train.device=cpu", "--out", "r"]
    said = winnow(*words, "train.lr_multipliers={'proxies': 100}")
    assert said.code == 2
    assert "* matches any part" in said.err
    assert not (tmp_path / "r").exists()
    assert winnow(*words, "train.lr_multipliers={'*proxies': 100}").code == 0


def test_a_loss_without_pairs_is_rejected_before_a_file_is_written(winnow: Winnow, make_folder: MakeFolder) -> None:
    said = winnow("train", f"data={make_folder()}", *TINY, "train.samples_per_class=1", "--out", "r")
    assert said.code == 2
    assert "no positive pairs" in said.err


def test_long_names_in_tables_are_broken_not_cut() -> None:
    """Runs of a sweep may differ in the last letters of their names alone."""
    names = [f"references.normalize_proxies=true,references.start_from=best,seed={seed}" for seed in (0, 1)]
    metrics = {"MAP@R": 0.25, "P@1": 0.5, "P@R": 0.3}
    rows = [{"method": name, **metrics, **{f"{key} std": 0.01 for key in metrics}} for name in names]
    for table in (metrics_table(dict.fromkeys(names, metrics), "test"), comparison_rows(rows, "test")):
        console = Console(width=60, file=io.StringIO())
        console.print(table)
        printed = console.file.getvalue()
        assert "…" not in printed
        first = [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")]
        assert "".join(first).replace(" ", "") == "".join(names)
    console = Console(width=80, file=io.StringIO())
    console.print(comparison_rows([{**rows[0], "method": "pretrained, no training"}], "test"))
    assert "pretrained, no training" in console.file.getvalue()


def test_runs_that_did_not_improve_are_reported(winnow: Winnow, make_folder: MakeFolder) -> None:
    said = winnow("train", f"data={make_folder()}", *TINY, "train.lr=1e-12", "--sweep", "seed=0,1", "--out", "all")
    assert said.code == 0
    assert "2 of 2 runs have their best validation before the first step" in said.out


def test_a_wrong_path_is_answered_with_what_was_meant(winnow: Winnow, make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder()
    (tmp_path / "runs" / "first").mkdir(parents=True)
    image = next(data.rglob("*.png"))
    said = one_line_error(winnow("index", "runs/firs", data, "-o", "i"))
    assert "not found" in said
    assert "did you mean 'first'" in said
    assert "winnow explain RUN" in one_line_error(winnow("explain", image))
    assert "winnow index RUN DATA" in one_line_error(winnow("search", "runs/first", image))
