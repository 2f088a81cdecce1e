"""`gpubed predict`: settings, tables of runs, and published runs that were held out."""

import csv
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import UsageError
from gpubed.prediction import rates, runs, shapes, validation
from gpubed.prediction.model import Calibration

COLUMNS = [
    *("row_id", "series_id", "model", "sync", "gpu", "n_nodes", "gpus_per_node", "network"),
    *("net_gbps_nominal", "precision", "data", "batch_per_gpu", "images_per_s"),
]
ONE = [
    "1",
    "s",
    "resnet50",
    "Horovod NCCL",
    "V100",
    "1",
    "1",
    "none",
    "",
    "fp32",
    "synthetic",
    "64",
]
TWO = [
    "2",
    "s",
    "resnet50",
    "Horovod NCCL",
    "V100",
    "2",
    "1",
    "TCP",
    "10",
    "fp32",
    "synthetic",
    "64",
]
EIGHT = ["3", *TWO[1:5], "8", *TWO[6:]]


@pytest.fixture
def table(tmp_path):
    def write(*rows, columns=COLUMNS):
        path = tmp_path / "runs.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
        return str(path)

    return write


def run(*words):
    return CliRunner().invoke(cli.build(), ["predict", *words], standalone_mode=False)


def rows(*words):
    done = run(*words, "--json")
    assert not done.exception, done.exception
    document = json.loads(done.stdout)
    assert document["schema"] == "gpubed/predict/1"
    return document["rows"]


def refused(*words):
    error = run(*words).exception
    assert isinstance(error, UsageError)
    assert error.hint
    return error.message


def test_a_table_gets_its_blank_rates(table):
    path = table([*ONE, "360"], [*TWO, ""], [*EIGHT, ""])
    two, eight = rows("--table", path)
    assert set(two) == {"row_id", "images_per_s", "low", "high"}
    assert (two["row_id"], eight["row_id"]) == ("2", "3")
    assert 360 < two["low"] < two["images_per_s"] < two["high"] < 720
    assert eight["images_per_s"] > two["images_per_s"]


def test_a_measured_run_of_two_nodes_moves_the_larger_ones(table):
    one, vgg = [[row[0], "s", "vgg16", *row[3:]] for row in (ONE, TWO)]
    eight = ["3", "s", "vgg16", *EIGHT[3:]]
    before, after = (
        rows("--table", table([*one, "220"], [*vgg, rate], [*eight, ""]))[-1] for rate in ("", "60")
    )
    assert after["images_per_s"] < before["images_per_s"]


def test_the_rate_may_be_that_of_a_node(table):
    node = [*ONE[:6], "4", *ONE[7:], "1400"]
    two = [*TWO[:6], "4", *TWO[7:], ""]
    (found,) = rows("--table", table(node, two))
    assert 1400 < found["images_per_s"] < 2800


def test_missing_columns_are_named(table):
    short = [name for name in COLUMNS if name not in ("gpu", "n_nodes")]
    said = refused("--table", table(["x"] * len(short), columns=short))
    assert "lacks the columns gpu, n_nodes" in said


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (5, "many", "line 3 (row_id 2) cannot be read"),
        (5, "0", "n_nodes is 0"),
        (5, "1.7", "n_nodes is 1.7"),
        (5, "inf", "n_nodes is inf"),
        (8, "inf", "rates must be above 0, and finite"),
        (11, "-1", "batch_per_gpu is -1"),
        (12, "-5", "rates must be above 0"),
        (2, "resnet51", "row 2: the table of models has no 'resnet51'"),
    ],
)
def test_a_row_that_cannot_be_predicted_is_named(table, place, value, said):
    wrong = [*TWO, ""]
    wrong[place] = value
    assert said in refused("--table", table([*ONE, "360"], wrong))


def test_a_table_without_rows(table):
    assert "has no rows" in refused("--table", table())


