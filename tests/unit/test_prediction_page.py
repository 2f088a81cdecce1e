"""The page with sliders in a real browser, from a file and with no network."""

import re

import pytest

from gpubed.prediction.model import Setup, predict
from gpubed.prediction.questions import Questions
from gpubed.report import forecast_page
from support import browser

pytestmark = [pytest.mark.process, pytest.mark.browser]
SETUP = Setup("resnet50", "v100", nodes=4, gpus_per_node=1, batch=64, link_bps=10e9)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if browser.program() is None:
        pytest.skip("there is no Chromium on this machine")
    path = tmp_path_factory.mktemp("page") / "nodes.html"
    path.write_text(forecast_page.html(Questions(SETUP), ["vgg16"], ["a100"]))
    complaints, loaded = [], []
    with browser.started() as chromium:
        shown = chromium.new_page()
        shown.on("console", lambda message: complaints.append(message.text))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("request", lambda request: loaded.append(request.url))
        shown.goto(path.as_uri())
        yield shown
        assert complaints == []
        assert loaded == [path.as_uri()]


def slide(page, **values):
    for name, value in values.items():
        page.locator(f"#{name}").evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(value)
        )


def rate(page):
    return float(re.sub("[^0-9.]", "", page.locator("#rate").inner_text()))


def test_it_begins_at_the_setup_that_was_asked_about(page):
    found = predict(SETUP)
    assert rate(page) == pytest.approx(found.images_per_s, rel=0.01)
    assert page.locator("#link_bps-is").inner_text() == "10 Gbit/s"
    assert page.locator("#batch-is").inner_text() == "64"
    low, high = re.findall(r"[\d.,]+", page.locator("#interval").inner_text())
    assert float(low.replace(",", "")) == pytest.approx(found.low, rel=0.01)
    assert float(high.replace(",", "")) == pytest.approx(found.high, rel=0.01)
    assert "communication" in page.locator("#cause").inner_text()


@pytest.mark.parametrize(
    ("nodes", "link", "batch"), [(10, 10e9, 64), (7, 5e9, 48), (40, 30e9, 200), (1, 1e9, 16)]
)
def test_between_points_of_the_grid_it_is_within_five_percent_of_the_formula(
    page, nodes, link, batch
):
    found = predict(Setup("resnet50", "v100", nodes, 1, batch, link))
    logarithm = "v => Math.log2(v)"
    powers = [page.evaluate(logarithm, value) for value in (link / 1e9, batch / 16)]
    slide(page, nodes=nodes, link_bps=powers[0], batch=powers[1])
    assert page.locator("#nodes-is").inner_text() == str(nodes)
    assert page.locator("#batch-is").inner_text() == str(batch)
    assert rate(page) == pytest.approx(found.images_per_s, rel=0.05)


def test_another_model_and_gpu_give_their_own_prediction(page):
    slide(page, nodes=8, link_bps=0, batch=1)
    page.select_option("#model", "vgg16")
    page.select_option("#gpu", "a100")
    found = predict(Setup("vgg16", "a100", 8, 1, 32, 1e9))
    assert rate(page) == pytest.approx(found.images_per_s, rel=0.01)
    marker = page.locator("#here").bounding_box()
    chart = page.locator("svg").bounding_box()
    assert chart["x"] < marker["x"] < chart["x"] + chart["width"]
    assert chart["y"] < marker["y"] < chart["y"] + chart["height"]
