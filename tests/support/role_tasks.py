"""A role's task files, run by real Ansible on this machine: what they decide, in seconds.

Around them are STAND-INS: other roles that only tell what was asked of them, and programs
that answer what a test wants. Nothing of this machine is changed: a test names the files
that tasks would write, or runs them in check mode.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpubed.core.paths import assets
from support import role_variables

ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
# What roles under test ask of others: the entry, and what it is asked for.
OTHERS = {
    "base": {
        "packages": "{{ base_packages_wanted | join(' ') }}",
        "packages_look": "{{ base_packages_wanted | join(' ') }}",
        "undo": "{{ base_undo_role }}",
        "repository": "{{ base_repository_url }}",
        "components": "{{ base_components_wanted | join(' ') }}",
        "offered": "{{ base_packages_wanted | join(' ') }}",
        "lists": "",
    },
    "hardware": {"collect": ""},
}
DONE = re.compile(r"^TASK \[(.+?)\] \*+\n(ok|changed|\[ERROR\])", re.MULTILINE)


@dataclass(frozen=True)
class Played:
    """What came of it."""

    code: int
    said: str
    tasks: dict[str, str]
    calls: list[str]
    told: dict[str, object]


def play(
    folder,
    role,
    entry,
    *,
    programs=(),
    check=False,
    release="debian-12",
    tell=(),
    facts=(),
    respawns=False,
    **variables,
):
    """Run a task file of a role on a node that is this machine."""
    _stand_ins(folder, role, dict(programs))
    told = folder / "told.json"
    told.write_text("{}")
    asked = "{{ {" + ", ".join(f"'{name}': {name}" for name in tell) + "} | to_json }}"
    tells = {"copy": {"content": asked, "dest": str(told)}, "check_mode": False}
    # Mitogen halves the time of all these tests.
    strategy = "linear" if respawns else "gpubed_linear"
    whole = _play(role, entry, release, dict(facts), variables, strategy)
    whole["tasks"] += [tells] if tell else []
    (folder / "play.yml").write_text(json.dumps([whole]))
    # What gpubed gives to hosts is theirs, so that tasks find it in hostvars.
    known = {name: value for name, value in variables.items() if name.startswith("gpubed_")}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": {"node-0": known}}}))
    calls = folder / "calls"
    calls.write_text("")
    code, said = run(folder, *(["--check"] * check))
    return Played(
        code,
        said,
        dict(DONE.findall(said)),
        calls.read_text().splitlines(),
        json.loads(told.read_text()),
    )


def run(folder, *words):
    """Run a folder's `play.yml` on its `hosts.json`; return the exit code and what was said."""
    done = subprocess.run(
        [ANSIBLE, "-i", folder / "hosts.json", folder / "play.yml", *words],
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(assets() / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(folder / "roles"),
            "ANSIBLE_INVENTORY_ENABLED": "yaml",
            "ANSIBLE_LOCALHOST_WARNING": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _play(role, entry, release, facts, variables, strategy):
    there = assets() / "roles" / role
    known = {**role_variables.facts(release), **facts}
    notified = there / "handlers/main.yml"
    return {
        "hosts": "all",
        "connection": "local",
        "gather_facts": False,
        "strategy": strategy,
        "vars": {"ansible_python_interpreter": sys.executable, "gpubed_environment": {}},
        "vars_files": [str(path) for path in _variables(role, release)],
        "tasks": [
            {"set_fact": {**known, "cacheable": True}},
            {
                "include_tasks": str(there / "tasks" / f"{entry}.yml"),
                "vars": {"role_path": str(there), **variables},
            },
        ],
        "handlers": [
            {
                "name": handler["name"],
                "listen": handler.get("listen", []),
                "command": f"handler {handler['name']}",
                "check_mode": False,
            }
            for handler in yaml.safe_load(notified.read_text())
        ]
        if notified.is_file()
        else [],
    }


def _variables(role, release):
    there = assets() / "roles" / role / "defaults/main.yml"
    return [there, *role_variables.files(role, release)]


def _stand_ins(folder, role, programs):
    for kind in ("files", "templates", "vars"):  # where Ansible looks for them beside a play
        if (assets() / "roles" / role / kind).is_dir() and not (folder / kind).exists():
            (folder / kind).symlink_to(assets() / "roles" / role / kind)
    (folder / "bin").mkdir(exist_ok=True)
    for other, entries in OTHERS.items():
        tasks = folder / "roles" / other / "tasks"
        tasks.mkdir(parents=True, exist_ok=True)
        for entry, words in entries.items():
            task = {"command": f"{other}.{entry} {words}", "check_mode": False}
            (tasks / f"{entry}.yml").write_text(json.dumps([task]))
            programs.setdefault(f"{other}.{entry}", "")
    for name in ("files", "templates", "defaults"):
        if not (there := folder / "roles/base" / name).exists():
            there.symlink_to(assets() / "roles/base" / name)
    programs.setdefault("handler", "")
    for name, does in programs.items():
        program = folder / "bin" / name
        log = f'echo "{name} $*" >>{folder / "calls"}'
        program.write_text(f"#!/bin/sh\n# STAND-IN\n{log}\n{does}\n")
        program.chmod(0o755)
