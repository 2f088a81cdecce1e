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

    def show(scheme="light", width=1000):
        context = chromium.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}
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
    assert set(loaded) == {address}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_and_its_figures_follow_the_readers_scheme(shown, scheme):
    page = shown(scheme)
    assert page.locator("body").evaluate(COLOUR.format("background-color")) == PAPER[scheme]
    figures = page.locator("svg .paper")
    assert figures.count() == 6
    assert {one.evaluate(COLOUR.format("fill")) for one in figures.all()} == {PAPER[scheme]}


def test_on_paper_it_is_black_on_white_and_nothing_is_cut_off(shown):
    page = shown("dark", width=720)
    page.emulate_media(media="print")
    assert page.locator("body").evaluate(COLOUR.format("background-color")) == PAPER["light"]
    assert page.locator("svg .paper").first.evaluate(COLOUR.format("fill")) == PAPER["light"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("width", [360, 1000])
def test_no_screen_has_to_be_scrolled_sideways(shown, width):
    page = shown(width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_no_two_texts_of_a_figure_overlap(shown):
    require_apart(shown())


FACTORS = {
    "nodes": [1, 2, 3, 4, 6, 8, 10],
    "model": ["resnet50", "inception_v3"],
    "batch_size": [32, 64],
    "rate": ["100M", "1G"],
    "framework": ["horovod", "ddp"],
}


NAMES = [f"node-of-site-{number}" for number in range(12)]
LARGE = measurements.document(
    factors=FACTORS,
    repeat=2,
    nodes=[{"name": name, "slots": 4, "gpus": 4} for name in NAMES],
    links=[
        {"src": a, "dst": b, "declared_bps": 1e9, "measured_bps": 9.4e8 + 1e7 * number}
        for a in NAMES
        for number, b in enumerate(NAMES)
    ],
)


@pytest.mark.parametrize("campaign", [LARGE], ids=["large"])
def test_nor_do_those_of_a_large_campaign(shown, campaign):
    page = shown()
    assert page.locator("#topology text").count() > 4 * len(NAMES)
    require_apart(page)


def require_apart(page):
    boxes = page.evaluate(
        """() => [...document.querySelectorAll('svg')].map(svg =>
            [...svg.querySelectorAll('text')].map(t => {
                const b = t.getBoundingClientRect();
                return [t.textContent, b.left, b.top, b.right, b.bottom]}))"""
    )
    for texts in boxes:
        for number, (one, left, top, right, bottom) in enumerate(texts):
            for other, left2, top2, right2, bottom2 in texts[number + 1 :]:
                apart = right <= left2 or right2 <= left or bottom - 2 <= top2 or bottom2 - 2 <= top
                assert apart, f"{one!r} and {other!r}"
