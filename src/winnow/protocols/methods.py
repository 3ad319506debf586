"""Methods by name: a loss and what is added to it, such as `c1+xbm+gsp-zsr`, and which methods are compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from winnow.errors import ConfigError, did_you_mean
from winnow.losses import LOSSES, IntraBatchRegularizer
from winnow.pooling import POOLINGS
from winnow.protocols.spec import (
    AVERAGE,
    RECIPE_KEY,
    SAMPLES_PER_CLASS,
    BackboneSpec,
    Budget,
    BySize,
    DatasetSpec,
    ProtocolSpec,
    budget_settings,
    check_overrides,
)
from winnow.references import REFERENCES
from winnow.registry import RENAMED_KEYS
from winnow.training.overrides import Overrides, with_recipe
from winnow.training.recipes import find_recipe
from winnow.training.sweep import at_commas

SEPARATOR = "+"
SHORT_LOSSES = {"proxy_anchor": "pa", "proxy_nca": "pnca", "soft_triple": "softtriple"}
"""Names of losses in methods, by their names in the config; all other losses have one name."""
EARLIER_ADDITIONS = {"gsp": "gsp-zsr", "gsp-alone": "gsp-only"}
"""Additions by their names in version 0.1.0."""
LITERAL = "-literal"
"""End of the additions that are CCP as the authors' code trains it, with proxies that stay where they start."""
EARLIER_MEANINGS = {"ccp": f"ccp{LITERAL}", "ccp-s": f"ccp-s{LITERAL}"}
"""Additions that meant another one in version 0.1.0, which had one form of CCP."""
LONGEST_FOLDER = 100
"""Characters of a folder's name; most file systems limit it to 255 bytes."""

# Classes of a batch with one image each in the authors' code; training limits the batches of other datasets.
_CLASSES: Mapping[str | None, int] = {"cub": 100, "cars": 96}

Settings = Callable[[DatasetSpec, ProtocolSpec, bool], Overrides]
"""Settings of an addition for a dataset, a protocol, and whether the loss has proxies."""


@dataclass(frozen=True)
class Addition:
    """What is added to a loss; a method has at most one addition of each kind."""

    kind: str  # "references", "pooling", "messages", or "weights"
    about: str
    settings: Settings


def _memory(size: int) -> Settings:
    def settings(dataset: DatasetSpec, protocol: ProtocolSpec, proxies: bool) -> Overrides:
        batches = dataset.memory[size]
        return Overrides.parse("references=memory", f"references.num_batches={batches}", "references.start_step=1000")

    return settings


def _ccp(*more: str, literal: bool = False) -> Settings:
    form = REFERENCES.presets("ccp")["literal"] if literal else {}

    def settings(dataset: DatasetSpec, protocol: ProtocolSpec, proxies: bool) -> Overrides:
        preset = [] if dataset.preset is None else [f"references.preset={dataset.preset}"]
        # A subproblem ends after three validations: chapter 3 validates four times as often as chapter 5, and waits for
        # as many steps.
        often = [f"train.eval_steps={BySize(25, 250).of(dataset)}", "train.patience=60"]
        words = ["references=ccp", *preset, *more, *(often if protocol.report == "ensembles" else [])]
        return Overrides.parse(*words) | Overrides({"references": dict(form)})

    return settings


def _gsp(mu: float, zsr: float) -> Settings:
    def settings(dataset: DatasetSpec, protocol: ProtocolSpec, proxies: bool) -> Overrides:
        # The conventional protocol adds max pooling to average pooling, and so to GSP.
        name = "gmp_gsp" if protocol.selects_on_test else "gsp"
        return Overrides.parse(
            f"pooling={name}", f"pooling.num_prototypes={128 if dataset.large else 64}", f"pooling.mu={mu}",
            f"pooling.eps={0.5 if proxies else 5.0}", f"zsr={zsr}",
        )  # fmt: skip

    return settings


def _pooling(name: str) -> Settings:
    def settings(dataset: DatasetSpec, protocol: ProtocolSpec, proxies: bool) -> Overrides:
        preset = ["pooling.preset=comparison"] if "comparison" in POOLINGS.presets(name) else []
        return Overrides.parse(f"pooling={name}", *preset)

    return settings


def _libc(dataset: DatasetSpec, protocol: ProtocolSpec, proxies: bool) -> Overrides:
    batches = {"cub": (6, 9), "cars": (10, 7), "sop": (15, 6), "inshop": (14, 4)}
    classes, images = batches.get(dataset.preset or "", (8, 4))
    preset = [f"libc.preset={dataset.preset}"] if dataset.preset in IntraBatchRegularizer.presets else []
    return Overrides.parse(
        "libc=1", *preset,
        f"train.classes_per_batch={classes}", f"train.samples_per_class={images}",
    )  # fmt: skip


