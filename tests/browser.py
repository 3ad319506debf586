"""Pages in headless Chromium: what they load, log, and lay out, and the contrast of their text.

Tests that use it have the marker `browser`; `tests/conftest.py` skips them where Chromium or Playwright is missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
VIEWS = [
    pytest.param({**size, "color_scheme": scheme}, id=f"{name}-{scheme}")
    for name, size in (("phone", PHONE), ("desktop", DESKTOP))
    for scheme in ("light", "dark")
]


@contextmanager
def launched() -> Iterator[Any]:
    """Run Chromium."""
    from playwright import sync_api

    sync_api.expect.set_options(timeout=20_000)
    with sync_api.sync_playwright() as playwright:
        # Tests may run as root in a container, where Chromium's own sandbox cannot be set up.
        flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


def expect(found: Any) -> Any:
    """Return Playwright's assertions on a locator or page."""
    from playwright import sync_api

    return sync_api.expect(found)


@contextmanager
def opened(browser: Any, address: str, origin: str, **settings: Any) -> Iterator[Any]:
    """Open a page; afterwards nothing may have been logged as an error, or requested from another origin."""
    context = browser.new_context(**settings)
    page = context.new_page()
    page.set_default_timeout(20_000)
    complaints: list[str] = []
    strangers: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: None if own(request.url, origin) else strangers.append(request.url))
    page.goto(address)
    page.complaints = complaints
    yield page
    context.close()
    assert complaints == []
    assert strangers == []


def own(url: str, origin: str) -> bool:
    return url.startswith((origin, "blob:", "data:"))


def overflow(page: Any) -> int:
    """Return the number of pixels by which a page is wider than its window."""
    pixels: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return pixels


_CONTRAST = """() => {
  const scratch = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const channels = (text) => {  // any CSS color as sRGB with alpha
    scratch.clearRect(0, 0, 1, 1);
    scratch.fillStyle = text;
    scratch.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = scratch.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((value, i) => a * value + (1 - a) * below[i]);
  const ground = (one) => {
    if (!one) return matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
    const color = channels(getComputedStyle(one).backgroundColor);
    return color[3] === 1 ? color.slice(0, 3) : over(color, ground(one.parentElement));
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const failures = [];
  for (const one of document.querySelectorAll('body *')) {
    const words = [...one.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join('').trim();
    if (!words || !one.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (one.closest('script, style, noscript, [disabled], [aria-hidden=true] svg, select')) continue;
    const style = getComputedStyle(one);
    if (style.clipPath !== 'none') continue;
    const below = ground(one);
    const paint = one.closest('svg') ? style.fill : style.color;
    if (paint === 'none') continue;
    const [light, dark] = [luminance(over(channels(paint), below)), luminance(below)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5) - 0.005) failures.push(`${ratio.toFixed(2)}: ${words.slice(0, 60)}`);
  }
  return failures;
}"""


def low_contrast(page: Any) -> list[str]:
    """Return visible texts whose contrast with their background is below 4.5 (large text: 3), as in WCAG 2.1, 1.4.3."""
    failures: list[str] = page.evaluate(_CONTRAST)
    return failures


def accessibility_failures(page: Any) -> list[str]:
    """Return the rules of axe-core (WCAG 2.2, levels A and AA) that a page breaks, each with the first elements."""
    script = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script)  # unlike a script element, it is not subject to the page's security policy
    levels = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    options = {"runOnly": {"type": "tag", "values": levels}, "resultTypes": ["violations"]}
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{one['id']}: {one['help']} ({len(one['nodes'])}): "
        + "; ".join(node["html"][:160] for node in one["nodes"][:3])
        for one in found["violations"]
    ]
