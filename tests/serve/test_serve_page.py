"""The search page in headless Chromium: uploads, addresses, sliders, heat maps, prototypes, a token, a phone."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import PHONE, VIEWS, accessibility_failures, expect, launched, low_contrast, opened, overflow
from tests.serve.samples import served
from winnow.index import Index
from winnow.serve import Limits

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def service(index: Index) -> Iterator[str]:
    with served(index) as address:
        yield address


@pytest.fixture
def page(browser: Any, service: str) -> Iterator[Any]:
    with opened(browser, service, service) as page:
        yield page


def upload(page: Any, photos: Path, name: str = "class_2/1.png") -> None:
    page.locator("#file").set_input_files(photos / name)
    expect(page.locator("#status")).to_contain_text("20 images")


def heat(page: Any, where: str) -> list[int]:
    """Return the pixels of a heat map."""
    script = "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    pixels: list[int] = page.locator(f"{where} canvas").first.evaluate(script)
    return pixels


def test_an_upload_finds_its_own_class(page: Any, photos: Path) -> None:
    expect(page.locator("#about")).to_have_text("20 images, pooled by GSP")
    expect(page.locator("#found li")).to_have_count(12)  # to start with
    upload(page, photos)
    expect(page.get_by_role("heading", name="Nearest images")).to_be_visible()
    tiles = page.locator("#found button")
    expect(tiles).to_have_count(20)
    assert re.match(r"class_2, class_2/1.png, distance 0.00\d", tiles.first.get_attribute("aria-label"))
    expect(page.locator("#shown img")).to_have_attribute("alt", "Query: 1.png")
    assert len(set(heat(page, "#shown"))) > 3
    expect(page.locator("#concentration")).to_contain_text("locations hold half of the weight")
    # the heat map lies over what the model is shown, the middle of the picture
    picture, canvas = (page.locator(f"#shown {part}").bounding_box() for part in ("img", "canvas"))
    assert canvas["width"] / picture["width"] == pytest.approx(32 / 50, abs=0.02)
    assert canvas["x"] - picture["x"] == pytest.approx(picture["width"] * 9 / 50, abs=2)


def test_heat_maps_are_off_until_the_pointer_the_focus_or_the_check_box_asks(page: Any, photos: Path) -> None:
    upload(page, photos)
    page.mouse.move(0, 0)
    tiles = page.locator("#found button")
    expect(page.locator("#shown canvas")).to_have_css("opacity", "0")
    expect(page.locator("#found .frame.mapped")).to_have_count(0)  # not even computed
    page.locator("#shown").hover()
    expect(page.locator("#shown canvas")).to_have_css("opacity", "0.54")
    tiles.nth(3).locator(".picture").hover()
    expect(tiles.nth(3).locator("canvas")).to_have_css("opacity", "0.54")
    expect(page.locator("#found .frame.mapped")).to_have_count(1)
    page.get_by_label("Heat maps").check()
    expect(page.locator("#found .frame.mapped")).to_have_count(20)
    expect(tiles.nth(7).locator("canvas")).to_have_css("opacity", "0.54")
    expect(page.locator("#scale")).to_contain_text("weight / mean weight")
    page.get_by_label("Heat maps").uncheck()
    page.mouse.move(0, 0)
    expect(tiles.nth(7).locator("canvas")).to_have_css("opacity", "0")


def test_colors_are_those_of_reports(page: Any) -> None:
    import numpy as np

    from winnow.report.heatmaps import colors

    weights = [0.0, 0.5, 1.0, 2.0, 3.3, 4.0, 9.0]
    drawn = page.evaluate("async (w) => { const { color } = await import('/heat.js'); return w.map(color); }", weights)
    np.testing.assert_allclose(np.array(drawn) / 255, colors(np.array(weights)), atol=0.03)


def test_the_address_holds_query_and_settings(page: Any, browser: Any, service: str) -> None:
    expect(page.locator("#found li")).to_have_count(12)
    page.locator("#found button").nth(1).click()
    page.get_by_label("Fraction kept").fill("0.5")
    page.get_by_label("Results").select_option("10")
    page.get_by_label("Heat maps").check()
    expect(page.locator("#found li")).to_have_count(10)
    expect(page.locator("#found .frame.mapped")).to_have_count(10)
    name, words = page.locator("#query-name").text_content(), page.locator("#concentration").text_content()
    found = page.locator("#found .name").all_text_contents()
    address = page.url

    def same(page: Any) -> None:
        expect(page.locator("#found .frame.mapped")).to_have_count(10)
        expect(page.locator("#query-name")).to_have_text(name)
        expect(page.locator("#concentration")).to_have_text(words)
        expect(page.locator("#mu-value")).to_have_text("50%")
        assert page.locator("#found .name").all_text_contents() == found

    page.reload()
    same(page)
    with opened(browser, address, service) as other:
        same(other)
    page.locator("#found button").nth(2).click()
    expect(page.locator("#query-name")).not_to_have_text(name)
    page.go_back()
    same(page)


def test_an_upload_survives_a_reload_while_the_service_caches_it(page: Any, photos: Path, browser: Any) -> None:
    upload(page, photos)
    page.wait_for_function("Object.keys(sessionStorage).some((key) => key.startsWith('winnow-upload-'))")
    page.reload()
    expect(page.locator("#status")).to_contain_text("20 images")
    expect(page.locator("#query-name")).to_have_text("1.png")
    page.wait_for_function("document.querySelector('#shown img')?.naturalWidth > 0")
    page.goto(page.url.partition("?")[0] + "?upload=" + "0" * 64)
    expect(page.get_by_role("alert")).to_contain_text("Choose the image again")
    assert all("404" in line for line in page.complaints)
    page.complaints.clear()


@pytest.mark.parametrize("view", VIEWS)
def test_the_layout(browser: Any, service: str, photos: Path, view: dict[str, Any]) -> None:
    with opened(browser, service, service, **view) as page:
        for name in ("class_2/1.png", None):
            if name:
                upload(page, photos, name)
            else:
                page.get_by_label("Heat maps").check()
            assert overflow(page) == 0
            assert low_contrast(page) == []
            assert accessibility_failures(page) == []
        first = page.locator("#found .picture").first.bounding_box()
        assert first["y"] + first["height"] < view["viewport"]["height"], "the first screen shows the nearest images"
        title, boxes = (page.locator(f"#{name}").bounding_box() for name in ("found-title", "k"))
        assert boxes["y"] < title["y"] + title["height"], "the settings of the list lie next to its title"


def test_long_labels_wrap_and_are_whole_under_the_pointer(page: Any) -> None:
    label = "a_very_long_label_of_one_word_" * 6
    expect(page.locator("#found li")).to_have_count(12)
    name = page.locator("#found .name").first
    name.evaluate("(one, label) => { one.textContent = label; }", label)
    cut = "(one) => one.scrollHeight > one.clientHeight"
    assert name.evaluate(cut)
    assert overflow(page) == 0
    page.locator("#found .picture").first.hover()
    assert not name.evaluate(cut)


def test_names_break_after_their_words(page: Any) -> None:
    expect(page.locator("#found li")).to_have_count(12)
    expect(page.get_by_label("Results")).to_be_hidden()  # the examples have a number of their own
    name = "Black_footed-Albatross/Black_Footed_0016.webp"
    script = """async (name) => {
      const { breakable } = await import('/tiles.js');
      const whole = document.createElement('p');
      whole.append(...breakable(name));
      return [whole.textContent, whole.innerHTML];
    }"""
    text, html = page.evaluate(script, name)
    assert text == name
    assert html == "Black_<wbr>footed-<wbr>Albatross/<wbr>Black_<wbr>Footed_<wbr>0016.<wbr>webp"


def test_sliders_change_the_selection_and_can_be_taken_back(page: Any, photos: Path) -> None:
    upload(page, photos)
    before, words = heat(page, "#shown"), page.locator("#concentration").text_content()
    expect(page.locator("#reset")).to_be_disabled()
    page.get_by_label("Fraction kept").fill("1")
    expect(page.locator("#mu-value")).to_have_text("100%")
    expect(page.locator("#concentration")).not_to_have_text(words)
    even = heat(page, "#shown")
    assert even == even[:4] * (len(even) // 4)  # everything counts alike
    expect(page.locator("#concentration")).to_have_text("All locations have the same weight.")
    expect(page.locator("#status")).to_contain_text("20 images")
    page.locator("#reset").click()
    expect(page.locator("#concentration")).to_have_text(words)
    assert heat(page, "#shown") == before


def test_an_image_may_be_chosen_before_the_settings_arrive(page: Any, photos: Path) -> None:
    held: list[Any] = []
    page.route("**/api/about", lambda route: held.append(route))
    page.reload()
    upload(page, photos)
    held.pop().continue_()
    expect(page.locator("#selection")).to_be_visible()
    expect(page.locator("#reset")).to_be_disabled()
    expect(page.locator("#mu-value")).not_to_have_text("")


def test_a_neighbor_is_searched_with_and_back_goes_back(page: Any, photos: Path) -> None:
    upload(page, photos)
    second = page.locator("#found button").nth(1)
    name = second.get_attribute("aria-label").split(", ")[1]
    second.click()
    expect(page.locator("#query-file")).to_have_text(name)
    expect(page.locator("#found li")).to_have_count(19)  # without itself
    page.go_back()
    expect(page.locator("#query-name")).to_have_text("1.png")
    expect(page.locator("#found li")).to_have_count(20)
    page.go_back()
    expect(page.get_by_role("heading", name="Try one of these images")).to_be_visible()


def test_a_prototype_shows_the_images_that_match_it_best(page: Any, photos: Path) -> None:
    upload(page, photos)
    listed = page.locator("#prototype-list button")
    expect(listed).to_have_count(4)
    shares = [float(text.rstrip("%")) for text in page.locator("#prototype-list .number").all_text_contents()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=1.5)
    expect(page.locator("#prototypes-about")).to_have_text(re.compile("in the query\\.$"))  # all are scanned
    listed.first.click()
    dialog = page.get_by_role("dialog", name=re.compile("Images that match prototype . best"))
    expect(dialog).to_be_visible()
    expect(dialog.locator(".frame.mapped")).to_have_count(18)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(listed.first).to_be_focused()
    listed.first.click()
    dialog.locator("#matched button").first.click()
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
    page.locator("#found button").first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Nearest images")).to_be_visible()
    expect(page.locator("#found li")).to_have_count(19)
    page.locator(".skip").focus()
    reached = ["skip"]
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "file", "mu", "eps", "heat", "k", "tile"} <= set(reached)


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
    with opened(browser, service, service, **{**PHONE, "color_scheme": "dark"}) as page:
        upload(page, photos)
        page.locator("#found button").nth(1).tap()
        expect(page.locator("#found li")).to_have_count(19)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 23, 28)"
        height = page.locator(".choose").bounding_box()["height"]
        assert height >= 44


def test_a_request_from_before_the_token_does_not_ask_for_it_again(index: Index, browser: Any, photos: Path) -> None:
    held: list[Any] = []
    with served(index, token="secret", limits=Limits()) as service, opened(browser, service, service) as page:
        page.route("**/api/search?*", lambda route: route.continue_() if held else held.append(route))
        page.get_by_label("Enter the access token").wait_for()
        page.locator("#file").set_input_files(photos / "class_2/1.png")
        page.get_by_label("Enter the access token").fill("secret")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#about")).to_contain_text("20 images")  # with the token
        assert held, "the search was sent without it"
        held[0].continue_()
        expect(page.locator("#status")).to_contain_text("20 images")
        assert all("401" in line for line in page.complaints)
        page.complaints.clear()


def test_the_token_is_asked_for_and_kept(index: Index, browser: Any, photos: Path) -> None:
    with served(index, token="geheim ß", limits=Limits()) as service:
        with opened(browser, service, service) as page:
            page.get_by_label("Enter the access token").fill("geheim ß")
            page.get_by_role("button", name="Continue").click()
            upload(page, photos)
            expect(page.locator("#found img").first).to_have_attribute("src", re.compile("^blob:"))
            # Waited for, because a second answer may put another picture in the place of one that is being decoded.
            page.wait_for_function("document.querySelector('#found img')?.naturalWidth > 0")
            assert all("401" in line for line in page.complaints)
            page.complaints.clear()
        with opened(browser, f"{service}/#token=geheim%20%C3%9F", service) as page:
            upload(page, photos)
            assert "geheim" not in page.url
