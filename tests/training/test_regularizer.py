"""Center regularizers in training: their centers, the sum of terms, and AdamW."""

from __future__ import annotations

import pytest
import torch

from tests.training.test_trainer import make_trainer, same, small_config, weights
from winnow.errors import ConfigError
from winnow.models import Head
from winnow.references import REFERENCES, References
from winnow.regularizers import LogMeanExpRegularizer, class_means
from winnow.training.config import RunConfig
from winnow.training.objective import Objective, build_objective, check_objective
from winnow.training.overrides import load_config

LABELS = torch.arange(4).repeat_interleave(3)
MAPS = torch.randn(12, 16, 3, 3, generator=torch.Generator().manual_seed(0))


def objective_of(config: RunConfig) -> Objective:
    torch.manual_seed(0)
    return build_objective(config, Head(16, config.dim, config.pooling), num_classes=10)


def test_terms_add_up() -> None:
    words = ["loss=proxy_anchor", "regularizer=r1", "regularizer.weight=3", "zsr=0.2"]
    terms = objective_of(small_config(*words))(MAPS, LABELS)
    assert list(terms) == ["loss", "metric", "centres", "zsr"]
    torch.testing.assert_close(
        terms["loss"], 0.8 * (terms["metric"] + 3 * terms["centres"]) + 0.2 * terms["zsr"]
    )  # fmt: skip
    plain = objective_of(small_config(*words[:3]))(MAPS, LABELS)
    torch.testing.assert_close(plain["loss"], plain["metric"] + 3 * plain["centres"])


@pytest.mark.parametrize("words", [[], ["regularizer=none"], ["regularizer=r1", "regularizer.weight=0"]], ids=str)
def test_objective_without_regularizer_has_no_extra_term(words: list[str]) -> None:
    objective = objective_of(small_config("pooling=gap", *words))
    assert objective.regularizer is None
    assert list(objective(MAPS, LABELS)) == ["loss"]


def test_proxies_are_the_centers_of_proxy_losses() -> None:
    objective = objective_of(
        small_config("pooling=gap", "loss=proxy_anchor", "references.proxies_per_class=2", "regularizer=r1")
    )
    proxies, labels = objective.references.proxies, torch.arange(10).repeat_interleave(2)
    torch.testing.assert_close(objective(MAPS, LABELS)["centres"], LogMeanExpRegularizer()(proxies, labels))
    objective(MAPS, LABELS)["centres"].backward()
    assert proxies.grad.any(dim=1).all()


@pytest.mark.parametrize(
    "words",
    [["loss=ms"], ["loss=c1", "references=memory"], ["loss=proxy_anchor", "regularizer.centers=means"]],
    ids=str,
)
def test_class_means_are_the_centers_without_proxies(words: list[str]) -> None:
    objective = objective_of(small_config("pooling=gap", "regularizer=r1", *words))
    means, first = class_means(objective.model(MAPS), LABELS)
    value = objective(MAPS, LABELS)["centres"]
    torch.testing.assert_close(value, LogMeanExpRegularizer()(means[first]))
    value.backward()
    assert objective.head.projection.weight.grad.any()


@pytest.mark.parametrize(
    "source", [name for name in REFERENCES if REFERENCES[name].class_centers is References.class_centers]
)
def test_missing_proxies_are_rejected(source: str) -> None:
    config = load_config(None, [f"references={source}", "regularizer=mhe", "regularizer.centers=proxies"])
    with pytest.raises(ConfigError, match=f"references={source} has no proxies"):
        check_objective(config)


@pytest.mark.parametrize("source", list(REFERENCES))
def test_regularizer_with_sampling_is_reproducible_for_all_references(source: str) -> None:
    words = [
        f"references={source}",
        "regularizer=r1",
        "regularizer.num_samples=3",
        "regularizer.weight=2",
        "train.max_steps=6",
    ]
    words += ["references.proxies_per_class=2", "references.pool_size=4"] if source == "ccp" else []
    runs = []
    for _ in range(2):
        trainer = make_trainer(small_config("pooling=gap", *words))
        history = trainer.fit().history
        assert all(torch.isfinite(torch.tensor(entry["centres"])) for entry in history[1:])
        runs.append(weights(trainer))
    assert same(*runs)


def test_adamw_decays_weights_separately_from_the_gradient() -> None:
    def stepped(rule: str, decay: float) -> tuple[torch.Tensor, torch.Tensor]:
        trainer = make_trainer(
            small_config("pooling=gap", f"train.optimizer={rule}", f"train.weight_decay={decay}", "train.lr=1e-2")
        )
        before = trainer.objective.head.projection.weight.detach().clone()
        trainer.take_step(0)
        return before, trainer.objective.head.projection.weight.detach()

    start, plain = stepped("adam", 0.0)
    torch.testing.assert_close(stepped("adamw", 0.0)[1], plain, rtol=0, atol=0)
    torch.testing.assert_close(stepped("adamw", 0.5)[1], plain - 1e-2 * 0.5 * start)
    assert not torch.allclose(stepped("adam", 0.5)[1], plain - 1e-2 * 0.5 * start, atol=1e-4)
