"""Backbones, heads, and the embedding model made of both."""

from winnow.models.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, probe_features
from winnow.models.config import BackboneConfig, ImageConfig, ModelConfig
from winnow.models.embedder import Embedder, ImageLike, PoolingMap, grid_shape
from winnow.models.factory import build_backbone, register_network, resolve_image_size
from winnow.models.head import Head, principal_directions
from winnow.vision import ensure_torchvision

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Backbone",
    "BackboneConfig",
    "Embedder",
    "Head",
    "ImageConfig",
    "ImageLike",
    "ModelConfig",
    "PoolingMap",
    "build_backbone",
    "ensure_torchvision",
    "grid_shape",
    "principal_directions",
    "probe_features",
    "register_network",
    "resolve_image_size",
]
