"""Tables: words stay whole, on a terminal where they have room, and elsewhere always."""

import pytest
from rich.console import Console

from gpubed.cli.ui import UI

RUNS = (
    ("run", "status", "ranks", "took", "figures"),
    ("20261127-150630364-imagenet", "interrupted", 2, "0:02:15", "step 120 of 300, 60 s left"),
    ("20261127-150930364-imagenet", "ok", 2, "0:02:15", "7.09 images/s"),
)
RATIOS = (
    ("metric", "before", "now", "ratio", "95 % interval", "p", "verdict"),
    ("exposed_communication_sd_s", "1.66 ms", "940 µs", 1.023, "0.900 … 1.200", 0.0023, "differs"),
    ("images_per_s", "7.09 images/s", "7.19 images/s", 1.0, "", "", "unknown: no repetition"),
)


def shown(capsys, table, width=None):
    """Return the lines of a table, on a terminal of so many columns, or on none."""
    ui = UI()
    if width:
        how = {"highlight": False, "emoji": False, "soft_wrap": True, "color_system": None}
        ui.out = Console(force_terminal=True, width=width, **how)
    ui.table(table[0], table[1:])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("table", [RUNS, RATIOS])
def test_without_a_terminal_each_row_is_a_line(capsys, table):
    lines = shown(capsys, table)
    for row in table:
        cells = [str(cell) for cell in row if cell != ""]
        assert any(all(cell in line for cell in cells) for line in lines), row


@pytest.mark.parametrize("table", [RUNS, RATIOS])
def test_on_a_terminal_words_stay_whole_where_they_have_room(capsys, table):
    lines = shown(capsys, table, 80)
    assert all(len(line) <= 80 for line in lines)
    words = {word for line in lines for word in line.split()}
    left_over = {word for row in table for cell in row for word in str(cell).split()} - words
    # A name that is far too long is broken, and where it has a joint.
    assert left_over <= {"exposed_communication_sd_s"}
    assert not left_over or {"exposed_", "communication_sd_s"} <= words


def test_a_narrow_terminal_has_all_of_it(capsys):
    lines = shown(capsys, RATIOS, 40)
    assert all(len(line) <= 40 for line in lines)
    assert len("".join("".join(lines).split())) >= len("".join(map(str, sum(RATIOS, ()))).split())
