"""Pages: self-contained, escaped, complete, the same every time, and readable on a narrow screen."""

import base64
import io
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_examples import full, method, peaked, picture

from tests.browser import VIEWS, accessibility_failures, launched, low_contrast, opened, overflow
from winnow.index import Entry, Hits
from winnow.report import Comparison, HeatMap, Method, MethodRun, Neighbor, Prototype, Query, write_comparison
from winnow.report.heatmaps import colors, heat_image
from winnow.report.pages import balanced_columns, data_uri, flatten, write_search_page

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Collects a page's elements and checks that they are well nested."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.nested = True
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        self.nested &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def said(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def written(folder: Path, comparison: Comparison) -> str:
    path = folder / "new folder" / "report.html"
    write_comparison(path, comparison)
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


def test_the_page_asks_nothing_of_the_outside(tmp_path):
    source = written(tmp_path, full())
    page = Page(source)
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "xlink:href", "action", "poster", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, name, value)
    assert not page.all("script")
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert all(inside.strip("'\" ").startswith(("#", "data:")) for inside in re.findall(r"url\(([^)]*)\)", source))
    assert "@import" not in source
    assert "http://" not in source
    assert "https://" not in source
    policy = [meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0]["content"].startswith("default-src 'none'")


def test_every_image_travels_in_the_page_and_says_what_it_shows(tmp_path):
    page = Page(written(tmp_path, full()))
    figures = [image for image in page.all("img") if image["src"].startswith("data:image/svg+xml;base64,")]
    assert len(figures) == 2
    assert all(figure["alt"].strip() for figure in figures)
    images = [image for image in page.all("img") if image not in figures]
    # Examples 3, the query, 2 x 4 neighbors, heat maps 1 + 2, patches 5 + 1.
    assert len(images) == 3 + 1 + 8 + 3 + 6
    for image in images:
        assert image["alt"].strip()
        kind, _, data = image["src"].partition(";base64,")
        assert kind == "data:image/webp"
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as decoded:
            assert f"{decoded.width}x{decoded.height}" == f"{image['width']}x{image['height']}" == "24x18"


def test_the_page_is_well_formed_and_its_ids_are_unique(tmp_path):
    page = Page(written(tmp_path, full()))
    assert page.nested
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for _, attributes in page.elements if attributes.get("href", "").startswith("#")]
    assert len(targets) > 4
    assert set(targets) <= set(ids)
    assert [level for level, _ in page.elements if level in ("h1", "h2")] == ["h1"] + 7 * ["h2"]
    assert len(page.all("title")) == len(page.all("main")) == len(page.all("header")) == 1


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'&amp; </style>"])
def test_hostile_texts_stay_texts(tmp_path, hostile):
    plain, attacked = Page(written(tmp_path / "a", full())), Page(written(tmp_path / "b", full(hostile=hostile)))
    shape = [(tag, sorted(attributes)) for tag, attributes in plain.elements if tag in ("img", "script", "style", "li")]
    found = [
        (tag, sorted(attributes)) for tag, attributes in attacked.elements if tag in ("img", "script", "style", "li")
    ]
    assert shape == found
    assert attacked.nested
    assert attacked.said.count(hostile) > 15
    assert any(hostile in image["alt"] for image in attacked.all("img"))


def test_relevance_is_shown_by_more_than_color(tmp_path):
    source = written(tmp_path, full())
    neighbors = re.findall(r'<li class="(neighbor[^"]*)">(.*?)</li>', source, flags=re.DOTALL)
    assert len(neighbors) == 8
    for number, (classes, inside) in enumerate(neighbors):
        rank, relevant = number % 4, number % 2 == 0
        assert ("✓" in inside) == relevant
        assert ("✗" in inside) == (classes == "neighbor wrong") == (not relevant)
        (alt,) = re.findall(r'alt="([^"]*)"', inside)
        assert alt.startswith("not ") == (not relevant)
        assert f"thing {rank}, rank {rank + 1}, distance 0.{rank}0" in alt
    assert source.count("2 of 4 relevant") == 2


def test_a_uniform_pooling_is_shown_once(tmp_path):
    comparison = full()
    flat, peak = np.full((6, 8), 1 / 48), peaked()
    maps = [HeatMap(picture(k), f"image {k}", {"average pooling": flat, "GSP": peak}) for k in range(5)]
    alts = [
        image["alt"]
        for image in Page(written(tmp_path, Comparison("t", "s", comparison.methods, heatmaps=maps))).all("img")
    ]
    assert sum(alt.startswith("average pooling over") for alt in alts) == 1
    assert sum(alt.startswith("GSP over") for alt in alts) == 5
    times = peak.max() * 48
    assert all(f"at most {times:.1f} times" in alt for alt in alts if alt.startswith("GSP over"))


