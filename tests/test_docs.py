"""The documentation tells the truth: its code runs, its commands exist, its generated pages are complete."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
import typer
import yaml

from winnow.centres import CENTRES
from winnow.cli.main import app
from winnow.losses import LOSSES
from winnow.mining import MINING
from winnow.pooling import POOLINGS
from winnow.protocols.search import Search, parse_space
from winnow.references import REFERENCES
from winnow.training import load_config, make_config
from winnow.training.config import describe

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return the line number and the text of each block of a language."""
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        if fence["language"] == language:
            indent = len(fence["indent"])
            lines = [line[indent:] for line in fence["body"].splitlines()]
            found.append((text.count("\n", 0, fence.start()) + 1, "\n".join(lines) + "\n"))
    return found


def name(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", with_blocks("python"), ids=name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """A page's blocks run one after another, as a reader would run them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for line, code in blocks(page, "python"):
        # Blank lines in front, so that a traceback has the page's own line numbers.
        exec(compile("\n" * line + code, str(page), "exec"), names)


def commands(page: Path) -> list[list[str]]:
    """Return the words of every command shown on a page; output and comments are left aside."""
    lines = [line for _, block in blocks(page, "console") for line in block.splitlines()]
    return [shlex.split(line[2:].partition(" > ")[0], comments=True) for line in lines if line.startswith("$ ")]


COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=name)
def test_commands_exist(page, words):
    """Every command shown parses: the program, its subcommand, its options and its settings exist."""
    if words[:2] == ["python3", "start.py"]:
        tasks = load(ROOT / "start.py").TASKS
        assert words[2] in tasks
        if words[2] != "run":
            return
        words = ["winnow", *words[3:]]
    if words[0] == "torchrun":
        module = words.index("-m")
        words = words[module + 1 :]
    assert words[0] == "winnow"
    group = typer.main.get_command(app)
    command = group.commands[words[1]]
    context = command.make_context(words[1], list(words[2:]))
    settings = [word for word in context.params.get("words") or [] if "=" in word]
    if words[1] == "tune":
        space, settings = parse_space(settings)
        Search(None, settings, space, Path()).lowest()
    load_config(None, settings)


def test_every_command_is_shown():
    shown = {words[1] for _, words in COMMANDS if words[0] == "winnow"}
    assert shown == set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("page", with_blocks("yaml"), ids=name)
def test_yaml_blocks_are_configs(page):
    for _, block in blocks(page, "yaml"):
        make_config(yaml.safe_load(block))


def test_settings_named_in_text_exist():
    """`section.key` and `section.key=value` in backticks are settings of the config."""
    keys = {key for key, _, _ in describe()}
    sections = {key.split(".")[0] for key in keys if "." in key}
    for page in PAGES:
        for found in re.finditer(r"`(\w+)\.(\w+)(?:=[^`]*)?`", page.read_text()):
            if found[1] in sections and not (found[1] == "zsr" and found[2] == "class_embeddings"):
                assert f"{found[1]}.{found[2]}" in keys, f"{name(page)}: {found[0]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT], ids=name)
def test_links_to_files_resolve(page):
    """Links of the files outside the site; those inside are checked by the strict build."""
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", FENCE.sub("", page.read_text())):
        assert (ROOT / target).exists(), target


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    # Not --quiet: it drops the warnings that make a strict build fail.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


class Requests(HTMLParser):
    """Collects what a browser would fetch by itself on opening a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "src" or (tag == "link" and key == "href"):
                self.addresses.append(value or "")


def test_generated_pages_are_complete(site):
    config = (site / "reference/config.html").read_text()
    for key, _, _ in describe():
        assert f"<code>{key}</code>" in config
    for registry, folder in ((LOSSES, "losses"), (REFERENCES, "references"), (MINING, "mining")):
        overview = (site / f"reference/{folder}.html").read_text()
        for part in registry:
            assert f'href="{folder}/{part}.html"' in overview
            html = (site / f"reference/{folder}/{part}.html").read_text()
            assert "<math" in html
            assert "<strong>When to use it:</strong>" in html
            names = [*(p.name for p in registry.parameters(part)), *(f"preset={p}" for p in registry.presets(part))]
            for named in names:
                assert f"<code>{registry.kind}.{named}</code>" in html
    for registry, page in ((POOLINGS, "poolings"), (CENTRES, "centres")):
        html = (site / f"reference/{page}.html").read_text()
        for part in registry:
            assert f'id="{part}"' in html
            for setting in registry.parameters(part):
                assert f"<code>{registry.kind}.{setting.name}</code>" in html
    line = (site / "reference/cli.html").read_text()
    for command in typer.main.get_command(app).commands.values():
        assert f'id="{command.name}"' in line
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert f"<code>{parameter.opts[0]}" in line


def test_pages_need_nothing_from_outside(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        html = page.read_text()
        assert not [a for a in Requests(html).addresses if a.startswith(("http:", "https:", "//"))], page
        assert 'class="arithmatex"' not in html, f"an equation of {page.name} is not set"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//", sheet.read_text()), sheet


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
