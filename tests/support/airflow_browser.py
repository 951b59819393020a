"""The page in the UI of a real Airflow, in a real browser: logged in, at a DAG run's tab."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Locator, expect

from airflow_logio.ui.page_places import ROUTES, page_of_run
from tests.support.chromium import Browsed, browsed

PICTURES = "LOGIO_PICTURES"
"""Environment variable: a folder that gets pictures of what is seen, for `docs/images`."""


@contextmanager
def in_airflow(
    airflow_url: str, login: tuple[str, str], dag_id: str, run_id: str, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Browsed]:
    """The tab of a DAG run, with its graph drawn."""
    with browsed(scheme, width=1440, height=1000) as browser:
        page = browser.page
        address = page_of_run(airflow_url, dag_id, run_id)
        page.goto(address)
        page.locator("input[name=username]").fill(login[0])
        page.locator("input[name=password]").fill(login[1])
        page.locator("button[type=submit]").click()
        page.wait_for_url(lambda url: "/auth/login" not in url)
        page.goto(address)
        expect(page.get_by_label("Graph", exact=True)).to_be_visible()
        yield browser


def page_of_task(airflow_url: str, dag_id: str, run_id: str, task_id: str) -> str:
    """The address of a task instance's tab."""
    run, _, _ = page_of_run(airflow_url, dag_id, run_id).rpartition("/plugin/")
    return f"{run}/tasks/{task_id}/plugin/{ROUTES['task_instance']}"


def group_of(browser: Browsed, name: str) -> Locator:
    """The side panel of a group, opened in the graph."""
    browser.page.get_by_label("Graph", exact=True).get_by_role("button", name=name).first.click()
    return browser.page.get_by_label(f"Group {name}", exact=True)


def picture(browser: Browsed, name: str) -> None:
    """Only where pictures are wanted."""
    if folder := os.environ.get(PICTURES):
        browser.page.screenshot(path=Path(folder) / f"{name}.png")
