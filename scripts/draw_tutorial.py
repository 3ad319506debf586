"""Draw the pictures of the tutorial on photos and of README: run the blocks of the tutorial and save screenshots.

    python scripts/draw_tutorial.py

Takes minutes in a temporary folder, and writes docs/assets/tutorial-*.png and search-page.png. Needs the `test` extra
and Chromium. All images are collages of the bundled emoji dataset.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.serve import serving  # noqa: E402
from tests.docs.blocks import blocks, words_of  # noqa: E402

PAGE = ROOT / "docs/tutorials/photos.md"
ASSETS = ROOT / "docs/assets"
QUERY = "photos/hyacinth/0-noto.png"


def follow() -> None:
    """Run all blocks of the page except the service, which would not end."""
    for block in blocks(PAGE):
        if block.title is not None:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, PAGE.name, "exec"), {})
        for line in block.commands():
            words, _ = words_of(line)
            if words[1] != "serve":
                subprocess.run([sys.executable, "-m", *words], check=True)


def photograph(page: Page, name: str, *, height: int) -> None:
    """Save a screenshot in 128 colors, because pages are mostly flat and files should be small."""
    page.set_viewport_size({"width": 1100, "height": height})
    target = ASSETS / f"{name}.png"
    page.screenshot(path=target)
    shrink(target)


def shrink(target: Path) -> None:
    with Image.open(target) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)


def main() -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("chromium: not found. Install it with: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        follow()
        with Image.open("explained/0-noto.png") as drawn:
            drawn.resize((drawn.width // 2, drawn.height // 2)).save(ASSETS / "tutorial-explained.png")
        shrink(ASSETS / "tutorial-explained.png")
        with sync_playwright() as playwright, serving(Path("photos.index"), 8) as address:
            flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
            page = playwright.chromium.launch(executable_path=chromium, args=flags).new_page()
            page.goto(Path("found.html").absolute().as_uri())
            photograph(page, "tutorial-found", height=620)
            page.goto(address)
            page.locator("#file").set_input_files(QUERY)
            expect(page.get_by_role("heading", name="Nearest images")).to_be_visible(timeout=20_000)
            page.wait_for_timeout(3000)
            photograph(page, "search-page", height=700)
            page.get_by_label("Heat maps").check()
            page.wait_for_timeout(3000)
            photograph(page, "tutorial-search", height=700)
            page.locator("#mu").fill("1")
            page.wait_for_timeout(3000)
            photograph(page, "tutorial-all", height=700)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
