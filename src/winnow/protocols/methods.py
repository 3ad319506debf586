"""Methods by name: a loss, and what is added to it, such as `c1+xbm+gsp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from winnow.errors import ConfigError, nearest
from winnow.losses import LOSSES, IntraBatchRegularizer
from winnow.pooling import POOLINGS
from winnow.protocols.kinds import SAMPLES, Backbone, Protocol
from winnow.protocols.sets import ProtocolSet

# The documents' short names; every loss can also be called by its own.
SHORT_LOSSES = {"pa": "proxy_anchor", "pnca": "proxy_nca", "softtriple": "soft_triple"}
SEPARATOR = "+"
# Which batches of single images are cut to in the documents' code; training cuts those of other sets.
_CLASSES: Mapping[str | None, int] = {"cub": 100, "cars": 96}

Words = list[str]


@dataclass(frozen=True)
class Addition:
    """Something that is added to a loss.

    Attributes:
        kind: Of which a method has one at most: references, or pooling.
        about: What it is, in a sentence.
        words: Its settings for a set, a protocol and whether the loss has proxies.
    """

    kind: str
    about: str
    words: Callable[[ProtocolSet, Protocol, bool], Words]


def _memory(size: int) -> Callable[[ProtocolSet, Protocol, bool], Words]:
    def words(target: ProtocolSet, protocol: Protocol, proxies: bool) -> Words:
        return ["references=memory", f"references.num_batches={target.memory[size]}", "references.start_step=1000"]

    return words


def _ccp(*more: str) -> Callable[[ProtocolSet, Protocol, bool], Words]:
    def words(target: ProtocolSet, protocol: Protocol, proxies: bool) -> Words:
        preset = [] if target.preset is None else [f"references.preset={target.preset}"]
        # A problem ends after three validations: chapter 3 validates four times as often as chapter 5, and waits for
        # as many steps.
        often = [] if protocol.on_test else [f"train.eval_steps={(25, 250)[target.large]}", "train.patience=60"]
        # In text and code of the documents a problem goes on from where the last one ended.
        own = ["references=ccp", "references.start_from=last", *preset, *more]
        return [*own, *(often if protocol.report == "ensembles" else [])]

    return words


def _gsp(mu: float, zsr: float) -> Callable[[ProtocolSet, Protocol, bool], Words]:
    def words(target: ProtocolSet, protocol: Protocol, proxies: bool) -> Words:
        # The conventional protocol adds max pooling to average pooling, and so to GSP.
        name = "gmp_gsp" if protocol.on_test else "gsp"
        return [
            f"pooling={name}", f"pooling.num_prototypes={128 if target.large else 64}", f"pooling.mu={mu}",
            f"pooling.eps={0.5 if proxies else 5.0}", f"zsr={zsr}",
        ]  # fmt: skip

    return words


def _pooling(name: str) -> Callable[[ProtocolSet, Protocol, bool], Words]:
    def words(target: ProtocolSet, protocol: Protocol, proxies: bool) -> Words:
        preset = ["pooling.preset=comparison"] if "comparison" in POOLINGS.presets(name) else []
        return [f"pooling={name}", *preset]

    return words


def _libc(target: ProtocolSet, protocol: Protocol, proxies: bool) -> Words:
    classes, images = {"cub": (6, 9), "cars": (10, 7), "sop": (15, 6), "inshop": (14, 4)}.get(
        target.preset or "", (8, 4)
    )
    settings = IntraBatchRegularizer.presets.get(target.preset or "", {})
    return [
        "libc=1", *(f"libc.{name}={value}" for name, value in settings.items()),
        f"train.classes_per_batch={classes}", f"train.samples_per_class={images}",
    ]  # fmt: skip


ADDITIONS: Mapping[str, Addition] = {
    "xbm": Addition("references", "a memory of earlier batches, from step 1000 on", _memory(1)),
    "xbm-s": Addition("references", "the small memory of the documents", _memory(0)),
    "ccp": Addition("references", "proxies seeded from the data, problem after problem", _ccp()),
    "ccp-s": Addition("references", "CCP with one proxy for each class", _ccp("references.proxies_per_class=1")),
    "libc": Addition("messages", "classification after messages within the batch, in the batches of its paper", _libc),
    "gsp": Addition("pooling", "GSP with zero-shot regularisation, as the documents' tables mean it", _gsp(0.3, 0.1)),
    "gsp-alone": Addition("pooling", "GSP without zero-shot regularisation", _gsp(0.3, 0.0)),
    "zsr": Addition("pooling", "zero-shot regularisation without selection (mu = 1)", _gsp(1.0, 0.1)),
    **{
        name: Addition("pooling", f"the pooling {name}, set as in the documents' comparison", _pooling(name))
        for name in POOLINGS
        if name != "gsp"
    },
}

ROWS = (
    "c1", "c1+xbm", "c1+xbm+gsp", "c1+ccp", "c1+ccp+gsp", "c2", "c2+gsp-alone", "c2+zsr", "c2+gsp", "c2+xbm",
    "c2+ccp", "ms", "ms+gsp", "ms+ccp", "triplet", "triplet+gsp", "triplet+ccp", "pa", "pa+gsp", "pnca", "pnca+gsp",
    "softtriple",
)  # fmt: skip
"""The methods of the documents' tables."""


