"""The page: self-contained, escaped, complete, the same every time."""

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
from report_examples import full, history, method, peaked, picture

from winnow.errors import DataError
from winnow.report import Comparison, HeatMap, Method, MethodRun, Prototype, Query, write_comparison
from winnow.report.page import balanced, data_uri, text, tree

VOID = {"meta", "link", "img", "br", "hr"}


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
    # Examples 3, the query, 2 x 4 neighbours, heat maps 1 + 2, patches 5 + 1.
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
    assert [level for level, _ in page.elements if level in ("h1", "h2")] == ["h1"] + 6 * ["h2"]
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


def test_right_and_wrong_differ_by_more_than_colour(tmp_path):
    source = written(tmp_path, full())
    neighbours = re.findall(r'<li class="(neighbour[^"]*)">(.*?)</li>', source, flags=re.DOTALL)
    assert len(neighbours) == 8
    for number, (classes, inside) in enumerate(neighbours):
        right = number % 4 % 2 == 0
        assert ("✓" in inside) == right
        assert ("✗" in inside) == (classes == "neighbour wrong") == (not right)
        assert f'alt="{"right" if right else "wrong"}: thing {number % 4}, distance 0.{number % 4}0"' in inside
    assert source.count("2 of 4 right") == 2


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


def test_it_says_everything(tmp_path):
    page = Page(written(tmp_path, full()))
    for words in (
        "A comparison", "What it is about.", "And more.", "average pooling", "Keeps what matters.", "untrained",
        "12.5\N{NO-BREAK SPACE}% of the weight", "Prototype 3", "pooling.mu", "0.3", "[0, 1, 2]", "winnow demo",
        "machine.cores", "3\N{NO-BREAK SPACE}seeds,\N{NO-BREAK SPACE}41\N{NO-BREAK SPACE}s\N{NO-BREAK SPACE}each.",
    ):  # fmt: skip
        plain = " ".join(words.split("\N{NO-BREAK SPACE}"))
        assert plain in page.said, words
    assert page.all("details")


@pytest.mark.parametrize("count", [1, 3])
def test_a_bare_comparison_has_no_empty_sections(tmp_path, count):
    page = Page(written(tmp_path, Comparison("t", "s", [method("GSP", [0.2, 0.3, 0.1][:count])])))
    assert [one["id"] for one in page.all("section")] == ["task", "numbers"]
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


def test_queries_without_neighbours_and_prototypes_without_share(tmp_path):
    comparison = Comparison(
        "t", "", full().methods, queries=[Query(picture(1), "lonely", {"GSP": []})],
        prototypes=[Prototype(0, 0.0, [])],
    )  # fmt: skip
    page = Page(written(tmp_path, comparison))
    assert "0 of 0 right" in page.said
    assert "0.0 % of the weight" in page.said


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


def test_nested_settings_are_named_by_their_way():
    said = tree({"a": {"b": {"c": 1}, "d": None}, "e": {}, "f": [1, 2]})
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", said)
    assert pairs == [("a.b.c", "1"), ("a.d", "–"), ("e", "–"), ("f", "[1, 2]")]


def test_text_escapes_and_keeps_per_cent_with_its_number():
    assert text('<b>"5 %" & more') == "&lt;b&gt;&quot;5&nbsp;%&quot; &amp; more"


def test_columns_are_balanced():
    assert [balanced(count, 4) for count in (0, 1, 4, 5, 6, 8, 9, 10)] == [1, 1, 4, 3, 3, 4, 3, 4]


def test_mistakes_have_a_sentence():
    run = MethodRun(0, {"MAP@R": 0.1}, history(0.1), 1.0)
    with pytest.raises(DataError, match="at least one method"):
        Comparison("t", "s", [])
    with pytest.raises(DataError, match="same name: GSP, GSP"):
        Comparison("t", "s", [Method("GSP", "m", [run]), Method("GSP", "m", [run])])
    with pytest.raises(DataError, match="'GSP' has no run"):
        Method("GSP", "m", [])
    with pytest.raises(DataError, match="same seed"):
        Method("GSP", "m", [run, run])
    with pytest.raises(DataError, match="seed 4 lacks the metric MAP@R"):
        Method("GSP", "m", [MethodRun(4, {"P@1": 0.1}, [], 1.0)])


def test_importing_the_report_does_not_import_matplotlib():
    code = "import sys, winnow.report; sys.exit('matplotlib' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=False
        ).returncode
        == 0
    )
