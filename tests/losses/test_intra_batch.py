"""Intra-batch connections: message passing by loops, invariants, and training by a config."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.training.test_trainer import make_trainer, small_config
from winnow.errors import ConfigError
from winnow.losses import IntraBatchRegularizer
from winnow.training.objective import check_objective

LABELS = torch.tensor([0, 2, 1, 2, 0, 1, 3])
Row = list[float]


def module(dropout: float = 0.0, **settings: float) -> IntraBatchRegularizer:
    torch.manual_seed(0)
    found = IntraBatchRegularizer(4, 6, dropout=dropout, **settings).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in found.parameters():  # no zero biases, no scales of one
            parameter.add_(0.3 * torch.randn_like(parameter))
    return found


def embeddings(count: int = 7, seed: int = 1) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(x: Row, weight: Tensor, bias: Tensor | None = None) -> Row:
    rows = [sum(a * b for a, b in zip(x, row, strict=True)) for row in weight.tolist()]
    return rows if bias is None else [a + b for a, b in zip(rows, bias.tolist(), strict=True)]


def layer_norm(x: Row, norm: torch.nn.LayerNorm) -> Row:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((a - mean) ** 2 for a in x) / len(x) + norm.eps)
    return [(a - mean) / deviation * w + b for a, w, b in zip(x, norm.weight.tolist(), norm.bias.tolist(), strict=True)]


def softmax(values: Row) -> Row:
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def slow_loss(loss: IntraBatchRegularizer, x: Tensor, labels: list[int], heads: int) -> float:
    """Return the equations of the docstring as loops over samples and heads."""
    rows = [[a / math.hypot(*row) for a in row] for row in x.tolist()]
    for layer in loss.layers:
        attention, d = layer.self_attn, len(rows[0])
        width = d // heads
        parts = attention.in_proj_weight.split(d), attention.in_proj_bias.split(d)
        q, k, v = [[linear(row, parts[0][i], parts[1][i]) for row in rows] for i in range(3)]
        refined = []
        for i, row in enumerate(rows):
            message: Row = []
            for h in range(heads):
                one = slice(h * width, (h + 1) * width)
                scores = [sum(a * b for a, b in zip(q[i][one], k[j][one], strict=True)) for j in range(len(rows))]
                weights = softmax([s / math.sqrt(width) for s in scores])
                message += [sum(w * v[j][c] for j, w in enumerate(weights)) for c in range(h * width, (h + 1) * width)]
            sent = linear(message, attention.out_proj.weight, attention.out_proj.bias)
            y = layer_norm([a + b for a, b in zip(row, sent, strict=True)], layer.norm1)
            hidden = [max(0.0, a) for a in linear(y, layer.linear1.weight, layer.linear1.bias)]
            update = linear(hidden, layer.linear2.weight, layer.linear2.bias)
            refined.append(layer_norm([a + b for a, b in zip(y, update, strict=True)], layer.norm2))
        rows = refined
    columns = list(zip(*rows, strict=True))
    means = [sum(column) / len(column) for column in columns]
    deviations = [
        math.sqrt(sum((a - mean) ** 2 for a in column) / len(column) + 1e-5)
        for column, mean in zip(columns, means, strict=True)
    ]
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        neck = [(a - m) / s * w for a, m, s, w in zip(row, means, deviations, loss.scale.tolist(), strict=True)]
        probabilities = softmax([logit / loss.temperature for logit in linear(neck, loss.classifier.weight)])
        spread = loss.label_smoothing / len(probabilities)
        total -= sum(
            (spread + (1 - loss.label_smoothing) * (c == label)) * math.log(p) for c, p in enumerate(probabilities)
        )
    return total / len(rows)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("heads", [1, 3])
def test_equals_loops_over_its_equations(layers: int, heads: int) -> None:
    loss = module(num_layers=layers, num_heads=heads, temperature=0.4, label_smoothing=0.2)
    found = float(loss(embeddings(), LABELS).detach())
    assert found == pytest.approx(slow_loss(loss, embeddings(), LABELS.tolist(), heads), rel=1e-9)


def test_gradient_equals_finite_differences() -> None:
    loss = module()
    x, parameters = embeddings().requires_grad_(), [p for p in loss.parameters() if p.requires_grad]
    assert torch.autograd.gradcheck(lambda x, *_: loss(x, LABELS), (x, *parameters), atol=1e-4)


def test_only_the_bias_that_batch_normalization_removes_is_not_trained() -> None:
    loss = module(num_layers=2)
    value = loss(embeddings(), LABELS)
    value.backward()
    fixed = {name for name, parameter in loss.named_parameters() if not parameter.requires_grad}
    assert fixed == {"layers.1.norm2.bias"}
    assert all(p.grad is not None and p.grad.any() for p in loss.parameters() if p.requires_grad)
    with torch.no_grad():
        loss.layers[1].norm2.bias.add_(torch.arange(6.0))
    torch.testing.assert_close(loss(embeddings(), LABELS), value)


def test_samples_exchange_messages() -> None:
    """The refined embedding of one sample depends on all samples of its batch."""
    x = embeddings().requires_grad_()
    module().refine(x)[0].square().sum().backward()
    assert x.grad is not None
    assert x.grad.any(dim=1).all()


def test_neither_the_order_of_the_batch_nor_the_length_of_embeddings_matters() -> None:
    loss, order = module(), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    value = loss(embeddings(), LABELS)
    torch.testing.assert_close(loss(embeddings()[order], LABELS[order]), value)
    torch.testing.assert_close(loss(7 * embeddings(), LABELS), value)


def test_dropout_is_active_in_training_alone() -> None:
    loss = module(dropout=0.5)
    assert float(loss(embeddings(), LABELS).detach()) != float(loss(embeddings(), LABELS).detach())
    loss.eval()
    assert float(loss(embeddings(), LABELS).detach()) == float(loss(embeddings(), LABELS).detach())


@pytest.mark.parametrize("count", [0, 1])
def test_a_batch_without_statistics_has_a_loss_of_zero(count: int) -> None:
    x = embeddings(count).requires_grad_()
    value = module()(x, LABELS[:count])
    value.backward()
    assert float(value.detach()) == 0
    assert x.grad is not None
    assert not x.grad.any()


def test_equal_and_zero_embeddings_have_finite_gradients() -> None:
    for x in (torch.zeros(7, 6, requires_grad=True), torch.ones(7, 6, requires_grad=True)):
        value = module().float()(x, LABELS)
        value.backward()
        assert value.isfinite()
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_unknown_labels_and_heads_that_do_not_divide_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"^labels: "):
        module()(embeddings(), LABELS + 1)
    with pytest.raises(ValueError, match=r"^num_heads: "):
        IntraBatchRegularizer(4, 6, num_heads=4)
    with pytest.raises(ConfigError, match=r"^libc\.num_heads: "):
        check_objective(small_config("libc=1").model_copy(update={"dim": 9}))


def test_the_term_is_added_and_reaches_the_head() -> None:
    words = ["loss=norm_softmax", "pooling=gsp", "zsr=0.2", "libc=0.5", "libc.dropout=0"]
    objective = make_trainer(small_config(*words)).objective
    torch.manual_seed(0)
    batch, classes = torch.randn(12, 16, 3, 3), torch.arange(4).repeat_interleave(3)
    terms = objective(batch, classes)
    assert list(terms) == ["loss", "metric", "libc", "zsr"]
    torch.testing.assert_close(terms["loss"], 0.8 * (terms["metric"] + 0.5 * terms["libc"]) + 0.2 * terms["zsr"])
    terms["libc"].backward()
    assert objective.head.projection.weight.grad.any()


def test_an_optimizer_of_its_parameters_lowers_it() -> None:
    loss, values = module(), []
    optimizer = torch.optim.Adam([p for p in loss.parameters() if p.requires_grad], lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(embeddings(), LABELS)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[-1] < 0.7 * values[0]


def test_evaluation_does_not_use_it() -> None:
    trainer = make_trainer(small_config("loss=norm_softmax", "pooling=gap", "libc=1"))
    assert not any("libc" in name for name, _ in trainer.objective.model.named_parameters())
