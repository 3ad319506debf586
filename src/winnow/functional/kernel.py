"""Launching a Triton kernel again without Triton's own look at every argument."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


@cache
def find_kernels(module: str) -> ModuleType | None:
    """Import a module of Triton kernels, late, because Triton is not light; None where there is no Triton."""
    try:
        return import_module(module)
    except ImportError:
        return None


def launching_for(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make a tensor's device the current one, on which Triton launches; nothing to do where it is already."""
    if tensor.device.type != "cuda" or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


class Kernel:
    """A Triton kernel whose compiled forms are kept by a key of the caller's.

    Triton looks at each argument of each launch to find the compiled form that fits: tens of microseconds for forty
    arguments. A caller who knows what decides it (shapes, strides, types) names that by a key, and from the second
    launch on the compiled form is called directly. Constants must come last in the kernel's signature.

    Args:
        function: What `triton.jit` made; under Triton's interpreter it is called plainly.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._compiled: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}

    def launch(
        self,
        programs: int,
        key: Hashable,
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
        *,
        warps: int,
        stages: int = 1,
    ) -> None:
        """Launch programs in one dimension.

        Args:
            programs: How many.
            key: What decides, beside alignment, how arguments and constants are compiled.
            arguments: Those before the constants, in order; the first is a tensor, on the device to launch on.
            constants: By name.
            warps: Of a program.
            stages: Depth of software pipelining.
        """
        device = arguments[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with launching_for(arguments[0]):
                return self.launch(programs, key, arguments, constants, warps=warps, stages=stages)
        # Compiled for pointers at multiples of 16 bytes, as fresh tensors are; a view may begin elsewhere.
        aligned = all(one.data_ptr() % 16 == 0 for one in arguments if isinstance(one, Tensor))
        known = self._compiled.get(key) if aligned else None
        if known is not None:
            compiled, values = known
            compiled[(programs, 1, 1)](*arguments, *values)
            return
        compiled = self._function[(programs,)](*arguments, **constants, num_warps=warps, num_stages=stages)
        if aligned and compiled is not None:
            names = self._function.arg_names[len(arguments) :]
            self._compiled[key] = compiled, tuple(constants[name] for name in names)
