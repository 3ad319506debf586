"""The embedding model: from images to vectors for search."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from winnow.data import CropTransform, ImageCache, ImageSet, read_image, upright_rgb
from winnow.errors import ConfigError, ModelError, add_component_hint, did_you_mean
from winnow.files import parse_json, read_text, write_text
from winnow.functional import NORMALIZERS, PoolingOutput
from winnow.integrity import SUMS, check_file, has_checksum, write_checked, write_checked_text
from winnow.models.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, probe_features
from winnow.models.config import ModelConfig, fingerprint_settings, make_section
from winnow.models.factory import (
    NETWORKS,
    build_backbone,
    first_key,
    present_keys,
    read_state_dict,
    resolve_image_size,
    wrap_network,
)
from winnow.models.head import Head
from winnow.pooling import PrototypePooling

ImageLike = str | PathLike[str] | Image.Image | Tensor
CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
RESTORE = f"Restore it from a copy. If you changed it on purpose, remove {SUMS} from its folder."
CUSTOM_KEY = "custom_network"  # in config.json, next to the keys of ModelConfig


class PoolingMap(NamedTuple):
    """Network input of an image, and its pooling weights (h, w).

    The weights are None for poolings without weights.
    """

    image: Image.Image
    weights: NDArray[np.float32] | None


class CustomNetwork(BaseModel):
    """Record of a user's network in a saved model."""

    class_name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_prefix_tokens: int = 0
    projection: bool = True


