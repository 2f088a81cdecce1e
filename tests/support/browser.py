"""Chromium, and JupyterLab in it as a person uses it."""

from __future__ import annotations

import re
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NOTEBOOK = "examples/digits/digits.ipynb"


def program() -> str | None:
    """Return where Chromium is on this machine; None where it is not."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def started() -> Iterator[Any]:
    """Give a browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        yield browser
        browser.close()


def with_nothing_open(url):
    """Return the address of a JupyterLab that does not come back with what was open before."""
    return url.strip().replace("/lab?", "/lab?reset&")


def open_notebook(page, url):
    """Open the example's notebook, and wait until its kernel is there."""
    page.goto(url.strip().replace("/lab?", f"/lab/tree/{NOTEBOOK}?"))
    page.wait_for_selector(".jp-Notebook", timeout=120_000)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=120_000)


def open_launcher(page, url):
    """Open JupyterLab's launcher, and wait for the cluster's own cards.

    A page that lost a request on its way stays half made; a person would load it again.
    """
    from playwright.sync_api import TimeoutError as Missing

    page.goto(with_nothing_open(url))
    card = ".jp-LauncherCard:has-text('Runs of jobs')"
    try:
        page.wait_for_selector(card, timeout=60_000)
    except Missing:
        shown = page.locator("body").inner_text()
        warnings.warn(f"JupyterLab was loaded again, it showed: {shown}", stacklevel=1)
        page.goto(with_nothing_open(url))
        page.wait_for_selector(card, timeout=120_000)


def run_all_cells(page):
    """Choose Run All until all cells have a number, which they get once they ran.

    While the page still makes itself at home with its kernel, it drops what it was
    told to run; a person would choose it again, once nothing is marked as running.
    """
    deadline, quiet = time.monotonic() + 300, 0
    while time.monotonic() < deadline:
        _dismiss_dialogs(page)
        prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        if len(prompts) >= 5 and all(re.fullmatch(r"\[\d+\]:", prompt) for prompt in prompts):
            return
        if quiet == 0:
            page.click("text=Run >> nth=0")
            page.click("text=Run All Cells")
        quiet = 0 if "[*]:" not in prompts and quiet >= 8 else quiet + 1
        page.wait_for_timeout(1000)
    said = page.locator(".jp-Notebook").inner_text()
    raise AssertionError(f"the notebook did not run to its end: {prompts}\n{said}")


def _dismiss_dialogs(page):
    """Take a dialog's default, as a person would, and say what it said.

    Chromium drops requests when networks of this machine come and go, as Docker's do.
    """
    for text in page.locator("dialog.jp-Dialog").all_inner_texts():
        warnings.warn(f"JupyterLab asked: {text}", stacklevel=1)
        page.keyboard.press("Enter")
        page.wait_for_timeout(500)
