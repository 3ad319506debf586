"""The embedding model: images in, vectors to search by out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from winnow.data import Crops, ImageSet, ImageStore, read_image, upright_rgb
from winnow.errors import ConfigError, ModelError, add_component_hint
from winnow.files import write_atomically, write_text
from winnow.functional import NORMALISE, Pooled
from winnow.models.backbone import Backbone
from winnow.models.card import model_card
from winnow.models.config import ModelConfig, fingerprint_settings, make_section
from winnow.models.head import Head
from winnow.models.image_size import check_input, settle_image
from winnow.models.networks import build_backbone
from winnow.models.weights import read_state
from winnow.pooling import PrototypePooling

ImageLike = str | PathLike[str] | Image.Image | Tensor
CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"


class Explanation(NamedTuple):
    """What a model saw of an image, and the (h, w) weights it gave to its parts; None where a pooling has none."""

    image: Image.Image
    weights: NDArray[np.float32] | None


class Embedder(nn.Module):
    """A backbone and a head, with the image size they were made for.

    `Embedder.create({"pooling": "gsp", "dim": 128})` builds one from settings, `Embedder.from_pretrained(folder)` from
    a folder that `save_pretrained` or `winnow train` wrote.

    Args:
        backbone: From images to local features.
        head: From local features to embeddings.
        config: What the two were built from; saved with the weights.
    """

    def __init__(self, backbone: Backbone, head: Head, config: ModelConfig) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        # Of a whole training config only the model's part travels with the weights.
        self.config = ModelConfig(**{name: getattr(config, name) for name in ModelConfig.model_fields})

    @classmethod
    def create(cls, config: ModelConfig | Mapping[str, Any] | None = None, *, load_weights: bool = True) -> Embedder:
        """Build a model from its config, or from a mapping such as `{"pooling": "gsp", "dim": 64}`.

        Raises:
            ConfigError: for an unknown key (with the nearest name) or a value of the wrong type.
        """
        if not isinstance(config, ModelConfig):
            config = make_section(ModelConfig, config or {})
        config = settle_image(config)
        backbone = build_backbone(config.backbone, load_weights=load_weights)
        features = check_input(backbone, config)
        rows, columns = features[2:] if len(features) == 4 else (features[1], 1)
        head = Head(backbone.width, config.dim, config.pooling, positions=rows * columns)
        return cls(backbone, head, config)

    @overload
    def forward(self, images: Tensor, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, *, details: Literal[True]) -> Pooled: ...
    def forward(self, images: Tensor, *, details: bool = False) -> Tensor | Pooled:
        """Embed images (B, 3, H, W) in [0, 1] to (B, dim), not yet normalised.

        With `details` the result also holds the pooling's weights and attributes.
        """
        features = self.backbone(images)
        result: Tensor | Pooled = self.head(features, details=details)
        return result

    @property
    def crops(self) -> Crops:
        """How images are cut for this model."""
        return Crops(resize=self.config.image.resize, size=self.config.image.crop)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.head.projection.weight.device

    @torch.inference_mode()
    def encode(
        self, images: ImageLike | Sequence[ImageLike], *, batch_size: int = 64, normalise: bool = True
    ) -> NDArray[np.float32]:
        """Embed images given as paths, PIL images or tensors.

        Args:
            images: One or many. A tensor (3, H, W), uint8 or float in [0, 1], is an image like any other and is
                resized and cropped; a tensor (B, 3, H, W), likewise, goes to the network as it is.
            batch_size: Images embedded at a time.
            normalise: Scale the vectors to unit length, so that dot products are cosine similarities; a model whose
                config says `normalise: ball` only shortens those that are longer.

        Returns:
            (N, dim) float32.

        Raises:
            DataError: for an unreadable image, naming its file.
        """
        mode = self.training
        self.eval()
        try:
            parts = [self(batch) for batch in self._batches(images, batch_size)]
        finally:
            self.train(mode)
        vectors = torch.cat(parts) if parts else torch.zeros(0, self.config.dim)
        vectors = NORMALISE[self.config.normalise](vectors.float()) if normalise else vectors.float()
        result: NDArray[np.float32] = vectors.cpu().numpy()
        return result

    @torch.inference_mode()
    def explain(self, images: Sequence[ImageLike], *, batch_size: int = 64) -> list[Explanation]:
        """Return, for each image, what the network was shown and where the pooling put its weight."""
        mode = self.training
        self.eval()
        seen: list[Explanation] = []
        for batch in self._batches(images, batch_size):
            features = self.backbone(batch)
            weights = self.head(features, details=True).weights
            rows, columns = grid_shape(features)
            pixels = (batch.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
            for index, crop in enumerate(pixels):
                grid = None if weights is None else weights[index].reshape(rows, columns).float().cpu().numpy()
                seen.append(Explanation(Image.fromarray(crop), grid))
        self.train(mode)
        return seen

    def _batches(self, images: ImageLike | Sequence[ImageLike], batch_size: int) -> Iterator[Tensor]:
        if isinstance(images, Tensor) and images.dim() == 4:
            scale = 255 if images.dtype == torch.uint8 else 1
            return (part.to(self.device) / scale for part in torch.split(images, batch_size))
        single = isinstance(images, str | PathLike | Image.Image | Tensor)
        listed = GivenImages([images] if single else images)  # type: ignore[list-item, arg-type]
        store = ImageStore(listed, resize=self.config.image.resize, cache="none", device=self.device)
        starts = range(0, len(listed), batch_size)
        return (self.crops.test(store, range(s, min(s + batch_size, len(listed)))) for s in starts)

    def save_pretrained(self, folder: str | PathLike[str], *, metrics: Mapping[str, float] | None = None) -> None:
        """Write weights (safetensors), config and a model card into a folder."""
        from safetensors.torch import save_file

        target = Path(folder)
        state = {key: value.detach().cpu().contiguous() for key, value in self.state_dict().items()}
        write_atomically(target / WEIGHTS_FILE, lambda partial: save_file(state, partial, metadata={"format": "pt"}))
        write_text(target / CARD_FILE, model_card(self.config, metrics, self.is_ready))
        write_text(target / CONFIG_FILE, json.dumps(self.config.model_dump(), indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | PathLike[str], *, device: str | torch.device = "cpu") -> Embedder:
        """Load a model that `save_pretrained` wrote; ready for `encode`."""
        source = Path(folder)
        if not (source / CONFIG_FILE).is_file() and (source / "model" / CONFIG_FILE).is_file():
            source = source / "model"  # a run folder of `winnow train`
        embedder = cls.create(cls.read_config(source), load_weights=False)
        embedder.load_state(read_state(source / WEIGHTS_FILE), str(source / WEIGHTS_FILE))
        return embedder.to(device).eval()

    @staticmethod
    def read_config(folder: str | PathLike[str]) -> ModelConfig:
        """Read the config of a saved model."""
        file = Path(folder) / CONFIG_FILE
        if not file.is_file():
            raise ModelError(f"{folder} holds no saved model ({CONFIG_FILE} is missing): give a folder made by winnow")
        try:
            return make_section(ModelConfig, json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, ConfigError) as error:
            raise ModelError(
                f"{file} is not a config this version understands: {error}{add_component_hint(error)}"
            ) from None

    def load_state(self, state: Mapping[str, Tensor], source: str) -> None:
        """Load a complete state dict, or say in what it differs."""
        own = self.state_dict()
        odd = sorted(set(own) ^ set(state)) or [k for k in own if own[k].shape != state[k].shape]
        if odd:
            raise ModelError(
                f"{source} is of another model: '{odd[0]}' differs (and {len(odd) - 1} more); "
                "use the config it was trained with"
            )
        self.load_state_dict(dict(state))

    def fingerprint(self) -> str:
        """Return a hash of the config and the weights: models with the same one embed alike."""
        digest = hashlib.sha256(json.dumps(fingerprint_settings(self.config), sort_keys=True).encode())
        for key, value in sorted(self.state_dict().items()):
            digest.update(key.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    @property
    def is_ready(self) -> bool:
        """Whether a pooling that starts its prototypes from data has done so."""
        return all(module.is_ready for module in self.modules() if isinstance(module, PrototypePooling))


def grid_shape(features: Tensor) -> tuple[int, int]:
    """Return the rows and columns of a map (B, C, H, W), or of tokens (B, N, C) that come from a square grid."""
    if features.dim() == 4:
        return features.shape[2], features.shape[3]
    side = math.isqrt(features.shape[1])
    if side * side != features.shape[1]:
        raise ModelError(f"{features.shape[1]} tokens are not a square grid; they cannot be laid over the image")
    return side, side


class GivenImages(ImageSet):
    """Images handed over by a caller: paths, PIL images or (3, H, W) tensors; all of one class."""

    def __init__(self, images: Sequence[ImageLike]) -> None:
        self.given = list(images)
        self.labels = np.zeros(len(self.given), dtype=np.int64)
        self.class_names = ("given",)

    def name(self, index: int) -> str:
        """Return the path, or the position in the list."""
        image = self.given[index]
        return str(image) if isinstance(image, str | PathLike) else f"image {index}"

    def read(self, index: int) -> Image.Image:
        """Return upright RGB."""
        image = self.given[index]
        if isinstance(image, Tensor):
            scaled = image if image.dtype == torch.uint8 else (image * 255).round().clamp(0, 255).to(torch.uint8)
            return Image.fromarray(scaled.permute(1, 2, 0).cpu().numpy())
        return upright_rgb(image) if isinstance(image, Image.Image) else read_image(Path(image))

    def identity(self, index: int) -> str:
        """Return the name; what a caller hands over is never cached."""
        return self.name(index)
