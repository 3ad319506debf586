"""Values and gradients of every part on fixed numbers of numpy, in float64: the content of `values.json`."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.golden import adapters as a

WIDTH, CLASSES, BATCH, SIDE = 8, 7, 24, 4
LABELS = torch.tensor([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4 + [5] * 3 + [6])
OTHERS = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4, 4, 4, 4, 6, 6, 9, 9, 9, 9])
"""Classes of references: 5 has none, and 9 has no query."""

Record = dict[str, Any]
Cases = Iterator[tuple[str, Callable[[], Mapping[str, Any]]]]


def numbers(*shape: int, seed: Any = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return normal numbers of numpy; `seed` is a number or a text."""
    if isinstance(seed, str):
        seed = zlib.crc32(seed.encode())
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(dtype)


def brief(value: Any) -> Any:
    """Return a tensor as its shape, its norm and its products with three fixed vectors; small ones whole."""
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.bool or not value.is_floating_point():
        whole = value.detach().cpu().to(torch.int64)
        if whole.numel() <= 24:
            return whole.tolist()
        return {"shape": list(whole.shape), "sha256": hashlib.sha256(whole.numpy().tobytes()).hexdigest()}
    value = value.detach().cpu().double()
    if value.numel() <= 4:
        return value.tolist()
    flat = value.flatten().numpy()
    vectors = np.random.default_rng(len(flat)).normal(size=(3, len(flat)))
    # Sums of one order: a product of BLAS may add in another on another machine.
    sums = [float(np.sum(flat * vector)) for vector in vectors]
    return {"shape": list(value.shape), "norm": float(np.sqrt(np.sum(flat * flat))), "dots": sums}


def settle(module: nn.Module, seed: str) -> nn.Module:
    """Make a module float64 and give its weights numbers of numpy; those of one dimension stay near their start."""
    module.double()
    with torch.no_grad():
        for number, weight in enumerate(module.parameters()):
            fresh = numbers(*weight.shape, seed=f"{seed} {number}")
            if weight.dim() < 2:  # a constant at the start stays near it; rounding may differ between processors
                constant = bool(weight.max() - weight.min() < 1e-3)
                weight.copy_((weight.round(decimals=3) if constant else 0.0) + 0.05 * fresh)
            else:
                weight.copy_(fresh / weight[0].numel() ** 0.5)
    return module


def with_gradients(value: Tensor, inputs: Mapping[str, Tensor]) -> Record:
    """Return a scalar, and its gradients by what is given."""
    record: Record = {"value": brief(value)}
    grads = torch.autograd.grad(value, list(inputs.values()), allow_unused=True)
    for name, grad in zip(inputs, grads, strict=True):
        record[f"d {name}"] = None if grad is None else brief(grad)
    return record


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters by their place, since names may change."""
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    return {f"parameter {number}": weight for number, weight in enumerate(trained)}


def build(registry: Any, section: Mapping[str, Any], *, random: int = 0) -> Any:
    """Build a part, with torch's random numbers fixed."""
    torch.manual_seed(random)
    return a.build(registry, section, width=WIDTH, classes=CLASSES, batch=BATCH, positions=SIDE * SIDE)


def told(section: Mapping[str, Any]) -> str:
    """Return a section as the name of a record."""
    return " ".join([str(section["name"]), *(f"{key}={value}" for key, value in section.items() if key != "name")])


LOSSES: dict[str, list[dict[str, Any]]] = {
    "c1": [{"margin": 0.2}],
    "c2": [{"positive_margin": 0.3, "negative_margin": 1.3}],
    "triplet": [{"margin": 0.4}],
    "ms": [{"alpha": 3.0, "beta": 20.0, "threshold": 0.3}],
    "margin": [{"per_class": True, "nu": 0.1}, {"alpha": 0.3, "beta": 1.0, "nu": 0.2}],
    "npair": [{"scale": 8.0}],
    "lifted": [{"margin": 0.5}],
    "proxy_anchor": [{"alpha": 16.0, "margin": 0.2}],
    "proxy_nca": [{"form": "dot"}, {"form": "squared", "temperature": 0.5}],
    "soft_triple": [{"form": "distance"}, {"form": "cosine", "tau": 0.5}],
}
PRESETS = ("cub", "cars", "sop", "inshop")


