"""Launching compiled kernels again: when the compiled form is called, and with what."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from winnow.functional.kernel import Kernel, find_kernels, launching_for


class Function:
    """Stands for what `triton.jit` makes: counts its launches and those of what it compiled."""

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


def test_the_compiled_form_is_called_from_the_second_launch_on() -> None:
    function = Function()
    kernel = Kernel(function)
    tensor = torch.zeros(8)
    for programs in (3, 5):
        kernel.launch(programs, "key", (tensor, 8), {"WIDE": 2, "BLOCK": 16}, warps=4, stages=2)
    assert function.slow == [((3,), (tensor, 8), {"WIDE": 2, "BLOCK": 16, "num_warps": 4, "num_stages": 2})]
    assert function.fast == [((5, 1, 1), tensor, 8, 16, 2)]  # constants in the order of the signature


def test_another_key_or_a_pointer_off_its_place_is_compiled_by_triton() -> None:
    function = Function()
    kernel = Kernel(function)
    tensor = torch.zeros(8)
    kernel.launch(1, "key", (tensor, 8), {"BLOCK": 16, "WIDE": 2}, warps=4)
    kernel.launch(1, "other", (tensor, 8), {"BLOCK": 32, "WIDE": 2}, warps=4)
    kernel.launch(1, "key", (tensor[1:], 7), {"BLOCK": 16, "WIDE": 2}, warps=4)
    assert len(function.slow) == 3
    kernel.launch(1, "key", (tensor, 8), {"BLOCK": 16, "WIDE": 2}, warps=4)
    assert function.fast == [((1, 1, 1), tensor, 8, 16, 2)]


def test_a_module_of_kernels_that_cannot_be_imported_is_none() -> None:
    assert find_kernels("winnow.functional.no_such_kernels") is None
    assert find_kernels("winnow.functional.kernel") is sys.modules["winnow.functional.kernel"]


def test_only_a_tensor_on_another_gpu_needs_a_change_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGPU:
        device = torch.device("cuda", 1)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert isinstance(launching_for(torch.zeros(1)), nullcontext)
    assert isinstance(launching_for(OnGPU()), nullcontext)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert isinstance(launching_for(OnGPU()), torch.cuda.device)  # type: ignore[arg-type]
