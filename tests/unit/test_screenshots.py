"""Pictures of the documentation come from `make screenshots`, and are small."""

import runpy

from support import experiment
from support.cluster import ROOT

MADE = runpy.run_path(str(ROOT / "tests" / "screenshots" / "__main__.py"))
DRAWN = runpy.run_path(str(ROOT / "docs" / "house.py"))["pictures"]()
IMAGES = sorted((ROOT / "docs" / "images").iterdir())


def test_every_image_is_made_shown_and_small():
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
    for image in IMAGES:
        assert image.name in {
            **MADE["TERMINAL"],
            **MADE["BROWSER"],
            **DRAWN,
            experiment.PICTURE.name: 1400,
        }
        assert f"images/{image.name})" in pages
        assert image.stat().st_size < 300_000


def test_a_terminal_is_drawn_with_its_colours_and_fetches_nothing():
    drawn = MADE["picture"]("gpubed up lab", "\x1b[32m✓\x1b[0m phase base  3.1 s\n")
    assert "gpubed&#160;up&#160;lab" in drawn
    assert "phase&#160;base" in drawn
    assert "url(http" not in drawn
    assert len(drawn) < 5000
