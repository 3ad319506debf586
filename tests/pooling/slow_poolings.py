"""Slow reference poolings in numpy: one image at a time, from the equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from winnow.pooling import Pooling

Array = np.ndarray


class Scene(NamedTuple):
    """One image: features (n, C), grid size (h, w), and projected features (n, d)."""

    features: Array
    grid: tuple[int, int]
    guide: Array


def weights_of(layer: Pooling, name: str) -> Array:
    return layer.get_parameter(name).detach().double().numpy()


def number(value: object) -> float:
    return value.item() if hasattr(value, "item") else value


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0.0)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


def clip(vector: Array) -> Array:
    return vector / max(1.0, math.sqrt(sum(vector**2)))


def batch_norm(x: Array, layer: Pooling, name: str) -> Array:
    """Normalize rows (n, c) with the running averages."""
    norm = layer.get_submodule(name)
    mean, var = norm.running_mean.double().numpy(), norm.running_var.double().numpy()
    return (x - mean) / np.sqrt(var + norm.eps) * weights_of(layer, f"{name}.weight") + weights_of(
        layer, f"{name}.bias"
    )


def linear(x: Array, layer: Pooling, name: str) -> Array:
    result = x @ weights_of(layer, f"{name}.weight").T
    bias = layer.get_submodule(name).bias
    return result if bias is None else result + bias.detach().double().numpy()


def gap(image: Scene, layer: Pooling) -> list[float]:
    f = image.features
    return [sum(f[:, k]) / len(f) for k in range(f.shape[1])]


def gmp(image: Scene, layer: Pooling) -> list[float]:
    return [max(channel) for channel in image.features.T]


def gap_gmp(image: Scene, layer: Pooling) -> Array:
    return np.add(gap(image, layer), gmp(image, layer))


def cbam(image: Scene, layer: Pooling) -> Array:
    def perceptron(v: Array) -> Array:
        return weights_of(layer, "excite.weight") @ relu(weights_of(layer, "squeeze.weight") @ v)

    h, w = image.grid
    channels = sigmoid(perceptron(image.features.max(axis=0)) + perceptron(image.features.mean(axis=0)))
    f = (image.features * channels).reshape(h, w, -1)
    summary = np.stack([f.max(axis=2), f.mean(axis=2)])
    kernel = weights_of(layer, "kernel")[0]
    reach = kernel.shape[-1] // 2
    total = np.zeros(f.shape[2])
    for y in range(h):
        for x in range(w):
            score = sum(
                kernel[c, dy + reach, dx + reach] * summary[c, y + dy, x + dx]
                for c in range(2)
                for dy in range(-reach, reach + 1)
                for dx in range(-reach, reach + 1)
                if 0 <= y + dy < h and 0 <= x + dx < w
            )
            if layer.norm is not None:
                score = batch_norm(np.array([[score]]), layer, "norm")[0, 0]
            total += sigmoid(score) * f[y, x]
    return total / (h * w)


def crow(image: Scene, layer: Pooling) -> list[float]:
    x = relu(image.features)
    n, d = x.shape
    s = [sum(row) for row in x]
    length = math.sqrt(sum(value**2 for value in s))
    a = [math.sqrt(value / length) if length > 0 else 0.0 for value in s]
    if layer.presence == "sigmoid":
        q = [sum(sigmoid(x[:, k])) / n for k in range(d)]
    else:
        q = [sum(1 for value in x[:, k] if value > 0) / n for k in range(d)]
    b = [math.log((d * 1e-16 + sum(q)) / (1e-16 + q[k])) for k in range(d)]
    return [b[k] * sum(a[j] * x[j, k] for j in range(n)) / n for k in range(d)]


def delf(image: Scene, layer: Pooling) -> Array:
    total = np.zeros(image.features.shape[1])
    for f in image.features:
        score = linear(relu(linear(f, layer, "hidden")), layer, "score")[0]
        total += math.log1p(math.exp(score)) * f
    return total / len(image.features)


def gemax(image: Scene, layer: Pooling) -> Array:
    """Solve the least-squares problem, with the ridge as additional rows."""
    f = image.features
    d = f.shape[1]
    rows = np.vstack([f, math.sqrt(layer.ridge) * np.eye(d)])
    return np.linalg.lstsq(rows, np.append(np.ones(len(f)), np.zeros(d)), rcond=None)[0]


def generalized_mean(f: Array, p: float) -> list[float]:
    return [(sum(max(value, 1e-6) ** p for value in channel) / len(f)) ** (1 / p) for channel in f.T]


def gemean(image: Scene, layer: Pooling) -> list[float]:
    return generalized_mean(image.features, layer.p.item())


def gsop(image: Scene, layer: Pooling) -> Array:
    f = image.features

    def moments(rows: Array) -> Array:
        if layer.centered:
            rows = rows - rows.mean(axis=1, keepdims=True)
        return rows @ rows.T / rows.shape[1]

    def attend(matrix: Array, name: str) -> Array:
        # The rows of the matrix are the channels of the batch norm.
        x = batch_norm(matrix.T, layer, f"{name}.norm").T
        rows, bias = weights_of(layer, f"{name}.rows"), weights_of(layer, f"{name}.bias")
        values = np.array([rows[i] @ x[i] + bias[i] for i in range(len(x))])
        values = relu(values) if layer.get_submodule(name).rectify else values
        return sigmoid(linear(values.ravel(), layer, f"{name}.mix"))

    h = relu(batch_norm(linear(relu(f), layer, "reduce_channels"), layer, "channel_norm"))
    channels = attend(moments(h.T), "channels")
    h = relu(batch_norm(linear(relu(f), layer, "reduce_places"), layer, "place_norm"))
    places = attend(moments(h), "places")
    weighted = relu(f) if layer.rectify else f
    return np.mean([np.maximum(channels * f[j], places[j] * weighted[j]) for j in range(len(f))], axis=0)


def rk_fbp(image: Scene, layer: Pooling) -> list[float]:
    """Evaluate the full bilinear form of every output, with its matrix built from the factors."""
    left, right = weights_of(layer, "left.weight"), weights_of(layer, "right.weight")
    f = image.features
    d = f.shape[1]
    result = []
    for o in range(d):
        form = np.zeros((d, d))
        for r in range(layer.rank):
            form += np.outer(left[r * d + o], right[r * d + o])
        result.append(sum(x @ form @ x for x in f) / len(f))
    return result


def distances(image: Array, layer: Pooling) -> Array:
    prototypes = weights_of(layer, "prototypes")
    return np.array([[math.dist(clip(w), clip(f)) for f in image] for w in prototypes])


def otp(image: Scene, layer: Pooling) -> Array:
    """Run the Sinkhorn iteration without logarithms."""
    f = image.features
    kernel = np.exp(-layer.eps * distances(f, layer))
    m, n = kernel.shape
    v = np.ones(n)
    for _ in range(layer.steps):
        u = 1 / m / (kernel @ v)
        v = 1 / n / (kernel.T @ u)
    return np.concatenate([math.sqrt(m) * sum(u[i] * kernel[i, j] * v[j] * f[j] for j in range(n)) for i in range(m)])


def solar(image: Scene, layer: Pooling) -> list[float]:
    f = image.features
    q = relu(batch_norm(linear(f, layer, "query"), layer, "query_norm"))
    k = relu(batch_norm(linear(f, layer, "key"), layer, "key_norm"))
    values = linear(f, layer, "value")
    result = []
    for j in range(len(f)):
        attention = softmax(np.array([q[j] @ k[i] for i in range(len(f))]) / math.sqrt(q.shape[1]))
        result.append(
            f[j] + linear(sum(a * value for a, value in zip(attention, values, strict=True)), layer, "output")
        )
    return generalized_mean(np.array(result), layer.p.item())


def tsmk(image: Scene, layer: Pooling) -> Array:
    h, w = image.grid
    f = image.features.reshape(h, w, -1)
    mean = weights_of(layer, "mean")
    total = np.zeros(f.shape[2])
    for y in range(h):
        for x in range(w):
            around = [f[b, a] for b in range(max(0, y - 1), min(h, y + 2)) for a in range(max(0, x - 1), min(w, x + 2))]
            total += math.sqrt(sum(f[y, x] ** 2)) * (sum(around) / len(around) - mean)
    return total / (h * w)


def netvlad(image: Scene, layer: Pooling) -> Array:
    centers = weights_of(layer, "centers")
    residuals = np.zeros_like(centers)
    for f in image.features:
        x = f / max(math.hypot(*f), 1e-12) if layer.normalize else f
        assignment = softmax(linear(x, layer, "assign"))
        for k in range(len(centers)):
            residuals[k] += assignment[k] * (x - centers[k])
    return np.concatenate([v / max(math.hypot(*v), 1e-12) for v in residuals])


def weldon(image: Scene, layer: Pooling) -> list[float]:
    result = []
    for channel in image.features.T:
        ordered = sorted(channel)
        top, low = ordered[-layer.largest :], ordered[: layer.smallest]
        result.append(sum(top) / len(top) + sum(low) / len(low))
    return result


def residual_masses(features: Array, layer: Pooling) -> Array:
    """Iterate between the residual mass and its scale, as in Proposition 4.1 of [GSP]."""
    n = len(features)
    kernel = np.exp(-number(layer.eps) * distances(features, layer))
    scale = 1.0
    for _ in range(2000):
        left = 1 / n / (1 + scale * kernel.sum(axis=0))
        scale = number(layer.mu) / (kernel @ left).sum()
    return left


def gsp_weights(features: Array, layer: Pooling) -> Array:
    return (1 / len(features) - residual_masses(features, layer)) / number(layer.mu)


def gsp(image: Scene, layer: Pooling) -> Array:
    if layer.role == "background":
        return residual_masses(image.features, layer) / (1 - number(layer.mu)) @ image.features
    return gsp_weights(image.features, layer) @ image.features


def gmp_gsp(image: Scene, layer: Pooling) -> Array:
    p = gsp_weights(image.guide, layer)
    if layer.maximum == "weighted":
        return np.max([len(p) * p[j] * image.features[j] for j in range(len(p))], axis=0)
    return np.max(image.features, axis=0) + p @ image.features


def gemean_gsp(image: Scene, layer: Pooling) -> list[float]:
    p = gsp_weights(image.guide, layer)
    return generalized_mean(np.array([len(p) * p[j] * image.features[j] for j in range(len(p))]), layer.p.item())


# For each pooling: the slow implementation for one image, and small settings. All tests use the first entry; the
# comparison with the slow implementation uses all.
SLOW: dict[str, tuple[Callable[[Scene, Pooling], Array | list[float]], list[dict]]] = {
    "gap": (gap, [{}]),
    "gmp": (gmp, [{}]),
    "gmp_projected": (gmp, [{}]),
    "gap_gmp": (gap_gmp, [{}]),
    "cbam": (cbam, [{"reduction": 2, "kernel": 3}, {}, {"preset": "comparison"}]),
    "crow": (crow, [{}, {"preset": "comparison"}]),
    "delf": (delf, [{"hidden": 3}, {}]),
    "gemax": (gemax, [{}, {"ridge": 0.1}]),
    "gemean": (gemean, [{}, {"p": 1.5}]),
    "gsop": (gsop, [{"attention": 3}, {"attention": 2, "preset": "comparison"}]),
    "rk_fbp": (rk_fbp, [{"rank": 2}, {"rank": 1}, {"rank": 5}]),
    "otp": (
        otp,
        [{"num_prototypes": 3, "memory_size": 6}, {"num_prototypes": 2, "memory_size": 4, "eps": 20.0, "steps": 3}],
    ),
    "solar": (solar, [{}, {"preset": "comparison"}]),
    "tsmk": (tsmk, [{}, {"preset": "comparison"}]),
    "netvlad": (netvlad, [{"clusters": 3}, {"clusters": 2, "preset": "comparison"}]),
    "weldon": (weldon, [{}, {"largest": 2, "smallest": 1}]),
    "gsp": (
        gsp,
        [
            {"num_prototypes": 3, "memory_size": 6},
            {"num_prototypes": 1, "memory_size": 2, "mu": 0.8, "eps": 2.0},
            {"num_prototypes": 3, "memory_size": 6, "role": "background"},
            {"num_prototypes": 3, "memory_size": 6, "learn_mu": True, "learn_eps": True},
        ],
    ),
    "gmp_gsp": (
        gmp_gsp,
        [{"num_prototypes": 3, "memory_size": 6}, {"num_prototypes": 2, "memory_size": 4, "maximum": "weighted"}],
    ),
    "gemean_gsp": (gemean_gsp, [{"num_prototypes": 3, "memory_size": 6}]),
}