def test_all_content_is_on_the_page(tmp_path):
    page = Page(written(tmp_path, full()))
    for text in (
        "A comparison", "What it is about.", "And more.", "Keeps what matters.", "Tuned on validation classes.",
        "pretrained", "23.67 ± 3.21", "+12.33 [7.16, 17.50]", "12.5% of the weight", "Prototype 3", "pooling.mu", "0.3",
        "[0, 1, 2]", "winnow demo", "machine.cores", "winnow serve",
    ):  # fmt: skip
        assert text in page.said, text
    assert page.all("details")
    bars, curves = (image["alt"] for image in page.all("img") if image["src"].startswith("data:image/svg"))
    assert "average pooling 11.3%, GSP 23.7%" in bars
    assert "average pooling 11.3%, GSP 23.7%" in curves  # the last validation of the examples is their result


@pytest.mark.parametrize("count", [1, 3])
def test_a_bare_comparison_has_no_empty_sections(tmp_path, count):
    page = Page(written(tmp_path, Comparison("t", "s", [method("GSP", [0.2, 0.3, 0.1][:count])])))
    assert [one["id"] for one in page.all("section")] == ["task", "results"]
    assert len(page.all("nav")) == 1
    assert len(page.all("a")) == 2
    assert len(page.all("img")) == 2
    assert ("±" in page.said) == (count > 1)
    assert "nan" not in page.said.lower()
    assert "None" not in page.said


def test_runs_without_history_have_no_curves(tmp_path):
    runs = [MethodRun(0, {"MAP@R": 0.1}, [], 1.0), MethodRun(1, {"MAP@R": 0.2}, [{"step": 1, "loss": 2.0}], 1.0)]
    page = Page(written(tmp_path, Comparison("t", "s", [Method("GSP", "m", runs)])))
    assert len(page.all("img")) == 1


def test_queries_without_neighbors_and_prototypes_without_weight(tmp_path):
    comparison = Comparison(
        "t", "", full().methods, queries=[Query(picture(1), "lonely", {"GSP": []})],
        prototypes=[Prototype(0, 0.0, [])],
    )  # fmt: skip
    page = Page(written(tmp_path, comparison))
    assert "0 of 0 relevant" in page.said
    assert "0.0% of the weight" in page.said


def test_the_same_comparison_gives_the_same_bytes(tmp_path):
    first = written(tmp_path / "a", full())
    assert first == written(tmp_path / "b", full())
    assert first != written(tmp_path / "c", full(gsp=[0.20, 0.26, 0.26]))


def test_large_images_are_made_smaller_and_keep_their_shape():
    def decoded(uri: str) -> Image.Image:
        return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))

    big = Image.new("RGB", (1000, 500), "red")
    assert decoded(data_uri(big, side=200)).size == (200, 100)
    assert big.size == (1000, 500)
    assert decoded(data_uri(Image.new("L", (30, 20), 80), side=200)).size == (30, 20)
    clear = decoded(data_uri(Image.new("RGBA", (8, 8), (255, 0, 0, 0))))
    assert clear.convert("RGBA").getpixel((4, 4))[3] == 0


def test_nested_settings_have_names_with_dots():
    pairs = list(flatten({"a": {"b": {"c": 1}, "d": None}, "e": {}, "f": [1, 2]}))
    assert pairs == [("a.b.c", "1"), ("a.d", "–"), ("e", "–"), ("f", "[1, 2]")]


def test_columns_are_balanced():
    assert [balanced_columns(count, 4) for count in (0, 1, 4, 5, 6, 8, 9, 10)] == [1, 1, 4, 3, 3, 4, 3, 4]


def searched(folder: Path, label: str, query: str) -> Path:
    """Write the page of two queries: a file, and an entry of the index that finds another class and its own."""
    stored = io.BytesIO()
    picture(0).save(stored, "JPEG")
    labels = [label, label, "other", None]
    entries = [Entry(k, f"/photos/{one}/{k}.jpg", one, "", stored.getvalue()) for k, one in enumerate(labels)]

    class Stored:
        path = Path("photos.index")

        def __len__(self) -> int:
            return len(entries)

        def entry(self, number: int) -> Entry:
            return entries[number]

    picture(1).save(folder / query)
    ids, distances = np.array([[0, 2, 3, -1], [1, 2, 3, -1]]), np.array([[0.1, 0.5, 0.7, np.inf]] * 2)
    path = folder / "found.html"
    write_search_page(
        path, Stored(), [str(folder / query), label], [None, 0], Hits(ids, distances), note="re-ranked: aqe"
    )
    return path


