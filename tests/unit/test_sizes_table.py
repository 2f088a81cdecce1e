"""The table of `make test-nightly PARTS=sizes`."""

import json

from support import sizes

STEPS = dict.fromkeys(sizes.STEPS, 10.0)


def test_each_figure_has_its_ratio_to_the_base():
    lines = sizes.table({3: STEPS, 10: {**STEPS, "up": 25.0}}).splitlines()
    assert lines[0] == "| nodes | up | verify | digits | allreduce | down | all |"
    assert "| 10 | 25 s (2.5) | 10 s (1.0) |" in lines[3]
    assert lines[3].endswith("| 65 s (1.3) |")


def test_what_was_not_reached_is_a_dash_and_has_no_sum():
    [row] = sizes.table({10: {"up": 25.0}}).splitlines()[2:]
    assert row == "| 10 | 25 s | - | - | - | - | - |"


def test_a_page_says_on_what_it_was_measured_and_when(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "KEPT", tmp_path / "sizes.json")
    assert "Not measured yet" in sizes.section()
    sizes.keep({3: STEPS}, machine="2 CPUs", date="2026-01-02", load="0.1", node="2 GiB")
    assert set(json.loads(sizes.KEPT.read_text())) == {
        "machine",
        "date",
        "load",
        "node",
        "seconds",
    }
    assert "2026-01-02" in sizes.section()
    assert "10 s (1.0)" in sizes.section()
