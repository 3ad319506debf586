"""Documentation: its commands exist and its generated pages are complete; tests/docs runs its code."""

import importlib.util
import io
import os
import re
import subprocess
import sys
import tomllib
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import numpy as np
import pytest
import typer
from PIL import Image

import benchmarks.__main__
from tests.browser import (
    DESKTOP,
    PHONE,
    VIEWS,
    accessibility_failures,
    expect,
    launched,
    low_contrast,
    opened,
    overflow,
)
from tests.docs.blocks import FENCE, PAGES, ROOT, blocks, name, words_of
from winnow.cli.main import app
from winnow.cli.protocol import chapter_of
from winnow.losses import LOSSES
from winnow.miners import MINERS
from winnow.pooling import POOLINGS
from winnow.protocols import MethodSpec, find_backbone, find_dataset, find_protocol
from winnow.protocols.methods import is_method
from winnow.references import REFERENCES
from winnow.regularizers import REGULARIZERS
from winnow.studies import STUDIES
from winnow.training import load_config
from winnow.training.config import REGISTRIES, RunConfig, config_keys
from winnow.tuning import Search, parse_space


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMMANDS = [
    (page, words)
    for page in PAGES
    for block in blocks(page)
    for words in (words_of(line)[0] for line in block.commands())
    if words[0] not in ("cp", "curl") and (words[0] != "python" or words[1:3] == ["-m", "benchmarks"])
]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=name)
def test_commands_exist(page, words, tmp_path, monkeypatch):
    """Every command shown parses, also one that is not run: its subcommand, its options and its settings exist."""
    words = words[next(place for place, word in enumerate(words) if "=" not in word) :]
    if words[:2] == ["python3", "start.py"]:
        tasks = load(ROOT / "start.py").TASKS
        assert words[2] in tasks
        if words[2] != "run":
            return
        words = ["winnow", *words[3:]]
    if words[0] == "torchrun":
        module = words.index("-m")
        words = words[module + 1 :]
    program = app
    if words[:3] == ["python", "-m", "benchmarks"]:
        program, words = benchmarks.__main__.app, words[2:]
    else:
        assert words[0] == "winnow"
    command, rest = typer.main.get_command(program), words[1:]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    context = command.make_context(command.name, list(rest))
    settings = [word for word in context.params.get("words") or [] if "=" in word and not is_method(word)]
    if words[1] == "tune":
        space, settings = parse_space(settings)
        Search(None, settings, space, Path()).first_config()
    if words[1] == "study" and (study := context.params["name"]) is not None:
        assert study in (*STUDIES, "all")
    if words[1] == "protocol" and context.params["name"] is not None:
        monkeypatch.chdir(tmp_path)
        Path("photos").mkdir()  # the folder of one's own that pages speak of
        kind = find_protocol(context.params["name"], chapter_of(context.params["paper"]))
        on, network = find_dataset(context.params["dataset"]), find_backbone(context.params["backbone"])
        for method in (MethodSpec.parse(word) for word in context.params["words"] if is_method(word)):
            method.of_run(on, kind, network)
            settings += method.settings
    # A component that the page adds exists only after its blocks have run, which another test does.
    added = set(re.findall(r'\.add\("(\w+)"', (ROOT / page).read_text(encoding="utf-8")))
    load_config(None, [word for word in settings if word.partition("=")[2] not in added])


def test_every_command_is_shown():
    shown = {words[1] for _, words in COMMANDS if words[0] == "winnow"}
    assert shown == {name for name, command in typer.main.get_command(app).commands.items() if not command.hidden}


OLD_KEYS = {
    f"{section}.{old}"
    for section, field in RunConfig.model_fields.items()
    for kind in ([REGISTRIES[section][name] for name in REGISTRIES[section]] if section in REGISTRIES
                 else [field.annotation])
    for old in getattr(kind, "aliases", {})
}  # fmt: skip


def test_settings_named_in_text_exist():
    """`section.key` and `section.key=value` in backticks are settings of the config."""
    keys = {key.name for key in config_keys()}
    sections = {key.split(".")[0] for key in keys if "." in key}
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # versions before a rename have the old names
            keys = keys | OLD_KEYS
        for found in re.finditer(r"`(\w+)\.(\w+)(?:=[^`]*)?`", page.read_text()):
            if found[1] in sections:
                assert f"{found[1]}.{found[2]}" in keys, f"{name(page)}: {found[0]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT], ids=name)
