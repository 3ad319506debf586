"""Bags of learned tokens, half of them background that all classes share: GAP against GSP (Fig. 5.4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from winnow.evaluation import retrieval_metrics
from winnow.losses import ContrastiveLoss
from winnow.pooling import GSP
from winnow.studies.artifacts import StoredRun, require_run
from winnow.studies.base import Findings, Task
from winnow.studies.tokens_report import draw, overlap, shown, table, told

BOX = 0.3  # the documents keep token vectors within [-0.3, 0.3]
EPOCH = 100  # steps from one validation to the next
PATIENCE = 30  # epochs, as in the documents
Method = Literal["GAP", "GSP"]


@dataclass(frozen=True)
class Setting:
    """What is trained.

    Attributes:
        classes: Classes.
        tokens: Tokens of each class, and of the background.
        bag: Tokens of a sample.
        background: Mean and deviation of the background's share of a bag.
        bags: Bags of each class to train on, and as many again to validate and to test.
        margin: Distance that C2 keeps classes apart.
        lr: Adam's.
        steps: At most.
        warm_up: Steps of average pooling before GSP's prototypes are set.
        prototypes: Of GSP.
        mu: Share that GSP keeps: less than there is, as a user would have it who does not know.
        eps: Its sharpness; tokens are at most 0.85 apart, where features of images are up to 2.
    """

    classes: int = 16
    tokens: int = 4
    bag: int = 50
    background: tuple[float, float] = (0.5, 0.1)
    bags: int = 128
    margin: float = 0.2
    lr: float = 1e-4
    steps: int = 20000
    warm_up: int = 4096
    prototypes: int = 64
    mu: float = 0.3
    eps: float = 60.0


@dataclass
class Trained:
    """A finished run: its setting, its tokens (the background's last), the embedded test bags, and its numbers."""

    setting: Setting
    method: str
    seed: int
    tokens: Tensor
    embedded: Tensor
    labels: Tensor
    numbers: dict[str, Any] = field(default_factory=dict)


def draw_bags(setting: Setting, generator: torch.Generator) -> Tensor:
    """Return bags (classes, bags, bag) of token numbers; the background's are the last."""
    shape = (setting.classes, setting.bags, setting.bag)
    own = torch.arange(setting.classes)[:, None, None] * setting.tokens
    own = own + torch.randint(setting.tokens, shape, generator=generator)
    shared = setting.classes * setting.tokens + torch.randint(setting.tokens, shape, generator=generator)
    mean, deviation = setting.background
    share = mean + deviation * torch.randn(*shape[:2], 1, generator=generator)
    count = (share * setting.bag).round().clamp(1, setting.bag - 1)
    return torch.where(torch.arange(setting.bag) < count, shared, own)


def train(setting: Setting, method: Method, seed: int) -> Trained:
    """Train tokens with a pooling until validation stalls; return the best of them on bags of their own."""
    generator = torch.Generator().manual_seed(seed)
    fit, val, test = (draw_bags(setting, generator) for _ in range(3))
    start = torch.rand((setting.classes + 1) * setting.tokens, 2, generator=generator)
    tokens = nn.Parameter(BOX * (2 * start - 1))
    pool = GSP(2, num_prototypes=setting.prototypes, mu=setting.mu, eps=setting.eps)
    loss = ContrastiveLoss(pos_margin=0.0, neg_margin=setting.margin)
    loss.normalizer = lambda vectors: vectors  # as in the documents: only the box bounds the embeddings
    optimizer = torch.optim.Adam([tokens, *pool.parameters()], lr=setting.lr)
    labels = torch.arange(setting.classes).repeat(4)
    every = torch.arange(setting.classes).repeat_interleave(setting.bags)
    warm_up = setting.warm_up if method == "GSP" else 0

    def embed(bags: Tensor, step: int) -> Tensor:
        features = tokens[bags]
        pooled: Tensor = pool(features) if method == "GSP" and step >= warm_up else features.mean(dim=1)
        return pooled

    def judge(bags: Tensor, step: int) -> tuple[Tensor, float]:
        pool.eval()
        with torch.no_grad():
            embedded = embed(bags.flatten(0, 1), step)
        pool.train()
        return embedded, retrieval_metrics(embedded, every)["MAP@R"]

    best, best_step, kept = -1.0, 0, (tokens.detach().clone(), pool.state_dict())
    for step in range(setting.steps):
        picked = torch.randint(setting.bags, (len(labels),), generator=generator)
        value = loss(embed(fit[labels, picked], step), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        with torch.no_grad():
            tokens.clamp_(-BOX, BOX)
            pool.prototypes.clamp_(-BOX, BOX)
        # GSP that is not yet itself is no candidate.
        if (step + 1) % EPOCH == 0 and (pool.prototypes_ready or method == "GAP"):
            score = judge(val, step)[1]
            if score > best:
                best, best_step = score, step + 1
                state = {key: one.clone() for key, one in pool.state_dict().items()}
                kept = (tokens.detach().clone(), state)
            elif step + 1 - best_step >= PATIENCE * EPOCH:
                break
    with torch.no_grad():
        tokens.copy_(kept[0])
    pool.load_state_dict(kept[1])
    embedded, score = judge(test, setting.steps)
    run = Trained(setting, method, seed, tokens.detach(), embedded, every)
    run.numbers = {"MAP@R": score, "validation": best, "overlap": overlap(run), "steps": best_step}
    return run


def trained(task: Task, setting: Setting, method: Method, seed: int) -> Trained:
    """Train a run that the task has not kept yet.

    Raises:
        ConfigError: for one that was made with other settings.
        DataError: where nothing more is to be trained.
    """

    def make() -> StoredRun:
        with one_thread():
            run = train(setting, method, seed)
        return StoredRun(run.numbers, {"tokens": run.tokens, "embedded": run.embedded, "labels": run.labels})

    asked = {"setting": asdict(setting), "method": method, "seed": seed}
    kept = require_run(task, f"{method}-margin-{setting.margin}-seed{seed}", asked, make)
    tokens, embedded, labels = (kept.tensors[key] for key in ("tokens", "embedded", "labels"))
    return Trained(setting, method, seed, tokens, embedded, labels, dict(kept.numbers))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core: steps this small cost more to share than to do, many times so beside other programs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def settings(small: bool) -> tuple[list[Setting], int]:
    """Return the settings to train, and how many seeds; small: faster steps and fewer of them, one seed."""
    base = Setting(lr=1e-3, steps=2500, warm_up=800, bags=64) if small else Setting()
    return [replace(base, margin=margin) for margin in (0.2, 0.5)], 1 if small else 3


def study(task: Task) -> Findings:
    """Bags of tokens, half of them shared background: GAP against GSP, class hulls and their overlap (Fig. 5.4).

    Cost: 1 minute; in full 15 minutes.
    """
    chosen, seeds = settings(task.small)
    runs: list[Trained] = []
    for setting in chosen:
        for method in get_args(Method):
            for seed in range(seeds):
                runs.append(trained(task, setting, method, seed))
                numbers = runs[-1].numbers
                task.note(f"{method}, margin {setting.margin}, seed {seed}: MAP@R {100 * numbers['MAP@R']:.1f}")
    rows = table(runs)
    return Findings(
        title="Bags of tokens",
        text=told(rows, chosen[0].bag, [run.numbers["overlap"] for run in shown(runs)]),
        rows=rows,
        figure=draw(runs),
        settings={"small": task.small, "seeds": seeds, "settings": [vars(one) for one in chosen]},
        details={"runs": [{"method": run.method, "margin": run.setting.margin, "seed": run.seed, **run.numbers}
                          for run in runs]},
    )  # fmt: skip