def loss_sections() -> Iterator[dict[str, Any]]:
    """Yield every loss: as it is, by each preset, and with settings that take another path."""
    for name, more in LOSSES.items():
        yield {"name": name}
        known = a.LOSSES.presets(name)
        for preset in PRESETS:
            if preset in known:
                yield {"name": name, "preset": preset}
        for settings in more:
            yield {"name": name, **settings}


def losses() -> Cases:
    """Every loss: in the batch, against references, with pairs left out, without positives, in float32."""
    exclude = torch.from_numpy(np.random.default_rng(5).random((BATCH, len(OTHERS))) < 0.2)
    for section in loss_sections():
        for case in ("batch", "references", "exclude", "apart", "ball", "float32"):
            if case in ("apart", "ball", "float32") and "preset" in section:
                continue

            def compute(section: Mapping[str, Any] = section, case: str = case) -> Record:
                dtype = torch.float32 if case == "float32" else torch.float64
                loss = settle(build(a.LOSSES, section), told(section)).to(dtype)
                scale = 0.5 if case == "ball" else 1.0
                queries = (scale * numbers(BATCH, WIDTH, seed="queries")).to(dtype).requires_grad_()
                others = (scale * numbers(len(OTHERS), WIDTH, seed="references")).to(dtype).requires_grad_()
                inputs: dict[str, Tensor] = {"queries": queries}
                if case == "ball":
                    a.set_of_loss(loss, normalizer="ball")
                if case == "batch":
                    value = a.call_loss(loss, queries, LABELS)
                elif case == "apart":
                    value = a.call_loss(loss, queries[:5], torch.arange(5))
                else:
                    inputs["references"] = others
                    value = a.call_loss(
                        loss, queries, LABELS, others, OTHERS, exclude if case == "exclude" else None
                    )  # fmt: skip
                return with_gradients(value, {**inputs, **parameters(loss)})

            yield f"loss {told(section)}, {case}", compute


MINERS = [
    {"name": "all"}, {"name": "hard"}, {"name": "hard", "positives": "hardest"}, {"name": "semi_hard"},
    {"name": "semi_hard", "margin": 0.5}, {"name": "distance_weighted"},
    {"name": "distance_weighted", "lower": 0.8, "upper": 1.2},
]  # fmt: skip


def miners() -> Cases:
    """Which pairs remain, and a loss of them."""
    for section in MINERS:

        def compute(section: Mapping[str, Any] = section) -> Record:
            miner = build(a.MINERS, section)
            queries = nn.functional.normalize(numbers(BATCH, WIDTH, seed="queries"), dim=1)
            others = nn.functional.normalize(numbers(len(OTHERS), WIDTH, seed="references"), dim=1)
            torch.manual_seed(3)
            kept = miner(a.make_pairs(queries, others, LABELS, OTHERS))
            record: Record = {"positives": brief(kept.positives), "negatives": brief(kept.negatives)}
            for name in ("ms", "triplet", "margin"):
                loss = settle(build(a.LOSSES, {"name": name}), name)
                a.set_of_loss(loss, miner=miner)
                moved = queries.clone().requires_grad_()
                torch.manual_seed(4)
                made = with_gradients(a.call_loss(loss, moved, LABELS), {"queries": moved})
                record |= {f"{name} {key}": value for key, value in made.items()}
            return record

        yield f"miner {told(section)}", compute


SOURCES = [
    {"name": "batch"}, {"name": "proxies"}, {"name": "proxies", "per_class": 3},
    {"name": "memory", "batches": 2, "start": 1}, {"name": "memory", "batches": 3, "start": 0, "weight": 0.5},
    {"name": "ccp", "per_class": 2, "pool": 4}, {"name": "ccp", "per_class": 3, "pool": 5, "batch_weight": 0.0},
    {"name": "ccp", "per_class": 2, "pool": 4, "normalised": True},
    {"name": "ccp", "preset": "cub"}, {"name": "ccp", "preset": "sop"},
]  # fmt: skip


