"""gpubed bench goes on only with what it began with, as docs/how-to/benchmark.md has it."""

import json

import pytest

from gpubed.core.errors import UsageError
from support.bench_verb import PLAIN, bench

pytestmark = pytest.mark.process

__all__ = ["bench"]


def facts(bench, id_="id-node-0", **changes):
    """Let the first node say what it is made of."""
    bench.paths.facts.mkdir(exist_ok=True)
    said = {"schema": "gpubed/facts/2", "host": "h", "kernel": "6", "cpus": 8}
    said |= {"memory_kib": 16 << 20, "driver": {"loaded": "570.1"}, **changes}
    (bench.paths.facts / f"{id_}.json").write_text(json.dumps(said))


def made_with(bench, what):
    """Let the campaign have been begun with something else."""
    header = bench.folder / "campaign.json"
    told = json.loads(header.read_text())
    told["made_with"][what] = "f" * 64
    header.write_text(json.dumps(told))


def variables(bench, name):
    """Put a file of an owner's variables beside the inventory."""
    path = bench.paths.inventory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("horovod_fusion_mb: 64\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda b: made_with(b, "the job's files"),
            "changed: the job's files; points",
        ),
        (lambda b: variables(b, "host_vars/node-1.yml"), "changed: node-1's host_vars; points"),
        (lambda b: facts(b, cpus=4), "node-0's hardware was 8 CPUs, 16 GiB and is 4 CPUs, 16 GiB"),
        (lambda b: facts(b, driver={"loaded": "580.2"}), "node-0's driver was 570.1 and is 580.2"),
        (
            lambda b: b.paths.spec.write_text(
                b.paths.spec.read_text() + "services: {jupyterlab: {port: 9999}}\n"
            ),
            "cluster.yml: services.jupyterlab.port was the default and is 9999; points",
        ),
    ],
)
def test_points_that_are_made_with_something_else_are_none_of_the_campaign(bench, change, said):
    facts(bench)
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    ended = bench.points()
    change(bench)
    with pytest.raises(UsageError) as refused:
        bench()
    assert said in refused.value.message
    assert "--new" in refused.value.hint
    assert "put it back" in refused.value.hint
    assert bench.points() == ended


def test_what_says_nothing_of_a_measurement_may_change(bench):
    bench.behave(interrupted="32")
    assert bench().return_value == 130
    bench.behave()
    text = bench.paths.spec.read_text().replace("count: 3", "count: 4")
    bench.paths.spec.write_text(f"# mine\n{text}owner: me\nlease: {{duration: 3 d}}\n")
    told = json.loads(bench.paths.allocation.read_text())
    told["nodes"].append({**told["nodes"][-1], "name": "node-3", "id": "id-node-3"})
    bench.paths.allocation.write_text(json.dumps(told))
    facts(bench)  # which nobody knew before
    assert bench().return_value == 0
    assert not any("node-3" in call["nodes"] for call in bench.calls)


def test_another_campaign_of_the_name_is_refused_with_what_changed(bench):
    bench()
    bench.file.write_text(PLAIN.replace("[16, 32]", "[16, 64]").replace("repeat: 2", "repeat: 3"))
    with pytest.raises(UsageError) as refused:
        bench()
    assert "factors.batch was [16, 32] and is [16, 64]" in refused.value.message
    assert "repeat was 2 and is 3" in refused.value.message
    assert "--new" in refused.value.hint
    assert len(bench.calls) == 8


def test_a_new_beginning_keeps_what_is_there(bench):
    bench()
    kept = bench.points()
    bench.file.write_text(PLAIN.replace("repeat: 2", "repeat: 1"))
    done = bench("--new")
    assert done.return_value == 0
    assert len(bench.points()) == 4
    (aside,) = (path for path in bench.paths.campaigns.iterdir() if path != bench.folder)
    assert aside.name.startswith("mine.20")
    assert len(list((aside / "points").glob("*.json"))) == len(kept)
