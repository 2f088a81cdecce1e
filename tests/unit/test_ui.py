"""What the command line prints is what it was told to print."""

import pytest

from gpubed.cli.ui import UI

ADDRESS = "52:54:00:AB:ab:cd"  # `:ab:` is the name of an emoji


@pytest.mark.parametrize("how", ["say", "note", "mark", "error", "table"])
def test_an_address_or_fingerprint_stays_as_it_is(capsys, how):
    ui = UI()
    if how == "table":
        ui.table(["address"], [[ADDRESS]])
    elif how == "mark":
        ui.mark("pass", ADDRESS)
    else:
        getattr(ui, how)(ADDRESS)
    said = capsys.readouterr()
    assert ADDRESS in said.out + said.err
