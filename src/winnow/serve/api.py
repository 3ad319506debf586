"""Routes under `/api`: parameters, and results as responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, TypedDict

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response
from numpy.typing import NDArray

from winnow.index import Entry
from winnow.serve import schemas
from winnow.serve.encoder import EncodedImage, QueryEncoder
from winnow.serve.middleware import Limits, RequestError
from winnow.serve.prototypes import PrototypeSampler, evenly_spaced
from winnow.serve.service import SearchResult, SearchService
from winnow.serve.uploads import MEDIA_TYPES, read_body

MAX_NEIGHBORS = 100
_MAX_EPS = 1000.0
_MIN_MU = 0.001  # smaller fractions may vanish in single precision
_PROTOTYPE_IMAGES = 4
_EXAMPLES = 12

Count = Annotated[int, Query(ge=1, le=MAX_NEIGHBORS, description="Number of images.")]
Mu = Annotated[float | None, Query(ge=_MIN_MU, le=1, allow_inf_nan=False, description="Fraction of features kept.")]
Eps = Annotated[float | None, Query(ge=0, le=_MAX_EPS, allow_inf_nan=False, description="Selection sharpness.")]
Id = Annotated[int, Path(ge=0, lt=2**63, description="Number of an image in the index.")]
Ids = Annotated[
    list[Annotated[int, Query(ge=0, lt=2**63)]],
    Query(min_length=1, max_length=MAX_NEIGHBORS, description="Numbers of images in the index."),
]
Key = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Key of an earlier upload.")]
Number = Annotated[int, Path(ge=0, description="Number of the prototype, from 0.")]

_ERRORS: dict[int, str] = {
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another site.",
    404: "The image, prototype, or upload does not exist.",
    413: "The upload has too many bytes or pixels.",
    415: "The upload is not an accepted image type.",
    421: "The host name is not accepted.",
    422: "The upload is damaged, or a parameter is out of range.",
    429: "Too many requests run or wait.",
    503: "The request took too long.",
}
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()},
    }
}
_JPEG: dict[str, Any] = {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of common errors, and of the given ones."""
    listed = sorted({401, 403, 421, 422, 429, 503, *statuses})
    return {status: {"model": schemas.ErrorResponse, "description": _ERRORS[status]} for status in listed}


def create_router(service: SearchService, sampler: PrototypeSampler, limits: Limits) -> APIRouter:
    """Return all routes under `/api`."""
    router = APIRouter(prefix="/api", responses=error_responses())
    add_search_routes(router, service, limits)
    add_image_routes(router, service)
    add_prototype_routes(router, service, sampler)

    @router.get("/about", tags=["service"])
    async def about() -> schemas.AboutResponse:
        """Return the size of the index, model settings, limits, and example images."""
        encoder = service.encoder
        entries = [await service.entry(int(number)) for number in evenly_spaced(service.index.ids, _EXAMPLES)]
        return schemas.AboutResponse(
            entries=len(service.index), pooling=encoder.model.config.pooling.name, adjustable=encoder.adjustable,
            mu=encoder.mu, eps=encoder.eps, largest_mu=encoder.max_mu, prototypes=sampler.num_prototypes,
            upload_bytes=limits.max_upload_bytes, media_types=list(MEDIA_TYPES.values()), max_neighbors=MAX_NEIGHBORS,
            examples=[schemas.IndexedImage(**image_fields(entry)) for entry in entries],
        )  # fmt: skip

    return router


def add_search_routes(router: APIRouter, service: SearchService, limits: Limits) -> None:
    """Add searches with an upload, an earlier upload, or an indexed image."""
    encoder = service.encoder

    async def respond(
        query: schemas.QueryImage, ids: Sequence[int], distances: Sequence[float], mu: float | None, eps: float | None
    ) -> schemas.SearchResponse:
        entries = await asyncio.gather(*map(service.entry, ids))
        neighbors = [
            schemas.Neighbor(**image_fields(entry), distance=distance)
            for entry, distance in zip(entries, distances, strict=True)
        ]
        mu, eps = encoder.mu if mu is None else mu, encoder.eps if eps is None else eps
        return schemas.SearchResponse(query=query, mu=mu, eps=eps, neighbors=neighbors)

    async def search_upload(
        key: str, image: EncodedImage, k: int, mu: float | None, eps: float | None
    ) -> schemas.SearchResponse:
        result: SearchResult = await service.search(image, k, mu, eps)
        return await respond(describe_query(result.image, key=key), result.ids, result.distances, mu, eps)

    @router.post("/search", responses=error_responses(413, 415), openapi_extra=_UPLOAD, tags=["search"])
    async def search(request: Request, k: Count = 10, mu: Mu = None, eps: Eps = None) -> schemas.SearchResponse:
        """Find the nearest images to an upload, which is the request's body."""
        check_selection(encoder, mu, eps)
        data = await read_body(request.stream(), request.headers.get("content-length"), limits.max_upload_bytes)
        key, image = await service.encode_upload(data)
        return await search_upload(key, image, k, mu, eps)

    @router.get("/search/{key}", responses=error_responses(404), tags=["search"])
    async def search_again(key: Key, k: Count = 10, mu: Mu = None, eps: Eps = None) -> schemas.SearchResponse:
        """Search again with a cached upload, with other mu, eps, or k."""
        check_selection(encoder, mu, eps)
        return await search_upload(key, service.find_upload(key), k, mu, eps)

    @router.get("/similar/{id}", responses=error_responses(404), tags=["search"])
    async def similar(id: Id, k: Count = 10, mu: Mu = None, eps: Eps = None) -> schemas.SearchResponse:
        """Find the nearest images to an image of the index, without the image itself."""
        check_selection(encoder, mu, eps)
        entry = await service.entry(id)
        result = await service.search(await service.encode_entry(entry), k + 1, mu, eps)
        others = [pair for pair in zip(result.ids, result.distances, strict=True) if pair[0] != id][:k]
        ids, distances = [number for number, _ in others], [distance for _, distance in others]
        return await respond(describe_query(result.image, entry=entry), ids, distances, mu, eps)


