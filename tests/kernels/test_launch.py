"""Cached launches: when the compiled form is called, and with which arguments."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from winnow.kernels.launch import Kernel, find_kernels, launching_for


class Function:
    """Substitute for the result of `triton.jit` that records its launches and those of its compiled form."""

    arg_names = ("pointer", "length", "BLOCK", "WIDE")

    def __init__(self) -> None:
        self.slow: list[tuple[Any, ...]] = []
        self.fast: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        function = self

        class Compiled:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                return lambda *arguments: function.fast.append((grid, *arguments))

        def launch(*arguments: Any, **constants: Any) -> Compiled:
            function.slow.append((grid, arguments, constants))
            return Compiled()

        return launch


def test_the_compiled_form_is_called_from_the_second_launch() -> None:
    function = Function()
    kernel = Kernel(function)
    tensor = torch.zeros(8)
    for programs in (3, 5):
        kernel.launch(programs, "key", (tensor, 8), {"WIDE": 2, "BLOCK": 16}, warps=4, stages=2)
    assert function.slow == [((3,), (tensor, 8), {"WIDE": 2, "BLOCK": 16, "num_warps": 4, "num_stages": 2})]
    assert function.fast == [((5, 1, 1), tensor, 8, 16, 2)]  # constants in the order of the signature


def test_a_new_key_or_an_unaligned_pointer_goes_through_triton() -> None:
    function = Function()
    kernel = Kernel(function)
    tensor = torch.zeros(8)
    kernel.launch(1, "key", (tensor, 8), {"BLOCK": 16, "WIDE": 2}, warps=4)
    kernel.launch(1, "other", (tensor, 8), {"BLOCK": 32, "WIDE": 2}, warps=4)
    kernel.launch(1, "key", (tensor[1:], 7), {"BLOCK": 16, "WIDE": 2}, warps=4)
    assert len(function.slow) == 3
    kernel.launch(1, "key", (tensor, 8), {"BLOCK": 16, "WIDE": 2}, warps=4)
    assert function.fast == [((1, 1, 1), tensor, 8, 16, 2)]


def test_find_kernels_returns_none_for_a_missing_module() -> None:
    assert find_kernels("winnow.kernels.no_such_kernels") is None
    assert find_kernels("winnow.kernels.launch") is sys.modules["winnow.kernels.launch"]


def test_the_device_changes_only_for_a_tensor_on_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGPU:
        device = torch.device("cuda", 1)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert isinstance(launching_for(torch.zeros(1)), nullcontext)
    assert isinstance(launching_for(OnGPU()), nullcontext)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert isinstance(launching_for(OnGPU()), torch.cuda.device)  # type: ignore[arg-type]
