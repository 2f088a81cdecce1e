"""What a run leaves behind: a record that it can be repeated by, and compared with."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from gpubed.jobs import launchers
from gpubed.jobs.runs import record
from support.run_verb import GOOD, call, cluster, document
from support.stand_in_head import Head

pytestmark = pytest.mark.process

__all__ = ["call", "cluster"]


def test_a_run_says_what_it_is_called_and_keeps_what_it_was_made_with(call, cluster):
    told = document(call("run", "lab", "digits", "--set", "epochs=3", "--json"))
    folder = cluster.runs / told["run_id"]
    kept = record.read(folder)
    assert (kept.state, kept.world_size, kept.values["epochs"]) == ("ok", 3, 3)
    assert kept.request.settings == {"epochs": "3"}
    assert kept.metrics == told["metrics"]
    assert [host.name for host in kept.origin.hosts] == ["node-0", "node-1", "node-2"]
    assert (folder / "origin" / "cluster.yml").read_bytes() == cluster.spec.read_bytes()
    assert (folder / "origin" / "allocation.json").exists()
    assert record.unsealed(folder) == []
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=folder, check=False).returncode == 0


def test_what_a_job_says_passes_for_no_line_of_ours(call, cluster):
    folder = cluster.runs / document(call("run", "lab", "digits", "--json"))["run_id"]
    kept = record.read(folder)
    forged = {"a\n  world_size = 9": 1, "device": "cpu\n  failed: no"}
    older = {"metrics": {**kept.metrics, **forged}, "failures": ("x is y\nfolder: /tmp",)}
    record.write(folder, kept.model_copy(update=older))
    shown = call("runs", "lab", "show", "last").stdout
    assert "  a   world_size = 9 = 1\n" in shown
    assert "  device = cpu   failed: no\n" in shown
    assert "  failed: x is y folder: /tmp\n" in shown


def test_nothing_secret_is_kept(call, cluster):
    cluster.secrets.mkdir()
    (cluster.secrets / "token").write_text("hush-hush")
    call("run", "lab", "digits")
    everything = subprocess.run(
        ["grep", "-r", "hush-hush", str(cluster.runs)], capture_output=True, check=False
    )
    assert everything.returncode == 1


@pytest.mark.parametrize("name", ["new\nline", "back\\nslash", "a\r", "\u2028", "two  words", "\\"])
def test_whatever_a_file_is_called_its_checksum_is_found(tmp_path, name):
    (tmp_path / name).write_text("a")
    record.seal(tmp_path)
    assert record.unsealed(tmp_path) == []
    check = ["sha256sum", "--check", "--strict", "--quiet", record.SUMS]
    assert subprocess.run(check, cwd=tmp_path, check=False).returncode == 0
    (tmp_path / name).write_text("b")
    assert record.unsealed(tmp_path) == [name]


def test_what_was_ended_tells_how_far_it_came_and_what_it_took(call, cluster, monkeypatch):
    """`runs show last` was named as what tells it, and said only that it was interrupted."""

    def start(_cluster, _launch, say):
        for line in ("[0]<stdout>:progress: 3/200 epochs, 3552 images/s", "[1]<stderr>:a word"):
            say(line)
        raise KeyboardInterrupt

    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))
    call("run", "lab", "digits")
    shown = document(call("runs", "lab", "show", "last", "--json"))
    assert shown["status"] == "interrupted"
    came = {"done": 3, "of": 200, "what": "epochs", "words": "3552 images/s"}
    assert shown["progress"] == came
    assert 0 <= shown["seconds"] < 60
    kept = json.loads((cluster.runs / shown["run_id"] / "run.json").read_text())
    assert kept["progress"] == came
    assert "came to epochs: 3 of 200, 3552 images/s" in call("runs", "lab", "show", "last").stdout
    listed = call("runs", "lab").stdout
    assert "epochs: 3 of 200" in listed
    assert "0:00:0" in listed


def beside(cluster, monkeypatch, others, **changes):
    """Let a second run start and end while each run is at work; `others` takes its name."""

    def start(_cluster, launch, _say):
        Head.metrics = {**GOOD, "world_size": launch.ranks}
        if not others:
            mine = record.find(cluster, "last")
            name = f"20990101-00000000{len(list(cluster.runs.iterdir()))}-digits"
            others.append(name)
            host = mine.origin.hosts[0].model_copy(update=changes)
            origin = mine.origin.model_copy(update={"hosts": (host,)})
            ended = {"run_id": name, "state": "ok", "seconds": 0.001, "origin": origin}
            one = mine.model_copy(update={**ended, "started": record.now()})
            (cluster.runs / name).mkdir()
            record.write(cluster.runs / name, one)
        return 0

    monkeypatch.setattr(launchers, "named", lambda _: SimpleNamespace(run=start))


def test_a_run_beside_which_another_was_at_work_says_so_ever_after(call, cluster, monkeypatch):
    others = []
    beside(cluster, monkeypatch, others)
    done = call("run", "lab", "digits", "--repeat", "2")
    (other,) = others
    ids = sorted(path.name for path in cluster.runs.iterdir() if path.name != other)
    said = f"{ids[0]} shared its nodes with {other}: its figures are of both"
    assert said in done.stdout
    assert f"{ids[1]} shared" not in done.stdout
    shown = document(call("runs", "lab", "show", ids[0], "--json"))
    assert shown["shared_with"] == [other]
    assert said in call("runs", "lab", "show", ids[0]).stdout
    assert said in call("runs", "lab", "compare", *ids).stdout
