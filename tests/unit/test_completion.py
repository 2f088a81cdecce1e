"""The tab key: what the shell is offered, in a project of its own."""

import pytest
import typer.main

from gpubed import cli
from gpubed.core.paths import Project
from gpubed.spec import backend_config
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def offered(tmp_path, monkeypatch, capsys):
    """A function that returns what is offered after some words."""
    paths = Project(tmp_path).cluster("lab")
    for folder in (paths.spec.parent, paths.state, tmp_path / "jobs" / "mine"):
        folder.mkdir(parents=True)
    paths.spec.touch()
    paths.allocation.write_text(sample_allocation(sample_plan()).model_dump_json())
    (tmp_path / "jobs" / "mine" / "job.yml").touch()
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setenv("_GPUBED_COMPLETE", "complete_bash")
    command = typer.main.get_command(cli.build())

    def complete(line):
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            command.main([], prog_name="gpubed")
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gpubed stat", ["status"]),
        ("gpubed status ", ["lab"]),
        ("gpubed doctor ", ["lab"]),
        ("gpubed run lab d", {"digits"}),
        ("gpubed run lab mi", ["mine"]),
        ("gpubed run lab digits --set ", ["epochs=", "batch=", "learning_rate=", "seed="]),
        ("gpubed run lab digits --set ep", ["epochs="]),
        ("gpubed run lab allreduce --set sizes=", ["sizes=all", "sizes=largest"]),
        ("gpubed run lab nothing --set ", []),
        ("gpubed run lab mine --set ", []),
        ("gpubed run lab digits --launcher ", {"gpulab", "slurm", "ssh"}),
        ("gpubed bench lab sm", ["smoke"]),
        ("gpubed bench lab im", ["imagenet-scaling"]),
        ("gpubed ssh lab n", ["node-0", "node-1", "node-2"]),
        ("gpubed ssh lab h", ["head"]),
        ("gpubed ssh other n", []),
        ("gpubed health lab --quarantine node-2", ["node-2"]),
        ("gpubed health lab --requalify node-2", ["node-2"]),
        ("gpubed init new --backend ", list(backend_config.names())),
        ("gpubed export lab r", ["rspec"]),
        ("gpubed recipe show cp", {"cpu"}),
    ],
)
def test_the_tab_key_offers(offered, line, words):
    """Of what anybody may add to, a set is what there is at least."""
    if isinstance(words, set):
        assert words <= set(offered(line))
    else:
        assert offered(line) == words


def test_a_report_is_of_what_was_measured_on_the_cluster(offered, tmp_path):
    for name in ("smoke", "scaling"):
        folder = Project(tmp_path).cluster("lab").campaigns / name
        folder.mkdir(parents=True)
        (folder / "campaign.json").touch()
    assert offered("gpubed report lab ") == ["scaling", "smoke"]
    assert offered("gpubed report lab sm") == ["smoke"]
    assert offered("gpubed report other ") == []