def references() -> Cases:
    """Every source of references over several steps, CCP seeded twice."""
    for section in SOURCES:
        for loss_name in ("c2", "ms") if section["name"] != "proxies" else ("proxy_anchor", "soft_triple"):

            def compute(section: Mapping[str, Any] = section, loss_name: str = loss_name) -> Record:
                source = build(a.REFERENCES, section)
                record: Record = {"keys": [a.old_key(key) for key in source.state_dict()]}
                settle(source, told(section)).train()
                loss = settle(build(a.LOSSES, {"name": loss_name}), loss_name)
                if section["name"] == "ccp":
                    size = section.get("pool", 12)
                    classes = torch.tensor([0, 2, 3, 4, 6])
                    for turn in (1, 2):
                        a.seed_ccp(source, 3 * numbers(5, size, WIDTH, seed=f"pool {turn}"), classes, first=turn == 1)
                        record[f"seeded {turn}"] = brief(next(source.parameters()))
                for step in range(7):
                    queries = numbers(BATCH, WIDTH, seed=f"step {step}").requires_grad_()
                    labels = LABELS[torch.from_numpy(np.random.default_rng(step).permutation(BATCH))]
                    value = a.call_references(source, loss, queries, labels)
                    for key, one in with_gradients(value, {"queries": queries, **parameters(source)}).items():
                        record[f"step {step} {key}"] = one
                record["buffers"] = [brief(buffer) for buffer in source.buffers()]
                centers = a.class_centers(source)
                record["centers"] = None if centers is None else [brief(one) for one in centers]
                source.eval()
                record["eval"] = brief(a.call_references(source, loss, queries, labels))
                return record

            yield f"references {told(section)}, {loss_name}", compute


REGULARIZERS = [
    {"name": "none"},
    *({"name": name, "toward": toward, "measure": measure, **more}
      for name, more in (("r1", {}), ("r1", {"gamma": 0.0}), ("r1", {"gamma": 3.0, "delta": -0.1}), ("r2", {}),
                         ("r2", {"delta": 0.2}), ("hard", {}), ("hard", {"k": 2, "delta": -0.2}))
      for toward in ("nearest", "farthest") for measure in ("cosine", "distance")),
    {"name": "r1", "sample": 4}, {"name": "hard", "k": 3, "sample": 5},
    {"name": "uniformface"}, {"name": "uniformface", "offset": 0.0}, {"name": "mhe"}, {"name": "mhe", "s": 0},
    {"name": "mhe", "s": 1}, {"name": "mhe", "sample": 5},
]  # fmt: skip


def regularizers() -> Cases:
    """Every center regularizer, with several centers of a class, some left out."""
    for section in REGULARIZERS:

        def compute(section: Mapping[str, Any] = section) -> Record:
            part = build(a.REGULARIZERS, section)
            record: Record = {"weight": part.weight}
            counted = torch.arange(len(OTHERS)) % 5 != 0
            for case, labels, there in (("plain", None, None), ("classes", OTHERS, None), ("some", OTHERS, counted)):
                centers = numbers(len(OTHERS), WIDTH, seed="centers").requires_grad_()
                torch.manual_seed(6)
                value = a.call_regularizer(part, centers, labels, there)
                for key, one in with_gradients(value, {"centers": centers}).items():
                    record[f"{case} {key}"] = one
            return record

        yield f"regularizer {told(section)}", compute

    def means() -> Record:
        made, first = a.class_means(numbers(BATCH, WIDTH, seed="queries"), LABELS)
        return {"means": brief(made), "first": brief(first)}

    yield "class means", means


