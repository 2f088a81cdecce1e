"""What of that which a role owns is there and is the role's, and how it goes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpubed.core.paths import assets
from support import role_tasks

pytestmark = pytest.mark.process

BASE = assets() / "roles/base"
CLUSTER = "0b7e2b52-8a2c-4a51-9a4c-3a4c2d4d9f10"
ANOTHER = "11111111-8a2c-4a51-9a4c-3a4c2d4d9f10"
# STAND-INS. Of the packages, `gone` is not there, and the owner's `game` needs `lib`.
PROGRAMS = {
    "dpkg-query": "shift 2; for one; do [ $one = gone ] || echo $one installed; done",
    "apt-get": """shift 3; for one; do echo "Remv $one [1]"; done
        case " $* " in *" lib "*) echo "Remv game [2]" ;; esac""",
    "systemctl": """for one; do case $one in
        show|--*) ;;
        none.service) printf 'LoadState=not-found\\nActiveState=inactive\\n\\n' ;;
        left.service) printf 'LoadState=not-found\\nActiveState=active\\n\\n' ;;
        *) printf 'LoadState=loaded\\nActiveState=inactive\\n\\n' ;;
        esac; done""",
    "getent": "[ $2 = there ] && echo there:x:59001:",
}


@pytest.fixture
def asked(tmp_path):
    """Asks about what a role owns, with STAND-INS for the node's programs."""
    (tmp_path / "bin").mkdir()
    for name, does in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n# STAND-IN\n{does}\n")
        program.chmod(0o755)

    def ask(**owns):
        done = subprocess.run(
            [sys.executable, BASE / "files/owned.py", json.dumps(owns), CLUSTER],
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        return {kind: names for kind, names in json.loads(done.stdout).items() if names}

    return ask


def written(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_nothing_is_a_roles_without_its_mark(asked, tmp_path):
    settings = written(tmp_path / "settings")
    assert asked(mark=str(tmp_path / "mark"), files=[settings], units=["a.service"]) == {}


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("", True),
        ("# Written by gpubed.\n[Unit]\n", True),
        (f"# cluster: {CLUSTER}\n[Unit]\n", True),
        (f"cluster {CLUSTER}\n", True),
        (f"# cluster: {ANOTHER}\n", False),
        (f"cluster {ANOTHER}\n", False),
    ],
)
def test_a_mark_that_names_another_cluster_is_of_a_time_before(asked, tmp_path, words, ours):
    """One of a former version names none."""
    mark = written(tmp_path / "mark", words)
    assert asked(mark=mark) == ({"mark": [mark]} if ours else {})


def test_a_file_of_the_owners_under_that_name_stays_and_so_does_its_unit(asked, tmp_path):
    own = written(tmp_path / "etc/lab.service", "ExecStart=/usr/bin/lab\n")
    ours = written(tmp_path / "etc/door.service", "ExecStart=/etc/gpubed/door\n")
    files = [{"path": path, "says": "/etc/gpubed/"} for path in (own, ours)]
    found = asked(files=files, units=["lab.service", "door.service"])
    assert found == {"files": [ours], "units": ["door.service"]}


def test_a_link_is_known_by_where_it_leads_and_may_lead_to_nothing(asked, tmp_path):
    link = tmp_path / "cuda"
    link.symlink_to("/nowhere/site-packages/nvidia/cu13")
    entry = {"path": str(link), "says": r"/site-packages/nvidia/cu\d+$"}
    assert asked(files=[entry]) == {"files": [str(link)]}
    link.unlink()
    link.symlink_to("/opt/cuda-12")
    assert asked(files=[entry]) == {}


def test_a_folder_that_somebody_put_something_into_stays(asked, tmp_path):
    ours = written(tmp_path / "etc/slurm/conf.d/slurm.conf")
    folders = [str(tmp_path / "etc/slurm"), str(tmp_path / "etc/slurm/conf.d")]
    assert asked(files=[ours], folders=folders)["folders"] == folders[::-1]
    written(tmp_path / "etc/slurm/topology.conf")
    assert asked(files=[ours], folders=folders)["folders"] == folders[1:]


def test_a_folder_goes_with_what_is_in_it_only_where_the_role_says_so(asked, tmp_path):
    written(tmp_path / "conf/thesis.tex")
    folder = str(tmp_path / "conf")
    assert asked(files=[folder]) == {}, "an owner made one under the name of a file"
    assert asked(files=[{"path": folder, "tree": True}]) == {"files": [folder]}
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert asked(files=[{"path": str(link), "tree": True}]) == {}, "nor what a link leads to"


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="tasks give files to root")
SAYS = "^# Written by the role"


