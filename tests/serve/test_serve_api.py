"""The HTTP API: neighbors, pooling weights, prototypes, metrics, and batching."""

import asyncio
import io
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from tests.serve.samples import CLASSES, IMAGES, encoded, tiny_model
from winnow.data import read_image
from winnow.functional import gsp
from winnow.index import Index
from winnow.serve import Limits, create_app
from winnow.serve.batching import Batcher

pytestmark = pytest.mark.filterwarnings("ignore:backbone .* starts from random weights")


def test_an_indexed_image_finds_itself_and_what_the_index_finds(client: TestClient, index: Index, photo: bytes) -> None:
    answer = client.post("/api/search", params={"k": 5}, content=photo)
    assert answer.status_code == 200, answer.text
    found = answer.json()["neighbours"]
    hits = index.search([Image.open(io.BytesIO(photo))], 5)
    assert [one["id"] for one in found] == hits.ids[0].tolist()
    np.testing.assert_allclose([one["distance"] for one in found], hits.distances[0], atol=1e-4)
    assert found[0]["distance"] == pytest.approx(0, abs=1e-3)
    assert found[0]["name"] == "class_2/1.png"
    assert found[0]["label"] == "class_2"


def test_every_app_has_its_own_metrics(client: TestClient, index: Index) -> None:
    client.get("/health")
    with TestClient(create_app(index)) as other:
        assert "winnow_requests_total{" not in other.get("/metrics").text
        assert 'winnow_requests_total{method="GET",route="/metrics",status="200"} 1.0' in other.get("/metrics").text


def test_no_response_contains_a_path_of_this_machine(client: TestClient, photos: Path, photo: bytes) -> None:
    assert str(photos) not in client.post("/api/search", params={"k": 20}, content=photo).text


def test_every_image_type_is_accepted(client: TestClient, photo: bytes) -> None:
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        assert client.post("/api/search", content=encoded(image, kind)).status_code == 200, kind


def test_weights_are_those_of_gsp_for_the_mu_and_eps_given(client: TestClient, index: Index, photo: bytes) -> None:
    model = index.model
    image = Image.open(io.BytesIO(photo))
    answer = client.post("/api/search", params={"mu": 0.6, "eps": 12}, content=photo).json()
    with torch.inference_mode():
        batch = next(iter(model._batches([image], 1)))
        local = model.head.project(model.backbone(batch))
        expected = gsp(local, model.head.pooling.prototypes, 0.6, 12.0)
        own = gsp(local, model.head.pooling.prototypes, 0.3, 5.0)
    heat = answer["query"]["heat_map"]
    assert heat["rows"] * heat["columns"] == local.shape[1]
    np.testing.assert_allclose(heat["values"], expected.weights[0] * local.shape[1], atol=2e-3)
    assert np.mean(heat["values"]) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(answer["query"]["attributes"], expected.attributes[0], atol=1e-4)
    vector = torch.nn.functional.normalize(expected.vector, dim=1).numpy()
    assert [one["id"] for one in answer["neighbours"]] == index.search(vector, 10).ids[0].tolist()
    assert not np.allclose(heat["values"], own.weights[0] * local.shape[1], atol=2e-2)
    again = client.get(f"/api/search/{answer['query']['key']}").json()
    assert (again["mu"], again["eps"]) == (0.3, 5.0)
    np.testing.assert_allclose(again["query"]["heat_map"]["values"], own.weights[0] * local.shape[1], atol=2e-3)


def test_the_box_is_the_region_of_the_image_that_enters_the_network(client: TestClient) -> None:
    """A 120 x 40 image is resized to 120 x 40 here (short side 40), and the crop is its middle 32 x 32."""
    answer = client.post("/api/search", content=encoded(Image.new("RGB", (120, 40), "red"))).json()
    box = answer["query"]["heat_map"]["box"]
    assert box == {"left": 44 / 120, "top": pytest.approx(0.1), "width": pytest.approx(32 / 120), "height": 0.8}
    longer = client.post("/api/search", content=encoded(Image.new("RGB", (1600, 40), "red"))).json()
    box = longer["query"]["heat_map"]["box"]
    assert box["left"] + box["width"] / 2 == pytest.approx(0.5)
    assert box["width"] == pytest.approx(32 / 1600)


def test_similar_is_without_the_image_itself(client: TestClient, index: Index) -> None:
    number = int(index.ids[7])
    answer = client.get(f"/api/similar/{number}", params={"k": 6}).json()
    hits = index.search(index.vectors([number]), 7)
    assert [one["id"] for one in answer["neighbours"]] == [one for one in hits.ids[0].tolist() if one != number][:6]
    assert answer["query"]["image"]["id"] == number
    assert answer["query"]["key"] is None
    all_others = client.get(f"/api/similar/{number}", params={"k": 100}).json()["neighbours"]
    assert len(all_others) == CLASSES * IMAGES - 1


