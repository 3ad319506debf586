from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from winnow.errors import ConfigError
from winnow.integrity import SUMS
from winnow.training import RunDir
from winnow.training.build import resolve_config
from winnow.training.config import RunConfig, config_keys, first_difference, make_config
from winnow.training.overrides import load_config
from winnow.training.sweep import first_run_difference, plan_runs, read_plan, write_plan


def test_defaults_are_a_valid_config_that_survives_yaml(tmp_path: Path) -> None:
    config = load_config()
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(file) == config


def test_words_override_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("dim: 64\nloss: {name: triplet, margin: 0.3}\ntrain: {steps: 7}\n")
    config = load_config(file, ["train.max_steps=9", "seed=4"])
    assert (config.dim, config.train.max_steps, config.seed) == (64, 9, 4)
    assert config.loss.model_dump() == {"name": "triplet", "margin": 0.3}


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("data=photos", lambda c: c.data.path),
        ("backbone=photos", lambda c: c.backbone.name),
    ],
)
def test_a_bare_value_stands_for_the_main_key_of_its_section(word: str, read: object) -> None:
    assert read(load_config(None, [word])) == "photos"  # type: ignore[operator]


def test_shorthand_and_further_settings_of_a_section_combine_in_any_order() -> None:
    for words in (["loss=triplet", "loss.margin=0.2"], ["loss.name=triplet", "loss.margin=0.2"]):
        assert load_config(None, words).loss.model_dump() == {"name": "triplet", "margin": 0.2}
    config = load_config(None, ["data.unreadable_images=skip", "data=photos"])
    assert (config.data.path, config.data.unreadable_images) == ("photos", "skip")


def test_a_new_loss_does_not_inherit_the_settings_of_the_one_it_replaces(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("loss: {name: triplet, margin: 0.3}\n")
    assert load_config(file, ["loss=c1"]).loss.model_dump() == {"name": "c1", "neg_margin": 0.5}


def test_the_same_loss_named_again_keeps_its_settings() -> None:
    assert load_config(None, ["pooling.mu=0.2", "pooling=gsp"]).pooling.mu == 0.2
    assert load_config(None, ["loss=triplet", "loss.margin=0.2", "loss=triplet"]).loss.margin == 0.2


def test_settings_alone_belong_to_the_default_part() -> None:
    assert load_config(None, ["pooling.eps=20"]).pooling.name == "gsp"


@pytest.mark.parametrize("text", ["1e-5", "0.00001", "1.0e-05"])
def test_numbers_may_be_written_as_people_write_them(text: str) -> None:
    assert load_config(None, [f"train.lr={text}"]).train.lr == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("los=c2", "los: unknown config key; did you mean 'loss'?"),
        ("train.stps=3", "train.stps: unknown config key; did you mean 'train.max_steps'?"),
        ("loss.alpa=1", "did you mean 'alpha'?"),
        ("loss=c3", "loss: unknown name 'c3'; did you mean 'c2'?"),
        ("pooling=gpp", "did you mean 'gsp'?"),
        ("train.max_steps=abc", "train.max_steps='abc'"),
        ("train.max_steps=0", "train.max_steps=0"),
        ("zsr.weight=1.5", "zsr.weight=1.5"),
        ("augment=3", "augment: expected a section"),
        ("seed", "'seed': expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
    ],
)
def test_a_slip_is_named_with_what_to_do(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [word])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [("- 1\n- 2\n", "mapping"), ("a: [1", "cannot be read")])
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"did you mean 'config.yaml'"):
        load_config(tmp_path / "confg.yaml")


def test_every_config_key_can_be_set_to_its_default_and_has_a_meaning() -> None:
    for key in config_keys():
        assert len(key.meaning) > 8, key
        section, _, name = key.name.partition(".")
        if key.component:
            tree = {section: {"name": key.component.partition("=")[2], name: key.default}}
        else:
            tree = {section: {name: key.default}} if name else {section: key.default}
        assert isinstance(make_config(tree), RunConfig)


@pytest.mark.parametrize(
    ("words", "section", "expected"),
    [
        (["loss.neg_margin=0.4", "loss=c2"], "loss", {"name": "c2", "neg_margin": 0.4}),
        (["loss.preset=cars", "loss=c2"], "loss", {"name": "c2", "neg_margin": 0.5409}),
        (
            ["references.proxies_per_class=4", "references=proxies"],
            "references",
            {"name": "proxies", "proxies_per_class": 4},
        ),
        (["pooling.mu=0.2", "pooling=gap"], "pooling", {"name": "gap"}),  # mu was meant for the default, gsp
        (["loss=c2", "loss.neg_margin=0.4", "loss=ms"], "loss", {"name": "ms"}),
    ],
)
def test_settings_may_come_before_the_name_of_their_part(
    words: list[str], section: str, expected: dict[str, object]
) -> None:
    found = getattr(load_config(None, words), section)
    assert {key: getattr(found, key) for key in expected} == expected