def add_image_routes(router: APIRouter, service: SearchService) -> None:
    """Add pooling weights and thumbnails of images of the index."""

    @router.get("/weights", responses=error_responses(404), tags=["images"])
    async def weights(id: Ids, mu: Mu = None, eps: Eps = None) -> list[schemas.ImageWeights]:
        """Return the pooling weights of images of the index."""
        check_selection(service.encoder, mu, eps)
        entries = await asyncio.gather(*map(service.entry, id))
        images = await asyncio.gather(*(service.encode_entry(entry, mu, eps) for entry in entries))
        return [
            schemas.ImageWeights(id=number, heat_map=describe_weights(image, image.weights))
            for number, image in zip(id, images, strict=True)
        ]

    @router.get(
        "/thumbnail/{id}", responses=error_responses(404) | {200: _JPEG}, response_class=Response, tags=["images"]
    )
    async def thumbnail(id: Id) -> Response:
        """Return a small JPEG file of an image of the index."""
        entry = await service.entry(id)
        return Response(entry.thumbnail, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})


def add_prototype_routes(router: APIRouter, service: SearchService, sampler: PrototypeSampler) -> None:
    """Add the list of prototypes, and the images that match one best."""

    @router.get("/prototypes", responses=error_responses(404), tags=["prototypes"])
    async def prototypes() -> schemas.PrototypesResponse:
        """Return each prototype's mean attribute and best matches so far."""
        sampler.start()
        listed = [
            schemas.PrototypeSummary(
                prototype=i, share=mean, best=[number for number, _ in sampler.top_images(i, _PROTOTYPE_IMAGES)]
            )
            for i, mean in enumerate(sampler.mean_attributes.tolist())
        ]
        return schemas.PrototypesResponse(looked_at=sampler.num_done, of=len(sampler.ids), prototypes=listed)

    @router.get("/prototypes/{prototype}", responses=error_responses(404), tags=["prototypes"])
    async def prototype(prototype: Number, k: Count = 12) -> schemas.PrototypeResponse:
        """Return the images that match a prototype best, and its weights in each."""
        sampler.start()
        if prototype >= sampler.num_prototypes:
            raise RequestError(404, f"prototype: expected 0 to {sampler.num_prototypes - 1}, got {prototype}.")
        matches = []
        for number, attribute in sampler.top_images(prototype, k):
            entry = await service.entry(number)
            image = await service.encode_entry(entry)
            heat_map = describe_weights(image, service.encoder.prototype_weights(image, prototype))
            matches.append(schemas.PrototypeMatch(**image_fields(entry), attribute=attribute, heat_map=heat_map))
        return schemas.PrototypeResponse(
            prototype=prototype, share=float(sampler.mean_attributes[prototype]), looked_at=sampler.num_done,
            of=len(sampler.ids), images=matches,
        )  # fmt: skip


def check_selection(encoder: QueryEncoder, mu: float | None, eps: float | None) -> None:
    """Raise `RequestError` (422) if the pooling does not support mu or eps."""
    if not encoder.adjustable and (mu is not None or eps is not None):
        raise RequestError(422, "mu and eps: the model's pooling does not support them. Leave them out.")
    if mu is not None and mu > encoder.max_mu:
        raise RequestError(422, f"mu: expected at most {encoder.max_mu}, because this pooling drops the fraction mu.")


class ImageFields(TypedDict):
    """Fields of an image of the index in responses."""

    id: int
    name: str
    label: str | None


def image_fields(entry: Entry) -> ImageFields:
    """Return file name and last folder of an entry, without its full path."""
    # A path of this system keeps its backslashes, which stand for bytes that are not UTF-8.
    path = entry.path if entry.path.startswith("/") else entry.path.replace("\\", "/")
    parts = PurePath(path).parts[-2:]
    return {"id": entry.id, "name": "/".join(parts).lstrip("/"), "label": entry.label}


def describe_query(image: EncodedImage, *, key: str | None = None, entry: Entry | None = None) -> schemas.QueryImage:
    """Return a query as a response: an upload by its key, or an entry."""
    attributes = None if image.attributes is None else np.round(image.attributes.astype(np.float64), 5).tolist()
    indexed = None if entry is None else schemas.IndexedImage(**image_fields(entry))
    heat_map = describe_weights(image, image.weights)
    return schemas.QueryImage(key=key, image=indexed, heat_map=heat_map, attributes=attributes)


def describe_weights(image: EncodedImage, weights: NDArray[np.float32] | None) -> schemas.WeightMap | None:
    """Return weights (n,), which sum to 1, as a response relative to their mean."""
    if weights is None:
        return None
    rows, columns = image.grid
    values = np.round(weights.astype(np.float64) * len(weights), 3).tolist()
    return schemas.WeightMap(rows=rows, columns=columns, box=schemas.CropRegion(**image.box._asdict()), values=values)
