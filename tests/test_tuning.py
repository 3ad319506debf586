"""Search for settings: its space, resuming, and that it never reads the test classes."""

from __future__ import annotations

import csv
import functools
import shlex
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import MakeFolder
from tests.protocols.test_plan import SMALL, Killed
from winnow.cli.main import app
from winnow.cli.train import split_words
from winnow.errors import ConfigError, MissingExtraError, ModelError, OutputError
from winnow.report.figures import contour_figure, importance_figure
from winnow.training import Callback, RunDir, load_config
from winnow.training.config import first_difference
from winnow.tuning import Choice, Range, Search, flat, importances, nested, parse_space

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights", "ignore::Warning")


def test_ranges_are_told_from_settings() -> None:
    space, plain = parse_space(
        ["train.lr=1e-6..1e-3:log", "dim=64..512", "pooling.mu=.1..0.9", "loss=c2|ms", "data=../photos", "seed=3"]
    )
    assert space == {
        "train.lr": Range(1e-6, 1e-3, log=True, whole=False), "dim": Range(64, 512, log=False, whole=True),
        "pooling.mu": Range(0.1, 0.9, log=False, whole=False), "loss": Choice(("c2", "ms")),
    }  # fmt: skip
    assert plain == ["data=../photos", "seed=3"]


