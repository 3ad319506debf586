"""What the service answers, as the OpenAPI schema has it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True)


class Problem(Answer):
    """Why a request was not served."""

    detail: str = Field(description="What is wrong, and what to do.")


class Health(Answer):
    """That the service is there."""

    status: Literal["ok"] = "ok"
    entries: int = Field(description="Images in the index.")


class Box(Answer):
    """The part of an image that the model is shown, in shares of its width and height; it may reach beyond them."""

    left: float
    top: float
    width: float
    height: float


class HeatMap(Answer):
    """A grid laid evenly over the box: in times the average, so that 1 everywhere is an average."""

    rows: int
    columns: int
    box: Box
    values: list[float] = Field(description="Row by row.")


class Image(Answer):
    """An image of the index."""

    id: int = Field(description="Its number in the index.")
    name: str = Field(description="Its file and the folder it is in.")
    label: str | None = Field(description="Its class, where that is known.")


class About(Answer):
    """What is served."""

    entries: int = Field(description="Images in the index.")
    pooling: str = Field(description="The model's pooling.")
    adjustable: bool = Field(description="Whether mu and eps can be given; if not, they are refused.")
    mu: float | None = Field(description="The model's own share mu.")
    eps: float | None = Field(description="The model's own sharpness eps.")
    largest_mu: float = Field(description="The largest mu that can be given.")
    prototypes: int = Field(description="How many prototypes the pooling has; 0 where they tell nothing.")
    upload_bytes: int = Field(description="The largest upload taken.")
    media_types: list[str] = Field(description="The types of images taken.")
    neighbours: int = Field(description="The most neighbours that can be asked for.")
    examples: list[Image] = Field(description="Some images of the index, spread evenly over it.")


class Neighbour(Image):
    """An image that a search found."""

    distance: float = Field(description="Between its vector and the query's.")


class Query(Answer):
    """The image that was searched with."""

    key: str | None = Field(description="To search with an upload again, for a while, without sending it again.")
    image: Image | None = Field(description="What it is, where it is an image of the index.")
    heat_map: HeatMap | None = Field(description="The pooling's weights; null where it has none.")
    attributes: list[float] | None = Field(description="The share of each prototype; null where there are none.")


class Search(Answer):
    """What a search found."""

    query: Query
    mu: float | None = Field(description="The share mu that the query was pooled with.")
    eps: float | None = Field(description="The sharpness eps that the query was pooled with.")
    neighbours: list[Neighbour] = Field(description="The nearest first.")


class ImageMap(Answer):
    """The heat map of an image of the index."""

    id: int
    heat_map: HeatMap | None


class Prototype(Answer):
    """A prototype among images of the index."""

    prototype: int
    share: float = Field(description="Its attribute, averaged over the images looked at.")
    best: list[int] = Field(description="Ids of the images with its largest attributes.")


class Prototypes(Answer):
    """All prototypes, and how far looking at images for them has come."""

    looked_at: int
    of: int
    prototypes: list[Prototype]


class Liked(Image):
    """An image that a prototype likes."""

    attribute: float = Field(description="The prototype's share of what was kept of this image.")
    heat_map: HeatMap | None = Field(description="What the prototype takes of each place.")


class Taste(Answer):
    """What a prototype likes best."""

    prototype: int
    share: float
    looked_at: int
    of: int
    images: list[Liked]