def _average(dataset: DatasetSpec, protocol: ProtocolSpec, proxies: bool) -> Overrides:
    return Overrides.parse(f"train.average={AVERAGE}")


ADDITIONS: Mapping[str, Addition] = {
    "xbm": Addition("references", "cross-batch memory from step 1000 on", _memory(1)),
    "xbm-s": Addition("references", "the smaller cross-batch memory of [Thesis]", _memory(0)),
    "ccp": Addition("references", "chance-constrained proxies that are trained", _ccp()),
    "ccp-s": Addition("references", "CCP with one proxy per class", _ccp("references.proxies_per_class=1")),
    "ccp-literal": Addition("references", "CCP as the authors' code trains it, with still proxies", _ccp(literal=True)),
    "ccp-s-literal": Addition(
        "references", "the same with one proxy per class", _ccp("references.proxies_per_class=1", literal=True)
    ),
    "libc": Addition("messages", "classification after messages within the batch, in the batches of its paper", _libc),
    "gsp-zsr": Addition("pooling", "GSP with zero-shot regularization, as in the published tables", _gsp(0.3, 0.1)),
    "gsp-only": Addition("pooling", "GSP without zero-shot regularization", _gsp(0.3, 0.0)),
    "zsr": Addition("pooling", "zero-shot regularization without selection (mu = 1)", _gsp(1.0, 0.1)),
    "average": Addition(
        "weights", "averaged weights: in a table of CCP the control, which takes as many steps", _average
    ),
    **{
        name: Addition("pooling", f"pooling={name} instead of average pooling", _pooling(name))
        for name in POOLINGS
        if name != "gsp"
    },
}

CCP = (*EARLIER_MEANINGS, *EARLIER_MEANINGS.values())
"""Additions whose tables need a control, see `control_of`."""

PUBLISHED_METHODS = (
    "c1", "c1+xbm", "c1+xbm+gsp-zsr", "c1+ccp", "c1+ccp+gsp-zsr", "c2", "c2+gsp-only", "c2+zsr", "c2+gsp-zsr",
    "c2+xbm", "c2+ccp", "ms", "ms+gsp-zsr", "ms+ccp", "triplet", "triplet+gsp-zsr", "triplet+ccp", "pa", "pa+gsp-zsr",
    "pnca", "pnca+gsp-zsr", "softtriple",
)  # fmt: skip
"""Methods of the published tables."""


def losses() -> Iterator[str]:
    """Return the names that methods start with."""
    return (SHORT_LOSSES.get(name, name) for name in LOSSES)


