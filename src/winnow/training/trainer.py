"""The training loop: steps, validation, early stopping, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from winnow.data import BatchSampler, Labels, MPerClassSampler, RandomSampler
from winnow.errors import ModelError, TrainingError
from winnow.files import write_text
from winnow.models import Embedder
from winnow.seeding import derive_seed, seed_everything
from winnow.training.averaging import AveragedTeacher, WeightAverage
from winnow.training.callbacks import Callback
from winnow.training.ccp import build_ccp_solver
from winnow.training.checkpoint import Checkpoint, CheckpointWriter, TrainState, load_checkpoint
from winnow.training.config import RunConfig, TrainConfig
from winnow.training.early_stopping import EarlyStopping
from winnow.training.engine.distributed import Processes, check_distributed
from winnow.training.engine.precision import make_fabric, uses_cuda_graph, uses_grad_scaler
from winnow.training.engine.step import TrainingStep
from winnow.training.engine.stream import DeviceStream, Steps, run_to_end
from winnow.training.engine.two_pass import TwoPassGradients
from winnow.training.evaluation import KS, iter_evaluate
from winnow.training.inputs import Inputs
from winnow.training.objective import Objective, parameter_groups
from winnow.training.results import Metrics, ValidationEntry
from winnow.training.run_dir import RunDir
from winnow.training.schedules import GraphLearningRates, ReduceOnPlateau, make_schedule


class Trainer:
    """Loop that trains an objective and selects the best weights by validation.

    A step is a function of the weights and of (seed, step). A run that is resumed from its last checkpoint takes the
    same steps as a run without interruption.

    Args:
        config: Resolved config.
        objective: Model and losses.
        train: Training inputs.
        val: Validation inputs.
        test: Test inputs, with `train.test_curve`: their metrics are logged at every validation and used for nothing.
        run_dir: Folder of checkpoints and logs; None keeps all state in memory.
        callback: Handles steps and validations.
        ks: Ranks k of R@k in validation.
    """

    def __init__(
        self,
        config: RunConfig,
        objective: Objective,
        train: Inputs,
        val: Inputs,
        *,
        test: Inputs | None = None,
        run_dir: RunDir | None = None,
        callback: Callback | None = None,
        ks: Sequence[int] = KS,
    ) -> None:
        settings = config.train
        assert settings.lr is not None, "resolve_config sets the learning rate"
        assert config.train.eval_steps is not None, "resolve_config sets the validation interval"
        self.config, self.objective, self.train, self.val, self.ks = config, objective, train, val, ks
        self.test = test
        self.run_dir, self.callback = run_dir, callback or Callback()
        self.eval_every = config.train.eval_steps

        # Device and processes
        self.fabric = make_fabric(config)
        self.processes = objective.processes = Processes(self.fabric.global_rank, self.fabric.world_size)
        self.device = self.fabric.device
        self.stream = DeviceStream(self.device)
        graph = uses_cuda_graph(config, self.device)
        scaler = uses_grad_scaler(config)

        # Model and optimizer
        objective.to(self.device)
        if settings.compile and isinstance(objective.model, Embedder):
            objective.model.backbone.compile_training()
        # A fused optimizer unscales 16-bit gradients itself, after they are clipped.
        self._optimizer_options = {"fused": self.device.type == "cuda" and not scaler, "capturable": graph}
        groups = parameter_groups(objective, settings.lr, settings.lr_multipliers)
        optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer]
        optimizer = optimizer_class(
            groups, lr=settings.lr, weight_decay=settings.weight_decay,
            fused=self._optimizer_options["fused"], capturable=graph,
        )  # fmt: skip
        self.schedule = make_schedule(settings)
        self.plateau = ReduceOnPlateau(config.plateau, settings.lr) if settings.schedule == "plateau" else None
        self.learning_rates: GraphLearningRates | None = None  # None: the rates never change
        if self.plateau is not None or not self.schedule.is_constant:
            self.learning_rates = GraphLearningRates(optimizer, self.device if graph else None)

        # Batches
        self.sampler = make_sampler(settings, train.labels, config.seed)
        check_distributed(self.processes, len(self.sampler.batch(0)), objective)

        # One step
        two_pass = None
        if settings.chunk_size is not None and settings.takes_two_passes(self.processes.count):
            two_pass = TwoPassGradients(self.fabric, objective, settings.chunk_size)
        self.wrapped, self.optimizer = self.fabric.setup(objective, optimizer)
        self.average = WeightAverage(objective, settings.average) if settings.average else None
        if objective.distill is not None:
            objective.teacher = AveragedTeacher(objective.model, config.distill.decay)
        teacher = None if objective.teacher is None else objective.teacher.average
        self._averages = [one for one in (self.average, teacher) if one is not None]
        self.training_step = TrainingStep(
            self.fabric, self.wrapped, self.optimizer, max_grad_norm=config.train.max_grad_norm, check_norm=not scaler,
            gradients=two_pass, capture=self.stream.capture if graph else None,
            after_update=self._update_averages,
        )  # fmt: skip
        embedder = objective.model if isinstance(objective.model, Embedder) else None
        self._backbone = [] if embedder is None else [p for p in embedder.backbone.parameters() if p.requires_grad]
        self.ccp_solver = build_ccp_solver(config, objective, train, self.fabric.autocast)

        # Progress
        last_step = settings.max_steps if settings.select_weights == "last" else None
        self.early_stopping = EarlyStopping(settings.patience, last_step)
        self.writer = (
            CheckpointWriter(run_dir, self.device) if run_dir is not None and self.processes.is_first else None
        )
        self.state = TrainState()
        self.data_digest = ""  # of the run's DataRecord
        self.best_state: dict[str, Tensor] = {}

    def fit(self) -> TrainState:
        """Train until the early stop or the last step, then load the selected weights."""
        return run_to_end(self.iter_fit())

    def iter_fit(self) -> Steps[TrainState]:
        """Train as a generator: one training step or one batch of a validation at a time."""
        return self.stream.run_on(self._iter_fit())

    def _iter_fit(self) -> Steps[TrainState]:
        state = self.state
        start_time = time.perf_counter() - state.seconds
        if not state.history:
            yield from self._iter_validate({}, start_time)
        self.wrapped.train()
        while not self._is_over():
            self.take_step(state.step)
            state.step += 1
            self.callback.step(state.step)
            if state.step % self.eval_every == 0 or state.step == self.config.train.max_steps:
                self._check_finite()
                losses = self.training_step.read_losses(state.step - self._last_validation())
                if self.objective.zsr is not None:
                    losses["zsr/guess"] = self.objective.zsr.guess
                yield from self._iter_validate(losses, start_time)
            yield
        self.objective.load_state_dict(self.best_state)
        while self.writer is not None and self.writer.busy:
            time.sleep(1e-3)
            yield
        return state

    def take_step(self, step: int) -> None:
        """Take one training step; on a GPU it is only launched."""
        seed = derive_seed(self.config.seed, step)  # all random numbers of a step are a function of these two
        seed_everything(seed)
        generator = torch.Generator().manual_seed(seed)
        if self.learning_rates is not None:
            self.learning_rates.scale(self._rate_factor(step))
        for parameter in self._backbone:
            parameter.requires_grad_(step >= self.config.train.freeze_backbone_steps)
        ready = self.objective.head.prototypes_ready
        indices = self.sampler.batch(step)
        rows = self.processes.own_slice(len(indices))
        self.training_step.run(
            step, lambda out: self.train.train(indices, generator, out, rows), self.train.labels[indices]
        )
        if ready != self.objective.head.prototypes_ready:
            for average in self._averages:
                average.restart(step + 1)  # prototypes that were set in this step are no average of earlier ones
        self.stream.throttle()

    def _update_averages(self, step: Tensor) -> None:
        """Add the weights after a step to the evaluated average and to the teacher's."""
        for average in self._averages:
            average.update(step)

    def _rate_factor(self, step: int) -> float:
        """Return the factor on all learning rates in a step."""
        return self.schedule.factor(step) * (1.0 if self.plateau is None else self.plateau.scale)

    def _iter_validate(self, losses: dict[str, float], start_time: float) -> Steps[None]:
        """Evaluate the validation split, and write a checkpoint."""
        state = self.state
        metrics, test = yield from self._iter_metrics()
        raw, raw_test = Metrics(), Metrics()
        if self.average is not None and state.step > 0:
            raw, raw_test = metrics, test
            with self.average.applied():
                metrics, test = yield from self._iter_metrics()
        value = metrics[self.config.train.monitor]
        state.seconds = time.perf_counter() - start_time
        lr = None if self.learning_rates is None else self._last_rate()
        turned = None if self.ccp_solver is None else self.ccp_solver.turned()
        entry = ValidationEntry(state.step, round(state.seconds, 3), losses, metrics, lr, raw, test, raw_test, turned)
        state.history.append(entry)
        self._warn_of_guessing()

        improved = self.early_stopping.update(state, value)
        if improved:
            with nullcontext() if self.average is None or state.step == 0 else self.average.applied():
                self.best_state = {key: tensor.detach().clone() for key, tensor in self.objective.state_dict().items()}
        if self.ccp_solver is not None:
            over = self._is_over()
            yield from self.ccp_solver.iter_update(state.step, metrics[self.ccp_solver.monitor], over=over)
            warning = self.ccp_solver.warning(state.step, over=over)
            if warning is not None:
                self.callback.message(warning)
        if self.plateau is not None and state.step > 0:  # the value of the pretrained network does not count
            self.plateau.update(value)

        if self.writer is not None:
            self.writer.put(self.best_state if improved else None, self.checkpoint(), state.history)
        self.callback.validated(entry, improved, self.config.train.monitor)

    def _warn_of_guessing(self) -> None:
        """Warn once if zero-shot regularization is no better than guessing."""
        if self.objective.zsr is not None:
            values = [entry.losses.get("zsr", 0.0) for entry in self.state.history]
            text = self.objective.zsr.guess_warning([value for value in values if value > 0])  # 0: no attributes yet
            if text is not None:
                self.callback.message(text)

    def _iter_metrics(self) -> Steps[tuple[Metrics, Metrics]]:
        """Evaluate the weights that the objective has now on validation, and on test for the test curve."""
        val = yield from self._iter_evaluate(self.val)
        if self.test is None:
            return val, {}
        return val, (val if self.test is self.val else (yield from self._iter_evaluate(self.test)))

    def _iter_evaluate(self, inputs: Inputs) -> Steps[Metrics]:
        result = yield from iter_evaluate(
            self.objective.model, inputs, batch=self.config.train.eval_batch_size,
            normalize=self.objective.loss.normalizer,
            autocast=self.fabric.autocast, processes=self.processes, ks=self.ks,
        )  # fmt: skip
        return result.metrics()

    def _last_rate(self) -> float:
        """Return the learning rate of the step before this validation."""
        if self.plateau is not None and self.schedule.is_constant:
            return self.plateau.rate  # not a product, which rounding could make another number
        assert self.config.train.lr is not None
        return self.config.train.lr * self._rate_factor(max(0, self.state.step - 1))

    def _is_over(self) -> bool:
        return self.state.step >= self.config.train.max_steps or self.early_stopping.should_stop(self.state)

    def _last_validation(self) -> int:
        """Return the step of the last validation and checkpoint."""
        return self.state.history[-1].step

    def checkpoint(self) -> Checkpoint:
        """Return all state of the run."""
        run_best = self.state.best_step if self.average is None else None  # best.pt has averaged weights
        return {
            "config": self.config.model_dump(mode="json"),
            "learner": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "progress": self.state.to_dict(),
            "problems": None if self.ccp_solver is None else self.ccp_solver.state_dict(run_best),
            "plateau": None if self.plateau is None else self.plateau.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "teacher": None if self.objective.teacher is None else self.objective.teacher.average.state_dict(),
            "data": self.data_digest,
        }

    def restore(self) -> None:
        """Load the last checkpoint of the run folder.

        Raises:
            ModelError: If the checkpoint is missing, damaged, or was made with a different config.
        """
        assert self.run_dir is not None, "a run without a folder has no checkpoints"
        checkpoint, best = load_checkpoint(self.run_dir, self.config)
        try:
            self.objective.load_state_dict(checkpoint["learner"])
            for group in checkpoint["optimizer"]["param_groups"]:
                group.update(self._optimizer_options)  # the checkpoint may be from another device
            self.optimizer.load_state_dict(checkpoint["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            first = str(error).splitlines()[0]
            raise ModelError(
                f"{self.run_dir.checkpoint_file}: the checkpoint does not fit the model ({first}). Resume the run with "
                "its own data and config."
            ) from None
        if checkpoint["precision"]:  # empty without a gradient scaler
            self.fabric.strategy.precision.load_state_dict(checkpoint["precision"])
        self.state = TrainState.from_dict(checkpoint["progress"], self.config.train.monitor)
        self.best_state = {key: tensor.to(self.device) for key, tensor in best.items()}
        if self.ccp_solver is not None and checkpoint["problems"] is not None:
            self.ccp_solver.load_state_dict(checkpoint["problems"], self.best_state)
        if self.plateau is not None and checkpoint["plateau"] is not None:
            self.plateau.load_state_dict(checkpoint["plateau"])
        if self.average is not None and checkpoint["average"] is not None:
            self.average.load_state_dict(checkpoint["average"])
        if self.objective.teacher is not None and checkpoint["teacher"] is not None:
            self.objective.teacher.average.load_state_dict(checkpoint["teacher"])
        if self.learning_rates is not None:  # the loaded rates are not the tensors of a graph
            self.learning_rates.scale(self._rate_factor(self.state.step))
        if self.processes.is_first:
            self.run_dir.write_history(self.state.history)

    def _check_finite(self) -> None:
        """Raise `TrainingError` if the loss or an update was not finite.

        The call waits for the device.
        """
        step = self.training_step.finite.first_bad_step()
        if step is None:
            if bool(torch.stack([p.isfinite().all() for p in self.objective.parameters()]).all()):
                return
            step = self.state.step - 1  # a finite gradient can still overflow in the last update
        names = [self.train.name(int(i)) for i in self.sampler.batch(step)]
        listing = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        saved = "No checkpoint was saved."
        if self.run_dir is not None and self.writer is not None:
            self.writer.wait()
            bad = self.run_dir.path / "bad_batch.txt"
            write_text(bad, "\n".join(names) + "\n")
            listing += f" (all in {bad})"
            saved = f"The last good checkpoint is {self.run_dir.checkpoint_file} (step {self._last_validation()})."
        wider = ", or set train.precision=32-true" if "mixed" in self.config.train.precision else ""
        raise TrainingError(
            f"step {step}: the loss or an update is not finite. Images of the batch: {listing}. {saved} Check these "
            f"images, lower train.lr{wider}."
        )


def make_sampler(settings: TrainConfig, labels: Labels, seed: int) -> BatchSampler:
    """Return the sampler of a config; skipped images may make batches smaller."""
    if settings.sampler == "random":
        return RandomSampler(len(labels), min(settings.images_per_batch, len(labels)), seed=seed)
    classes = min(settings.classes_per_batch, len(np.unique(labels)))
    return MPerClassSampler(labels, classes, settings.samples_per_class, seed=seed)