def test_columns_must_be_separated_by_commas(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(";".join(COLUMNS) + "\n" + ";".join([*TWO, ""]))
    assert "separated by commas" in run("--table", str(path)).exception.hint


def test_a_blank_precision_is_fp32(table):
    blank, fp32 = ([*TWO[:9], precision, *TWO[10:], ""] for precision in (" ", "fp32"))
    first, second = rows("--table", table([*ONE, "360"], blank, fp32))
    assert first == second


def test_cpus_need_no_library(table):
    one, two = [[*row[:3], "", "cpu", *row[5:]] for row in (ONE, TWO)]
    (found,) = rows("--table", table([*one, "3"], [*two, ""]))
    assert 2 < found["images_per_s"] < 6


@pytest.mark.timeout(60)
def test_a_large_table_in_its_order(table):
    of = {"s": [*ONE, "360"], "t": ["1", "t", *ONE[2:], "300"]}
    many = [[str(n), "st"[n % 2], *TWO[2:], ""] for n in range(20_000)]
    found = rows("--table", table(*of.values(), *many))
    assert [row["row_id"] for row in found] == [row[0] for row in many]


def test_a_table_that_is_not_there(tmp_path):
    assert "cannot be read" in refused("--table", str(tmp_path / "none.csv"))


def test_settings_give_a_row_for_each_combination():
    words = [
        "--gpu",
        "v100",
        "--nodes",
        "1-3,8",
        "--batch",
        "32,64",
        "--link",
        "1 Gbit/s,10 Gbit/s",
    ]
    found = rows(*words)
    assert len(found) == 4 * 2 * 2
    assert {row["nodes"] for row in found} == {1, 2, 3, 8}
    assert {"images_per_s", "low", "high", "step_s", "efficiency", "parts"} <= set(found[0])
    assert "1 Gbit/s" in run(*words).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "three"], "--nodes 'three'"),
        (["--nodes", "5-2"], "that count up"),
        (["--batch", "-1"], "must be numbers from 1 to 9999"),
        (["--link", "quick"], "--link 'quick'"),
        (["--gpu", "gtx 9999"], "has no GPU 'gtx 9999'"),
        (["--model-from", "train"], "names no function"),
    ],
)
def test_wrong_words_are_named(words, said):
    assert said in refused(*words)


def test_a_measured_link_says_nothing_about_another():
    carried = ["--nodes", "4", "--measured-link", "0.5 Gbit/s"]
    slow, fast = rows(*carried, "--link", "1 Gbit/s,10 Gbit/s")
    (alone,) = rows("--nodes", "4", "--link", "10 Gbit/s")
    assert slow["images_per_s"] < fast["images_per_s"] == alone["images_per_s"]
    assert "links of 10 Gbit/s" in run(*carried, "--link", "1 Gbit/s", "--epochs", "1").stdout


def test_a_target_is_sought_with_the_link_that_is_given():
    done = json.loads(
        run("--target", "700", "--nodes", "1-8", "--link", "1 Gbit/s", "--json").stdout
    )
    assert {row["link_bps"] for row in done["answers"][0]["rows"]} == {1e9}
    few = run("--target", "2000", "--nodes", "1-2", "--link", "10 Gbit/s").stdout
    assert "No number of nodes up to 2 reaches 2,000 images/s" in few


def test_hours_are_a_target():
    done = json.loads(run("--hours", "24", "--epochs", "90", "--json").stdout)
    reached, cost = done["answers"]
    assert reached["best"]["hours"] <= 24
    assert cost["question"] == "cost"


@pytest.mark.process
def test_a_module_needs_an_interpreter_with_torch():
    error = run("--model-from", "train:make", "--python", sys.executable).exception
    assert "train:make cannot be built on the meta device: " in error.message
    assert error.hint == "name an interpreter that has torch: --python FILE"


@pytest.mark.process
def test_a_module_may_print_and_be_lazy(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "train.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    print('building')\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))\n"
    )
    told = shapes.from_function(f"{tmp_path}/train.py:make", sys.executable)
    assert told.parameters == 3 * 224 * 224 * 10 + 10


@pytest.mark.process
def test_a_module_brings_its_tensors(tmp_path):
    """The interpreter is a stand-in: a script that prints what meta.py would."""
    layers = [["0", 1_000_000, 64, 4096, [10_000_000]], ["1", 1_000_000, 64, 4096, [1000]]]
    interpreter = tmp_path / "python"
    told = json.dumps({"image": 32, "layers": layers})
    interpreter.write_text(f"#!/bin/sh\necho '{told}'\n")
    interpreter.chmod(0o755)
    own = ["--model-from", "train.py:make", "--python", str(interpreter), "--rate", "100"]
    (found,) = rows(*own, "--nodes", "2", "--batch", "32", "--link", "1 Gbit/s")
    assert found["images_per_s"] == pytest.approx(64 / (0.32 + 40e6 * 8 / 0.85e9), rel=0.1)


