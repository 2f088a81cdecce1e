"""A report in a real browser: light, dark and on paper, from a file and with no network."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from support import browser, measurements
from support.samples import granted_cluster

pytestmark = [pytest.mark.process, pytest.mark.browser]
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 27)"}
COLOUR = "e => getComputedStyle(e).getPropertyValue('{}')"


@pytest.fixture(scope="module")
def chromium():
    if browser.program() is None:
        pytest.skip("there is no Chromium on this machine")
    with browser.started() as found:
        yield found


@pytest.fixture
def campaign():
    return measurements.document()


@pytest.fixture
def address(tmp_path, monkeypatch, campaign):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    folder = measurements.write(granted_cluster(tmp_path), campaign) / "report"
    CliRunner().invoke(cli.build(), ["report", "lab", "--here"], catch_exceptions=False)
    return (folder / "report.html").as_uri()


@pytest.fixture
def shown(chromium, address):
    """A function that opens the report; nothing may be loaded, and nothing complained about."""
    contexts = []

    def show(scheme="light", width=1000, *, scripts=True):
        context = chromium.new_context(
            color_scheme=scheme,
            viewport={"width": width, "height": 900},
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(address)
        return page

    complaints, loaded = [], []
    yield show
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in loaded if not url.startswith("data:")} == {address}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_readers_scheme_and_its_plots_are_at_work(shown, scheme):
    page = shown(scheme)
    assert page.locator("body").evaluate(COLOUR.format("background-color")) == PAPER[scheme]
    page.wait_for_function("document.querySelectorAll('figure img').length === 0")
    assert page.locator("figure div > svg").count() == 6
    page.locator("#throughput [aria-roledescription=point]").last.hover()
    assert "images/s" in page.locator("#vg-tooltip-element").inner_text()


def test_without_scripts_as_in_jupyterlab_the_plots_are_there(shown):
    page = shown(scripts=False)
    assert page.locator("figure img").count() == 6


def test_on_paper_it_is_black_on_white_and_nothing_is_cut_off(shown):
    page = shown("dark", width=720)
    page.emulate_media(media="print")
    assert page.locator("body").evaluate(COLOUR.format("background-color")) == PAPER["light"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.pdf(format="A4").startswith(b"%PDF")