def test_weights_of_indexed_images_follow_mu_and_eps(client: TestClient, index: Index) -> None:
    numbers = index.ids[[3, 11]].tolist()
    maps = client.get("/api/weights", params={"id": numbers}).json()
    for one, number in zip(maps, numbers, strict=True):
        assert one["id"] == number
        seen = index.model.explain([read_image(index.entry(number).path)])[0].weights
        np.testing.assert_allclose(one["heat_map"]["values"], seen.ravel() * seen.size, atol=2e-3)
    even = client.get("/api/weights", params={"id": numbers, "mu": 1}).json()
    np.testing.assert_allclose(even[0]["heat_map"]["values"], 1, atol=1e-3)


def test_the_thumbnail_of_a_changed_file_is_encoded(tmp_path: Path) -> None:
    file = tmp_path / "photos" / "a" / "0.png"
    file.parent.mkdir(parents=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(file)
    index = Index.build(tiny_model(num_prototypes=4, memory_size=16), tmp_path / "photos", tmp_path / "index")
    Image.new("RGB", (40, 40), "blue").save(file)
    number = int(index.ids[0])
    with TestClient(create_app(index)) as client:
        shown = client.get("/api/weights", params={"id": number}).json()[0]["heat_map"]["values"]
    small = Image.open(io.BytesIO(index.entry(number).thumbnail))
    seen = index.model.explain([small])[0].weights
    np.testing.assert_allclose(shown, seen.ravel() * seen.size, atol=2e-3)


def test_thumbnails(client: TestClient, index: Index) -> None:
    number = int(index.ids[0])
    answer = client.get(f"/api/thumbnail/{number}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.content == index.entry(number).thumbnail
    assert client.get("/api/thumbnail/999999").status_code == 404
    assert client.get(f"/api/thumbnail/{2**63 - 1}").status_code == 404
    assert client.get(f"/api/thumbnail/{2**64}").status_code == 422


def waited(client: TestClient) -> dict:
    for _ in range(100):
        answer = client.get("/api/prototypes").json()
        if answer["looked_at"] == answer["of"]:
            return answer
        time.sleep(0.05)
    raise AssertionError("the sample was not encoded within 5 s")


def test_prototypes_list_the_images_with_their_largest_attributes(client: TestClient, index: Index) -> None:
    answer = waited(client)
    images = [read_image(index.entry(int(number)).path) for number in index.ids]
    with torch.inference_mode():
        attributes = torch.cat(
            [index.model(b, return_details=True).attributes for b in index.model._batches(images, 8)]
        )
    shares = [one["share"] for one in answer["prototypes"]]
    np.testing.assert_allclose(shares, attributes.mean(dim=0), atol=1e-5)
    for one in answer["prototypes"]:
        best_matches = client.get(f"/api/prototypes/{one['prototype']}", params={"k": 4}).json()
        best = attributes[:, one["prototype"]].sort(descending=True)
        np.testing.assert_allclose([match["attribute"] for match in best_matches["images"]], best.values[:4], atol=1e-5)
        assert [match["id"] for match in best_matches["images"]] == one["best"]
        for match in best_matches["images"]:
            assert np.mean(match["heat_map"]["values"]) == pytest.approx(1, abs=1e-2)
    assert client.get("/api/prototypes/4").status_code == 404


@pytest.mark.parametrize("pooling", ["gap", "netvlad", "gmp_gsp", "gemean_gsp"])
def test_other_poolings(pooling: str, photos: Path, photo: bytes, tmp_path: Path) -> None:
    settings = {"num_prototypes": 4, "memory_size": 16} if "gsp" in pooling else {}
    index = Index.build(tiny_model(pooling, **settings), photos, tmp_path / "index")
    with TestClient(create_app(index)) as client:
        about = client.get("/api/about").json()
        assert about["pooling"] == pooling
        own = client.post("/api/search", content=photo).json()
        hits = index.search(index.model.encode(Image.open(io.BytesIO(photo))), 10)
        np.testing.assert_allclose([one["distance"] for one in own["neighbours"]], hits.distances[0], atol=1e-3)
        given = client.post("/api/search", params={"mu": 0.9, "eps": 1}, content=photo)
        if "gsp" in pooling:
            model = tiny_model(pooling, **{**settings, "mu": 0.9, "eps": 1.0})
            model.load_state_dict(index.model.state_dict())
            seen = model.explain([Image.open(io.BytesIO(photo))])[0].weights
            np.testing.assert_allclose(given.json()["query"]["heat_map"]["values"], seen.ravel() * seen.size, atol=2e-3)
        else:
            assert given.status_code == 422
            assert "mu and eps" in given.json()["detail"]
            assert client.get("/api/prototypes").status_code == 404
        assert (own["query"]["heat_map"] is None) == (pooling == "netvlad")


def test_prototypes_of_the_background(photos: Path, photo: bytes, tmp_path: Path) -> None:
    index = Index.build(tiny_model(num_prototypes=4, memory_size=16, role="background"), photos, tmp_path / "index")
    with TestClient(create_app(index)) as client:
        shown = client.post("/api/search", params={"mu": 0.3}, content=photo).json()["query"]["heat_map"]
        seen = index.model.explain([Image.open(io.BytesIO(photo))])[0].weights
        np.testing.assert_allclose(shown["values"], seen.ravel() * seen.size, atol=2e-3)
        assert client.post("/api/search", params={"mu": 1}, content=photo).status_code == 422


def test_health_metrics_and_schema(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok", "entries": CLASSES * IMAGES}
    text = client.get("/metrics").text
    assert f"winnow_index_entries {CLASSES * IMAGES}" in text
    assert 'winnow_requests_total{method="GET",route="/health",status="200"}' in text
    assert "winnow_batch_images_count" in text
    assert "winnow_requests_in_flight 0" in text
    assert 'winnow_request_seconds_bucket{le="0.005",route="/health"}' in text
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    assert kinds.items() >= {
        "winnow_requests_total": "counter", "winnow_request_seconds": "histogram", "winnow_batch_images": "histogram",
        "winnow_requests_in_flight": "gauge", "winnow_index_entries": "gauge",
    }.items()  # fmt: skip
    if sys.platform == "linux":
        assert float(re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)[1]) > 1e7
    client.get("/no/such/path")
    assert "no/such" not in client.get("/metrics").text
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]["/api/search"]["post"]["responses"]) >= {"200", "413", "415", "422", "429", "503"}
    assert "image/png" in schema["paths"]["/api/search"]["post"]["requestBody"]["content"]