@dataclass(frozen=True)
class MethodSpec:
    """A method and the settings that only its runs have, such as `c2+gsp-zsr,pooling.eps=20`.

    A recipe is a method too, such as `recipe=common,loss=ms`. It has its own network size, images, and budget.
    """

    loss: str  # "" for a recipe
    additions: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # KEY=VALUE as written, because they name the folder
    recipe: str | None = None

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Read a method; names of version 0.1.0 and of the config count as the present ones.

        Raises:
            ConfigError: If a name is unknown, or two additions are of one kind.
        """
        name, *settings = at_commas(text)
        key, _, recipe = name.partition("=")
        if key == RECIPE_KEY:
            return cls("", (), tuple(settings), find_recipe(recipe).name)
        first, *added = name.lower().split(SEPARATOR)
        if first not in LOSSES:
            hint = did_you_mean(name, PUBLISHED_METHODS)
            hint = hint if hint != "." else did_you_mean(first, [*losses(), *LOSSES])
            raise ConfigError(
                f"method: unknown name '{name}'{hint} A method starts with a loss: {', '.join(losses())}."
            )
        loss = LOSSES.first_name(first)
        method = cls(SHORT_LOSSES.get(loss, loss), tuple(_addition(one, name) for one in added), tuple(settings))
        kinds = {"references": first} if method.has_proxies else {}
        for one in method.additions:
            kind = ADDITIONS[one].kind
            if kind in kinds:
                raise ConfigError(f"method '{name}': {kinds[kind]} and {one} both set the {kind}. Remove one of them.")
            kinds[kind] = one
        return method

    def __str__(self) -> str:
        return ",".join((self.name, *self.settings))

    @property
    def name(self) -> str:
        """The method without its settings."""
        if self.recipe is not None:
            return f"{RECIPE_KEY}={self.recipe}"
        return SEPARATOR.join((self.loss, *self.additions))

    @property
    def has_proxies(self) -> bool:
        """Whether the loss learns proxies."""
        return LOSSES[self.loss].default_references == "proxies"

    @property
    def components(self) -> frozenset[str]:
        """The loss, what is added to it, and the settings; or the recipe and the settings."""
        return frozenset((self.loss or self.name, *self.additions, *self.settings))

    @property
    def folder(self) -> str:
        """Name of the method's folder: its text, or where a file system may reject it, a similar text and a hash."""
        return _folder_name(str(self))

    @property
    def earlier_folders(self) -> list[str]:
        """Names that version 0.1.0 may have given to the folder."""
        if self.recipe is not None:
            return []
        old = {new: name for name, new in (EARLIER_ADDITIONS | EARLIER_MEANINGS).items()}
        spelled = [[self.loss, LOSSES.first_name(self.loss)]]
        spelled += [[one, old[one]] if one in old else [one] for one in self.additions]
        names = dict.fromkeys(SEPARATOR.join(parts) for parts in product(*spelled))
        return [_folder_name(",".join((name, *self.settings))) for name in names if name != self.name]

    @property
    def earlier(self) -> MethodSpec:
        """The method that this one was in version 0.1.0."""
        return replace(self, additions=tuple(EARLIER_MEANINGS.get(one, one) for one in self.additions))

    @property
    def published(self) -> MethodSpec:
        """The method whose published numbers this one is compared with."""
        return replace(self, additions=tuple(one.removesuffix(LITERAL) for one in self.additions))

    @property
    def own(self) -> Overrides:
        """The settings that only this method has.

        Raises:
            ConfigError: If a setting is repeated, has another form, or is not left to the user.
        """
        check_overrides(self.settings, of_recipe=self.recipe is not None)
        wrong = next((one for one in self.settings if "=" not in one), None)
        if wrong is not None:
            raise ConfigError(f"method '{self}': expected KEY=VALUE, got '{wrong}'. Write no space after a comma.")
        keys = [one.partition("=")[0] for one in self.settings]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ConfigError(f"method '{self}': {twice} is set twice. Remove one of the two.")
        if "dim" in keys:  # a table has one column for each size
            raise ConfigError(f"method '{self}': methods are compared at one embedding size. Set dim for all runs.")
        return Overrides.parse(*self.settings)

    def of_run(
        self, dataset: DatasetSpec, protocol: ProtocolSpec, backbone: BackboneSpec, budget: Budget = "early-stop"
    ) -> Overrides:
        """Return the settings of a run, except for its classes, its seed, and what users set.

        The settings of a method follow the protocol's and the budget's. A recipe has all settings but the network, the
        embedding size, and in a fixed budget the choice of the last weights: its own budget is fixed too.
        """
        if self.recipe is None:
            shared = protocol.settings(dataset, backbone) | budget_settings(budget, dataset)
            return shared | self.overrides(dataset, protocol, backbone)
        named = Overrides({RECIPE_KEY: self.recipe, "data": dataset.name})
        last = ["train.select_weights=last"] if budget == "fixed" else []
        return with_recipe(named | self.own) | protocol.recipe_settings(backbone) | Overrides.parse(*last)

    def overrides(self, dataset: DatasetSpec, protocol: ProtocolSpec, backbone: BackboneSpec) -> Overrides:
        """Return the settings of the loss and the additions, which follow the protocol's."""
        loss = LOSSES.first_name(self.loss)
        found = Overrides.parse(f"loss={loss}")
        if dataset.preset in LOSSES.presets(loss):
            found |= Overrides.parse(f"loss.preset={dataset.preset}")
        if self.has_proxies:
            found |= _proxy_settings(loss, dataset, protocol, backbone)
        for one in self.additions:
            found |= ADDITIONS[one].settings(dataset, protocol, self.has_proxies)
        if not any(ADDITIONS[one].kind == "pooling" for one in self.additions):
            found |= Overrides.parse(f"pooling={'gap_gmp' if protocol.selects_on_test else 'gap'}")
        return found


def present_name(method: str) -> str:
    """Return the present name of a method in a result file; an unknown one, such as a study's variant, as it is."""
    try:
        return str(MethodSpec.parse(method))
    except ConfigError:
        return method


def recorded_name(method: str, config: Mapping[str, Any]) -> str:
    """Return the present name of the method of a recorded run, whose settings tell which CCP it is.

    Args:
        method: Name in the record.
        config: Settings in the record.
    """
    if not is_earlier_ccp(config):
        return present_name(method)
    try:
        return str(MethodSpec.parse(method).earlier)
    except ConfigError:
        return method