def others() -> Cases:
    """Zero-shot regularization and the proximal penalty."""
    for ridge, scale, width in ((0.05, 9.5, 5), (0.5, 3.0, 5), (0.05, 9.5, 30)):

        def compute(ridge: float = ridge, scale: float = scale, width: int = width) -> Record:
            torch.manual_seed(0)
            part = settle(a.make_zsr(CLASSES, WIDTH, ridge, scale), "zsr")
            attributes = numbers(BATCH, width, seed="attributes").softmax(dim=1).requires_grad_()
            torch.manual_seed(7)
            record = with_gradients(part(attributes, LABELS), {"attributes": attributes, **parameters(part)})
            torch.manual_seed(8)
            record["one class"] = brief(part(attributes, torch.zeros_like(LABELS)))
            record["none"] = brief(part(torch.zeros_like(attributes), LABELS))
            return record

        yield f"zsr ridge={ridge} scale={scale} attributes={width}", compute

    def pull() -> Record:
        network = settle(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), "network")
        next(network.parameters()).requires_grad_(False)
        target = {key: value + numbers(*value.shape, seed=key) for key, value in network.state_dict().items()}
        part = a.make_pull(network, target, 0.3)
        return with_gradients(part(), {name: one for name, one in network.named_parameters() if one.requires_grad})

    yield "pull", pull


POOLINGS: dict[str, list[dict[str, Any]]] = {
    "gap": [], "gmp": [], "gmp_projected": [], "gap_gmp": [], "crow": [{"presence": "sigmoid"}],
    "cbam": [{"normalise": False, "kernel": 3, "reduction": 2}], "delf": [{"hidden": 6}], "gemax": [{"ridge": 0.3}],
    "gemean": [{"p": 5.0}], "gsop": [{"attention": 4}, {"attention": 4, "centred": False, "rectify": True}],
    "otp": [{"prototypes": 3, "memory": 12, "eps": 4.0, "steps": 4}], "solar": [{"reduction": 4}],
    "tsmk": [{"attention_gradient": False}], "netvlad": [{"clusters": 3, "normalise": False}, {"clusters": 2}],
    "weldon": [{"largest": 1, "smallest": 2}],
    "gsp": [{"prototypes": 5, "memory": 12}, {"prototypes": 5, "memory": 12, "role": "background", "eps": 1.0},
            {"prototypes": 5, "memory": 12, "learn_mu": True, "learn_eps": True}, {"prototypes": 5, "memory": 12,
            "mu": 1.0}, {"prototypes": 5, "memory": 12, "eps": 0.0}],
    "gmp_gsp": [{"prototypes": 5, "memory": 12}, {"prototypes": 5, "memory": 12, "maximum": "weighted"}],
    "gemean_gsp": [{"prototypes": 5, "memory": 12, "p": 2.0}],
}  # fmt: skip
IMAGES = 6
STEPS = (("map", False), ("map", True), ("tokens", False), ("tokens", True), ("map", False))


def poolings() -> Cases:
    """Every pooling: maps and tokens, masked too; in training, until prototypes are set and after, and not."""
    for name, more in POOLINGS.items():
        for settings in [{}, *more]:
            section = {"name": name, **settings}

            def compute(section: Mapping[str, Any] = section) -> Record:
                torch.manual_seed(0)
                part = build(a.POOLINGS, section)
                record: Record = {
                    "keys": [(a.old_key(key), list(value.shape)) for key, value in part.state_dict().items()],
                    "takes": a.takes(part), "guided": a.is_guided(part), "out": a.output_width(part, WIDTH),
                }  # fmt: skip
                settle(part, told(section)).train()
                mask = torch.from_numpy(np.random.default_rng(9).random((IMAGES, SIDE, SIDE)) < 0.7)
                for step, (shape, masked) in enumerate(STEPS):
                    seed = f"features {step}"
                    guide = numbers(IMAGES, WIDTH, SIDE, SIDE, seed=f"{seed} guide") if a.is_guided(part) else None
                    for mode in ("train", "eval"):
                        part.train(mode == "train")
                        features = numbers(IMAGES, WIDTH, SIDE, SIDE, seed=seed)
                        features.requires_grad_()
                        given = features if shape == "map" else features.flatten(2).mT
                        asked = guide if guide is None or shape == "map" else guide.flatten(2).mT
                        there = None if not masked else mask if shape == "map" else mask.flatten(1)
                        key = f"{step} {shape}{' masked' if masked else ''} {mode}"
                        try:
                            made = a.pool(part, given, there, asked)
                        except ValueError as error:
                            record[key] = {"error": type(error).__name__}
                            continue
                        vector = made["vector"]
                        assert vector is not None
                        shown = {output: None if one is None else brief(one) for output, one in made.items()}
                        if mode == "eval":
                            record[key] = shown
                            continue
                        value = (vector * numbers(*vector.shape, seed="to vector")).sum()
                        for output in ("weights", "attributes"):
                            one = made[output]
                            if one is not None and one.requires_grad:
                                value = value + (one * numbers(*one.shape, seed=f"to {output}")).sum()
                        record[key] = {
                            **shown, **with_gradients(value, {"features": features, **parameters(part)}),
                            "ready": a.is_ready(part),
                        }  # fmt: skip
                record["buffers"] = [brief(buffer) for buffer in part.buffers()]
                return record

            yield f"pooling {told(section)}", compute


