"""Everything that is learned, in one module: the model and whatever parameters the losses have."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from winnow.centres import CENTRES, CentreRegulariser, class_means
from winnow.errors import ConfigError
from winnow.functional import NORMALISE
from winnow.losses import LOSSES, PairLoss, Pull, ZeroShotRegularisation
from winnow.mining import MINING
from winnow.models import Embedder, Head
from winnow.pooling import POOLINGS
from winnow.references import CCP, REFERENCES, References
from winnow.training.config import REGISTRIES, Config
from winnow.training.distributed import ALONE


class Learner(nn.Module):
    r"""A model with its objective $(1 - \lambda) (L + w R) + \lambda L_{ZS} + P$.

    All parameters that exist are parameters of this module, so optimising, saving and counting it forgets none.

    Args:
        model: An `Embedder`, or the `Head` alone where the backbone is frozen.
        loss: What compares queries with references.
        references: Where the references come from; it makes the metric-learning loss L.
        zsr: The zero-shot regularisation; None where lambda is 0.
        zsr_weight: lambda.
        centres: The regulariser R of the classes' centres, with its weight w; None where there is none.
        pull: The pull P of the model's weights towards earlier ones; None where there is none.

    Attributes:
        processes: Who shares a batch: each embeds its part, and all compare the whole. The trainer sets it.
    """

    def __init__(
        self,
        model: Embedder | Head,
        loss: PairLoss,
        references: References,
        zsr: ZeroShotRegularisation | None,
        zsr_weight: float,
        centres: CentreRegulariser | None = None,
        pull: Pull | None = None,
    ) -> None:
        super().__init__()
        self.model, self.loss, self.references = model, loss, references
        self.zsr, self.zsr_weight, self.centres, self.pull = zsr, zsr_weight, centres, pull
        self.processes = ALONE

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the terms of the objective for a batch; "loss" is their sum, the one to minimise.

        Args:
            inputs: The batch, or this process's share of it.
            labels: (B,) of the whole batch.
        """
        with self.processes.own_random(inputs.device):
            pooled = self.model(inputs, details=True)
        embeddings = self.processes.gather(pooled.pooled, len(labels))
        metric = self.references(self.loss, embeddings, labels)
        total, terms = metric, {}
        if self.centres is not None:
            terms["centres"] = self._regularise(self.centres, embeddings, labels)
            total = total + self.centres.weight * terms["centres"]
        if self.zsr is not None:
            terms["zsr"] = self.zsr(self.processes.gather(pooled.attributes, len(labels)), labels)
            total = (1 - self.zsr_weight) * total + self.zsr_weight * terms["zsr"]
        if self.pull is not None:
            terms["pull"] = self.pull()
            total = total + terms["pull"]
        return {"loss": total, "metric": metric, **terms} if terms else {"loss": total}

    def _regularise(self, centres: CentreRegulariser, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the term of the proxies, or of the batch's class means where there are none or means are asked for."""
        proxies = None if centres.of == "means" else self.references.centres()
        if proxies is not None:
            value: Tensor = centres(*proxies)
            return value
        means, first = class_means(embeddings, labels)
        value = centres(means, labels, counted=first)
        return value

    @property
    def head(self) -> Head:
        """The projection and pooling."""
        return self.model.head if isinstance(self.model, Embedder) else self.model


def build_learner(config: Config, model: Embedder | Head, num_classes: int) -> Learner:
    """Put a model and the objective its config asks for together."""
    batch = config.train.classes_per_batch * config.train.samples_per_class
    context: dict[str, Any] = {"num_classes": num_classes, "width": config.dim, "batch": batch}
    loss = LOSSES.build(config.loss, **context)
    loss.mining = MINING.build(config.mining, **context)
    loss.normalise = NORMALISE[config.normalise]
    references = REFERENCES.build(config.references, **context)
    centres = CENTRES.build(config.centres)
    zsr = None
    check_objective(config)
    if config.zsr.weight > 0:
        zsr = ZeroShotRegularisation(num_classes, config.dim, ridge=config.zsr.ridge, scale=config.zsr.scale)
    regulariser = centres if centres.weight > 0 else None
    pull = Pull(model) if isinstance(references, CCP) else None
    return Learner(model, loss, references, zsr, config.zsr.weight, regulariser, pull)


def check_objective(config: Config) -> None:
    """Refuse a loss without positive pairs, and a regularisation that the pooling or references give nothing to."""
    source = config.references["name"]
    if config.centres.get("of") == "proxies" and REFERENCES[source].centres is References.centres:
        raise ConfigError(f"centres.of=proxies, but references={source} have none; use centres.of=means")
    if source == "batch" and config.train.samples_per_class == 1:
        raise ConfigError(
            "train.samples_per_class=1 leaves no two images of one class in a batch, and references=batch compares "
            "with nothing else: use at least 2, or references=proxies"
        )
    name = config.pooling["name"]
    if config.zsr.weight > 0 and not POOLINGS[name].has_attributes:
        with_attributes = ", ".join(p for p in POOLINGS if POOLINGS[p].has_attributes)
        raise ConfigError(
            f"zsr.weight={config.zsr.weight} needs a pooling with attributes ({with_attributes}), not {name}"
        )


def parameter_groups(learner: nn.Module, lr: float, multipliers: dict[str, float]) -> list[dict[str, Any]]:
    """Group every trainable parameter by its learning rate; the last pattern that matches its name counts.

    Raises:
        ConfigError: for a pattern that matches nothing, which is always a slip.
    """
    rates: dict[float, list[nn.Parameter]] = {}
    unused = set(multipliers)
    for name, parameter in learner.named_parameters():
        matching = [pattern for pattern in multipliers if fnmatchcase(name, pattern)]
        unused -= set(matching)
        if parameter.requires_grad:
            factor = multipliers[matching[-1]] if matching else 1.0
            rates.setdefault(lr * factor, []).append(parameter)
    if unused:
        names = ", ".join(sorted({name for name, _ in learner.named_parameters()})[-4:])
        raise ConfigError(
            f"train.lr_multipliers: no parameter's whole name matches '{unused.pop()}'; names look like {names}, and "
            "a * stands for any part of one"
        )
    return [{"params": group, "lr": rate} for rate, group in rates.items()]


def count_parameters(module: nn.Module) -> dict[str, int]:
    """Count the parameters that are trained and those that are not."""
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return {"trained": trained, "frozen": sum(p.numel() for p in module.parameters()) - trained}


def check_parts(config: Config) -> None:
    """Refuse settings that a pooling or loss will not take, before anything is made or written.

    Raises:
        ConfigError: for a value of the right type that is out of range.
    """
    batch = config.train.classes_per_batch * config.train.samples_per_class
    with torch.device("meta"):  # takes no memory and draws no random numbers
        for name, registry in REGISTRIES.items():
            registry.build(
                getattr(config, name), width=config.dim, dim=config.dim, positions=1, num_classes=2, batch=batch
            )
    POOLINGS[config.pooling["name"]].local_width(config.dim, config.pooling)