def test_every_published_figure_has_its_source():
    assert len(rates.published()) > 1300
    for row in rates.published():
        assert row["source"]
        assert row["source_ref"]
    assert all(row.source for row in rates.table())


@pytest.mark.parametrize(
    ("network", "sync", "transport", "rate", "sockets"),
    [
        ("25 Gbit/s RoCE-capable Ethernet, TCP", "Horovod NCCL", "tcp", 25, 1),
        ("25 Gbit/s RoCE-capable Ethernet, RDMA", "Horovod NCCL", "rdma", 25, 1),
        ("InfiniBand EDR", "torch DDP NCCL", "rdma", 100, 1),
        ("EC2 p3.16xlarge 25 Gbit/s TCP", "Horovod NCCL", "tcp", 25, 16),
        ("40 GbE", "Horovod NCCL", "tcp", 40, 1),
    ],
)
def test_words_of_a_table_become_a_link(network, sync, transport, rate, sockets):
    row = dict(zip(COLUMNS, [*TWO, ""], strict=True))
    row |= {"network": network, "sync": sync, "net_gbps_nominal": ""}
    (found,) = runs.read([row])
    assert found.setup.transport == transport
    assert found.setup.link_bps == rate * 1e9
    assert found.setup.sockets == sockets


def test_the_shipped_numbers_are_those_of_the_fit():
    fitted = validation.fit(validation.cases())
    for name in validation.PRIORS | validation.CPU_PRIORS:
        assert getattr(Calibration(), name) == pytest.approx(getattr(fitted, name), rel=0.05)


def test_tuned_runs_of_other_sources_are_predicted():
    points = validation.points(groups=["tuned"])
    found = [(point.run.measured, point.found[validation.OURS]) for point in points]
    off = [abs(predicted.images_per_s / measured - 1) for measured, predicted in found]
    assert len(off) == 18
    assert sum(off) / len(off) < 0.05
    assert sorted(off)[int(0.9 * len(off))] < 0.10


@pytest.mark.parametrize("gpu", rates.gpus())
@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_a_larger_batch_never_lowers_the_rate(gpu, precision):
    model = shapes.shape("resnet50")
    found = [
        rates.lookup(gpu, "resnet50", model, batch, precision).images_per_s
        for batch in (16, 32, 64, 96, 128, 192, 256)
    ]
    assert found == pytest.approx(sorted(found))


def test_the_measured_rates_are_those_of_the_page():
    kept = json.loads((Path(__file__).parents[1] / "gpu" / "rates.json").read_text())
    points = [point for gpu in kept.values() for point in gpu["points"] if point["images_per_s"]]
    shipped = csv.DictReader(rates.DATA.joinpath("rates.csv").read_text().splitlines())
    assert [float(row["images_per_s"]) for row in shipped] == pytest.approx(
        [point["images_per_s"] for point in points], rel=0.001
    )


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("--link", "10"), "below 1 Mbit/s; without a unit, it is bit/s", "10 Gbit/s"),
        (("--measured-link", "0"), "below 1 Mbit/s", "10 Gbit/s"),
        (("--measured-link", "6 Gbit/s,7 Gbit/s"), "one value is expected", "10 Gbit/s"),
        (("--memory", "16"), "below 100 MB; without a unit, it is bytes", "16 GB"),
        (("--memory", "16 gb"), "must look like", "16 GB"),
        (("--nodes", "10-1"), "count up", "1-10"),
        (("--page", "."), "is a folder", "nodes.html"),
        (("--measured-link", "20 Gbit/s"), "more than the link carries", "--link"),
        (("--page", "/proc/nodes.html"), "cannot be written", "name a file"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_with_what_to_write(words, said, hint):
    error = run(*words).exception
    assert isinstance(error, UsageError)
    assert said in error.message
    assert hint in error.hint


@pytest.mark.process
def test_a_model_without_weights_is_refused(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"image": 224, "layers": [["", 0, 9, 0, []]]}\'\n')
    python.chmod(0o755)
    error = run("--model-from", "own.py:none", "--python", str(python)).exception
    assert isinstance(error, UsageError)
    assert "without multiply-adds" in error.message
