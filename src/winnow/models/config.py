"""What an embedding model is made of: the part of the config that travels with saved weights."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from winnow.pooling import POOLINGS


class Section(BaseModel):
    """Base of all config sections: unknown keys are refused, and a bare value stands for the `shorthand` key."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, validate_default=True)
    shorthand: ClassVar[str | None] = None


def _resolve_pooling(value: Any) -> dict[str, Any]:
    return POOLINGS.resolve({"name": value} if isinstance(value, str) else value)


class BackboneConfig(Section):
    """The network that makes local features."""

    shorthand: ClassVar[str | None] = "name"

    name: str = Field(
        "tf_efficientnet_lite0",
        description="any timm model; resnet20 (Cifar); resnet50_v1 (the original ResNet-50, stride in the first 1x1)",
    )
    weights: str = Field(
        "auto",
        description="'auto' (bundled with the installation, else timm's download), 'random', or a weight file",
    )
    stride: int | None = Field(
        None, description="pixels per step of the feature map (8, 16, 32); default the network's last map"
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
    pooling: Annotated[dict[str, Any], BeforeValidator(_resolve_pooling)] = Field(
        {}, description="how local features become one vector: a name, and that pooling's settings"
    )
    dim: int = Field(128, ge=1, description="size of the embedding")
    image: ImageConfig = Field(default_factory=ImageConfig)
