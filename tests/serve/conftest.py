"""A small index: colors with noise, encoded by a network with random weights and initialized prototypes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.serve.samples import make_photos, tiny_model
from winnow.index import Index
from winnow.serve import Limits, create_app


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def index(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("served") / "index"
    Index.build(tiny_model(num_prototypes=4, memory_size=16), photos, path)
    return Index.open(path)


@pytest.fixture(scope="module")
def client(index: Index) -> Iterator[TestClient]:
    with TestClient(create_app(index, limits=Limits(max_upload_bytes=200_000, max_pixels=1_000_000))) as client:
        yield client


@pytest.fixture
def photo(photos: Path) -> bytes:
    return (photos / "class_2" / "1.png").read_bytes()
