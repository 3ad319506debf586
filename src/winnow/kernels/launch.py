"""Launch Triton kernels without Triton's per-argument dispatch cost."""

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
    """Import a module of Triton kernels; return None if Triton is not installed."""
    try:
        return import_module(module)
    except ImportError:
        return None


def launching_for(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which the device of the tensor is current.

    Triton launches on the current device.
    """
    if tensor.device.type != "cuda" or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


class Kernel:
    """Triton kernel that caches its compiled forms under a key of the caller.

    Triton inspects each argument of each launch to find the compiled form: tens of microseconds for forty arguments.
    Here the caller passes the properties that determine the form (shapes, strides, dtypes) as a key. From the second
    launch on, the compiled form is called directly. Constants must come last in the signature of the kernel.

    Args:
        function: Result of `triton.jit`. Triton's interpreter calls it directly.
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
        """Launch a one-dimensional grid of programs.

        Args:
            programs: Number of programs.
            key: Properties that determine how arguments and constants compile, except pointer alignment.
            arguments: Arguments before the constants, in order. The first is a tensor on the device to launch on.
            constants: Compile-time constants by name.
            warps: Warps per program.
            stages: Depth of software pipelining.
        """
        device = arguments[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with launching_for(arguments[0]):
                return self.launch(programs, key, arguments, constants, warps=warps, stages=stages)
        # The cached form assumes pointers at multiples of 16 bytes. Fresh tensors have them; a view may not.
        aligned = all(one.data_ptr() % 16 == 0 for one in arguments if isinstance(one, Tensor))
        cached = self._compiled.get(key) if aligned else None
        if cached is not None:
            compiled, values = cached
            compiled[(programs, 1, 1)](*arguments, *values)
            return
        compiled = self._function[(programs,)](*arguments, **constants, num_warps=warps, num_stages=stages)
        if aligned and compiled is not None:
            names = self._function.arg_names[len(arguments) :]
            self._compiled[key] = compiled, tuple(constants[name] for name in names)
