"""Settings of an embedding model, which are saved with the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from winnow.errors import ConfigError, WinnowError, did_you_mean
from winnow.pooling import POOLINGS
from winnow.registry import ComponentSettings, check_sizes, first_names, preset_settings, rename_keys


class Section(BaseModel):
    """Base of all config sections.

    Unknown keys are errors, and a bare value sets the `shorthand` key.

    Attributes:
        shorthand: Key that a bare value sets, as in `backbone=resnet50`.
        aliases: Old name to present name of renamed keys; old names load for good.
        value_aliases: Present key to old value to present value.
        presets: Named settings of the section, such as values of a paper: `zsr.preset=authors`.
        synonyms: Names that other tools use, with the full key to suggest for them.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, validate_default=True, allow_inf_nan=False)
    shorthand: ClassVar[str | None] = None
    aliases: ClassVar[Mapping[str, str]] = {}
    value_aliases: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    synonyms: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="after")
    def _limit_sizes(self) -> Section:
        check_sizes(self)
        return self

    @classmethod
    def suggest(cls, key: str, known: Iterable[str]) -> str:
        """Return "; did you mean 'x'?" for an unknown key, or "." if none is close."""
        synonym = cls.synonyms.get(key.rpartition(".")[2].lower())
        return f"; did you mean '{synonym}'?" if synonym else did_you_mean(key, known)


class BackboneConfig(Section):
    """Network that computes local features."""

    shorthand: ClassVar[str | None] = "name"
    value_aliases: ClassVar[Mapping[str, Mapping[str, str]]] = {"tokens": {"local": "patch", "class": "cls"}}

    name: str = Field(
        "tf_efficientnet_lite0",
        description="any timm model; resnet50_v1 (the original ResNet-50, stride in the first 1x1); bn_inception; "
        "resnet20 and resnetv2_20 (small images)",
    )
    weights: str = Field(
        "auto",
        description="'auto' (bundled with the installation, else timm's download), 'random', or a weight file",
    )
    stride: int | None = Field(
        None, description="pixels per step of the feature map (8, 16, 32); default the network's last map"
    )
    tokens: Literal["patch", "cls"] = Field(
        "patch", description="output of a transformer: its 'patch' tokens, or its 'cls' token alone"
    )
    train: Literal["auto", "frozen", "full"] = Field(
        "auto", description="'frozen' trains the head on cached feature maps, 'full' fine-tunes; auto: full on a GPU"
    )
    freeze_batch_norm: bool = Field(True, description="keep pretrained batch-norm statistics and scales")


class ImageConfig(Section):
    """Conversion of images to network input."""

    shorthand: ClassVar[str | None] = "crop"

    resize: int = Field(256, ge=1, le=16_384, description="short side after resizing, in pixels")
    crop: int = Field(227, ge=1, le=16_384, description="side of the center crop, in pixels")

    @model_validator(mode="after")
    def _crop_fits(self) -> ImageConfig:
        if {"resize", "crop"} <= self.model_fields_set and self.crop > self.resize:
            raise ConfigError(f"image.crop: expected at most image.resize={self.resize}, got {self.crop}. Lower it.")
        return self


class HeadConfig(Section):
    """Normalization layer in the head, in addition to the length of embeddings (`normalize`)."""

    shorthand: ClassVar[str | None] = "norm"

    norm: Literal["none", "layer", "batch"] = Field(
        "none", description="layer norm over the dimensions of a vector, or batch norm over the images of a batch"
    )
    position: Literal["pooled", "embedding"] = Field(
        "embedding", description="vector that is normalized: the pooled features, or the embedding after the projection"
    )
    affine: bool = Field(False, description="learn a scale and a shift of every dimension after the normalization")


class ModelConfig(Section):
    """Embedding model."""

    aliases: ClassVar[Mapping[str, str]] = {"normalise": "normalize"}

    backbone: BackboneConfig = Field(default_factory=BackboneConfig)
    pooling: Annotated[SerializeAsAny[ComponentSettings], BeforeValidator(POOLINGS.resolve)] = Field(
        default_factory=lambda: POOLINGS.resolve({}),
        description="pooling of local features into one vector: a name, and the settings of that pooling",
    )
    dim: int = Field(512, ge=1, le=65_536, description="size of the embedding")
    head: HeadConfig = Field(default_factory=HeadConfig)
    normalize: Literal["unit", "ball"] = Field(
        "unit",
        description="normalization of embeddings in training and evaluation: 'unit' length, or 'ball', "
        "u / max(1, |u|), which keeps the length of short embeddings (chapter 3 of [Thesis])",
    )
    image: ImageConfig = Field(default_factory=ImageConfig)