def functions() -> Cases:
    """The functions of `winnow.functional`."""
    f = a.functional
    features, prototypes = numbers(3, 12, WIDTH, seed="f"), numbers(5, WIDTH, seed="w")
    mask = torch.from_numpy(np.random.default_rng(2).random((3, 12)) < 0.7)
    prior = numbers(3, 12, seed="prior").abs()
    each = torch.tensor([[0.2], [0.5], [0.9]], dtype=torch.float64)

    def gsp(mu: Any, eps: Any, mask: Any, prior: Any, unfused: bool = False) -> Record:
        x, w = features.clone().requires_grad_(), prototypes.clone().requires_grad_()
        inputs = {"features": x, "prototypes": w}
        if isinstance(mu, Tensor):
            inputs["mu"] = mu = mu.clone().requires_grad_()
            inputs["eps"] = eps = torch.tensor(eps, dtype=torch.float64, requires_grad=True)
        if prior is not None:
            inputs["prior"] = prior = prior.clone().requires_grad_()
        made = a.unfused_gsp(x, w, mu, eps, mask) if unfused else a.gsp(x, w, mu, eps, mask, prior)
        value = sum((one * numbers(*one.shape, seed=f"out {place}")).sum() for place, one in enumerate(made))
        return {"out": [brief(one) for one in made], **with_gradients(value, inputs)}

    for mu, eps in ((0.3, 5.0), (0.05, 20.0), (0.7, 0.5), (1.0, 5.0), (0.3, 0.0)):
        for case, masked, known in (("", None, None), (" mask", mask, None), (" prior", None, prior),
                                    (" mask prior", mask, prior)):  # fmt: skip
            yield f"gsp mu={mu} eps={eps}{case}", lambda mu=mu, eps=eps, m=masked, p=known: gsp(mu, eps, m, p)
    yield "gsp mu tensor", lambda: gsp(each, 5.0, mask, None)
    yield "gsp unfused", lambda: gsp(0.3, 5.0, None, None, unfused=True)
    yield "gsp unfused mask", lambda: gsp(0.3, 5.0, mask, None, unfused=True)

    def weights(masked: Any, known: Any) -> Record:
        costs = numbers(3, 5, 12, seed="costs").abs().requires_grad_()
        try:
            made = f.gsp_weights(costs, 0.3, 5.0, masked, known)
        except Exception:
            costs = numbers(3, 12, 5, seed="costs").abs().requires_grad_()
            made = f.gsp_weights(costs, 0.3, 5.0, masked, known)
        value = sum((one * numbers(*one.shape, seed=f"out {place}")).sum() for place, one in enumerate(made))
        return {"out": [brief(one) for one in made], **with_gradients(value, {"costs": costs})}

    yield "gsp_weights", lambda: weights(None, None)
    yield "gsp_weights mask prior", lambda: weights(mask, prior)

    def selection(share: float, masked: Any, known: Any) -> Record:
        scores = (3 * numbers(3, 12, seed="scores")).requires_grad_()
        made = f.soft_selection(scores, share, masked, known)
        return {"out": brief(made), **with_gradients((made * prior).sum(), {"scores": scores})}

    for share in (0.1, 0.5, 1.0):
        yield f"soft_selection {share}", lambda share=share: selection(share, None, None)
        yield f"soft_selection {share} mask prior", lambda share=share: selection(share, mask, prior)
        yield (
            f"hard_selection {share}",
            lambda share=share: {"out": brief(f.hard_selection(numbers(3, 12, seed="scores"), share))},
        )

    def mean(function: str, *args: Any, masked: bool, **options: Any) -> Record:
        x = (numbers(3, 12, seed="values").abs() + 0.1).requires_grad_()
        made = getattr(f, function)(x, *args, mask=mask if masked else None, **options)
        return {"out": brief(made), **with_gradients((made * made.detach()).sum(), {"x": x})}

    for masked in (False, True):
        for gamma in (-3.0, 0.0, 7.0):
            yield f"log_exp_mean {gamma} {masked}", lambda g=gamma, m=masked: mean("log_exp_mean", g, masked=m)
        yield f"log_exp_mean delta {masked}", lambda m=masked: mean("log_exp_mean", 2.0, masked=m, delta=0.5)
        for power in (-2.0, 0.0, 1.0, 3.0):
            yield f"power_mean {power} {masked}", lambda t=power, m=masked: mean("power_mean", t, masked=m)
        for k, largest in ((1, True), (3, False), (50, True)):
            yield (
                f"hard_skewed_mean {k} {largest} {masked}",
                lambda k=k, up=largest, m=masked: mean("hard_skewed_mean", k, masked=m, largest=up),
            )

    def distance() -> Record:
        x, y = numbers(3, 6, WIDTH, seed="x").requires_grad_(), numbers(4, WIDTH, seed="y").requires_grad_()
        made = f.pairwise_distance(x, y)
        return {"out": brief(made), **with_gradients((made * made.detach()).sum(), {"x": x, "y": y})}

    yield "pairwise_distance", distance

    def clipped() -> Record:
        x = (0.4 * numbers(9, WIDTH, seed="x")).requires_grad_()
        made = f.clip_norm(x)
        return {"out": brief(made), **with_gradients((made * numbers(9, WIDTH, seed="to")).sum(), {"x": x})}

    yield "clip_norm", clipped

    def centers() -> Record:
        points, known = numbers(3, 12, WIDTH, seed="points"), numbers(3, 2, WIDTH, seed="known")
        return {
            "plain": brief(a.greedy_k_center(points, 4)), "away": brief(a.greedy_k_center(points, 4, known)),
            "mask": brief(a.greedy_k_center(points, 4, known, mask)),
            "one": brief(a.greedy_k_center(points[0], 5)),
            "radius": brief(f.covering_radius(points[0], known[0])),
        }  # fmt: skip

    yield "k-center", centers

    def hulls() -> Record:
        plane = [numbers(9, 2, seed=f"hull {place}") + 0.5 * place for place in range(3)]
        labels = torch.arange(3).repeat_interleave(9)
        points = torch.cat(plane)
        vertices = [f.convex_hull(one) for one in plane]
        # The order of a hull's vertices may start anywhere.
        return {
            "hull": [brief(torch.tensor(sorted(one.tolist()))) for one in vertices],
            "inside": brief(f.in_hull(points, plane[0])),
            "overlap": brief(f.hull_overlap(points, labels, plane)),
        }  # fmt: skip

    yield "hulls", hulls

    def averages() -> Record:
        made = a.analyze_average_pooling(numbers(8, 10, 3, seed="images"), torch.arange(8) % 3, 6)
        return {
            **{name: brief(getattr(made, name)) for name in
               ("prototypes", "radius", "histograms", "averages", "combinations", "active", "overlap", "errors",
                "shared")},
            "histogram": brief(f.prototype_histogram(features, prototypes)),
        }  # fmt: skip

    yield "average pooling", averages


