"""Requests generated from the service's own schema: no server error, and only responses that the schema lists."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.serve.samples import served
from winnow.index import Index
from winnow.serve import Limits

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

ROUTES = [
    ("/api/search", "POST"), ("/api/search/{key}", "GET"), ("/api/similar/{id}", "GET"), ("/api/weights", "GET"),
    ("/api/thumbnail/{id}", "GET"), ("/api/prototypes", "GET"), ("/api/prototypes/{prototype}", "GET"),
    ("/api/about", "GET"), ("/health", "GET"), ("/ready", "GET"), ("/metrics", "GET"),
]  # fmt: skip
MAGIC = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x00\x00\x00\x00WEBP", b"GIF89a", b"BM", b""]


@pytest.fixture(scope="module")
def schema(index: Index) -> Iterator[Any]:
    with served(index, limits=Limits(max_upload_bytes=100_000, max_pixels=100_000)) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_every_route_is_fuzzed(schema: Any) -> None:
    assert {(one.ok().path, one.ok().method.upper()) for one in schema.get_all_operations()} == set(ROUTES)


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_responses_conform_to_the_schema(schema: Any, path: str, method: str) -> None:
    fuzz(schema, path, method, examples=8)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_responses_to_many_requests_conform_to_the_schema(schema: Any, path: str, method: str) -> None:
    fuzz(schema, path, method, examples=40)


def fuzz(schema: Any, path: str, method: str, *, examples: int) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    chosen = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    operation = schema[path][method]
    modes = list(schemathesis.GenerationMode)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @given(cases, st.sampled_from(MAGIC), st.binary(max_size=200))
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def request(case: Any, magic: bytes, rest: bytes) -> None:
        if method == "POST":
            case.body, case.media_type = magic + rest, "image/png"
        case.call_and_validate(checks=chosen, timeout=60)

    request()
