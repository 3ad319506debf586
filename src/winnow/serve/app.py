"""The service as an ASGI app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse

import winnow
from winnow.index import Index
from winnow.serve import answers
from winnow.serve.guard import Guard
from winnow.serve.limits import Limits
from winnow.serve.metrics import Metrics
from winnow.serve.page import add_page
from winnow.serve.routes import api
from winnow.serve.service import Service
from winnow.serve.tastes import Tastes


def create_app(
    index: Index, *, limits: Limits | None = None, token: str | None = None, hosts: frozenset[str] | None = None
) -> FastAPI:
    """Return the service of an index, to be run by an ASGI server.

    Args:
        index: What is searched.
        limits: How much it takes on.
        token: What requests have to send as `Authorization: Bearer TOKEN`; None for nothing.
        hosts: Names it may be called by; None for any.
    """
    limits = limits or Limits()
    metrics = Metrics()
    service = Service(index, limits, metrics)
    tastes = Tastes(service, index.ids, limits)

    @asynccontextmanager
    async def at_work(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await tastes.stop()
        await service.stop()

    app = FastAPI(
        title="winnow",
        summary="Search an index of images by an image, and look at what the model looks at.",
        version=winnow.__version__,
        lifespan=at_work,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(Guard, limits=limits, metrics=metrics, hosts=hosts, token=token)
    app.include_router(api(service, tastes, limits))

    @app.exception_handler(RequestValidationError)
    async def say_what_is_wrong(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg']}"}, 422)

    @app.get("/health", tags=["service"])
    async def health() -> answers.Health:
        """Tell that the service is there; needs no token."""
        return answers.Health(entries=len(index))

    @app.get("/metrics", response_class=PlainTextResponse, tags=["service"])
    async def show_metrics() -> PlainTextResponse:
        """Tell counts and times in Prometheus' text format."""
        return PlainTextResponse(metrics.text(len(index)), media_type="text/plain; version=0.0.4; charset=utf-8")

    add_page(app)
    return app
