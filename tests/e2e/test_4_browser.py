"""JupyterLab as a researcher meets it: in a real browser."""

import re
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
import warnings

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.browser]
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


@pytest.fixture(scope="module")
def browser():
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("there is no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser):
    # The certificate is the cluster's own; that it is the right one is checked apart.
    # Tall, since JupyterLab keeps only those cells in the page that are in view.
    context = browser.new_context(
        ignore_https_errors=True, viewport={"width": 1200, "height": 2800}
    )
    yield context.new_page()
    context.close()


def test_the_certificate_is_the_clusters_own(cluster):
    url = cluster.call("open", "--print").stdout.strip()
    trusted = ssl.create_default_context(cafile=str(cluster.state / "jupyterlab.crt"))
    with urllib.request.urlopen(url, context=trusted) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(url, context=ssl.create_default_context())


def test_a_wrong_token_is_refused(cluster, page):
    url = cluster.call("open", "--print").stdout.strip()
    page.goto(url.split("token=")[0] + "token=" + "0" * 64)
    page.wait_for_selector("input[type=password]")
    assert page.locator("#jp-main-dock-panel").count() == 0


def test_the_right_token_opens_the_lab_and_the_notebook_runs_on_all_nodes(cluster, page, tmp_path):
    url = cluster.call("open", "--print").stdout.strip()
    page.goto(url.replace("/lab?", f"/lab/tree/{NOTEBOOK}?"))
    page.wait_for_selector(".jp-Notebook", timeout=120_000)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=120_000)
    _run_all_cells(page)
    page.screenshot(path=str(tmp_path / "jupyterlab.png"))
    text = page.locator(".jp-Notebook").inner_text()
    assert "Traceback" not in text
    size = len(cluster.json("status")["nodes"])
    assert re.search(rf"ranks\s+{size}\b", text), text
    assert re.search(r"test accuracy\s+9[5-9]", text), text


def _with_nothing_open(url):
    """Return the address of a JupyterLab that does not come back with what was open before."""
    return url.strip().replace("/lab?", "/lab?reset&")


def test_the_launcher_leads_to_the_cluster(cluster, page):
    page.goto(_with_nothing_open(cluster.call("open", "--print").stdout))
    page.wait_for_selector(".jp-LauncherCard:has-text('Runs of jobs')", timeout=120_000)
    assert "Cluster" in page.locator(".jp-Launcher-sectionTitle").all_inner_texts()
    page.click(".jp-LauncherCard:has-text('Example digits')")
    page.wait_for_selector(".jp-DirListing-item:has-text('digits.ipynb')", timeout=60_000)


def test_a_tunnel_asks_nothing_about_certificates(cluster, browser):
    opened = cluster.start("open", cluster.name, "--tunnel", "--print", stdout=subprocess.PIPE)
    context = browser.new_context()  # which would object to the cluster's own certificate
    try:
        tab = context.new_page()
        tab.goto(_with_nothing_open(opened.stdout.readline()))
        tab.wait_for_selector(".jp-LauncherCard", timeout=120_000)
    finally:
        context.close()
        opened.send_signal(signal.SIGINT)
    assert opened.wait(20) == 130


def _dismiss_dialogs(page):
    """Take a dialog's default, as a person would, and say what it said.

    Chromium drops requests when networks of this machine come and go, as Docker's do.
    """
    for text in page.locator("dialog.jp-Dialog").all_inner_texts():
        warnings.warn(f"JupyterLab asked: {text}", stacklevel=1)
        page.keyboard.press("Enter")
        page.wait_for_timeout(500)


def _run_all_cells(page):
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
