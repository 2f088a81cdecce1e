"""A role that can be switched off owns what its tasks make: else its removal leaves it behind.

Read from the tasks, without running them; molecule compares whole nodes (`removed.yml`).
"""

import re

import pytest
import yaml

from gpubed.core.paths import assets

WRITES = {"copy", "template", "file", "lineinfile", "blockinfile", "get_url", "unarchive"}
MAKES = {"systemd_service": "name", "user": "name", "group": "name"}
# Where the removal is, which makes nothing.
GOES = re.compile(r"absent|away|remov|leaving")
# What is not in a role's `__ROLE_owns`, and why that is right.
OTHERWISE = {
    "docker": {
        "{{ __docker_record | dirname }}": "gpubed's own folder, of all roles",
        "{{ __docker_leaving }}": "the hook, which removes itself",
        "{{ __docker_leaving | dirname }}": "gpubed's own folder, of all roles",
        "{{ __docker_written }}": "a note; the hook removes it with itself",
        "{{ gpubed_user }}": "the cluster's account, which is put into Docker's group",
        "/usr/local/bin/{{ item }}": "of __docker_commands",
    },
    "jupyterlab": {
        "{{ jupyterlab_notebooks }}": "researchers' work stays",
        "{{ jupyterlab_runs }}": "made by shared_storage",
        "{{ jupyterlab_reports }}": "made by shared_storage",
    },
    "monitoring": {
        "{{ item }}.service": "of __monitoring_ours, by the additions",
        "nvidia-dcgm-exporter.service": "of __monitoring_ours, by the additions",
        "prometheus-node-exporter.service": "of __monitoring_ours, by the additions",
        "{{ item.path }}": "the folder of figures, and gpubed's own of all roles",
        "{{ item.dest }}": "within the page's folder, which is the mark",
    },
    "nfs": {
        "{{ __nfs_fstab_path }}": "the system's: the hook takes the block out of it",
        "nfs-server.service": "of the package, which stays",
    },
    "nvidia_container_toolkit": {"{{ item.unit }}": "of the package that the role brings"},
    "nvidia_driver": {"{{ item }}": "of __nvidia_driver_owns.units"},
    "rdma": {"{{ __rdma_openmpi }}": "an owner's file: absent.yml takes the block out of it"},
    "scratch": {
        "{{ scratch_path }}": "where disks were mounted: free.yml unmounts and removes it",
        "{{ scratch_path }}/datasets": "on the disks, which free.yml wipes",
        "{{ __scratch_fstab }}": "the system's: free.yml takes the line out of it",
    },
    "slurm": {
        "{{ item.value }}": "of __slurm_hooks, which are in the role's folder",
        "{{ item.name }}": "researchers' accounts, which user_absent.yml removes",
        "{{ item }}": "researchers' slices, and a block in PAM's settings: slices.yml removes both",
        "{{ item | dirname }}": "folders of these slices",
        "/usr/local/bin/{{ item }}": "of __slurm_commands",
        "{{ slurm_home_root }}": "researchers' work stays",
        "{{ slurm_home_root }}/{{ item.name }}": "researchers' work stays",
    },
}


def switched_off():
    for role in sorted((assets() / "roles").iterdir()):
        variables = role / "vars" / "main.yml"
        if variables.is_file() and f"__{role.name}_owns" in variables.read_text():
            yield role


def tasks_of(found):
    for task in found or ():
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks_of(task.get(part))


def made(task):
    """Yield what a task makes: paths, units, users and groups, as the task writes them."""
    for module, given in task.items():
        kind = module.rpartition(".")[2]
        if not isinstance(given, dict) or given.get("state") == "absent":
            continue
        if kind in WRITES:
            names = [given.get("dest") or given.get("path")]
        elif kind in MAKES and (kind != "systemd_service" or given.get("enabled") is True):
            names = [given.get(MAKES[kind])]
        else:
            continue
        loop = task.get("loop")
        if names == ["{{ item }}"] and isinstance(loop, list):
            names = loop
        yield from (str(name) for name in names if isinstance(name, str))


class Owned:
    """What a role owns, by the text of its variables."""

    def __init__(self, role):
        files = [role / "defaults/main.yml", *sorted((role / "vars").glob("*.yml"))]
        self._values = {
            name: value
            for path in files
            for name, value in (yaml.safe_load(path.read_text()) or {}).items()
        }
        self._words, todo = set(), [f"__{role.name}_owns"]
        while todo:
            if (name := todo.pop()) not in self._words and name in self._values:
                self._words.add(name)
                todo += re.findall(r"\b\w+\b", str(self._values[name]))
        self._text = "\n".join(str(self._values[name]) for name in self._words)

    def has(self, name):
        """Say whether a path or name is among it, or made of what is."""
        used = re.findall(r"\b_*[a-z]\w*\b", " ".join(re.findall(r"\{\{(.*?)\}\}", name)))
        return name in self._text or any(self._is_owned(word) for word in used)

    def _is_owned(self, word):
        """A variable that the role's own things are named by, or that is made of one."""
        if word in self._words:
            return True
        inner = re.findall(r"\b__\w+\b", str(self._values.get(word, "")))
        return any(self._is_owned(one) for one in inner if one != word)


@pytest.mark.parametrize("role", list(switched_off()), ids=lambda role: role.name)
def test_what_tasks_make_is_owned(role):
    owned, known = Owned(role), OTHERWISE.get(role.name, {})
    found = [
        (path.name, name)
        for path in sorted(role.glob("tasks/*.yml"))
        if not GOES.search(path.stem)
        for task in tasks_of(yaml.safe_load(path.read_text()))
        for name in made(task)
        if not owned.has(name)
    ]
    assert known.keys() <= {name for _, name in found}, "OTHERWISE has what is owned by now"
    left = [f"{file}: {name}" for file, name in found if name not in known]
    assert left == [], f"put them into __{role.name}_owns, or say in OTHERWISE what removes them"
