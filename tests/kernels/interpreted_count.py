"""Smallest kernel with a loop: count to a given number."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def count_kernel(out, n):  # type: ignore[no-untyped-def]
    total = 0
    for _ in range(n):
        total += 1
    tl.store(out, total)


def main() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    count_kernel[(1,)](out, 3)
    assert int(out) == 3


if __name__ == "__main__":
    main()