def test_a_setting_that_no_part_has_is_refused_in_either_order() -> None:
    for words in (["loss.negativ_margin=0.4", "loss=c2"], ["loss=c2", "loss.negativ_margin=0.4"]):
        with pytest.raises(ConfigError, match="did you mean 'neg_margin'"):
            load_config(None, words)


def test_a_section_has_presets_that_words_still_override() -> None:
    assert load_config(None, ["zsr=0.1"]).zsr.logit_scale == 1
    assert load_config(None, ["zsr=0.1", "zsr.preset=authors"]).zsr.logit_scale == 9.5
    assert load_config(None, ["zsr.logit_scale=3", "zsr.preset=authors"]).zsr.logit_scale == 3
    written = load_config(None, ["zsr.preset=authors"]).model_dump(mode="json")["zsr"]
    assert "preset" not in written
    assert make_config({"zsr": written}).zsr.logit_scale == 9.5
    assert load_config(None, ["libc.preset=cars"]).libc.num_heads == 8
    with pytest.raises(ConfigError, match=r"zsr\.preset: unknown preset 'author' of 'zsr'; did you mean 'authors'\?"):
        load_config(None, ["zsr.preset=author"])
    with pytest.raises(ConfigError, match=r"train\.preset: unknown config key"):
        load_config(None, ["train.preset=authors"])


def test_settings_of_a_term_without_weight_are_no_difference() -> None:
    def difference(first: list[str], second: list[str]) -> str | None:
        one, other = (load_config(None, words).model_dump(mode="json") for words in (first, second))
        return first_difference(one, other)

    assert difference([], ["zsr.logit_scale=9.5", "libc.num_heads=8"]) is None
    assert difference(["zsr=0.1"], ["zsr=0.1", "zsr.logit_scale=9.5"]) == "zsr.logit_scale"
    assert difference([], ["zsr=0.1", "zsr.logit_scale=9.5"]) == "zsr.weight"


@pytest.mark.parametrize(("mode", "average", "factor"), [("frozen", 0, 10), ("full", 0.998, 100)])
def test_average_and_rate_of_proxies_follow_the_backbone(mode: str, average: float, factor: float) -> None:
    config = load_config(None, ["backbone=resnet20", f"backbone.train={mode}", "train.device=cpu", "references=ccp"])
    resolved = resolve_config(config)
    assert resolved.train.average == average
    assert resolved.references.lr_multiplier == factor  # type: ignore[attr-defined]
    assert config.train.average is None  # of the request, which other machines resolve differently


def test_records_without_new_settings_keep_their_behavior(tmp_path: Path) -> None:
    """Both a record with the old value and one without it resume as runs of version 0.1.0 did."""
    base = ["backbone=resnet20", "backbone.train=full", "train.device=cpu", "references=ccp"]
    literal = ["references.normalize_proxies=false", "references.lr_multiplier=1", "train.average=0"]
    run = RunDir(tmp_path / "run")
    run.create(resolve_config(load_config(None, [*base, *literal])))
    named = run.read_config()
    tree = yaml.safe_load(run.config_file.read_text())
    del tree["references"]["normalize_proxies"], tree["references"]["lr_multiplier"], tree["train"]["average"]
    run.config_file.write_text(yaml.safe_dump(tree, sort_keys=False))
    (run.path / SUMS).unlink()
    assert run.read_config() == named
    assert first_difference(resolve_config(named).model_dump(mode="json"), tree) is None
    assert first_run_difference(load_config(None, [*base, *literal]), run.read_config(), None) is None
    moving = first_run_difference(load_config(None, base), run.read_config(), None)
    assert moving is not None
    assert moving.startswith("references.normalize_proxies")
    averaged = load_config(None, [*base, *literal, "train.average=0.9"])
    assert "train.average" in str(first_run_difference(averaged, run.read_config(), None))


def test_a_plan_dates_its_settings(tmp_path: Path) -> None:
    """Runs of an early plan that have not started have no average; those of a present plan have the default."""
    runs = plan_runs(tmp_path, None, ["backbone=resnet20", "backbone.train=full"], ["seed=0,1"])
    write_plan(tmp_path, runs)
    assert [run.config.train.average for run in read_plan(tmp_path)] == [None, None]
    plan = tmp_path / "plan.yaml"
    entries = yaml.safe_load(plan.read_text())
    for entry in entries:
        del entry["config"]["train"]["average"]
    plan.write_text(yaml.safe_dump(entries, sort_keys=False))
    (tmp_path / SUMS).unlink()
    assert [run.config.train.average for run in read_plan(tmp_path)] == [0, 0]