def test_links_to_files_resolve(page):
    """Links of the files outside the site; those inside are checked by the strict build."""
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", FENCE.sub("", page.read_text())):
        assert (ROOT / target).exists(), target


def test_the_install_page_names_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(set(extras) - {"dev"})


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    # Not --quiet: it drops the warnings that make a strict build fail.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


class Requests(HTMLParser):
    """Collects the addresses that a browser fetches when it opens a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "src" or (tag == "link" and key == "href"):
                self.addresses.append(value or "")


@pytest.mark.slow
def test_generated_pages_are_complete(site):
    config = (site / "reference/config.html").read_text()
    for key in config_keys():
        assert f"<code>{key.name}</code>" in config
    for registry, folder in ((LOSSES, "losses"), (REFERENCES, "references"), (MINERS, "miners")):
        overview = (site / f"reference/{folder}.html").read_text()
        for part in registry:
            assert f'href="{folder}/{part}.html"' in overview
            html = (site / f"reference/{folder}/{part}.html").read_text()
            assert "<math" in html
            assert re.search("<strong>(Use when|When to use it):</strong>", html)
            names = [*(p.name for p in registry.parameters(part)), *(f"preset={p}" for p in registry.presets(part))]
            for named in names:
                assert f"<code>{registry.kind}.{named}</code>" in html
    for registry, page in ((POOLINGS, "poolings"), (REGULARIZERS, "regularizers")):
        html = (site / f"reference/{page}.html").read_text()
        for part in registry:
            assert f'id="{part}"' in html
            for setting in registry.parameters(part):
                assert f"<code>{registry.kind}.{setting.name}</code>" in html
    line = (site / "reference/cli.html").read_text()
    for command in typer.main.get_command(app).commands.values():
        if command.hidden:
            continue
        assert f'id="{command.name}"' in line
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help" and not parameter.hidden:
                assert f"<code>{parameter.opts[0]}" in line


@pytest.mark.slow
def test_every_study_has_a_page(site):
    overview = (site / "studies/index.html").read_text()
    for study in STUDIES:
        assert f'href="{study}.html"' in overview
        page = site / f"studies/{study}.html"
        figure = r'<a class="figure" href="([^"]+)" style="--width: \d+px"><img alt="[^"]+" src="([^"]+)"'
        shown = re.findall(figure, page.read_text())
        assert shown, study
        assert all(one == two and (page.parent / one).is_file() for one, two in shown)
        assert page.stat().st_size < 200_000, "a page is read at once; figures are files of their own"


@pytest.mark.slow
def test_the_site_has_six_tabs_whose_pages_exist(site):
    html = (site / "index.html").read_text()
    tabs = re.findall(r'class="md-tabs__link">\s*(.*?)\s*</a>', html)
    assert tabs == ["Get started", "Guides", "Concepts", "Results", "Reference", "Project"]


@pytest.mark.slow
def test_a_tooltip_explains_the_first_use_of_a_term(site):
    page = (site / "concepts/metric_learning.html").read_text()
    assert page.count('<abbr title="precision at the rank') == 1


@pytest.mark.slow
def test_pages_need_nothing_from_outside(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        html = page.read_text()
        assert not [a for a in Requests(html).addresses if a.startswith(("http:", "https:", "//"))], page
        assert 'class="arithmatex"' not in html, f"an equation of {page.name} is not set"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//", sheet.read_text()), sheet


FIRST_PAGES = ("index", "quickstart", "install", "faq", "concepts/metric_learning", "concepts/gsp", "results",
               "studies/poolings", "benchmarks")  # fmt: skip


@pytest.fixture(scope="module")
def address(site):
    """Serve the site: its search runs in a worker, which pages that are opened as files cannot start."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("page", FIRST_PAGES)
def test_first_pages_fit_their_window_and_are_accessible(browser, address, page, view):
    with opened(browser, f"{address}{page}.html", address, **view) as tab:
        assert overflow(tab) == 0
        assert low_contrast(tab) == []
        tab.wait_for_function("document.readyState === 'complete'")
        assert accessibility_failures(tab) == []