def is_earlier_ccp(config: Mapping[str, Any]) -> bool:
    """Return whether the settings of a run are those of CCP before its proxies had a learning rate of their own."""
    references = config.get("references")
    return isinstance(references, Mapping) and references.get("name") == "ccp" and "lr_multiplier" not in references


def is_method(word: str) -> bool:
    """Return whether a word is a method or a recipe; otherwise it is a setting of all runs."""
    return "=" not in word.partition(",")[0] or is_recipe(word)


def is_recipe(method: str) -> bool:
    """Return whether a method is a recipe."""
    return method.startswith(f"{RECIPE_KEY}=")


def paired_methods(methods: Sequence[MethodSpec]) -> list[tuple[MethodSpec, MethodSpec]]:
    """Return each method with those it is compared with: its base, or the first method, and the control of CCP."""
    based = {method: base for method in methods if (base := base_of(method, methods)) is not None}
    first = methods[0]
    pairs = [
        (method, based.get(method, first))
        for method in methods
        if method in based or (method != first and based.get(first) != method)
    ]
    controls = [(method, control) for method in methods if (control := control_of(method, methods)) is not None]
    return [*pairs, *(pair for pair in controls if pair not in pairs and pair[::-1] not in pairs)]


def control_of(method: MethodSpec, methods: Sequence[MethodSpec]) -> MethodSpec | None:
    """Return, of some methods, the control of a method with CCP; None if it is not among them, or without CCP."""
    name = control_name(method)
    wanted = None if name is None else MethodSpec.parse(name).components
    return next((other for other in methods if other.components == wanted), None)


def control_name(method: MethodSpec, *, averaged: bool = True) -> str | None:
    """Return the control of a method with CCP: averaged weights without CCP; None for other methods.

    CCP selects proxies again and again from weights of many steps, and averaging has that effect alone.

    Args:
        method: Method whose control is named.
        averaged: Whether the name adds the average; in a fixed budget all methods have it.
    """
    left = [one for one in method.additions if one not in (*CCP, "average")]
    if not set(CCP) & set(method.additions):
        return None
    kept = tuple(one for one in method.settings if not one.startswith("references."))  # settings of CCP
    return str(replace(method, additions=(*left, "average") if averaged else tuple(left), settings=kept))


def base_of(method: MethodSpec, methods: Sequence[MethodSpec]) -> MethodSpec | None:
    """Return, of the methods that a method extends, the one with most of its settings, then of its additions."""
    bases = [other for other in methods if other.components < method.components]
    return max(bases, key=lambda base: (len(base.settings), len(base.components)), default=None)


def _addition(name: str, method: str) -> str:
    """Return the present name of an addition, also by its names in the config."""
    present = EARLIER_ADDITIONS.get(name, name)
    if present not in ADDITIONS and present in POOLINGS:
        present = POOLINGS.first_name(present)
    if present in REFERENCES and REFERENCES.first_name(present) == "memory":
        present = "xbm"
    if present not in ADDITIONS:
        hint = did_you_mean(name, [*ADDITIONS, *EARLIER_ADDITIONS])
        raise ConfigError(f"method '{method}': unknown addition '{name}'{hint} Available: {', '.join(ADDITIONS)}.")
    if name in EARLIER_ADDITIONS:
        RENAMED_KEYS[f"method +{name}"] = f"+{present}"
    return present


def _folder_name(text: str) -> str:
    plain = re.sub(r"[^\w.,=+-]+", "-", text, flags=re.ASCII)
    if plain == text and len(text) <= LONGEST_FOLDER and not text.endswith("."):
        return text
    return f"{plain[:LONGEST_FOLDER]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _proxy_settings(loss: str, dataset: DatasetSpec, protocol: ProtocolSpec, backbone: BackboneSpec) -> Overrides:
    """Return batches of one image per class, faster proxies, and an epoch with a frozen backbone."""
    found = ["train.samples_per_class=1", "train.lr_multipliers={'references.proxies': 100}"]
    if protocol.selects_on_test:
        # The authors' code limits batches to the number of classes, and trains the backbone from the start.
        images = backbone.classes_per_batch * SAMPLES_PER_CLASS
        found.append(f"train.classes_per_batch={min(images, _CLASSES.get(dataset.preset, images))}")
    else:
        found += ["train.classes_per_batch=32", f"train.freeze_backbone_steps={protocol.eval_steps.of(dataset)}"]
    if loss == "soft_triple":  # many on CUB and Cars196, few on SOP and In-shop, as in [Thesis], Table 3.1
        found.append(f"references.proxies_per_class={1 if dataset.large else 10}")
    if loss == "proxy_anchor" and dataset.preset == "sop" and not protocol.selects_on_test:
        found.append("train.lr=5e-6")
    return Overrides.parse(*found)
