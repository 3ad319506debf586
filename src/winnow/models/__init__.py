"""Backbones, heads and the embedding model made of the two."""

from winnow.models.backbone import Backbone
from winnow.models.config import BackboneConfig, ImageConfig, ModelConfig
from winnow.models.embedder import Embedder
from winnow.models.head import Head
from winnow.models.networks import build_backbone

__all__ = ["Backbone", "BackboneConfig", "Embedder", "Head", "ImageConfig", "ModelConfig", "build_backbone"]
