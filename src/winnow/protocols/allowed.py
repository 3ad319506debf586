"""Which settings a protocol leaves to its user: those of all runs, and those of one method."""

from __future__ import annotations

from collections.abc import Sequence

from winnow.errors import ConfigError
from winnow.protocols.variants import Variant

ITS_OWN = (
    "seed", "train.run_test", "train.save_embeddings", "data", "data.path", "data.root", "data.fold", "data.num_folds",
    "data.train_classes", "data.val_classes", "data.test_classes", "data.val_fraction", "data.test_fraction",
)  # fmt: skip
"""Settings that make a protocol what it is: which classes train, choose and test, and how its runs are told apart."""
OF_METHODS = tuple(f"{part}{end}" for part in ("loss", "pooling", "references") for end in ("", ".name"))
"""Settings that would make another method of the one that is named."""


def check_words(words: Sequence[str]) -> None:
    """Refuse a setting that is not for runs to have, or that would make another method."""
    for word in words:
        key = word.partition("=")[0]
        if key in ITS_OWN:
            raise ConfigError(f"{word}: a protocol sets {key} for every run itself; leave it out")
        if key in OF_METHODS:
            raise ConfigError(
                f"{word}: that is another method, so name it as one; `winnow protocol --list` shows what can be added"
            )
        if any(own.startswith(f"{key}.") for own in ITS_OWN):  # a mapping, which may have such a setting in it
            raise ConfigError(f"{word}: set its parts one by one, as {key}.NAME=VALUE")


def check_own(variant: Variant) -> None:
    """Refuse settings that one method alone cannot have."""
    check_words(variant.settings)
    wrong = next((word for word in variant.settings if "=" not in word), None)
    if wrong is not None:
        raise ConfigError(
            f"method '{variant}': '{wrong}' is no setting; write key=value after each comma, without spaces"
        )
    keys = [word.partition("=")[0] for word in variant.settings]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ConfigError(f"method '{variant}': {twice} is set twice")
    if "dim" in keys:  # joined models of one would stand beside single ones of another
        raise ConfigError(f"method '{variant}': methods are compared at one size, so set dim for all runs")