def test_uploads_that_are_no_longer_cached_answer_404(index: Index, photo: bytes) -> None:
    with TestClient(create_app(index, limits=Limits(cache_bytes=1))) as client:
        key = client.post("/api/search", content=photo).json()["query"]["key"]
        assert client.get(f"/api/search/{key}").status_code == 200
        client.get("/api/weights", params={"id": int(index.ids[0])})
        assert client.get(f"/api/search/{key}").status_code == 404


def test_batches_collect_concurrent_items() -> None:
    sizes: list[int] = []

    async def ask() -> list[int]:
        batcher: Batcher[int, int] = Batcher(
            lambda items: [2 * n for n in items], max_size=4, wait_ms=50, on_batch=sizes.append
        )
        batcher.start()
        answers = await asyncio.gather(*map(batcher.submit, range(10)))
        await batcher.stop()
        return answers

    assert asyncio.run(ask()) == [2 * n for n in range(10)]
    assert sizes == [4, 4, 2]


def test_a_batch_waits_for_announced_items_only() -> None:
    sizes: list[int] = []

    async def later(batcher: Batcher[int, int], item: int) -> int:
        with batcher.announce():
            await asyncio.sleep(0.01)
        return await batcher.submit(item)

    async def ask() -> None:
        # A batch that waits without an announced item would time out.
        batcher: Batcher[int, int] = Batcher(
            lambda items: list(items), max_size=4, wait_ms=600_000, on_batch=sizes.append
        )
        batcher.start()
        async with asyncio.timeout(60):
            assert await batcher.submit(1) == 1
            late = asyncio.create_task(later(batcher, 3))
            await asyncio.sleep(0)
            assert await asyncio.gather(batcher.submit(2), late) == [2, 3]
        await batcher.stop()

    asyncio.run(ask())
    assert sizes == [1, 2]


def test_a_failed_batch_fails_its_own_items_only() -> None:
    def work(items: list[int]) -> list[float]:
        return [1 / n for n in items]

    async def ask() -> float:
        batcher: Batcher[int, float] = Batcher(work, max_size=1, wait_ms=0)
        batcher.start()
        with pytest.raises(ZeroDivisionError):
            await batcher.submit(0)
        given_up = asyncio.create_task(batcher.submit(3))
        given_up.cancel()
        answer = await batcher.submit(4)
        await batcher.stop()
        return answer

    assert asyncio.run(ask()) == 0.25
