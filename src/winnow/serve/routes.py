"""The routes under /api: what they take and what they answer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from winnow.pooling import GSP
from winnow.serve import answers, telling
from winnow.serve.limits import Limits, Refusal
from winnow.serve.service import Found, Service
from winnow.serve.tastes import Tastes, spread
from winnow.serve.uploads import MEDIA_TYPES, read_body

MOST_NEIGHBOURS = 100
_MOST_EPS = 1000.0
_LEAST_MU = 0.001  # what is smaller may be nothing in single precision
_BEST = 4
_EXAMPLES = 12

Count = Annotated[int, Query(ge=1, le=MOST_NEIGHBOURS, description="How many images.")]
Mu = Annotated[
    float | None, Query(ge=_LEAST_MU, le=1, allow_inf_nan=False, description="Share of the features to keep.")
]
Eps = Annotated[float | None, Query(ge=0, le=_MOST_EPS, allow_inf_nan=False, description="Sharpness of the selection.")]
Id = Annotated[int, Path(ge=0, lt=2**63, description="Number of an image in the index.")]
Ids = Annotated[
    list[Annotated[int, Query(ge=0, lt=2**63)]],
    Query(min_length=1, max_length=MOST_NEIGHBOURS, description="Numbers of images in the index."),
]
Key = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="From an earlier search.")]
Number = Annotated[int, Path(ge=0, description="Number of the prototype, from 0.")]

_PROBLEMS: dict[int, str] = {
    401: "The token is missing or wrong.",
    403: "The request comes from a page of another site.",
    404: "There is none such.",
    413: "The upload has too many bytes or pixels.",
    415: "The upload is none of the image types taken.",
    421: "The service is not known by that name.",
    422: "The upload is broken, or a parameter is out of range.",
    429: "Too many requests wait already.",
    503: "It took too long.",
}
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES.values()},
    }
}
_JPEG: dict[str, Any] = {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the schema of refusals: those that every route knows, and some more."""
    every = sorted({401, 403, 421, 422, 429, 503, *statuses})
    return {status: {"model": answers.Problem, "description": _PROBLEMS[status]} for status in every}


