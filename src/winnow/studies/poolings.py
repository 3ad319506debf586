"""Lists of overrides for the studies that are still functions; removed with the last of them."""

from winnow.studies import settings
from winnow.training.overrides import Overrides

WORDS = settings.EMOJI_BASE.to_args()
PNCA = settings.PNCA["quick"].to_args()
LOSSES = {"C2": settings.C2["quick"].to_args(), "PNCA": ["loss=proxy_nca"]}
EMBEDDED = LOSSES | {"PNCA": PNCA}
THEIR_GSP = settings.GSP_ZSR
LARGE = {name: overrides.to_args() for name, overrides in settings.LARGE_POOLINGS.items()}


def every_pooling(selection: list[str], background: list[str]) -> dict[str, list[str]]:
    """Return the overrides of every pooling as lists."""
    found = settings.every_pooling(Overrides.parse(*selection), Overrides.parse(*background))
    return {name: overrides.to_args() for name, overrides in found.items()}
