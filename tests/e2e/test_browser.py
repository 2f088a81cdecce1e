"""JupyterLab as a researcher meets it: in a real browser."""

import re
import signal
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from support import browser

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.browser]


@pytest.fixture(scope="module")
def chromium():
    if browser.program() is None:
        pytest.skip("there is no Chromium on this machine")
    with browser.started() as found:
        yield found


@pytest.fixture
def page(chromium):
    # The certificate is the cluster's own; that it is the right one is checked apart.
    # Tall, since JupyterLab keeps only those cells in the page that are in view.
    context = chromium.new_context(
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


def test_the_right_token_opens_the_lab_and_the_notebook_runs_on_all_nodes(cluster, page):
    browser.open_notebook(page, cluster.call("open", "--print").stdout)
    browser.run_all_cells(page)
    text = page.locator(".jp-Notebook").inner_text()
    assert "Traceback" not in text
    size = len(cluster.json("status")["nodes"])
    assert re.search(rf"ranks\s+{size}\b", text), text
    assert re.search(r"test accuracy\s+9[5-9]", text), text


def test_the_launcher_leads_to_the_cluster(cluster, page):
    browser.open_launcher(page, cluster.call("open", "--print").stdout)
    assert "Cluster" in page.locator(".jp-Launcher-sectionTitle").all_inner_texts()
    page.click(".jp-LauncherCard:has-text('Example digits')")
    page.wait_for_selector(".jp-DirListing-item:has-text('digits.ipynb')", timeout=60_000)


def test_the_report_of_a_campaign_opens_in_the_lab(cluster, page):
    if not (cluster.state / "campaigns/smoke").exists():
        pytest.skip("no campaign was measured: test_bench.py does")
    url = cluster.json("report", "smoke")["jupyterlab"]
    token = cluster.call("open", "--print").stdout.strip().partition("?")[2]
    page.goto(f"{url}?{token}")
    frame = page.frame_locator(".jp-HTMLViewer iframe")
    frame.locator("h1").wait_for(timeout=120_000)
    assert f"cluster {cluster.name}" in frame.locator("h1").inner_text()
    assert frame.locator("figure img, figure svg").count() > 1


def test_a_tunnel_asks_nothing_about_certificates(cluster, chromium):
    opened = cluster.start("open", cluster.name, "--tunnel", "--print", stdout=subprocess.PIPE)
    context = chromium.new_context()  # which would object to the cluster's own certificate
    try:
        tab = context.new_page()
        tab.goto(browser.with_nothing_open(opened.stdout.readline()))
        tab.wait_for_selector(".jp-LauncherCard", timeout=120_000)
    finally:
        context.close()
        opened.send_signal(signal.SIGINT)
    assert opened.wait(20) == 130
