"""The page of `winnow search --html` in real headless Chromium."""

import io
import os
import shutil

import pytest
from report_examples import picture

from winnow.index import Entry
from winnow.report import found, page

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: no browser tests")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine: apt-get install chromium")
def test_long_names_stay_beside_their_picture(tmp_path):
    stored = io.BytesIO()
    picture(0).save(stored, "JPEG")
    label = "043.Yellow_bellied_Flycatcher_of_the_eastern_woods"
    entry = Entry(id=0, path=f"/photos/{label}/1.jpg", label=label, hash="", thumbnail=stored.getvalue())
    shown = found._query(f"{label}/Yellow_Bellied_Flycatcher_0001_795488.jpg", picture(0), [(entry, 0.5)] * 8, label)
    page.write_page(tmp_path / "found.html", "Search", page.element("main", shown))
    with sync_api.sync_playwright() as playwright:
        flags = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        tab = browser.new_page()
        tab.goto((tmp_path / "found.html").as_uri())
        wide = tab.locator("figure, .neighbour").evaluate_all(
            "all => all.map(one => one.scrollWidth - one.clientWidth)"
        )
        browser.close()
    assert len(wide) == 9
    assert max(wide) <= 6  # the tick stands out by as much
