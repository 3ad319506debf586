"""What an embedding model is made of: the part of the config that travels with saved weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from winnow.errors import ConfigError, nearest
from winnow.pooling import POOLINGS


class Section(BaseModel):
    """Base of all config sections: unknown keys are refused, and a bare value stands for the `shorthand` key."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, validate_default=True)
    shorthand: ClassVar[str | None] = None


class BackboneConfig(Section):
    """The network that makes local features."""

    shorthand: ClassVar[str | None] = "name"

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
    tokens: Literal["local", "class"] = Field(
        "local", description="what a transformer hands on: its 'local' tokens, or its 'class' token alone"
    )
    train: Literal["auto", "frozen", "full"] = Field(
        "auto", description="'frozen' trains the head on kept feature maps, 'full' fine-tunes; auto: full on a GPU"
    )
    freeze_batch_norm: bool = Field(True, description="keep batch-norm statistics and scales as they were pretrained")


class ImageConfig(Section):
    """How images become network input."""

    shorthand: ClassVar[str | None] = "crop"

    resize: int = Field(256, ge=1, description="short side to which images are brought, in pixels")
    crop: int = Field(227, ge=1, description="side of the square cropped from that")


class ModelConfig(Section):
    """An embedding model."""

    backbone: BackboneConfig = Field(default_factory=BackboneConfig)
    pooling: Annotated[dict[str, Any], BeforeValidator(POOLINGS.resolve)] = Field(
        {}, description="how local features become one vector: a name, and that pooling's settings"
    )
    dim: int = Field(512, ge=1, description="size of the embedding")
    normalise: Literal["unit", "ball"] = Field(
        "unit",
        description="what is done to embeddings before they are compared, in training and judging: 'unit' length, or "
        "'ball', u / max(1, |u|), which leaves short ones short (chapter 3 of the documents)",
    )
    image: ImageConfig = Field(default_factory=ImageConfig)


S = TypeVar("S", bound=Section)


def make_section(kind: type[S], tree: Mapping[str, Any]) -> S:
    """Build a section from nested mappings.

    Raises:
        ConfigError: for an unknown key (with the nearest name) or a value of the wrong type.
    """
    expanded = _expand(kind, tree, "")
    try:
        return kind(**expanded)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where}={first['input']!r}: {message[0].lower()}{message[1:]}") from None


def set_apart(config: ModelConfig) -> dict[str, Any]:
    """Return what a model has other than by default: the same before and after winnow learns a setting it does not use.

    It holds as long as the default of a new setting is what was done before.
    """
    defaults = {one.name: one.default for one in POOLINGS.parameters(config.pooling["name"])}
    own = {key: value for key, value in config.pooling.items() if key == "name" or value != defaults[key]}
    return {**config.model_dump(exclude_defaults=True), "pooling": own}


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section a field holds, or None for a plain value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _expand(section: type[Section], tree: Any, prefix: str) -> dict[str, Any]:
    """Check the keys of a section and spell out shorthands; parts by name are checked by their registry."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{prefix.rstrip('.') or 'the config'} must be a mapping of keys, not {tree!r}")
    expanded: dict[str, Any] = {}
    for key, value in tree.items():
        field = section.model_fields.get(str(key))
        if field is None:
            hint = nearest(str(key), _known_keys(section, prefix))
            raise ConfigError(f"there is no setting '{prefix}{key}'{hint}; `winnow config` lists all of them")
        inner = section_of(field)
        if inner is None:
            expanded[str(key)] = value
        elif isinstance(value, Mapping):
            expanded[str(key)] = _expand(inner, value, f"{prefix}{key}.")
        elif inner.shorthand is not None:
            expanded[str(key)] = {inner.shorthand: value}
        else:
            raise ConfigError(f"{prefix}{key} is a section: set one of {', '.join(inner.model_fields)} in it")
    return expanded


def _known_keys(section: type[Section], prefix: str) -> list[str]:
    """Return the keys a slip may have meant: those of the section, and at the top those one level down too."""
    keys = list(section.model_fields)
    if not prefix:
        for name, field in section.model_fields.items():
            inner = section_of(field)
            keys += [f"{name}.{key}" for key in inner.model_fields] if inner is not None else []
    return keys