def retrieval() -> Cases:
    """Metrics, search and re-ranking."""
    e = a.evaluation
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, 9, 80))
    found = numbers(80, WIDTH, seed="embeddings") + 0.9 * numbers(10, WIDTH, seed="class")[labels]
    unit = nn.functional.normalize(found, dim=1)
    # Some of the same place, so that ties are there.
    unit[70:] = unit[:10]
    queries, own = unit[:30], labels[:30]

    yield "metrics in itself", lambda: dict(e.retrieval_metrics(unit, labels))
    yield "metrics float32", lambda: dict(e.retrieval_metrics(unit.float(), labels, ks=(1, 10)))
    yield (
        "metrics of a gallery",
        lambda: dict(e.retrieval_metrics(queries, own, gallery=unit[30:], gallery_labels=labels[30:])),
    )
    yield (
        "result",
        lambda: {
            key: brief(value) for key, value in a.retrieval_arrays(e.evaluate_retrieval(unit, labels, keep=6)).items()
        },
    )
    yield (
        "search",
        lambda: dict(zip(("distances", "places"), map(brief, a.search(unit, unit, 7, exclude_self=True)), strict=True)),
    )
    yield (
        "search of others",
        lambda: dict(zip(("distances", "places"), map(brief, a.search(queries, unit[30:], 5)), strict=True)),
    )
    for rerank in ("aqe", "reciprocal"):
        yield f"reranked {rerank}", lambda rerank=rerank: dict(e.reranked_metrics(unit, labels, rerank))
    yield (
        "expanded",
        lambda: {
            "others": brief(a.expand_queries(queries, unit[30:], 4, 2.0, False)),
            "self": brief(a.expand_queries(unit, unit, 5, 3.0, True)),
        },
    )
    yield (
        "k-reciprocal",
        lambda: {
            "self": brief(e.k_reciprocal_distances(unit)),
            "others": brief(e.k_reciprocal_distances(queries, unit[30:], e.KReciprocal(8, 3, 0.4))),
        },
    )
    hits = torch.from_numpy(np.random.default_rng(4).random((12, 10)) < 0.4)
    yield (
        "query metrics",
        lambda: {key: brief(value) for key, value in e.query_metrics(hits, hits.sum(dim=1).clamp(min=1)).items()},
    )


