"""What queries are compared with. Each source of references is one file and one line in `REFERENCES`."""

from winnow.references.base import References
from winnow.references.batch import Batch
from winnow.references.ccp import CCP
from winnow.references.memory import Memory
from winnow.references.proxies import Proxies
from winnow.registry import Registry

REFERENCES: Registry[References] = Registry(
    "references",
    {
        "batch": Batch,
        "proxies": Proxies,
        "memory": Memory,
        "ccp": CCP,
    },
    default="batch",
)

__all__ = ["CCP", "REFERENCES", "Batch", "Memory", "Proxies", "References"]
