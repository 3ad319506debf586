"""The centres' term in training: what it is taken of, how it adds up, and the optimiser of its document."""

from __future__ import annotations

import pytest
import torch

from tests.training.test_trainer import make_trainer, same, small_config, weights
from winnow.centres import R1, class_means
from winnow.errors import ConfigError
from winnow.models import Head
from winnow.references import REFERENCES, References
from winnow.training.config import Config
from winnow.training.learner import Learner, build_learner, check_objective
from winnow.training.words import load_config

LABELS = torch.arange(4).repeat_interleave(3)
MAPS = torch.randn(12, 16, 3, 3, generator=torch.Generator().manual_seed(0))


def learner_of(config: Config) -> Learner:
    torch.manual_seed(0)
    return build_learner(config, Head(16, config.dim, config.pooling), num_classes=10)


def test_terms_add_up() -> None:
    words = ["loss=proxy_anchor", "centres=r1", "centres.weight=3", "zsr=0.2"]
    terms = learner_of(small_config(*words))(MAPS, LABELS)
    assert list(terms) == ["loss", "metric", "centres", "zsr"]
    torch.testing.assert_close(
        terms["loss"], 0.8 * (terms["metric"] + 3 * terms["centres"]) + 0.2 * terms["zsr"]
    )  # fmt: skip
    plain = learner_of(small_config(*words[:3]))(MAPS, LABELS)
    torch.testing.assert_close(plain["loss"], plain["metric"] + 3 * plain["centres"])


@pytest.mark.parametrize("words", [[], ["centres=none"], ["centres=r1", "centres.weight=0"]], ids=str)
def test_without_a_regulariser_nothing_changes(words: list[str]) -> None:
    learner = learner_of(small_config("pooling=gap", *words))
    assert learner.centres is None
    assert list(learner(MAPS, LABELS)) == ["loss"]


def test_proxies_are_the_centres_where_there_are_any() -> None:
    learner = learner_of(small_config("pooling=gap", "loss=proxy_anchor", "references.per_class=2", "centres=r1"))
    proxies, labels = learner.references.proxies, torch.arange(10).repeat_interleave(2)
    torch.testing.assert_close(learner(MAPS, LABELS)["centres"], R1()(proxies, labels))
    learner(MAPS, LABELS)["centres"].backward()
    assert proxies.grad.any(dim=1).all()


@pytest.mark.parametrize(
    "words", [["loss=ms"], ["loss=c1", "references=memory"], ["loss=proxy_anchor", "centres.of=means"]], ids=str
)
def test_class_means_of_the_batch_are_the_centres_elsewhere(words: list[str]) -> None:
    learner = learner_of(small_config("pooling=gap", "centres=r1", *words))
    means, first = class_means(learner.model(MAPS), LABELS)
    value = learner(MAPS, LABELS)["centres"]
    torch.testing.assert_close(value, R1()(means[first]))
    value.backward()
    assert learner.head.projection.weight.grad.any()


@pytest.mark.parametrize("source", [name for name in REFERENCES if REFERENCES[name].centres is References.centres])
def test_proxies_that_do_not_exist_are_refused(source: str) -> None:
    config = load_config(None, [f"references={source}", "centres=mhe", "centres.of=proxies"])
    with pytest.raises(ConfigError, match=f"references={source} have none; use centres.of=means"):
        check_objective(config)


@pytest.mark.parametrize("source", list(REFERENCES))
def test_every_source_of_references_trains_with_a_sample_and_the_seed_fixes_it(source: str) -> None:
    words = [f"references={source}", "centres=r1", "centres.sample=3", "centres.weight=2", "train.steps=6"]
    words += ["references.per_class=2", "references.pool=4"] if source == "ccp" else []
    runs = []
    for _ in range(2):
        trainer = make_trainer(small_config("pooling=gap", *words))
        history = trainer.fit().history
        assert all(torch.isfinite(torch.tensor(entry["centres"])) for entry in history[1:])
        runs.append(weights(trainer))
    assert same(*runs)


def test_adamw_shrinks_weights_apart_from_the_gradient() -> None:
    def stepped(rule: str, decay: float) -> tuple[torch.Tensor, torch.Tensor]:
        trainer = make_trainer(
            small_config("pooling=gap", f"train.optimizer={rule}", f"train.weight_decay={decay}", "train.lr=1e-2")
        )
        before = trainer.learner.head.projection.weight.detach().clone()
        trainer.take_step(0)
        return before, trainer.learner.head.projection.weight.detach()

    start, plain = stepped("adam", 0.0)
    torch.testing.assert_close(stepped("adamw", 0.0)[1], plain, rtol=0, atol=0)
    torch.testing.assert_close(stepped("adamw", 0.5)[1], plain - 1e-2 * 0.5 * start)
    assert not torch.allclose(stepped("adam", 0.5)[1], plain - 1e-2 * 0.5 * start, atol=1e-4)
