"""Tests of all poolings on a GPU: equality with the CPU, capture as CUDA graphs."""

import copy

import pytest
import torch
from torch import Tensor

from winnow.models import Head
from winnow.pooling import GSP, POOLINGS, PrototypePooling

pytestmark = pytest.mark.gpu
every_pooling = pytest.mark.parametrize("name", list(POOLINGS))


def ready_head(name: str) -> Head:
    torch.manual_seed(0)
    few = {"num_prototypes": 4, "memory_size": 8} if issubclass(POOLINGS[name], PrototypePooling) else {}
    head = Head(12, 16, POOLINGS.resolve({"name": name, **few}), positions=20)
    head(torch.randn(8, 12, 4, 5))
    return head


def maps(seed: int) -> Tensor:
    return torch.randn(6, 12, 4, 5, generator=torch.Generator().manual_seed(seed)).abs()


def step(head: Head, features: Tensor) -> None:
    head(features).square().sum().backward()


@every_pooling
def test_gpu_equals_cpu(name):
    cpu, gpu = ready_head(name).double(), ready_head(name).cuda()
    step(cpu, maps(1).double())
    step(gpu, maps(1).cuda())
    torch.testing.assert_close(
        gpu.eval()(maps(2).cuda()).cpu().double(), cpu.eval()(maps(2).double()), rtol=1e-3, atol=1e-3
    )
    for (key, a), b in zip(gpu.named_parameters(), cpu.parameters(), strict=True):
        scale = float(b.grad.abs().max()) + 1e-3
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=1e-2, atol=1e-2 * scale, msg=key)


@every_pooling
def test_training_step_can_be_captured(name):
    head = ready_head(name).cuda()
    features = maps(1).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(head, features)
    torch.cuda.current_stream().wait_stream(side)
    head.zero_grad(set_to_none=True)
    eager = copy.deepcopy(head)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(head, features)
    head.zero_grad(set_to_none=False)
    features.copy_(maps(2))
    graph.replay()
    step(eager, maps(2).cuda())
    for (key, a), b in zip(head.named_parameters(), eager.parameters(), strict=True):
        scale = float(b.grad.abs().max()) + 1e-3
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3 * scale, msg=key)


def test_collecting_prototypes_does_not_synchronize_and_skips_nan():
    torch.manual_seed(0)
    layer = GSP(12, num_prototypes=4, memory_size=12).cuda()
    batches = [maps(seed).cuda() for seed in range(3)]
    batches[1][2, 0, 0, 0] = torch.nan
    layer(maps(9).cuda())  # selects kernels
    layer = GSP(12, num_prototypes=4, memory_size=12).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            layer(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert layer.prototypes_ready
    assert layer.memory.isfinite().all()
    assert layer.prototypes.isfinite().all()
