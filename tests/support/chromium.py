"""A real browser for tests of the page: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

import pytest
from playwright.sync_api import ConsoleMessage, Locator, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
SERIOUS = ("serious", "critical")
PATIENCE_MILLISECONDS = 30_000


def program() -> str:
    """The browser's path. It is installed where that is possible; otherwise the test is skipped, and says so."""
    if (found := _found()) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *command], capture_output=True, check=False)
        found = _found()
    if found is None:
        pytest.skip("no browser: there is no chromium on the PATH, and apt-get cannot install one here")
    return found


def _found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Browsed:
    """One page, and what its console has said that it should not."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def hear(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(said.text)

    def colours(self, place: Locator) -> tuple[str, str]:
        """Of text and ground. What axe takes for hidden, because they are equal, a person does not see."""
        text, ground = place.evaluate("(it) => [getComputedStyle(it).color, getComputedStyle(it).backgroundColor]")
        return text, ground

    def faults(self, within: str = "body") -> list[str]:
        """What axe finds serious in what is shown now, in the part of the page that a selector names."""
        self.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        found: list[dict[str, Any]] = self.page.evaluate("async (within) => (await axe.run(within)).violations", within)
        return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in SERIOUS]


@contextmanager
def browsed(scheme: Literal["light", "dark"] = "light", width: int = 1280, height: int = 860) -> Iterator[Browsed]:
    """A page of a new browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=["--no-sandbox"])
        try:
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
            page.set_default_timeout(PATIENCE_MILLISECONDS)
            expect.set_options(timeout=PATIENCE_MILLISECONDS)
            seen = Browsed(page)
            page.on("console", seen.hear)
            page.on("pageerror", lambda error: seen.complaints.append(str(error)))
            yield seen
        finally:
            browser.close()