@pytest.mark.slow
@pytest.mark.browser
def test_figures_follow_the_color_scheme_that_the_reader_selects(browser, address):
    """A figure is a file: in light mode of the system and dark mode of the site it has to be dark."""
    view = {**DESKTOP, "color_scheme": "light"}
    with opened(browser, f"{address}studies/poolings.html", address, **view) as tab:
        figure = tab.locator("a.figure img").first
        figure.scroll_into_view_if_needed()
        tab.wait_for_function("(one) => one.naturalWidth > 0", arg=figure.element_handle())
        light = brightness(figure)
        tab.locator("label[for=__palette_1]:visible, label[for=__palette_0]:visible").first.click()
        tab.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
        assert brightness(figure) < 0.5 * light


def brightness(figure):
    with Image.open(io.BytesIO(figure.screenshot())) as picture:
        return np.asarray(picture.convert("L")).mean()


@pytest.mark.slow
@pytest.mark.browser
def test_regions_that_scroll_are_reachable_by_keyboard(browser, address):
    with opened(browser, f"{address}benchmarks.html", address, **PHONE) as tab:
        fold = tab.locator("details").first
        fold.locator("summary").click()
        wide = fold.locator(".md-typeset__scrollwrap")
        expect(wide).to_have_attribute("tabindex", "0")
        assert wide.evaluate("one => one.scrollWidth > one.clientWidth")


@pytest.mark.slow
@pytest.mark.browser
def test_wide_tables_are_cards_on_phones_and_tables_elsewhere(browser, address):
    heading = "cell => getComputedStyle(cell, '::before').content"
    for view, shown in ((PHONE, '"GSP+ZSR"'), (DESKTOP, "none")):
        with opened(browser, f"{address}index.html", address, **view) as tab:
            table = tab.locator("table[data-cards]").first
            assert table.locator("td:nth-child(3)").first.evaluate(heading) == shown
            assert table.evaluate("one => one.scrollWidth <= one.parentElement.parentElement.clientWidth")
            expect(table.get_by_role("columnheader")).to_have_count(6)


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(("page", "most"), [("benchmarks", 9_000), ("results", 5_000), ("concepts/protocols", 20_000)])
def test_raw_tables_are_folded(browser, address, page, most):
    with opened(browser, f"{address}{page}.html", address, **DESKTOP) as tab:
        assert tab.evaluate("document.documentElement.scrollHeight") < most
        assert tab.locator("details").count() > 2
        assert tab.locator(".chart").count() > 1


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize(
    ("word", "page"), [("install", "install"), ("finetune", "faq"), ("dinov2", "faq"), ("glossary", "glossary")]
)
def test_search_finds_the_words_people_use(browser, address, word, page):
    with opened(browser, f"{address}index.html?q={word}", address, **DESKTOP) as tab:
        expect(tab.locator(".md-search-result__link").first).to_have_attribute("href", re.compile(rf"/{page}\.html"))


@pytest.mark.slow
@pytest.mark.browser
def test_commands_are_copied_without_their_prompt(browser, address):
    view = {**DESKTOP, "permissions": ["clipboard-read", "clipboard-write"]}
    with opened(browser, f"{address}index.html", address, **view) as tab:
        tab.locator("button.md-clipboard, .md-code__button").first.click()
        tab.wait_for_function("navigator.clipboard.readText().then((text) => text.length > 0)")
        copied = tab.evaluate("navigator.clipboard.readText()")
    first = next(block for block in blocks(ROOT / "docs/index.md") if block.language == "console")
    assert copied.splitlines() == first.commands()


def test_equations_are_set():
    equations = load(ROOT / "docs/hooks/equations.py")
    block = equations.mathml(r"\arg\min_{i \in b} \lVert x_i \rVert_2", block=True)
    assert "<munder>" in block
    assert "arg min" in block
    assert 'form="prefix"' in block
    assert 'form="postfix"' in block
    assert equations.apart(r"a = \text{b \quad c}, \qquad d") == [r"a = \text{b \quad c}, ", " d"]
    with pytest.raises(ValueError, match=r"\\nosuch"):
        equations.mathml(r"\nosuch + 1", block=False)
