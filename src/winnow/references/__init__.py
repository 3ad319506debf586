"""References of a loss: the batch, proxies, a memory, or CCP."""

from winnow.references.base import BatchReferences, PairLossFunction, ProxyReferences, References
from winnow.references.ccp import ChanceConstrainedProxies
from winnow.references.memory import CrossBatchMemory, MemoryNotInUseWarning
from winnow.registry import Registry

REFERENCES: Registry[References] = Registry(
    "references",
    {
        "batch": BatchReferences,
        "proxies": ProxyReferences,
        "memory": CrossBatchMemory,
        "ccp": ChanceConstrainedProxies,
    },
    default="batch",
    aliases={"in_batch": "batch", "cross_batch_memory": "memory", "xbm": "memory"},
)

__all__ = [
    "REFERENCES",
    "BatchReferences",
    "ChanceConstrainedProxies",
    "CrossBatchMemory",
    "MemoryNotInUseWarning",
    "PairLossFunction",
    "ProxyReferences",
    "References",
]
