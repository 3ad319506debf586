"""The web page in real headless Chromium: an upload, searching on, sliders, prototypes, a token, a phone, a keyboard.

Needs Debian's `chromium` (or any Chromium or Chrome in the path) and Playwright's Python package.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.samples import served
from winnow.index import Index
from winnow.serve import Limits

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: no browser tests")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]
expect = sync_api.expect
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Tests may run as root in a container, where Chromium's own sandbox cannot be set up.
        flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def service(index: Index) -> Iterator[str]:
    with served(index) as address:
        yield address


@pytest.fixture
def page(browser: Any, service: str) -> Iterator[Any]:
    yield from opened(browser, service, service)


def opened(browser: Any, address: str, service: str, **settings: Any) -> Iterator[Any]:
    """Open the page; afterwards nothing may have gone wrong, and nothing been asked of anybody else."""
    context = browser.new_context(**settings)
    page = context.new_page()
    page.set_default_timeout(20_000)
    complaints: list[str] = []
    strangers: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: None if own(request.url, service) else strangers.append(request.url))
    page.goto(address)
    page.complaints = complaints
    yield page
    context.close()
    assert complaints == []
    assert strangers == []


def own(url: str, service: str) -> bool:
    return url.startswith((service, "blob:", "data:"))


def upload(page: Any, photos: Path, name: str = "class_2/1.png") -> None:
    page.locator("#file").set_input_files(photos / name)
    expect(page.locator("#status")).to_contain_text("20 images")


def heat(page: Any, where: str) -> list[int]:
    """Return the pixels of a heat map."""
    script = "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    pixels: list[int] = page.locator(f"{where} canvas").first.evaluate(script)
    return pixels


def test_an_upload_finds_its_own_class_and_shows_where_the_model_looks(page: Any, photos: Path) -> None:
    expect(page.locator("#about")).to_have_text("20 images, pooled by GSP")
    expect(page.locator("#found li")).to_have_count(12)  # to start with
    upload(page, photos)
    expect(page.get_by_role("heading", name="Nearest images")).to_be_visible()
    tiles = page.locator("#found button")
    expect(tiles).to_have_count(20)
    assert re.match(r"class_2, class_2/1.png, distance 0.00\d", tiles.first.get_attribute("aria-label"))
    expect(page.locator("#shown img")).to_have_attribute("alt", "Query: 1.png")
    expect(page.locator("#found .frame.mapped")).to_have_count(20)
    assert len(set(heat(page, "#shown"))) > 3
    expect(page.locator("#spread")).to_contain_text("Half of the weight lies on")
    # the heat map lies over what the model is shown, the middle of the picture
    picture, canvas = (page.locator(f"#shown {part}").bounding_box() for part in ("img", "canvas"))
    assert canvas["width"] / picture["width"] == pytest.approx(32 / 50, abs=0.02)
    assert canvas["x"] - picture["x"] == pytest.approx(picture["width"] * 9 / 50, abs=2)
    page.get_by_label("Heat map").uncheck()
    expect(page.locator("#shown canvas")).to_have_css("opacity", "0")


def test_sliders_change_the_selection_and_can_be_taken_back(page: Any, photos: Path) -> None:
    upload(page, photos)
    before, words = heat(page, "#shown"), page.locator("#spread").text_content()
    expect(page.locator("#reset")).to_be_disabled()
    page.get_by_label("Share kept").fill("1")
    expect(page.locator("#mu-value")).to_have_text("100 %")
    expect(page.locator("#spread")).not_to_have_text(words)
    even = heat(page, "#shown")
    assert even == even[:4] * (len(even) // 4)  # everything counts alike
    expect(page.locator("#status")).to_contain_text("20 images")
    page.locator("#reset").click()
    expect(page.locator("#spread")).to_have_text(words)
    assert heat(page, "#shown") == before


def test_a_neighbour_is_searched_with_and_back_goes_back(page: Any, photos: Path) -> None:
    upload(page, photos)
    second = page.locator("#found button").nth(1)
    name = second.get_attribute("aria-label").split(", ")[1]
    second.click()
    expect(page.locator("#query-name")).to_contain_text(f"({name})")
    expect(page.locator("#found li")).to_have_count(19)  # without itself
    page.go_back()
    expect(page.locator("#query-name")).to_have_text("1.png")
    expect(page.locator("#found li")).to_have_count(20)
    page.go_back()
    expect(page.get_by_role("heading", name="Start with one of these")).to_be_visible()


def test_a_prototype_shows_what_it_likes_best(page: Any, photos: Path) -> None:
    upload(page, photos)
    listed = page.locator("#prototype-list button")
    expect(listed).to_have_count(4)
    shares = [float(text.rstrip(" %")) for text in page.locator("#prototype-list .number").all_text_contents()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=1.5)
    expect(page.locator("#prototypes-about")).to_have_text(re.compile("likes best\\.$"))  # all were looked at
    listed.first.click()
    dialog = page.get_by_role("dialog", name=re.compile("What prototype . likes best"))
    expect(dialog).to_be_visible()
    expect(dialog.locator(".frame.mapped")).to_have_count(18)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(listed.first).to_be_focused()
    listed.first.click()
    dialog.locator("#liked button").first.click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#found li")).to_have_count(19)


def test_prototypes_without_a_picture_yet_are_not_shown_as_broken(page: Any) -> None:
    page.route(
        "**/api/prototypes",
        lambda route: route.fulfill(
            json={"prototypes": [{"prototype": 0, "share": 0.0, "best": []}], "looked_at": 0, "of": 20}
        ),
    )
    page.reload()
    picture = page.locator("#prototype-list img")
    expect(picture).to_have_count(1)
    assert picture.get_attribute("src") is None


TRANSFER = """([data, kind]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], kind + '.png', { type: 'image/png' }));
  const settings = { bubbles: true, cancelable: true };
  document.body.dispatchEvent(kind === 'paste'
    ? new ClipboardEvent('paste', { ...settings, clipboardData: transfer })
    : new DragEvent('drop', { ...settings, dataTransfer: transfer }));
}"""


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_images_are_pasted_and_dropped(page: Any, photo: bytes, way: str) -> None:
    expect(page.locator("#found li")).to_have_count(12)
    page.evaluate(TRANSFER, [base64.b64encode(photo).decode(), way])
    expect(page.locator("#query-name")).to_have_text(f"{way}.png")
    expect(page.locator("#found li")).to_have_count(20)


def test_what_cannot_be_read_is_told(page: Any, tmp_path: Path, photos: Path) -> None:
    (tmp_path / "broken.png").write_bytes((photos / "class_2" / "1.png").read_bytes()[:2000])
    page.locator("#file").set_input_files(tmp_path / "broken.png")
    expect(page.get_by_role("alert")).to_contain_text("cannot be decoded")
    assert any("422" in line for line in page.complaints)  # the browser's own word on a failed request
    page.complaints.clear()
    upload(page, photos)
    expect(page.get_by_role("alert")).to_have_text("")


def test_the_keyboard_reaches_everything(page: Any) -> None:
    expect(page.locator("#found li")).to_have_count(12)
    expect(page.locator("#prototype-list button")).to_have_count(4)
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "file", "mu", "eps", "heat", "k", "tile"} <= set(reached)
    page.locator("#found button").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Nearest images")).to_be_visible()


def test_every_control_and_picture_has_a_name(page: Any, photos: Path) -> None:
    upload(page, photos)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, img, [role]')].filter((one) => {
          if (one.matches('button img')) return false;  // the button says it
          if (one.matches('img')) return !one.alt;
          if (one.matches('[role=status], [role=alert]')) return false;
          return !(one.labels?.length || one.ariaLabel || one.textContent.trim());
        }).map((one) => one.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("h1").count() == 1


def test_a_phone(browser: Any, service: str, photos: Path) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    for page in opened(browser, service, service, **phone):
        upload(page, photos)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator("#found button").nth(1).tap()
        expect(page.locator("#found li")).to_have_count(19)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 23, 28)"
        height = page.locator(".choose").bounding_box()["height"]
        assert height >= 44


def test_a_request_from_before_the_token_does_not_ask_for_it_again(index: Index, browser: Any, photos: Path) -> None:
    held: list[Any] = []
    with served(index, token="secret", limits=Limits()) as service:
        for page in opened(browser, service, service):
            page.route("**/api/search?*", lambda route: held.append(route), times=1)
            page.get_by_label("asks for a token").wait_for()
            page.locator("#file").set_input_files(photos / "class_2/1.png")
            page.get_by_label("asks for a token").fill("secret")
            page.get_by_role("button", name="Go on").click()
            expect(page.locator("#about")).to_contain_text("20 images")  # with the token
            assert held, "the search was sent without it"
            held[0].continue_()
            expect(page.locator("#status")).to_contain_text("20 images")
            assert all("401" in line for line in page.complaints)
            page.complaints.clear()


def test_the_token_is_asked_for_and_kept(index: Index, browser: Any, photos: Path) -> None:
    with served(index, token="geheim ß", limits=Limits()) as service:
        for page in opened(browser, service, service):
            page.get_by_label("asks for a token").fill("geheim ß")
            page.get_by_role("button", name="Go on").click()
            upload(page, photos)
            expect(page.locator("#found img").first).to_have_attribute("src", re.compile("^blob:"))
            # Waited for, because a second answer may put another picture in the place of one that is being decoded.
            page.wait_for_function("document.querySelector('#found img')?.naturalWidth > 0")
            assert all("401" in line for line in page.complaints)
            page.complaints.clear()
        for page in opened(browser, f"{service}/#token=geheim%20%C3%9F", service):
            upload(page, photos)
            assert "geheim" not in page.url