@pytest.fixture
def keeps(tmp_path):
    """A function that keeps what an owner has, and the file that the role writes after."""
    file = tmp_path / "node/etc/nccl.conf"
    told = {
        "base_keep_file": str(file),
        "base_keep_says": SAYS,
        "ansible_managed": "managed",
    }

    def keep(owners=None):
        if owners is not None:
            written(file, owners)
        done = role_tasks.play(tmp_path, "base", "keep", **told)
        assert done.code == 0, done.said
        written(file, "# Written by the role.\nA=1\n")
        return done

    keep.file, keep.told = file, told
    return keep


def removed(tmp_path, file, *others, **programs):
    owns = {"files": [{"path": str(file), "says": SAYS}, *map(str, others)]}
    return role_tasks.play(
        tmp_path, "base", "remove", programs=programs, base_owned=owns, gpubed_uuid=CLUSTER
    )


@AS_ROOT
def test_what_an_owner_had_under_the_name_of_a_file_comes_back(tmp_path, keeps):
    assert keeps("A=owners\n").tasks["Keep what an owner has there"] == "changed"
    assert keeps().tasks["Keep what an owner has there"] == "ok", "once"
    assert removed(tmp_path, keeps.file).code == 0
    assert keeps.file.read_text() == "A=owners\n"
    assert [path.name for path in keeps.file.parent.iterdir()] == ["nccl.conf"]
    assert removed(tmp_path, keeps.file).code == 0
    assert keeps.file.read_text() == "A=owners\n", "it is no work of the role's"


@AS_ROOT
def test_an_owner_gets_his_file_back_also_after_a_removal_that_was_killed(tmp_path, keeps):
    """Between the role's file and the owner's there was none, and nothing told of the latter."""
    keeps("A=owners\n")
    killed = removed(tmp_path, keeps.file, mv="exit 1")
    assert killed.code != 0
    (tmp_path / "bin/mv").unlink()
    done = removed(tmp_path, keeps.file)
    assert done.code == 0, done.said
    assert keeps.file.read_text() == "A=owners\n"
    assert [path.name for path in keeps.file.parent.iterdir()] == ["nccl.conf"]


@AS_ROOT
def test_a_folder_that_an_owner_had_comes_back(tmp_path, keeps):
    keeps.file.mkdir(parents=True)
    written(keeps.file / "thesis.tex")
    keeps()
    assert removed(tmp_path, keeps.file).code == 0
    assert [path.name for path in keeps.file.iterdir()] == ["thesis.tex"]


def test_units_that_systemd_does_not_know_are_no_work(asked):
    """One that runs without its file is."""
    found = asked(units=["none.service", "a.timer", "left.service"])
    assert found == {"units": ["a.timer", "left.service"]}


def test_packages_are_those_that_the_note_names_and_nothing_else_needs(asked, tmp_path):
    note = written(tmp_path / "brought", "lone\ngone\ntool\n")
    assert asked(packages={"noted": note}) == {"packages": ["lone", "tool"]}
    written(tmp_path / "brought", "lib\nlone\ntool\n")
    assert asked(packages={"noted": note}) == {"packages": ["lone", "tool"]}


def test_what_others_use_by_now_stays_with_what_it_needs(asked, tmp_path):
    note = written(tmp_path / "brought", "game\nlib\nlone\n")
    assert asked(packages={"noted": note}) == {"packages": ["game", "lib", "lone"]}
    assert asked(packages={"noted": note, "kept": ["game"]}) == {"packages": ["lone"]}


@pytest.mark.parametrize(("number", "ours"), [(59001, True), ("59001", True), (1005, False)])
def test_an_account_with_another_number_is_somebody_elses(asked, number, ours):
    named = [{"name": name, "number": number} for name in ("there", "left")]
    found = asked(users=named, groups=named)
    assert found == ({"users": ["there"], "groups": ["there"]} if ours else {})


def test_it_goes_and_what_is_the_owners_stays(tmp_path):
    """The mark, too; the second time there is nothing to do."""
    node = tmp_path / "node"
    mark, ours = written(node / "mark"), written(node / "etc/ours/settings")
    kept = written(node / "etc/shared/owners")
    folders = [str(node / "etc/ours"), str(node / "etc/shared")]
    owns = {"mark": mark, "files": [ours], "folders": folders}
    given = {"base_owned": owns, "gpubed_uuid": CLUSTER}
    there = role_tasks.play(tmp_path, "base", "remove", check=True, **given)
    assert (there.code, Path(ours).exists()) == (0, True), there.said
    played = role_tasks.play(tmp_path, "base", "remove", **given)
    assert played.code == 0, played.said
    assert sorted(path for path in node.rglob("*") if path.is_file()) == [Path(kept)]
    assert not (node / "etc/ours").exists()
    again = role_tasks.play(tmp_path, "base", "remove", **given)
    assert "changed" not in again.tasks.values()
    assert "Remove the files" not in again.tasks