def api(service: Service, tastes: Tastes, limits: Limits) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/api", responses=problems())
    looker = service.looker
    drops = isinstance(looker.pooling, GSP) and looker.pooling.role == "background"
    largest_mu = 0.99 if drops else 1.0  # with all of it dropped, nothing would be left

    def check(mu: float | None, eps: float | None) -> None:
        if not looker.adjustable and (mu is not None or eps is not None):
            raise Refusal(422, "the model's pooling makes no selection that mu and eps could change")
        if mu is not None and mu > largest_mu:
            raise Refusal(422, f"mu: must be at most {largest_mu}, because this pooling drops so much")

    async def told(query: answers.Query, found: Found, mu: float | None, eps: float | None) -> answers.Search:
        entries = await asyncio.gather(*map(service.entry, found.ids))
        near = [
            answers.Neighbour(**telling.named(entry), distance=distance)
            for entry, distance in zip(entries, found.distances, strict=True)
        ]
        mu, eps = looker.mu if mu is None else mu, looker.eps if eps is None else eps
        return answers.Search(query=query, mu=mu, eps=eps, neighbours=near)

    @router.post("/search", responses=problems(413, 415), openapi_extra=_UPLOAD, tags=["search"])
    async def search(request: Request, k: Count = 10, mu: Mu = None, eps: Eps = None) -> answers.Search:
        """Find the images nearest to one that is sent as the request's body."""
        check(mu, eps)
        data = await read_body(request.stream(), request.headers.get("content-length"), limits.upload_bytes)
        key, seen = await service.upload(data)
        found = await service.find(seen, k, mu, eps)
        return await told(telling.query(found.seen, key=key), found, mu, eps)

    @router.get("/search/{key}", responses=problems(404), tags=["search"])
    async def search_again(key: Key, k: Count = 10, mu: Mu = None, eps: Eps = None) -> answers.Search:
        """Search again with an upload that is still remembered, by another selection or for more neighbours."""
        check(mu, eps)
        found = await service.find(service.again(key), k, mu, eps)
        return await told(telling.query(found.seen, key=key), found, mu, eps)

    @router.get("/similar/{id}", responses=problems(404), tags=["search"])
    async def similar(id: Id, k: Count = 10, mu: Mu = None, eps: Eps = None) -> answers.Search:
        """Find the images nearest to one of the index, without itself."""
        check(mu, eps)
        entry = await service.entry(id)
        found = await service.find(await service.see(entry), k + 1, mu, eps)
        others = [(number, far) for number, far in zip(found.ids, found.distances, strict=True) if number != id][:k]
        rest = Found(found.seen, [number for number, _ in others], [far for _, far in others])
        return await told(telling.query(found.seen, entry=entry), rest, mu, eps)

    @router.get("/weights", responses=problems(404), tags=["look"])
    async def weights(id: Ids, mu: Mu = None, eps: Eps = None) -> list[answers.ImageMap]:
        """Tell where the pooling puts its weight in images of the index."""
        check(mu, eps)
        entries = await asyncio.gather(*map(service.entry, id))
        every = await asyncio.gather(*(service.see(entry, mu, eps) for entry in entries))
        return [
            answers.ImageMap(id=number, heat_map=telling.heat_map(seen, seen.weights))
            for number, seen in zip(id, every, strict=True)
        ]

    @router.get("/thumbnail/{id}", responses=problems(404) | {200: _JPEG}, response_class=Response, tags=["look"])
    async def thumbnail(id: Id) -> Response:
        """Return a small JPEG file of an image of the index."""
        entry = await service.entry(id)
        return Response(entry.thumbnail, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=300"})

    @router.get("/prototypes", responses=problems(404), tags=["look"])
    async def prototypes() -> answers.Prototypes:
        """Tell each prototype's share, and the images that have most of it; from as many as were looked at so far."""
        tastes.start()
        listed = [
            answers.Prototype(prototype=i, share=share, best=[number for number, _ in tastes.best(i, _BEST)])
            for i, share in enumerate(tastes.shares.tolist())
        ]
        return answers.Prototypes(looked_at=tastes.done, of=len(tastes.ids), prototypes=listed)

    @router.get("/prototypes/{prototype}", responses=problems(404), tags=["look"])
    async def prototype(prototype: Number, k: Count = 12) -> answers.Taste:
        """Tell what a prototype likes best, and where in each image."""
        tastes.start()
        if prototype >= tastes.count:
            raise Refusal(404, f"there are {tastes.count} prototypes, counted from 0")
        images = []
        for number, attribute in tastes.best(prototype, k):
            entry = await service.entry(number)
            seen = await service.see(entry)
            heat_map = telling.heat_map(seen, looker.liking(seen, prototype))
            images.append(answers.Liked(**telling.named(entry), attribute=attribute, heat_map=heat_map))
        share = float(tastes.shares[prototype])
        return answers.Taste(prototype=prototype, share=share, looked_at=tastes.done, of=len(tastes.ids), images=images)

    @router.get("/about", tags=["service"])
    async def about() -> answers.About:
        """Tell what is served."""
        entries = [await service.entry(int(number)) for number in spread(service.index.ids, _EXAMPLES)]
        return answers.About(
            entries=len(service.index), pooling=looker.model.config.pooling.name, adjustable=looker.adjustable,
            mu=looker.mu, eps=looker.eps, largest_mu=largest_mu, prototypes=tastes.count,
            upload_bytes=limits.upload_bytes, media_types=list(MEDIA_TYPES.values()), neighbours=MOST_NEIGHBOURS,
            examples=[answers.Image(**telling.named(entry)) for entry in entries],
        )  # fmt: skip

    return router
