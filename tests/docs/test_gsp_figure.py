"""The interactive figure of the GSP page in headless Chromium: its numbers against `winnow.functional.gsp`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.browser import VIEWS, launched, low_contrast, opened, overflow
from winnow.functional import clip_norm, gsp, pairwise_distance
from winnow.functional.threshold import selection_threshold
from winnow.palette import palette_css

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "docs/assets"
SETTINGS = [(0.05, 20.0), (0.3, 5.0), (1.0, 20.0), (0.3, 0.0), (0.01, 60.0), (0.99, 60.0), (0.5, 0.5)]


def script() -> Any:
    path = ROOT / "scripts/build_gsp_figure.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    read: dict[str, Any] = script().read_data()
    return read


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write the block of the GSP page, with its assets, as a page of its own."""
    folder = tmp_path_factory.mktemp("page")
    markdown = (ROOT / "docs/concepts/gsp.md").read_text()
    block = re.search(r'^<link rel="stylesheet".*?gsp-figure\.js"></script>$', markdown, re.MULTILINE | re.DOTALL)
    assert block is not None
    (folder / "assets").symlink_to(ASSETS)
    page = folder / "concepts/gsp.html"
    page.parent.mkdir()
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>GSP</title>'
    head += '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
    page.write_text(
        f"{head}<style>{palette_css()}body {{ background: var(--page) }}</style></head><body>{block[0]}</body>"
    )
    return page.as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with opened(browser, address, "file:///") as page:
        yield page


def result(page: Any) -> dict[str, Any]:
    script = (
        "() => { const { tau, ...rest } = document.querySelector('.gsp-figure').result; return [rest, String(tau)]; }"
    )
    found, tau = page.evaluate(script)  # JSON has no infinity
    return {**found, "tau": tau.replace("Infinity", "inf")}


def expected(data: dict[str, Any], image: int, mu: float, eps: float) -> tuple[Any, Any, float]:
    """Return weights, attributes, and threshold by the library, from the stored features."""
    restore = script().restore
    features = torch.from_numpy(restore(data["images"][image]["features"]))[None]
    prototypes = torch.from_numpy(restore(data["prototypes"]))
    _, weights, attributes = gsp(features, prototypes, mu=mu, eps=eps)
    scores = (-eps * pairwise_distance(clip_norm(features), clip_norm(prototypes))).logsumexp(dim=2)
    tau = float(selection_threshold(scores, torch.tensor([[mu]], dtype=torch.float64), None)) if mu < 1 else np.inf
    return weights[0].numpy(), attributes[0].numpy(), tau


@pytest.mark.parametrize(("mu", "eps"), SETTINGS)
@pytest.mark.parametrize("image", [0, 3])
def test_the_page_computes_what_the_library_computes(
    page: Any, data: dict[str, Any], image: int, mu: float, eps: float
) -> None:
    page.locator(".choices button").nth(image).click()
    page.get_by_role("slider", name="Fraction kept").fill(str(mu))
    page.get_by_role("slider", name="Sharpness").fill(str(eps))
    found = result(page)
    assert (found["image"], found["mu"], found["eps"]) == (image, mu, eps)
    weights, attributes, tau = expected(data, image, mu, eps)
    np.testing.assert_allclose(found["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(found["attributes"], attributes, atol=1e-6)
    assert float(found["tau"]) == pytest.approx(tau, abs=1e-4)


def test_dragging_a_slider_changes_threshold_weights_and_attributes(page: Any, data: dict[str, Any]) -> None:
    before = result(page)
    assert (before["mu"], before["eps"]) == (data["mu"], data["eps"])  # starts with the settings of the model
    words = page.locator(".summary").text_content()
    heat = "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).reduce((a, b) => a + b)"
    painted = page.locator("canvas").evaluate(heat)
    box = page.get_by_role("slider", name="Fraction kept").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.05 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    page.mouse.up()
    after = result(page)
    assert after["mu"] == pytest.approx(0.6, abs=0.05)
    assert float(after["tau"]) > float(before["tau"])
    assert max(after["weights"]) < max(before["weights"])
    assert after["attributes"] != before["attributes"]
    assert page.locator(".summary").text_content() != words
    assert page.locator("canvas").evaluate(heat) != painted
    page.get_by_role("button", name="GAP").click()
    assert result(page)["weights"] == pytest.approx([1 / 64] * 64)


def test_the_pointer_reads_one_location(page: Any) -> None:
    box = page.locator(".frame").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.4 * box["height"])
    weight = result(page)["weights"][3 * 8 + 1] * 64
    assert f"This location: {weight:.2f} times the mean weight" in page.locator(".summary").text_content()
    assert page.locator(".cell").is_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_the_layout(browser: Any, address: str, view: dict[str, Any]) -> None:
    with opened(browser, address, "file:///", **view) as page:
        assert overflow(page) == 0
        assert low_contrast(page) == []
        nameless = page.locator(".gsp-figure :is(input, button):not([aria-label])").all_text_contents()
        assert all(nameless)


def test_features_survive_their_storage() -> None:
    values = np.random.default_rng(0).normal(size=(5, 7))
    np.testing.assert_allclose(script().restore(script().quantize(values)), values, atol=np.abs(values).max() / 65534)