@pytest.mark.parametrize("words", [["dim=5..3"], ["train.lr=0..1:log"], ["dim=1..2", "dim=3..4"]])
def test_ranges_that_are_none(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_space(words)


def make_search(photos: Path, folder: Path, *words: str) -> Search:
    space, plain = parse_space([f"data={photos}", *SMALL, "pooling=gap", *words])
    return Search(None, plain, space, folder)


def values(study: Any) -> list[tuple[Any, float]]:
    return [(trial.params, trial.value) for trial in study.trials if trial.value is not None]


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos = make_folder(classes=8, images=3, size=16)
    words = ("train.lr=1e-4..1e-1:log", "loss=c2|ms")
    whole = make_search(photos, tmp_path / "whole", *words).run(4)
    broken = make_search(photos, tmp_path / "broken", *words)
    with pytest.raises(KeyboardInterrupt):
        broken.run(4, callback=lambda number: Killed() if number == 2 else Callback())
    assert len(values(broken.open())) == 2
    ended: list[float | None] = []
    study = broken.run(4, on_end=lambda number, params, value: ended.append(value))
    assert len(ended) == 2
    assert values(study) == values(whole)
    broken.run(4, on_end=lambda number, params, value: ended.append(value))
    assert len(ended) == 2  # there were enough
    for result in (tmp_path / "broken").rglob("result.json"):
        assert '"test": {' not in result.read_text().split('"metrics"')[1].split('"steps"')[0]
    found = importances(study)
    assert not found or sum(found.values()) == pytest.approx(1)
    before = values(study)
    (tmp_path / "broken" / "search.db").write_text("not a database, but long enough to be one" * 100)
    with pytest.raises(ModelError, match=r"search\.db"):
        broken.run(4)
    (tmp_path / "broken" / "search.db").unlink()
    assert values(broken.run(4, callback=lambda number: Killed())) == before  # no trial is trained again
    with pytest.raises(ConfigError, match="other ranges"):
        make_search(photos, tmp_path / "broken", "train.lr=1e-4..1e-2:log", "loss=c2|ms").run(4)
    with pytest.raises(ConfigError, match=r"train\.max_grad_norm"):
        make_search(photos, tmp_path / "broken", *words, "train.max_grad_norm=5").run(4)


def test_finished_trials_of_other_settings_are_not_taken_for_ones_own(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos = make_folder(classes=8, images=3, size=16)
    make_search(photos, tmp_path / "out", "dim=2..4").run(1)
    (tmp_path / "out" / "search.db").unlink()  # and with it what the search was begun with
    with pytest.raises(ConfigError, match=r"another train\.max_grad_norm"):
        make_search(photos, tmp_path / "out", "dim=2..4", "train.max_grad_norm=5").run(1)


def test_a_score_that_differs_from_that_of_its_run_is_found(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    search = make_search(make_folder(classes=8, images=3, size=16), tmp_path / "out", "dim=2..4")
    search.run(1)
    with closing(sqlite3.connect(search.database)) as database, database:
        database.execute("UPDATE trial_values SET value = value + 0.25")
    with pytest.raises(ModelError, match=r"search\.db: trial 0 has another score than .*trial-"):
        search.run(1)
    shutil.rmtree(search.run_dir(search.open().trials[0].params).path)
    search.run(1)  # without the run there is nothing to compare


MULTIPLIERS = "train.lr_multipliers={'references.proxies': 10, 'model.head.*': 2}"


def test_a_search_goes_on_with_settings_that_winnow_has_learned_since(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos = make_folder(classes=8, images=3, size=16)
    words = ("loss=proxy_anchor", MULTIPLIERS, "regularizer=r1", "regularizer.weight=0.1..1")
    search = make_search(photos, tmp_path / "out", *words)
    study = search.open()
    begun = study.user_attrs["winnow"]
    since = {"loss.alpha": 32.0, "regularizer.gamma": 10.0, "regularizer.delta": None}
    assert since.items() <= begun["config"].items()

    def begin(**config: Any) -> None:
        study.set_user_attr("winnow", {**begun, "config": config})

    def go_on(*more: str) -> None:
        make_search(photos, tmp_path / "out", *words, *more).open()

    old = {key: value for key, value in begun["config"].items() if key not in since}
    begin(**old)
    go_on()
    assert search.open().user_attrs["winnow"] == begun
    begin(**old)
    go_on("train.max_grad_norm=10.0", "regularizer.gamma=10")  # no others than the defaults
    for other in ("regularizer.gamma=5", "loss.alpha=16", "train.max_grad_norm=5"):
        begin(**old)
        with pytest.raises(ConfigError, match="other settings"):
            go_on(other)
    for key, value in (
        ("train.max_grad_norm", 5.0),
        ("train.lr_multipliers.references.proxies", 3.0),
        ("train.gone", 1),
    ):
        begin(**{**old, key: value})
        with pytest.raises(ConfigError, match=key):
            go_on()


def test_what_is_left_to_the_data_is_not_its_default(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    space, plain = parse_space(["data=emoji", "dim=2..4"])
    Search(None, plain, space, tmp_path).open()
    with pytest.raises(ConfigError, match=r"image\.crop"):  # 227, but 128 where the emoji set is left to choose
        Search(None, [*plain, "image.crop=227"], space, tmp_path).open()


def test_values_by_dotted_key_are_put_back() -> None:
    config = load_config(None, ["loss=proxy_anchor", MULTIPLIERS, "augment.scale=[0.5, 1.0]", "data.fold=2", "zsr=0.2"])
    assert nested(flat(config)) == config.model_dump(mode="json", exclude_unset=True)


def test_a_memory_that_cannot_be_opened_is_not_to_be_removed(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    (tmp_path / "out" / "search.db").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"search\.db.*unable to open database file"):
        make_search(make_folder(classes=8, images=3, size=16), tmp_path / "out", "dim=2..4").run(1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no lock; the rule is five seconds."""
    monkeypatch.setattr(sqlite3.dbapi2, "connect", functools.partial(sqlite3.connect, timeout=0.0))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_memory_in_use_is_told(lock: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos = make_folder(classes=8, images=3, size=16)
    search = make_search(photos, tmp_path / "out", "dim=2..4")
    before = values(search.run(1))
    with closing(sqlite3.connect(search.database, isolation_level=None)) as other:
        other.execute(lock)
        with pytest.raises(ModelError, match=r"search\.db.*database is locked"):
            search.run(2)
    locked: list[sqlite3.Connection] = []

    def locking(number: int) -> Callback:  # while a trial is trained
        locked.append(sqlite3.connect(search.database, isolation_level=None))
        locked[0].execute(lock)
        return Callback()

    with pytest.raises(ModelError, match="database is locked"):
        search.run(2, callback=locking)
    locked[0].close()
    after = values(search.run(2))
    assert len(after) == 2
    assert after[:1] == before


def test_a_memory_that_breaks_meanwhile_is_told(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos = make_folder(classes=8, images=3, size=16)
    search = make_search(photos, tmp_path / "out", "dim=2..4")
    with pytest.raises(ModelError, match=r"search\.db"):
        search.run(2, on_end=lambda number, params, value: _spoil(search.database))
    search.database.unlink()
    words = ["tune", f"data={photos}", *SMALL, "pooling=gap", "dim=2..4", "-o", str(tmp_path / "out"), "--trials", "1"]
    with pytest.MonkeyPatch.context() as patch:  # after the last trial, before the table
        patch.setattr("winnow.cli.console.err.print", lambda *args, **settings: _spoil(search.database))
        error = CliRunner().invoke(app, words).exception
    assert isinstance(error, ModelError)
    assert "search.db" in str(error)


def _spoil(memory: Path) -> None:
    memory.write_text("not a database, but long enough to be one" * 1000)


def test_a_memory_of_another_optuna_is_told(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    search = make_search(make_folder(classes=8, images=3, size=16), tmp_path / "out", "dim=2..4")
    search.open()
    with closing(sqlite3.connect(search.database)) as memory, memory:
        memory.execute("UPDATE alembic_version SET version_num = 'v99.0.0'")
    with pytest.raises(ModelError, match="version of Optuna"):
        search.open()


def test_two_searches_in_one_folder_do_not_disturb_each_other(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos = make_folder(classes=8, images=3, size=16)
    alone = make_search(photos, tmp_path / "alone", "dim=2..4").run(2)
    first, second = (make_search(photos, tmp_path / "out", "dim=2..4") for _ in range(2))
    refused: list[str] = []

    def meanwhile(number: int) -> Callback:  # while a trial of the first is running
        with pytest.raises(OutputError) as error:
            second.run(2)
        refused.append(str(error.value))
        return Callback()

    study = first.run(2, callback=meanwhile)
    assert len(refused) == 2
    assert all(f"another process is searching in {tmp_path / 'out'}" in message for message in refused)
    assert values(study) == values(alone)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert values(second.run(2, callback=lambda number: Killed())) == values(alone)  # nothing is left to train


def test_failed_trials_count_and_settings_are_checked(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos = make_folder(classes=8, images=3, size=16)
    ended: list[float | None] = []
    search = make_search(photos, tmp_path / "out", "train.lr=1e29..1e30", "train.max_grad_norm=1e30")
    search.run(2, on_end=lambda number, params, value: ended.append(value))
    assert ended == [None, None]
    for wrong in ("train.lrr=1..2", "dim=0..4"):
        with pytest.raises(ConfigError):
            make_search(photos, tmp_path / "other", wrong).run(1)
    with pytest.raises(ConfigError, match=r"data\.val_classes"):
        make_search(photos, tmp_path / "third", "dim=2..4", "data.train_classes=1-4", "data.val_classes=test",
                    "data.test_classes=5-8").run(1)  # fmt: skip


@pytest.mark.slow
def test_the_command(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos, out = make_folder(classes=8, images=3, size=16), tmp_path / "out"
    words = ["tune", f"data={photos}", *SMALL, "pooling=gap", "train.lr=1e-3..1e-1:log", "dim=2..6", "-o", str(out)]
    said = CliRunner().invoke(app, [*words, "--trials", "5"])
    assert said.exit_code == 0, said.output
    assert "next: winnow train" in said.output
    rows = list(csv.DictReader((out / "trials.csv").open()))
    assert len(rows) == 5
    assert all(2 <= int(row["dim"]) <= 6 for row in rows)
    assert (out / "contour.svg").is_file()
    error = CliRunner().invoke(app, ["tune", "seed=1"]).exception
    assert isinstance(error, ConfigError)


def test_the_next_command_is_that_of_the_best_trial(make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    photos, out = make_folder(classes=8, images=3, size=16), tmp_path / "out folder"
    (tmp_path / "my config.yaml").write_text("seed: 7\n")
    # The name of the loss is searched after one of its settings, and would drop it if it came after.
    words = [str(tmp_path / "my config.yaml"), f"data={photos}", *SMALL, "pooling=gap", "augment.scale=[0.5, 1.0]",
             "loss.margin=0.3..0.9", "loss=margin|triplet"]  # fmt: skip
    said = CliRunner().invoke(app, ["tune", *words, "-o", str(out), "--trials", "2"])
    assert said.exit_code == 0, said.output
    next_line = next(line for line in said.output.splitlines() if line.startswith("next: "))
    command, train, *given = shlex.split(next_line.removeprefix("next: "))
    assert (command, train) == ("winnow", "train")
    best = max(csv.DictReader((out / "trials.csv").open()), key=lambda row: float(row["value"]))
    config = load_config(*split_words(given))
    assert config.loss.name == best["loss"]
    assert config.loss.margin == float(best["loss.margin"])
    assert (config.seed, list(config.augment.scale)) == (7, [0.5, 1.0])
    kept = next(RunDir(path.parent).read_config() for path in out.rglob("config.yaml")
                if f"margin: {best['loss.margin']}" in path.read_text())  # fmt: skip
    asked = config.model_dump(mode="json")
    asked["train"]["average"] = 0.0  # which the run set for its frozen backbone
    assert first_difference(kept.model_dump(mode="json"), asked) == "train.run_test"


def test_figures_of_few_or_odd_trials() -> None:
    assert importance_figure({"a": 0.7, "b": 0.3}).axes
    for trials in ([(1, "x")], [(1, 2), (2, 3), (3, 4), (4, 5)], [(1, "x"), (2, "y"), (3, "x"), (4, "y"), (5, "x")]):
        figure = contour_figure(("a", "b"), trials, [float(n) for n in range(len(trials))], (True, False), "MAP@R")
        assert "circle" in figure.axes[0].get_title(loc="left")
        figure.draw_without_rendering()
        assert not any("$" in label.get_text() for label in figure.axes[0].get_xticklabels())


def test_levels_between_trials_are_straight_where_they_are_seen() -> None:
    trials = [(1e-4, 1), (1e-4, 3), (1.0, 1), (1.0, 3)]
    figure = contour_figure(("a", "b"), trials, [0.0, 0.0, 4.0, 4.0], (True, False), "MAP@R")
    axes = figure.axes[0]
    figure.draw_without_rendering()
    assert {"0.0001", "0.01", "1"} <= {label.get_text() for label in axes.get_xticklabels()}
    left, right = axes.get_xlim()
    assert left < -4 < 0 < right  # a dot on the edge is a whole one
    levels = next(part for part in axes.collections if hasattr(part, "levels"))
    corners = levels.get_paths()[len(levels.levels) // 2 - 1].vertices  # up to the middle, which is at a = 0.01
    assert abs(corners[:, 0].max() - -2.0) < 0.4


def test_without_optuna_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"\[optuna\]"):
        Search(None, ["data=photos"], {"dim": Range(2, 4, log=False, whole=True)}, tmp_path).open()
