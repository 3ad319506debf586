"""Training objective: model, losses, and references in one module."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import ConfigError
from winnow.functional import NORMALIZERS
from winnow.losses import (
    LOSSES,
    IntraBatchRegularizer,
    PairLoss,
    ProximalPenalty,
    RelationalDistillation,
    ZeroShotRegularizer,
)
from winnow.miners import MINERS
from winnow.models import Embedder, Head
from winnow.pooling import POOLINGS, PrototypePooling
from winnow.references import REFERENCES, ChanceConstrainedProxies, References
from winnow.regularizers import REGULARIZERS, CenterRegularizer, class_means
from winnow.training.averaging import AveragedTeacher
from winnow.training.config import REGISTRIES, RunConfig
from winnow.training.engine.distributed import SINGLE_PROCESS


class Objective(nn.Module):
    r"""Model with its training objective.

    $(1 - \lambda) (L + w R + v L_{IB}) + \lambda L_{ZS} + u D + P$

    All parameters of a run are parameters of this module: the optimizer, checkpoints, and counts use it alone.

    Args:
        model: An `Embedder`, or only its `Head` if the backbone is frozen.
        loss: Loss on (query, reference) pairs.
        references: Source of references; computes the metric loss L.
        zsr: Zero-shot regularizer; None if lambda is 0.
        zsr_weight: Weight lambda.
        regularizer: Regularizer R of class centers with its weight w, or None.
        proximal: Penalty P on the distance to earlier weights (CCP), or None.
        libc: Intra-batch regularizer L_IB with its weight v, or None.
        distill: Self-distillation D with its weight u, or None.

    Attributes:
        teacher: Model with averaged weights, for self-distillation. The trainer sets it; None without.
        processes: Processes that share a batch: each embeds a slice, all compute the whole loss. The trainer sets it.
    """

    def __init__(
        self,
        model: Embedder | Head,
        loss: PairLoss,
        references: References,
        zsr: ZeroShotRegularizer | None,
        zsr_weight: float,
        regularizer: CenterRegularizer | None = None,
        proximal: ProximalPenalty | None = None,
        libc: IntraBatchRegularizer | None = None,
        distill: RelationalDistillation | None = None,
    ) -> None:
        super().__init__()
        self.model, self.loss, self.references = model, loss, references
        self.zsr, self.zsr_weight, self.regularizer, self.proximal = zsr, zsr_weight, regularizer, proximal
        self.libc, self.distill = libc, distill
        self.teacher: AveragedTeacher | None = None
        self.processes = SINGLE_PROCESS
        for module in model.modules():
            if isinstance(module, PrototypePooling):
                module.standalone = False  # the trainer reports non-finite steps and unset prototypes

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the terms of the objective for a batch; "loss" is the total to minimize.

        Args:
            inputs: Batch, or this process's slice of it.
            labels: Labels (B,) of the whole batch.
        """
        targets = self.embed_targets(inputs)  # before the model, whose forward pass may set prototypes
        with self.processes.fork_rng(inputs.device):
            output = self.model(inputs, return_details=True)
        return self.terms(output.vector, output.attributes, labels, targets)

    def embed_targets(self, inputs: Tensor) -> Tensor | None:
        """Return the teacher's embeddings of a batch or a part of it; None without self-distillation."""
        return None if self.teacher is None else self.teacher.embed(inputs)

    def terms(
        self, vectors: Tensor, attributes: Tensor | None, labels: Tensor, targets: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the terms of the objective for the output of the model.

        Args:
            vectors: Embeddings of the batch, or of this process's slice of it.
            attributes: Attributes of the pooling for the same images; None if it has none.
            labels: Labels (B,) of the whole batch.
            targets: The teacher's embeddings of the same images; None without self-distillation.
        """
        embeddings = self.processes.gather(vectors, len(labels))
        metric = self.references(self.loss, embeddings, labels)
        total, terms = metric, {}
        if self.regularizer is not None:
            terms["centres"] = self._regularize(self.regularizer, embeddings, labels)
            total = total + self.regularizer.weight * terms["centres"]
        if self.libc is not None:
            terms["libc"] = self.libc(embeddings, labels)
            total = total + self.libc.weight * terms["libc"]
        if self.zsr is not None:
            assert attributes is not None, "checked by check_objective"
            gathered = self.processes.gather(attributes, len(labels))
            terms["zsr"] = self.zsr(gathered, labels, self.references.class_centers())
            total = (1 - self.zsr_weight) * total + self.zsr_weight * terms["zsr"]
        if self.distill is not None and targets is not None:
            terms["distill"] = self.distill(embeddings, self.processes.gather(targets, len(labels)))
            total = total + self.distill.weight * terms["distill"]
        if self.proximal is not None:
            terms["pull"] = self.proximal()
            total = total + terms["pull"]
        return {"loss": total, "metric": metric, **terms} if terms else {"loss": total}

    def _regularize(self, regularizer: CenterRegularizer, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of proxies, or of class means without proxies."""
        proxies = None if regularizer.centers == "means" else self.references.class_centers()
        if proxies is not None:
            value: Tensor = regularizer(*proxies)
            return value
        means, first = class_means(embeddings, labels)
        value = regularizer(means, labels, counted=first)
        return value

    @property
    def head(self) -> Head:
        """Projection and pooling."""
        return self.model.head if isinstance(self.model, Embedder) else self.model


def build_objective(config: RunConfig, model: Embedder | Head, num_classes: int) -> Objective:
    """Combine a model with the loss, references, and regularizers of a config."""
    batch = config.train.images_per_batch
    context: dict[str, Any] = {"num_classes": num_classes, "embedding_size": config.dim, "batch_size": batch}
    loss = LOSSES.build(config.loss, **context)
    loss.miner = MINERS.build(config.miner, **context)
    loss.normalizer = NORMALIZERS[config.normalize]
    references = REFERENCES.build(config.references, **context)
    regularizer = REGULARIZERS.build(config.regularizer)
    zsr = None
    check_objective(config)
    if config.zsr.weight > 0:
        zsr = ZeroShotRegularizer(num_classes, config.dim, **config.zsr.model_dump(exclude={"weight"}))
    libc = None
    if config.libc.weight > 0:
        libc = IntraBatchRegularizer(num_classes, config.dim, **config.libc.model_dump())
    proximal = ProximalPenalty(model) if isinstance(references, ChanceConstrainedProxies) else None
    distill = None
    if config.distill.weight > 0:
        distill = RelationalDistillation(weight=config.distill.weight, temperature=config.distill.temperature)
    return Objective(
        model, loss, references, zsr, config.zsr.weight, regularizer if regularizer.weight > 0 else None, proximal,
        libc, distill,
    )  # fmt: skip


def check_objective(config: RunConfig) -> None:
    """Check that the components of a config fit together.

    Raises:
        ConfigError: If batches have no positive pairs, or a regularizer gets no input from the pooling or references.
    """
    source = config.references.name
    without_proxies = REFERENCES[source].class_centers is References.class_centers
    if config.zsr.weight > 0 and config.zsr.class_embeddings == "proxies" and without_proxies:
        raise ConfigError(
            f"zsr.class_embeddings: references={source} has no proxies. Set references=proxies or "
            "zsr.class_embeddings=own."
        )
    if getattr(config.regularizer, "centers", None) == "proxies" and without_proxies:
        raise ConfigError(f"regularizer.centers: references={source} has no proxies. Set regularizer.centers=means.")
    if source == "batch" and config.train.sampler == "random":
        raise ConfigError(
            "train.sampler: batches of random images have few positive pairs with references=batch. Set "
            "train.sampler=classes, or references=proxies."
        )
    if source == "batch" and config.train.samples_per_class == 1:
        raise ConfigError(
            "train.samples_per_class: expected at least 2 with references=batch, got 1, which gives no positive pairs. "
            "Set a larger value or references=proxies."
        )
    if config.libc.weight > 0 and config.dim % config.libc.num_heads:
        raise ConfigError(
            f"libc.num_heads: expected a divisor of dim={config.dim}, got {config.libc.num_heads}. Change one of both."
        )
    name = config.pooling.name
    if config.zsr.weight > 0 and not POOLINGS[name].has_attributes:
        with_attributes = ", ".join(p for p in POOLINGS if POOLINGS[p].has_attributes)
        raise ConfigError(
            f"zsr.weight: pooling={name} has no attributes. Set zsr.weight=0 or one of these poolings: "
            f"{with_attributes}."
        )


def check_components(config: RunConfig) -> None:
    """Check the settings of every component before any file is written.

    Raises:
        ConfigError: If a setting has the right type and is out of range.
    """
    batch = config.train.images_per_batch
    with torch.device("meta"):  # takes no memory and draws no random numbers
        for name, registry in REGISTRIES.items():
            registry.build(
                getattr(config, name),
                width=config.dim,
                in_features=config.dim,
                dim=config.dim,
                positions=1,
                num_classes=2,
                embedding_size=config.dim,
                batch_size=batch,
            )
    POOLINGS[config.pooling.name].local_width(config.dim, config.pooling)


def parameter_groups(objective: nn.Module, lr: float, multipliers: dict[str, float]) -> list[dict[str, Any]]:
    """Group all trainable parameters by learning rate.

    A module with an attribute `lr_multiplier` has a rate of its own. The last pattern that matches a name precedes it.

    Raises:
        ConfigError: If a pattern matches no parameter.
    """
    rates: dict[float, list[nn.Parameter]] = {}
    unused = set(multipliers)
    own = {f"{name}.*": getattr(part, "lr_multiplier", None) for name, part in objective.named_modules()}
    # Own rates come first, also where a pattern has the name of a module.
    first = {name: factor for name, factor in own.items() if factor is not None and name not in multipliers}
    multipliers = first | multipliers
    for name, parameter in objective.named_parameters():
        matching = [pattern for pattern in multipliers if fnmatchcase(name, pattern)]
        unused -= set(matching)
        if parameter.requires_grad:
            factor = multipliers[matching[-1]] if matching else 1.0
            rates.setdefault(lr * factor, []).append(parameter)
    if unused:
        names = ", ".join(sorted({name for name, _ in objective.named_parameters()})[-4:])
        raise ConfigError(
            f"train.lr_multipliers: '{unused.pop()}' matches no whole parameter name. Parameters have names like "
            f"{names}; * matches any part of a name."
        )
    return [{"params": group, "lr": rate} for rate, group in rates.items()]


def count_parameters(module: nn.Module) -> dict[str, int]:
    """Count the trained and the frozen parameters of a module."""
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return {"trained": trained, "frozen": sum(p.numel() for p in module.parameters()) - trained}
