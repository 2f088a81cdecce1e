"""The record of a cluster: changes of several processes, damage, folders of former versions."""

import hashlib
import json
import subprocess
import sys

import pytest

from gpubed.core import record
from gpubed.core.paths import Project
from gpubed.core.reading import Unreadable
from support.known import mark

UUID = "6f0c0000-0000-4000-8000-000000000000"


@pytest.fixture
def paths(tmp_path):
    return Project(tmp_path).cluster("lab")


@pytest.mark.process
def test_changes_of_several_processes_are_all_kept(paths):
    add = (
        "import sys; from pathlib import Path; from gpubed.core import record\n"
        "from gpubed.core.paths import Project\n"
        "for number in range(5):\n"
        "    with record.changed(Project(Path(sys.argv[1])).cluster('lab')) as known:\n"
        "        known.left_out[f'{sys.argv[2]}-{number}'] = 'why'\n"
    )
    words = [sys.executable, "-c", add, str(paths.project.root)]
    running = [subprocess.Popen([*words, name]) for name in "abc"]
    assert [each.wait() for each in running] == [0, 0, 0]
    assert len(record.read(paths).left_out) == 15


def test_a_change_that_fails_changes_nothing(paths):
    record.keep_uuid(paths, UUID)
    with pytest.raises(ZeroDivisionError), record.changed(paths) as known:
        known.uuid = 1 / 0
    assert record.uuid(paths) == UUID


@pytest.mark.parametrize("text", ["{", '{"version": 1, "uuid": "6f0c"}', '{"version": 2}'])
def test_a_damaged_record_is_told_and_written_anew_once_its_uuid_is_known(paths, text):
    kept = paths.specifications / "local-aaaaaaaaaaaa.yml"
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    paths.record.write_text(text)
    with pytest.raises(Unreadable, match=r"cluster\.json cannot be read") as refused:
        record.read(paths)
    assert f"rm {paths.record}" in refused.value.hint
    assert "gpubed audit lab" in refused.value.hint
    with pytest.raises(Unreadable):
        mark(paths, killed=True)
    assert record.was_made(paths)
    record.keep_uuid(paths, UUID)
    assert record.uuid(paths) == UUID
    assert record.specifications(paths, "local") == [kept]


def test_a_specification_that_is_removed_says_that_nothing_is_left_where_it_led(paths):
    testbeds = [
        record.Made(backend="local", id=id_, specifications=[f"local-{id_}.yml"]) for id_ in "ab"
    ]
    mark(paths, uuid=UUID, testbeds=testbeds)
    paths.specifications.mkdir()
    (paths.specifications / "local-a.yml").touch()
    assert [made.id for made in record.read(paths).testbeds] == ["a"]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:12]


FORMER = {
    "uuid": f"{UUID}\n",
    "testbeds/local.json": json.dumps(
        {
            "version": 1,
            "id": "B",
            "called": "daemon B",
            "copies": {digest("b"): "B", digest("a"): "A"},
        }
    ),
    "testbeds/local.yml": "b",
    f"testbeds/attempts/local-{digest('a')}.yml": "a",
    "testbeds/static.json": '{"version": 1, "id": "", "called": "", "copies": {}}',
    "testbeds/static.yml": "s2",
    f"testbeds/attempts/static-{digest('s1')}.yml": "s1",
    "testbeds/gpulab.json": '{"version": 1, "id": "user", "called": "GPULab"}',  # noted less
    "testbeds/gpulab.yml": "g",
    "unfinished": "nodes\n",
    "removing": "watch",
    "killed": "",
    "reshaped": "",
    "left_out.json": '{"node-1": "no host"}',
    "without.json": '["192.0.2.1"]',
    "served.json": '{"version": 1, "node": "node-0", "id": "i", "path": "/shared", "backend": "x"}',
    "door.json": '{"version": 1, "port": 9999}',
    "allocation.json": "{}",
    "lease.json": "{}",
    "logs/up.log": "",
}


@pytest.fixture
def former(paths):
    for name, text in FORMER.items():
        path = paths.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return paths


def check(known, paths):
    assert known.uuid == UUID
    facts = known.unfinished, known.removing, known.killed, known.reshaped, known.jupyterlab_port
    assert facts == ("nodes", "watch", True, True, 9999)
    assert (known.left_out, known.served["node"]) == ({"node-1": "no host"}, "node-0")
    led = {
        (made.backend, made.id, made.called): [
            (paths.specifications / name).read_text() for name in made.specifications
        ]
        for made in known.testbeds
    }
    assert led == {
        ("gpulab", "user", "GPULab"): ["g"],
        ("local", "A", ""): ["a"],
        ("local", "B", "daemon B"): ["b"],
        ("static", "", ""): ["s1", "s2"],
    }
    assert [made.id for made in known.testbeds if made.backend == "local"] == ["A", "B"]


def test_the_folder_of_a_former_version_is_taken_over_on_first_use(former):
    for _ in range(2):
        check(record.read(former), former)
    left = {path.name for path in former.state.iterdir()}
    kept = {"allocation.json", "lease.json", "logs"}
    assert left == {"cluster.json", "specifications", *kept}


def test_a_former_uuid_that_was_cut_off_is_told(former):
    (former.state / "uuid").write_text("6f0c")
    with pytest.raises(Unreadable, match="it holds no UUID") as refused:
        record.read(former)
    assert f"rm {former.state / 'uuid'}" in refused.value.hint