def losses() -> Iterator[str]:
    """Return the names that a method can begin with."""
    short = {long: short for short, long in SHORT_LOSSES.items()}
    return (short.get(name, name) for name in LOSSES)


def method_words(name: str, target: ProtocolSet, protocol: Protocol, backbone: Backbone) -> Words:
    """Return the settings of a method, beside those that all methods of a protocol share.

    Args:
        name: Of the method, such as `c1+xbm+gsp`.
        target: The set.
        protocol: The protocol.
        backbone: The network, which the conventional protocol's batches depend on.

    Raises:
        ConfigError: for a name that is none, with the nearest; for two additions of one kind.
    """
    first, *added = name.lower().split(SEPARATOR)
    loss = SHORT_LOSSES.get(first, first)
    if loss not in LOSSES:
        known = [*losses(), *LOSSES]
        hint = nearest(name, ROWS) or nearest(first, known)
        raise ConfigError(f"there is no method '{name}'{hint}; it begins with a loss: {', '.join(losses())}")
    proxies = LOSSES[loss].default_references == "proxies"
    words = [f"loss={loss}"]
    if target.preset in LOSSES.presets(loss):
        words.append(f"loss.preset={target.preset}")
    words += _proxy_words(loss, target, protocol, backbone) if proxies else []
    kinds: dict[str, str] = {"references": first} if proxies else {}
    for one in added:
        if one not in ADDITIONS:
            hint = nearest(one, ADDITIONS)
            raise ConfigError(f"method '{name}': nothing is called '{one}'{hint}; `winnow protocol --list` shows all")
        addition = ADDITIONS[one]
        if addition.kind in kinds:
            raise ConfigError(f"method '{name}': {kinds[addition.kind]} and {one} both bring {addition.kind}")
        kinds[addition.kind] = one
        words += addition.words(target, protocol, proxies)
    if "pooling" not in kinds:
        words.append(f"pooling={'gap_gmp' if protocol.on_test else 'gap'}")
    return words


def _proxy_words(loss: str, target: ProtocolSet, protocol: Protocol, backbone: Backbone) -> Words:
    """Return batches of single images, faster proxies, and an epoch in which the backbone waits."""
    words = ["train.samples_per_class=1", "train.lr_multipliers={'references.proxies': 100}"]
    if protocol.on_test:
        # The documents' code cuts batches to the classes there are, and lets the backbone learn from the start.
        images = backbone.batch * SAMPLES
        words.append(f"train.classes_per_batch={min(images, _CLASSES.get(target.preset, images))}")
    else:
        words += ["train.classes_per_batch=32", f"train.freeze_backbone_steps={protocol.epoch(target)}"]
    if loss == "soft_triple":  # large on CUB and Cars196, small on the others, as Table 3.1 has it
        words.append(f"references.proxies_per_class={1 if target.large else 10}")
    if loss == "proxy_anchor" and target.preset == "sop" and not protocol.on_test:
        words.append("train.lr=5e-6")
    return words