def test_a_search_page_shows_queries_and_neighbors(tmp_path):
    hostile = "<script>alert(1)</script>"
    source = searched(tmp_path, hostile, "query.png").read_text()
    page = Page(source)
    assert page.nested
    assert not page.all("script")
    assert page.said.count(hostile) == 2
    assert "re-ranked: aqe" in page.said
    classes = re.findall(r'<li class="(neighbor[^"]*)">', source)
    # The class of a file is unknown; an entry has a class, and so have two of its neighbors.
    assert classes == ["neighbor plain"] * 3 + ["neighbor", "neighbor wrong", "neighbor plain"]
    assert all(image["alt"] and image["src"].startswith("data:") for image in page.all("img"))
    assert len(page.all("img")) == 2 + 6


def test_importing_the_report_does_not_import_matplotlib():
    code = "import sys, winnow.report; sys.exit('matplotlib' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=False
        ).returncode
        == 0
    )


@pytest.mark.slow
@pytest.mark.browser
def test_pages_fit_narrow_screens_and_long_names_stay_next_to_their_picture(tmp_path):
    name = "043.Yellow_bellied_Flycatcher_of_the_eastern_woods"
    found = searched(tmp_path, name, f"{name}_0001_795488.png")
    written(tmp_path, full(hostile=" (projected map, 512-D)"))
    with launched() as browser:
        for width in (390, 1280):
            tab = browser.new_page(viewport={"width": width, "height": 800})
            for path in (found, tmp_path / "new folder" / "report.html"):
                tab.goto(path.as_uri())
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
            tab.goto(found.as_uri())
            wide = tab.locator("figure, .neighbor").evaluate_all(
                "all => all.map(one => one.scrollWidth - one.clientWidth)"
            )
            assert len(wide) == 2 + 6
            assert max(wide) <= 6  # by as much the mark stands out
            tab.close()


def weighted() -> Comparison:
    """Make a comparison of three methods with the weights of all queries and neighbors."""
    methods = [method("GAP", [0.1]), method("GMP", [0.2]), method("GSP", [0.3])]
    found = [Neighbor(picture(k), k % 2 == 0, 0.1 * k, f"thing {k}", peaked()) for k in range(3)]
    queries = [
        Query(picture(9 + k), f"query {k}", {one.name: found for one in methods}, {"GSP": peaked()}) for k in range(5)
    ]
    maps = [HeatMap(picture(5), "image", {"GMP": peaked(), "GSP": peaked()})]
    return Comparison("t", "s", methods, queries=queries, heatmaps=maps)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("view", VIEWS)
def test_the_report_is_accessible_and_fits(tmp_path, view):
    for number, comparison in enumerate((full(), weighted())):
        written(tmp_path / str(number), comparison)
        address = (tmp_path / str(number) / "new folder" / "report.html").as_uri()
        with launched() as browser, opened(browser, address, address, **view) as tab:
            assert overflow(tab) == 0
            assert low_contrast(tab) == []
            assert accessibility_failures(tab) == []


@pytest.mark.slow
@pytest.mark.browser
def test_methods_are_switched_queries_fold_and_pictures_enlarge_without_a_script(tmp_path):
    written(tmp_path, weighted())
    address = (tmp_path / "new folder" / "report.html").as_uri()
    with launched() as browser, opened(browser, address, address, viewport={"width": 1280, "height": 900}) as tab:
        rows = tab.locator(".found:visible h3")
        assert [text.split()[0] for text in rows.all_text_contents()] == 3 * ["GAP2", "GSP2"]  # the reference, the best
        tab.get_by_label("GMP", exact=True).check()
        tab.get_by_label("GAP", exact=True).uncheck()
        assert [text.split()[0] for text in rows.all_text_contents()] == 3 * ["GMP2", "GSP2"]
        assert tab.locator(".row:visible figcaption:visible").all_text_contents() == ["Image", "GMP", "GSP"]
        tab.get_by_text("2 more queries").click()
        assert rows.count() == 2 * 5
        picture = tab.locator(".neighbor:visible .stack").first
        heat = picture.locator(".heat")
        small = picture.bounding_box()
        assert not heat.is_visible()
        picture.click()
        tab.mouse.move(1, 1)
        assert picture.bounding_box()["width"] > 4 * small["width"]
        assert heat.evaluate("one => getComputedStyle(one).opacity") == "0.54"
        assert heat.bounding_box() == picture.locator("img").first.bounding_box()
        picture.click()
        assert picture.bounding_box()["width"] == small["width"]


def test_heat_maps_of_enlarged_pictures_have_the_colors_of_the_scale():
    weights = np.zeros((4, 4))
    weights[0, 0] = 1.0
    pixels = np.asarray(heat_image(weights, side=4), dtype=float) / 255
    np.testing.assert_allclose(pixels[0, 0], colors(np.array([16.0]))[0], atol=0.01)
    np.testing.assert_allclose(pixels[3, 3], colors(np.array([0.0]))[0], atol=0.01)
    assert heat_image(np.ones((4, 8))).size == (48, 24)
