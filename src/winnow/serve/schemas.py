"""Responses of the HTTP API.

Keys of the JSON are part of its contract and do not change.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Response(BaseModel):
    """Base of all responses and their parts."""

    model_config = ConfigDict(frozen=True)


class ErrorResponse(Response):
    """A rejected request."""

    detail: str = Field(description="What is wrong, and what to do.")


class HealthResponse(Response):
    """A running service."""

    status: Literal["ok"] = "ok"
    entries: int = Field(description="Images in the index.")


class CropRegion(Response):
    """Region of an image that enters the network, in fractions of its sides.

    It may exceed the image.
    """

    left: float
    top: float
    width: float
    height: float


class WeightMap(Response):
    """Grid of weights that divides the box evenly; 1 is the mean weight."""

    rows: int
    columns: int
    box: CropRegion
    values: list[float] = Field(description="Row by row.")


class IndexedImage(Response):
    """An image of the index."""

    id: int = Field(description="Its number in the index.")
    name: str = Field(description="Its file name and the folder that contains it.")
    label: str | None = Field(description="Its class; null if unknown.")


class AboutResponse(Response):
    """The index, its model, and the limits of the service."""

    entries: int = Field(description="Images in the index.")
    pooling: str = Field(description="The model's pooling.")
    adjustable: bool = Field(description="Whether requests may set mu and eps; otherwise they are rejected.")
    mu: float | None = Field(description="The model's fraction of features kept, mu.")
    eps: float | None = Field(description="The model's selection sharpness, eps.")
    largest_mu: float = Field(description="Largest mu that can be requested.")
    prototypes: int = Field(description="Number of prototypes; 0 without attributes.")
    upload_bytes: int = Field(description="Largest upload, in bytes.")
    media_types: list[str] = Field(description="Accepted image types.")
    max_neighbors: int = Field(serialization_alias="neighbours", description="Largest k.")
    examples: list[IndexedImage] = Field(description="Evenly spaced images of the index.")


class Neighbor(IndexedImage):
    """A neighbor of the query."""

    distance: float = Field(description="Distance of its vector from the query's.")


class QueryImage(Response):
    """The query image."""

    key: str | None = Field(description="Key of the upload for further searches, while it is cached.")
    image: IndexedImage | None = Field(description="The image, if it is one of the index.")
    heat_map: WeightMap | None = Field(description="Pooling weights; null if the pooling has none.")
    attributes: list[float] | None = Field(description="Fraction of each prototype; null without prototypes.")


class SearchResponse(Response):
    """The neighbors of a query image."""

    query: QueryImage
    mu: float | None = Field(description="Fraction mu that the query was pooled with.")
    eps: float | None = Field(description="Sharpness eps that the query was pooled with.")
    neighbors: list[Neighbor] = Field(serialization_alias="neighbours", description="Nearest first.")


class ImageWeights(Response):
    """The pooling weights of an image of the index."""

    id: int
    heat_map: WeightMap | None


class PrototypeSummary(Response):
    """A prototype and its best matches."""

    prototype: int
    share: float = Field(description="Its attribute, averaged over the scanned images.")
    best: list[int] = Field(description="Ids of the images with its largest attributes.")


class PrototypesResponse(Response):
    """All prototypes, and the progress of the scan for their best matches."""

    looked_at: int = Field(description="Images scanned so far.")
    of: int = Field(description="Images to scan.")
    prototypes: list[PrototypeSummary]


class PrototypeMatch(IndexedImage):
    """An image that matches a prototype."""

    attribute: float = Field(description="The prototype's fraction of the kept features of this image.")
    heat_map: WeightMap | None = Field(description="Weights of the local features for this prototype.")


class PrototypeResponse(Response):
    """The images that match a prototype best."""

    prototype: int
    share: float = Field(description="Its attribute, averaged over the scanned images.")
    looked_at: int = Field(description="Images scanned so far.")
    of: int = Field(description="Images to scan.")
    images: list[PrototypeMatch]
