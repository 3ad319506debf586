"""The training loop: steps, validation, early stopping, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.data import MPerClassSampler
from winnow.errors import ConfigError, ModelError, TrainingError
from winnow.files import write_text
from winnow.models import Embedder
from winnow.seeding import derive_seed, seed_everything
from winnow.training.arithmetic import make_fabric, scaled, wants_graph
from winnow.training.config import Config
from winnow.training.distributed import Processes, check_batch
from winnow.training.folder import RunFolder
from winnow.training.inputs import Inputs
from winnow.training.judge import KS, MIN_DELTA, judging
from winnow.training.lane import Lane, Work, finish
from winnow.training.learner import Learner, parameter_groups
from winnow.training.monitor import Monitor
from winnow.training.plateau import Plateau, Rates
from winnow.training.problems import make_problems
from winnow.training.same import differing
from winnow.training.step import Step
from winnow.training.writer import CheckpointWriter


@dataclass
class RunState:
    """Where a run stands; together with weights and optimiser, all that a checkpoint holds.

    Attributes:
        step: Steps taken.
        best: Best value of the validations, the one before the first step among them.
        best_step: Its step.
        peak: Best value of those after the first step.
        stalled: Validations since then.
        seconds: Time taken.
        history: What was logged at each validation.
    """

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    peak: float = -1.0
    stalled: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    def best_metrics(self) -> dict[str, float]:
        """Return the validation metrics of the best weights."""
        entry = next(e for e in self.history if e["step"] == self.best_step)
        return {name.removeprefix("val/"): value for name, value in entry.items() if name.startswith("val/")}


class Trainer:
    """Trains a learner on `train`, choosing the weights with the best MAP@R (`train.monitor`) on `val`.

    A step is a function of the weights and of (seed, step), so a run that was killed and resumed from its last
    checkpoint takes the very same steps as one that was not.

    Args:
        config: The resolved config.
        learner: The model and its objective.
        train: Training inputs.
        val: Validation inputs.
        folder: Where checkpoints and logs go; None to keep everything in memory.
        monitor: Told of steps and validations.
        ks: The ranks of R@k of validations.
    """

    def __init__(
        self,
        config: Config,
        learner: Learner,
        train: Inputs,
        val: Inputs,
        *,
        folder: RunFolder | None = None,
        monitor: Monitor | None = None,
        ks: Sequence[int] = KS,
    ) -> None:
        self.ks = ks
        self.config, self.learner, self.train, self.val = config, learner, train, val
        self.folder, self.monitor = folder, monitor or Monitor()
        settings = config.train
        self.fabric = make_fabric(config)
        self.processes = learner.processes = Processes(self.fabric.global_rank, self.fabric.world_size)
        self.device = self.fabric.device
        self.lane = Lane(self.device)
        self.graphed = wants_graph(config, self.device)
        learner.to(self.device)
        if settings.compile and isinstance(learner.model, Embedder):
            learner.model.backbone.compile_training()
        assert settings.lr is not None, "resolve_config sets the learning rate"
        assert settings.eval_every is not None, "and the time of validations"
        self.eval_every = settings.eval_every
        groups = parameter_groups(learner, settings.lr, settings.lr_multipliers)
        # A fused step unscales 16-bit gradients itself, too late for them to be clipped.
        self._way = {"fused": self.device.type == "cuda" and not scaled(config), "capturable": self.graphed}
        rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer]
        optimizer = rule(
            groups, lr=settings.lr, weight_decay=settings.weight_decay,
            fused=self._way["fused"], capturable=self._way["capturable"],
        )  # fmt: skip
        self.plateau = Plateau(config.plateau, settings.lr) if config.plateau.factor < 1 else None
        self.rates = Rates(optimizer, self.device if self.graphed else None) if self.plateau is not None else None
        classes = min(settings.classes_per_batch, len(np.unique(train.labels)))  # skipped images may empty one
        self.sampler = MPerClassSampler(train.labels, classes, settings.samples_per_class, seed=config.seed)
        check_batch(self.processes, classes * settings.samples_per_class, learner)
        self.wrapped, self.optimizer = self.fabric.setup(learner, optimizer)
        self.one_step = Step(
            self.fabric, self.wrapped, self.optimizer, clip=settings.clip, watch_norm=not scaled(config),
            capture=self.lane.capture if self.graphed else None,
        )  # fmt: skip
        whole = learner.model if isinstance(learner.model, Embedder) else None
        self._waiting = [] if whole is None else [p for p in whole.backbone.parameters() if p.requires_grad]
        self.problems = make_problems(config, learner, train, self.fabric.autocast)
        self.writer = CheckpointWriter(folder, self.device) if folder is not None and self.processes.is_first else None
        self.progress = RunState()
        self.best_state: dict[str, Tensor] = {}

    def fit(self) -> RunState:
        """Train to the early stop or the last step, then put the best weights into the learner."""
        return finish(self.pieces())

    def pieces(self) -> Work[RunState]:
        """Do what `fit` does in pieces, a step or a batch of a validation each, so that several runs can take turns."""
        return self.lane.drive(self._fit())

    def _fit(self) -> Work[RunState]:
        progress = self.progress
        started = time.perf_counter() - progress.seconds
        if not progress.history:
            yield from self._validate({}, started)
        self.wrapped.train()
        while not self._is_over():
            self.take_step(progress.step)
            progress.step += 1
            self.monitor.step(progress.step)
            if progress.step % self.eval_every == 0 or progress.step == self.config.train.steps:
                self._check()
                losses = self.one_step.read_losses(progress.step - self._saved_step())
                yield from self._validate(losses, started)
            yield
        self.learner.load_state_dict(self.best_state)
        while self.writer is not None and self.writer.busy:
            time.sleep(1e-3)
            yield
        return progress

    def _is_over(self) -> bool:
        settings, progress = self.config.train, self.progress
        return progress.step >= settings.steps or progress.stalled >= settings.patience

    def take_step(self, step: int) -> None:
        """Take one step; on a GPU it is only begun."""
        seed = derive_seed(self.config.seed, step)  # all that is drawn in a step is a function of these two
        seed_everything(seed)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self._waiting:
            parameter.requires_grad_(step >= self.config.train.warm_up)
        indices = self.sampler.batch(step)
        share = self.processes.share(len(indices))
        self.one_step.take(
            step, lambda out: self.train.train(indices, generator, out, share), self.train.labels[indices]
        )
        self.lane.pace()

    def _validate(self, losses: dict[str, float], started: float) -> Work[None]:
        """Judge the validation classes, note whether that is the best so far, and write a checkpoint."""
        progress = self.progress
        result = yield from judging(
            self.learner.model, self.val, batch=self.config.train.eval_batch, normalise=self.learner.loss.normalise,
            autocast=self.fabric.autocast, processes=self.processes, ks=self.ks,
        )  # fmt: skip
        metrics = result.metrics()
        progress.seconds = time.perf_counter() - started
        entry = {"step": progress.step, "seconds": round(progress.seconds, 3), **losses}
        entry |= {f"val/{name}": value for name, value in metrics.items()}
        value = metrics[self.config.train.monitor]
        improved = value > progress.best + MIN_DELTA
        if improved:
            progress.best, progress.best_step = value, progress.step
            self.best_state = {key: value.detach().clone() for key, value in self.learner.state_dict().items()}
        self._count(value)
        progress.history.append(entry)
        if self.problems is not None:
            yield from self.problems.validated(progress.step, metrics[self.problems.monitor], over=self._is_over())
        if self.plateau is not None and self.rates is not None:
            entry["lr"] = self.plateau.rate  # of the steps before this validation
            if progress.step > 0:  # what a pretrained network is worth before any step is no stall of training
                self.plateau.validated(value)
            self.rates.scale(self.plateau.share)
        if self.writer is not None:
            self.writer.put(self.best_state if improved else None, self._state(), progress.history)
        self.monitor.validated(entry, improved, self.config.train.monitor)

    def _count(self, value: float) -> None:
        """Count the validations that training has stalled for.

        What a pretrained network is worth before any step does not count: fine-tuning may fall below it at first, and
        would be stopped before it has caught up.
        """
        progress = self.progress
        if progress.step == 0:
            return
        if value > progress.peak + MIN_DELTA:
            progress.peak, progress.stalled = value, 0
        else:
            progress.stalled += 1

    def _check(self) -> None:
        """Stop if a step was not finite; waits for the device."""
        step = self.one_step.watch.first_bad_step()
        if step is None:
            if bool(torch.stack([p.isfinite().all() for p in self.learner.parameters()]).all()):
                return
            step = self.progress.step - 1  # only the last update can have done it unseen
        names = [self.train.name(int(i)) for i in self.sampler.batch(step)]
        where = "; nothing was saved"
        listing = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        if self.folder is not None and self.writer is not None:
            self.writer.wait()
            bad = self.folder.path / "bad_batch.txt"
            write_text(bad, "\n".join(names) + "\n")
            listing += f" (all in {bad})"
            where = f"; the last good checkpoint is {self.folder.checkpoint_file} (step {self._saved_step()})"
        wider = ", or use train.precision=32-true" if "mixed" in self.config.train.precision else ""
        raise TrainingError(
            f"the loss or an update was not finite at step {step}, on {listing}{where}; look at these images, lower "
            f"train.lr{wider}"
        )

    def _saved_step(self) -> int:
        """Return the step of the last validation, which is that of the last checkpoint."""
        return int(self.progress.history[-1]["step"])

    def _state(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "config": self.config.model_dump(mode="json"),
            "learner": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "progress": {
                "step": progress.step,
                "best": progress.best,
                "best_step": progress.best_step,
                "peak": progress.peak,
                "stalled": progress.stalled,
                "seconds": progress.seconds,
                "history": progress.history,
            },
            "problems": None if self.problems is None else self.problems.state(progress.best_step),
            "plateau": None if self.plateau is None else self.plateau.state(),
        }

    def restore(self) -> None:
        """Go back to the last checkpoint of the run's folder."""
        assert self.folder is not None, "only a run with a folder has checkpoints"
        state = self.folder.load(self.folder.checkpoint_file)
        best = self.folder.load(self.folder.best_file)
        self._check_config(state.get("config") or {})
        try:
            self.learner.load_state_dict(state["learner"])
            for group in state["optimizer"]["param_groups"]:
                group.update(self._way)  # the checkpoint may come from another kind of device
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            first = str(error).splitlines()[0]
            raise ModelError(f"{self.folder.checkpoint_file} is of another model: {first}") from None
        if state["precision"]:  # that of a run on a CPU, which scales nothing, is empty
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.progress = RunState(**state["progress"])
        if "peak" not in state["progress"]:  # a checkpoint from before it was told apart from the best
            key = f"val/{self.config.train.monitor}"
            self.progress.peak = max((e[key] for e in self.progress.history if e["step"] > 0), default=-1.0)
        self.best_state = {key: value.to(self.device) for key, value in best.items()}
        if self.problems is not None:
            self.problems.restore(state["problems"], self.best_state)
        if self.plateau is not None and self.rates is not None:
            self.plateau.restore(state["plateau"])
            self.rates.scale(self.plateau.share)  # the loaded rates are no longer the tensors a graph reads
        if self.processes.is_first:
            self.folder.write_history(self.progress.history)

    def _check_config(self, made: dict[str, Any]) -> None:
        """Refuse a checkpoint of other settings; one of before winnow learned a setting has its default."""
        assert self.folder is not None, "only a run with a folder has checkpoints"
        file = self.folder.checkpoint_file
        try:
            key = differing(self.config.model_dump(mode="json"), made)
        except ConfigError as error:
            raise ModelError(f"{file} is of a version of winnow with other settings: {error}") from None
        if key is not None:
            raise ModelError(f"{file} was made by another config, with another {key}; resume with its own")