def networks() -> Cases:
    """winnow's own networks: their keys, and what they make of an image."""
    for name in ("resnet20", "resnetv2_20", "bn_inception"):

        def compute(name: str = name) -> Record:
            torch.manual_seed(0)
            network = a.make_network(name)
            keys = [f"{a.old_key(key)} {list(value.shape)}" for key, value in network.state_dict().items()]
            settle(network, name).eval()
            with torch.no_grad():
                made = network(numbers(1, 3, 64, 64, seed="image").abs())
            text = "\n".join(keys).encode()
            return {"keys": len(keys), "sha256": hashlib.sha256(text).hexdigest(), "out": brief(made)}

        yield f"network {name}", compute


GROUPS: dict[str, Callable[[], Cases]] = {
    "losses": losses, "miners": miners, "references": references, "regularizers": regularizers, "others": others,
    "poolings": poolings, "functions": functions, "retrieval": retrieval, "networks": networks,
}  # fmt: skip


def compute_group(name: str) -> dict[str, Any]:
    """Return all records of a group."""
    torch.set_num_threads(1)
    return {key: plain(case()) for key, case in GROUPS[name]()}


def plain(value: Any) -> Any:
    """Return what JSON gives back."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return brief(value)


def difference(old: Any, new: Any, rtol: float, where: str = "") -> str | None:
    """Return the first place where two records differ by more than a share of the larger; None where none do.

    Products and norms of one tensor are measured by its norm.
    """
    slack = 1e-13 if rtol else 0.0  # what is nothing but rounding
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in new or key not in old:
                return f"{where}.{key} is {'missing' if key in old else 'new'}"
            scale = float(old["norm"]) if key == "dots" and "norm" in old else 0.0
            if key == "dots" and scale:
                if any(abs(x - y) > rtol * max(scale, abs(x)) + slack for x, y in zip(old[key], new[key], strict=True)):
                    return f"{where}.dots: {old[key]} was, {new[key]} is"
                continue
            found = difference(old[key], new[key], rtol, f"{where}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            found = difference(one, other, rtol, f"{where}[{place}]")
            if found is not None:
                return found
        return None
    if isinstance(old, float) and isinstance(new, int | float) and not isinstance(new, bool):
        close = old == new or (old != old and new != new) or abs(old - new) <= rtol * max(abs(old), abs(new)) + slack
        return None if close else f"{where}: {old!r} was, {new!r} is"
    return None if old == new else f"{where}: {old!r} was, {new!r} is"
