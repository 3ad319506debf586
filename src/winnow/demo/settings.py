"""What the demo trains. Everything here was chosen on the validation classes."""

from __future__ import annotations

from typing import Any

from winnow.training import RunConfig, make_config

# One setting for all methods: a frozen backbone's map of 8 x 8 local features, a linear map to 128 numbers, C2.
SHARED: dict[str, Any] = {
    "data": {"path": "emoji"},
    "image": {"resize": 128, "crop": 128},
    "backbone": {"name": "tf_efficientnet_lite0", "stride": 16, "train": "frozen"},
    "dim": 128,
    "loss": {"name": "c2", "pos_margin": 0.2, "neg_margin": 0.9},
    "train": {"classes_per_batch": 16, "samples_per_class": 4, "lr": 1e-3, "eval_steps": 100, "device": "cpu"},
}

GSP = {"name": "gsp", "num_prototypes": 64, "mu": 0.05, "eps": 20.0}

# Name, meaning, and what differs from the shared setting.
METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("GAP", "average pooling: every place counts the same", {"pooling": {"name": "gap"}}),
    (
        "GMP (projected)",
        "max pooling of the projected map: each channel takes its largest value",
        {"pooling": {"name": "gmp_projected"}},
    ),
    ("GSP", "generalized sum pooling: keeps the places near learned prototypes", {"pooling": GSP}),
    ("GSP + ZSR", "the same, with the zero-shot regularisation", {"pooling": GSP, "zsr": {"weight": 0.1}}),
]


def method_config(changes: dict[str, Any], *, seed: int, steps: int) -> RunConfig:
    """Return the config of one method and seed."""
    tree = {**SHARED, **changes, "seed": seed}
    tree["train"] = {**SHARED["train"], "max_steps": steps}
    return make_config(tree)