class Embedder(nn.Module):
    """A backbone and a head, with the image size that they expect.

    `Embedder.create({"pooling": "gsp", "dim": 128})` builds a model from settings. `Embedder.from_module(network)`
    builds one around a network of your own. `Embedder.from_pretrained(folder)` loads a model that `save_pretrained` or
    a training run wrote.

    Args:
        backbone: Maps images to local features.
        head: Maps local features to embeddings.
        config: Settings that backbone and head were built from; saved with the weights.
    """

    def __init__(self, backbone: Backbone, head: Head, config: ModelConfig) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        # Only the model's part of a training config is saved with the weights.
        self.config = ModelConfig(**{name: getattr(config, name) for name in ModelConfig.model_fields})

    @classmethod
    def create(cls, config: ModelConfig | Mapping[str, Any] | None = None, *, load_weights: bool = True) -> Embedder:
        """Build a model from a config or a mapping.

        Args:
            config: Settings of the model. Default: all defaults.
            load_weights: Load the backbone's weights. False keeps random weights.

        Raises:
            ConfigError: If a key is unknown, or a value has the wrong type or does not fit the network.
            ModelError: If weights cannot be loaded.
        """
        if not isinstance(config, ModelConfig):
            config = make_section(ModelConfig, config or {})
        config = resolve_image_size(config)
        backbone = build_backbone(config.backbone, load_weights=load_weights, crop=config.image.crop)
        return cls._assemble(backbone, config)

    @classmethod
    def pretrained(cls, backbone: str = "tf_efficientnet_lite0") -> Embedder:
        """Build a pretrained network with average pooling, as for images without classes.

        Its embeddings are those of the row "pretrained, no training" in all tables: mean features of unit length.

        Args:
            backbone: Name of the network, with weights that are installed or can be downloaded.

        Raises:
            ConfigError: If the name is unknown.
            ModelError: If weights cannot be loaded.
        """
        config = resolve_image_size(make_section(ModelConfig, {"backbone": backbone, "pooling": "gap"}))
        network = build_backbone(config.backbone, load_weights=True, crop=config.image.crop)
        model = cls._assemble(network, config.model_copy(update={"dim": network.num_features}))
        assert isinstance(model.head.projection, nn.Linear), "no network is given without a projection"
        nn.init.eye_(model.head.projection.weight)  # a head has a projection; this one changes nothing
        return model

    @classmethod
    def from_module(
        cls,
        network: nn.Module,
        *,
        dim: int | None = None,
        pooling: str | Mapping[str, Any] | None = None,
        image: int | Mapping[str, int] | None = None,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        normalize: Literal["unit", "ball"] = "unit",
        num_prefix_tokens: int = 0,
        freeze_batch_norm: bool = False,
        name: str | None = None,
    ) -> Embedder:
        """Build a model around any network that returns a map, tokens, or vectors.

        The network receives normalized images (B, 3, H, W). It returns a map (B, C, h, w), tokens (B, N, C), or
        vectors (B, C). It is used in place, on its device, and its parameters are parameters of the model.

        Args:
            network: Module to wrap. It is run once on a blank image, in inference mode.
            dim: Size of the embedding, made by a new linear projection. Default: C, without a projection.
            pooling: Name, or name and settings, of the pooling of a map or tokens. Default: average pooling.
            image: Crop size in pixels, or `{"resize": 256, "crop": 224}`, which is the default.
            mean: Per-channel mean of the training images, in [0, 1].
            std: Per-channel standard deviation of the training images.
            normalize: Length of encoded vectors: "unit", or "ball", which only shortens vectors longer than 1.
            num_prefix_tokens: Class and register tokens in front of the tokens, which are dropped.
            freeze_batch_norm: Keep batch norm in inference mode and do not train its scales.
            name: Name of the network in the config, under which `register_network` finds it again. Default: its class.

        Raises:
            ConfigError: If a setting is invalid, or the network rejects the image size or returns anything else.
        """
        if normalize not in NORMALIZERS:
            raise ConfigError(f"normalize={normalize}: expected one of {', '.join(NORMALIZERS)}. Choose one of them.")
        size: Mapping[str, int] = {"crop": image} if isinstance(image, int) else (image or {})
        tree: dict[str, Any] = {
            "backbone": {"name": name or type(network).__name__, "freeze_batch_norm": freeze_batch_norm},
            "pooling": "gap" if pooling is None else pooling,
            "image": {"crop": 224, **size},
        }
        if "resize" not in size:
            tree["image"]["resize"] = round(tree["image"]["crop"] * 8 / 7)
        if dim is not None:
            tree["dim"] = dim
        config = make_section(ModelConfig, tree)
        config.normalize = normalize
        backbone = wrap_network(
            network,
            crop=config.image.crop,
            mean=mean,
            std=std,
            num_prefix_tokens=num_prefix_tokens,
            freeze_batch_norm=freeze_batch_norm,
        )
        if dim is None:
            config.dim = backbone.num_features
        return cls._assemble(backbone, config, projection=dim is not None)

    @classmethod
    def _assemble(cls, backbone: Backbone, config: ModelConfig, *, projection: bool = True) -> Embedder:
        """Check that backbone, image size, and pooling fit, and add a head."""
        features = probe_features(backbone, config)
        rows, columns = features[2:] if len(features) == 4 else (features[1], 1)
        head = Head(
            backbone.num_features, config.dim, config.pooling, positions=rows * columns, projection=projection,
            norm=config.head,
        )  # fmt: skip
        return cls(backbone, head.to(backbone.mean), config)

    @overload
    def forward(self, images: Tensor, *, return_details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, *, return_details: Literal[True]) -> PoolingOutput: ...
    def forward(self, images: Tensor, *, return_details: bool = False) -> Tensor | PoolingOutput:
        """Embed images (B, 3, H, W) in [0, 1] to (B, dim), before normalization.

        With `return_details` the result also contains the pooling weights and attributes.
        """
        features = self.backbone(images)
        result: Tensor | PoolingOutput = self.head(features, return_details=return_details)
        return result

    @property
    def crops(self) -> CropTransform:
        """Transform from images to network input."""
        return CropTransform(resize=self.config.image.resize, size=self.config.image.crop)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.backbone.mean.device

    @property
    def prototypes_ready(self) -> bool:
        """Whether all prototypes were set from data; true for poolings without prototypes."""
        return all(module.prototypes_ready for module in self.modules() if isinstance(module, PrototypePooling))

    @torch.inference_mode()
    def encode(
        self, images: ImageLike | Sequence[ImageLike], *, batch_size: int = 64, normalize: bool = True
    ) -> NDArray[np.float32]:
        """Embed images given as paths, PIL images, or tensors.

        Args:
            images: One image or a sequence. A tensor (3, H, W), uint8 or float in [0, 1], is resized and cropped like
                any other image. A tensor (B, 3, H, W) goes to the network without resizing.
            batch_size: Images per forward pass.
            normalize: Scale vectors to unit length, so dot products are cosine similarities. A model with
                `normalize: ball` in its config only shortens vectors longer than 1.

        Returns:
            Array (N, dim), float32.

        Raises:
            DataError: If an image cannot be read; the message names its file.
        """
        training = self.training
        self.eval()
        try:
            parts = [self(batch) for batch in self._batches(images, batch_size)]
        finally:
            self.train(training)
        vectors = torch.cat(parts) if parts else torch.zeros(0, self.config.dim)
        vectors = NORMALIZERS[self.config.normalize](vectors.float()) if normalize else vectors.float()
        result: NDArray[np.float32] = vectors.cpu().numpy()
        return result

    @torch.inference_mode()
    def explain(self, images: Sequence[ImageLike], *, batch_size: int = 64) -> list[PoolingMap]:
        """Return the network input and the map of pooling weights of each image.

        Raises:
            DataError: If an image cannot be read.
            ModelError: If the network returns tokens that are not a square grid.
        """
        training = self.training
        self.eval()
        maps: list[PoolingMap] = []
        try:
            for batch in self._batches(images, batch_size):
                features = self.backbone(batch)
                weights = self.head(features, return_details=True).weights
                rows, columns = grid_shape(features)
                pixels = (batch.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
                for index, crop in enumerate(pixels):
                    grid = None if weights is None else weights[index].reshape(rows, columns).float().cpu().numpy()
                    maps.append(PoolingMap(Image.fromarray(crop), grid))
        finally:
            self.train(training)
        return maps

    def _batches(self, images: ImageLike | Sequence[ImageLike], batch_size: int) -> Iterator[Tensor]:
        if isinstance(images, Tensor) and images.dim() == 4:
            scale = 255 if images.dtype == torch.uint8 else 1
            return (part.to(self.device) / scale for part in torch.split(images, batch_size))
        single = isinstance(images, str | PathLike | Image.Image | Tensor)
        listed = ImageList([images] if single else images)  # type: ignore[list-item, arg-type]
        store = ImageCache(listed, resize=self.config.image.resize, cache="none", device=self.device)
        starts = range(0, len(listed), batch_size)
        return (self.crops.test(store, range(s, min(s + batch_size, len(listed)))) for s in starts)

    def save_pretrained(self, folder: str | PathLike[str], *, metrics: Mapping[str, float] | None = None) -> None:
        """Write weights (safetensors), config, and a model card into a folder.

        Args:
            folder: Folder to create or to overwrite.
            metrics: Test metrics for the model card, as fractions.

        Raises:
            OutputError: If a file cannot be written.
        """
        from safetensors.torch import save_file

        target = Path(folder)
        state = _without_shared_memory({k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()})
        write_checked(target / WEIGHTS_FILE, lambda partial: save_file(state, partial, metadata={"format": "pt"}))
        write_text(target / CARD_FILE, self._card(metrics))
        tree = self.config.model_dump()
        custom = self._custom_network()
        if custom is not None:
            tree[CUSTOM_KEY] = custom.model_dump()
        write_checked_text(target / CONFIG_FILE, json.dumps(tree, indent=2) + "\n")

    @classmethod
    def from_pretrained(
        cls, folder: str | PathLike[str], *, network: nn.Module | None = None, device: str | torch.device = "cpu"
    ) -> Embedder:
        """Load a model that `save_pretrained` wrote, ready for `encode`.

        Args:
            folder: Saved model, or the folder of a training run.
            network: Network to load the weights into, for a model made by `from_module`. It has the architecture of the
                saved network. Default: the network registered under its name by `register_network`.
            device: Device of the model.

        Raises:
            ModelError: If the folder contains no model, a weight does not fit, or a network of the user is missing.
        """
        source = Path(folder)
        if not (source / CONFIG_FILE).is_file() and (source / "model" / CONFIG_FILE).is_file():
            source = source / "model"  # the folder of a training run
        config, custom = _read_saved(source)
        if custom is None and network is not None:
            raise ModelError(f"{source}: model was saved with the network {config.backbone.name}. Leave network out.")
        if custom is None:
            embedder = cls.create(config, load_weights=False)
        else:
            embedder = cls._restore(source, config, custom, network)
        if (source / WEIGHTS_FILE).is_file():
            has_checksum(source / WEIGHTS_FILE, remedy=RESTORE)  # it is compared where the weights are read
        embedder.load_state(read_state_dict(source / WEIGHTS_FILE), str(source / WEIGHTS_FILE))
        embedder.check_finite(str(source))
        return embedder.to(device).eval()

    @classmethod
    def _restore(cls, source: Path, config: ModelConfig, custom: CustomNetwork, network: nn.Module | None) -> Embedder:
        """Wrap the network of a saved model as it was wrapped before."""
        name = config.backbone.name
        if network is None and name in NETWORKS:
            network = NETWORKS[name].builder()
        if network is None:
            raise ModelError(
                f"{source}: model contains a network of its author ({custom.class_name}). Pass it as network=, or "
                f"register it with winnow.models.register_network({name!r}, ...) before loading."
            )
        backbone = wrap_network(
            network,
            crop=config.image.crop,
            mean=custom.mean,
            std=custom.std,
            num_prefix_tokens=custom.num_prefix_tokens,
            freeze_batch_norm=config.backbone.freeze_batch_norm,
        )
        if not custom.projection and backbone.num_features != config.dim:
            raise ModelError(f"{source}: expected a network with {config.dim} features, got {type(network).__name__} "
                             f"with {backbone.num_features}. Pass the network that was saved.")  # fmt: skip
        return cls._assemble(backbone, config, projection=custom.projection)

    @staticmethod
    def read_config(folder: str | PathLike[str]) -> ModelConfig:
        """Read the config of a saved model.

        Raises:
            ModelError: If the folder contains no model, or its config is invalid.
        """
        return _read_saved(Path(folder))[0]

    def load_state(self, state: Mapping[str, Tensor], source: str) -> None:
        """Load a complete state dict.

        Raises:
            ModelError: If keys, shapes, or types differ; the message names `source` and the first difference.
        """
        own = self.state_dict()
        state = present_keys(state, own)
        odd = sorted(set(own) ^ set(state)) or [
            key for key, one in own.items()
            if one.shape != state[key].shape or one.is_floating_point() != state[key].is_floating_point()
        ]  # fmt: skip
        if odd:
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            raise ModelError(f"{source}: weights of another model: '{odd[0]}'{more} differ. "
                             "Use the config that the weights were trained with.")  # fmt: skip
        self.load_state_dict(dict(state))

    def check_finite(self, source: str) -> None:
        """Check the weights.

        Raises:
            ModelError: If a weight is NaN or infinite; the message names `source` and the first such tensor.
        """
        for key, value in self.state_dict().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise ModelError(f"{source}: '{key}' contains NaN or infinite values. Train the model again.")

    def fingerprint(self) -> str:
        """Return a hash of config and weights.

        Models with the same fingerprint return the same embeddings.
        """
        # Settings and weights have the names of version 0.1.0, so fingerprints stay valid when names change.
        digest = hashlib.sha256(json.dumps(fingerprint_settings(self.config), sort_keys=True).encode())
        custom = self._custom_network()
        if custom is not None:
            digest.update(custom.model_dump_json(exclude={"class_name"}).encode())
        state = {first_key(key): value for key, value in self.state_dict().items()}
        for key, value in sorted(state.items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    def _custom_network(self) -> CustomNetwork | None:
        """Return the record of a user's network; None for networks of timm and winnow."""
        if not self.backbone.call_network:
            return None
        kind = type(self.backbone.network)
        return CustomNetwork(
            class_name=f"{kind.__module__}.{kind.__qualname__}",
            mean=tuple(self.backbone.mean.flatten().tolist()),
            std=tuple(self.backbone.std.flatten().tolist()),
            num_prefix_tokens=self.backbone.num_prefix_tokens,
            projection=isinstance(self.head.projection, nn.Linear),
        )

    def _card(self, metrics: Mapping[str, float] | None) -> str:
        """Return the model card."""
        from jinja2 import Environment, StrictUndefined

        environment = Environment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
        )
        template = files("winnow.models").joinpath("card.md.jinja").read_text(encoding="utf-8")
        return environment.from_string(template).render(
            config=self.config,
            config_json=json.dumps(self.config.model_dump(), indent=2),
            custom=self._custom_network(),
            metrics=metrics,
            prototypes_ready=self.prototypes_ready,
            unit=self.config.normalize == "unit",
        )


def grid_shape(features: Tensor) -> tuple[int, int]:
    """Return rows and columns of a map, or of tokens of a square grid.

    Raises:
        ModelError: If the number of tokens is not a square.
    """
    if features.dim() == 4:
        return features.shape[2], features.shape[3]
    side = math.isqrt(features.shape[1])
    if side * side != features.shape[1]:
        raise ModelError(f"features: {features.shape[1]} tokens are not a square grid. Use a network that returns a "
                         "map, or set num_prefix_tokens.")  # fmt: skip
    return side, side


class ImageList(ImageSet):
    """Images from a caller: paths, PIL images, or tensors (3, H, W), all of one class."""

    def __init__(self, images: Sequence[ImageLike]) -> None:
        self.images = list(images)
        self.labels = np.zeros(len(self.images), dtype=np.int64)
        self.class_names = ("given",)

    def name(self, index: int) -> str:
        """Return the path, or the position in the list."""
        image = self.images[index]
        return str(image) if isinstance(image, str | PathLike) else f"image {index}"

    def read(self, index: int) -> Image.Image:
        """Return the image as upright RGB."""
        image = self.images[index]
        if isinstance(image, Tensor):
            pixels = image if image.dtype == torch.uint8 else (image * 255).round().clamp(0, 255).to(torch.uint8)
            return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())
        return upright_rgb(image) if isinstance(image, Image.Image) else read_image(Path(image))

    def cache_key(self, index: int) -> str:
        """Return the name; images of a caller are never cached."""
        return self.name(index)


def _read_saved(folder: Path) -> tuple[ModelConfig, CustomNetwork | None]:
    """Read the config of a saved model, and the record of a user's network."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        if not folder.exists():
            siblings = [one.name for one in folder.parent.iterdir()] if folder.parent.is_dir() else []
            raise ModelError(f"{folder}: run or model not found{did_you_mean(folder.name, siblings)} Check the path.")
        raise ModelError(f"{folder}: no saved model, {CONFIG_FILE} is missing. Use a folder that winnow wrote.")
    check_file(file, remedy=RESTORE)
    try:
        tree = parse_json(read_text(file))
        custom = tree.pop(CUSTOM_KEY, None) if isinstance(tree, dict) else None
        record = None if custom is None else CustomNetwork.model_validate(custom)
        return make_section(ModelConfig, tree), record
    except (OSError, ValueError, ConfigError, ValidationError) as error:
        raise ModelError(f"{file}: config cannot be read: {error}{add_component_hint(error)}") from None


def _without_shared_memory(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, such as tied weights, which safetensors rejects."""
    seen: set[int] = set()
    result = {}
    for key, value in state.items():
        pointer = value.untyped_storage().data_ptr()
        result[key] = value.clone() if pointer in seen else value
        seen.add(pointer)
    return result