S = TypeVar("S", bound=Section)


def make_section(kind: type[S], tree: Mapping[str, Any]) -> S:
    """Build a section from nested mappings.

    Raises:
        ConfigError: If a key is unknown or a value has the wrong type.
    """
    expanded = _expand(kind, tree, "", kind)
    try:
        return kind(**expanded)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, WinnowError):
            raise cause from None
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "value_error":  # from `check_sizes`, which names the key
            raise ConfigError(f"{f'{where}.' if where else ''}{message}. Lower it.") from None
        shown = repr(first["input"])
        shown = shown if len(shown) < 80 else f"{shown[:77]}..."
        raise ConfigError(f"{where}={shown}: {message[0].lower()}{message[1:]}") from None


def fingerprint_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the non-default settings of a model under their first names.

    The result is the same before and after settings with defaults are added or renamed, so fingerprints last.
    """
    defaults = {one.name: one.default for one in POOLINGS.parameters(config.pooling.name)}
    own = {key: value for key, value in config.pooling.arguments().items() if value != defaults[key]}
    pooling = {"name": config.pooling.name, **first_names(own, POOLINGS[config.pooling.name])}
    changed = _first_names(ModelConfig, config.model_dump(exclude_defaults=True, exclude={"pooling"}))
    return {**changed, "pooling": pooling}


def _first_names(section: type[Section], tree: Mapping[str, Any]) -> dict[str, Any]:
    nested = dict(tree)
    for key, value in tree.items():
        field = section.model_fields.get(key)
        inner = section_of(field) if field is not None else None
        if inner is not None:
            nested[key] = _first_names(inner, value)
    return first_names(nested, section)


def present_names(section: type[Section], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with renamed section keys under their present names.

    Registries rename settings of components.
    """
    renamed = rename_keys(tree, section, "")
    for key, value in renamed.items():
        field = section.model_fields.get(key)
        inner = section_of(field) if field is not None else None
        if inner is not None and isinstance(value, Mapping):
            renamed[key] = rename_keys(value, inner, f"{key}.")
    return renamed


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section of a field, or None for a plain value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _expand(section: type[Section], tree: Any, prefix: str, root: type[Section]) -> dict[str, Any]:
    """Check the keys of a section, and expand shorthands and presets.

    Registries check the settings of components.
    """
    if not isinstance(tree, Mapping):
        where = prefix.rstrip(".") or "config"
        raise ConfigError(f"{where}: expected a mapping of keys, got {tree!r}. Write KEY: VALUE lines.")
    expanded: dict[str, Any] = {}
    given = rename_keys(tree, section, prefix)
    if section.presets:
        name = prefix.rstrip(".")
        given = {**preset_settings(section.presets, given.pop("preset", None), name, name), **given}
    for key, value in given.items():
        field = section.model_fields.get(key)
        if field is None:
            known = [f"{prefix}{one}" for one in _known_keys(section, prefix)]
            raise ConfigError(f"{prefix}{key}: unknown config key{root.suggest(f'{prefix}{key}', known)}")
        inner = section_of(field)
        if inner is None:
            expanded[key] = value
        elif isinstance(value, Mapping):
            expanded[key] = _expand(inner, value, f"{prefix}{key}.", root)
        elif inner.shorthand is not None:
            expanded[key] = {inner.shorthand: value}
        else:
            raise ConfigError(
                f"{prefix}{key}: expected a section, got {value!r}. Set one of its keys: "
                f"{', '.join(inner.model_fields)}."
            )
    return expanded


def _known_keys(section: type[Section], prefix: str) -> list[str]:
    """Return the keys to suggest, at the top level with keys of sections."""
    keys = list(section.model_fields)
    if not prefix:
        for name, field in section.model_fields.items():
            inner = section_of(field)
            keys += [f"{name}.{key}" for key in inner.model_fields] if inner is not None else []
    return keys
