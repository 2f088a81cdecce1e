"""A STAND-IN for the command `slices`, made from its documentation and public scripts alone.

It knows the commands and options that gpubed uses, refuses every other one, and keeps what it lends
in a file. Its machines are containers of the local backend, behind one that is the bastion.
"""

import fcntl
import json
import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from support import containers

CONTROL = "10.127.231.0/24"
PROJECT, INFRA, FLAVOR = "horovod-lab", "be-gent1-bi-vm1", "medium"
TABLES = {
    ("project", "list"): [("Name", "Expires At"), (PROJECT, "2027-01-01"), ("other", "2027-01-01")],
    ("bi", "infra", "list"): [("Infra ID",), (INFRA,), ("be-gent1-bi-baremetal1",)],
    ("bi", "flavor", "list"): [("Name", "CPUs"), ("small", "2"), (FLAVOR, "4"), ("large", "4")],
}
# Positional arguments and options of each other command.
COMMANDS = {
    ("experiment", "show"): (1, {"--format"}),
    ("experiment", "create"): (1, {"--duration"}),
    ("experiment", "extend"): (1, {"--duration"}),
    ("bi", "list"): (0, {"--experiment", "--format"}),
    ("bi", "create-from-file"): (1, {"--experiment", "--duration"}),
    ("bi", "extend"): (1, {"--duration"}),
    ("bi", "destroy"): (1, {"--experiment", "--force"}),
}


class Site:
    """The testbed: a folder with the command in `bin`, the user's key, and what is lent."""

    def __init__(self, folder):
        self.folder, self.bin = folder, folder / "bin"
        self.token, self.key = folder / "auth.json", folder / "id_ed25519"
        self.known_hosts = folder / "known_hosts"

    @classmethod
    def made(cls, folder, boots_s=0.0):
        """Write the command and a state without machines."""
        site = cls(folder)
        site.bin.mkdir(parents=True)
        site.token.write_text("{}")
        new = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(site.key)]
        subprocess.run(new, check=True)
        state = {"uuid": str(uuid.uuid4()), "boots_s": boots_s, "experiments": {}, "machines": []}
        (folder / "state.json").write_text(json.dumps({**state, "next": 10}))
        command, here = site.bin / "slices", Path(__file__).parents[1]
        words = f"exec {sys.executable} -m support.slices {folder}"
        command.write_text(f'#!/bin/sh\n# STAND-IN\nPYTHONPATH={here} {words} "$@"\n')
        command.chmod(0o755)
        return site

    def open(self):
        """Make the bastion, whose host key the user knows."""
        node = self.container("bastion", self.key.with_suffix(".pub").read_text().strip(), 5)
        [key] = node["host_keys"]
        self.known_hosts.write_text(f"{node['control_address']} {key}\n")
        with self.held() as state:
            state["bastion"] = node["control_address"]

    def close(self):
        """Remove everything that carries the site's id."""
        containers.remove(self.state["uuid"])

    @property
    def state(self):
        return json.loads((self.folder / "state.json").read_text())

    def held(self):
        return _Held(self.folder / "state.json")

    @property
    def machines(self):
        """What is lent, by name."""
        lent = (one for one in self.state["machines"] if not one["terminated_at"])
        return {one["friendly_name"]: one for one in lent}

    def lose(self, name):
        """Take a machine away, as a failure of the testbed would."""
        with self.held() as state:
            [one] = [one for one in state["machines"] if one["friendly_name"] == name]
            one["terminated_at"] = _text(datetime.now(UTC))
            self.remove(one)

    def inputs(self, name, public_key, host):
        from gpubed.backends.local import image
        from gpubed.backends.local.network import NetworkDriver

        own = {"cluster": f"bi-{self.state['uuid'][:6]}", "uuid": self.state["uuid"]}
        network = {**own, "purpose": "control", "subnet": CONTROL}
        control = {"network": NetworkDriver().create(network)[1]["name"]}
        return {
            **own,
            "name": name,
            "image": image.ensure(image.Recipe("debian-12")),
            "public_key": public_key,
            "control": {**control, "address": CONTROL.replace("0/24", str(host))},
            "cpus": 1.0,
            "memory": 512 << 20,
        }

    def container(self, name, public_key, host):
        from gpubed.backends.local.node import NodeDriver

        return NodeDriver().create(self.inputs(name, public_key, host))[1]

    def remove(self, machine):
        from gpubed.backends.local import daemon

        for found in daemon.client().containers.list(
            all=True, filters={"id": machine["container"]}
        ):
            found.remove(force=True, v=True)

    def start(self, user_data, host):
        """Make a container and do what cloud-init does with the user data."""
        from gpubed.backends.local import daemon, runtime

        data = yaml.safe_load(user_data)
        node = self.container(data["hostname"], data["ssh_authorized_keys"][0], host)
        container, keys = daemon.client().containers.get(node["id"]), data["ssh_keys"]
        for kind, name, mode in (("private", "", 0o600), ("public", ".pub", 0o644)):
            path = f"etc/ssh/ssh_host_ed25519_key{name}"
            text = keys[f"ed25519_{kind}"].rstrip("\n") + "\n"
            runtime.put(container, runtime.File(path, text.encode(), mode))
        code, said = container.exec_run(["systemctl", "restart", "ssh"])
        assert code == 0, said
        return node


class _Held:
    """The state, read and written under a lock: commands run beside each other."""

    def __init__(self, path):
        self._path = path

    def __enter__(self):
        self._lock = self._path.with_suffix(".lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.state = json.loads(self._path.read_text())
        return self.state

    def __exit__(self, kind, *_):
        if kind is None:
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self.state))
            new.replace(self._path)
        self._lock.close()


def _text(when):
    return when.isoformat().replace("+00:00", "Z")


def _fail(said):
    raise SystemExit(f"Bad Request: {said}")


def _end(duration):
    assert duration[-1] in "hd", duration
    hours = int(duration[:-1]) * (24 if duration[-1] == "d" else 1)
    if hours > 2160:
        _fail("duration is more than 2160 hours")
    return _text(datetime.now(UTC) + timedelta(hours=hours))


def _parsed(words):
    for command, (count, options) in COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            rest, given, plain = list(words[len(command) :]), {}, []
            while rest:
                word = rest.pop(0)
                if word in options:
                    given[word] = True if word == "--force" else rest.pop(0)
                elif word.startswith("-"):
                    raise SystemExit(f"No such option: {word}")
                else:
                    plain.append(word)
            assert len(plain) == count, words
            return command, plain, given
    raise SystemExit(f"No such command: {words}")


def _shown(machine, state):
    since = datetime.now(UTC) - datetime.fromisoformat(machine["created_at"])
    jump = {"host": state["bastion"], "port": 22, "username": "gpubed"}
    login = {"host": machine["private_ipv4"], "port": 22, "username": "gpubed", "jump_proxy": jump}
    is_up = since.total_seconds() >= state["boots_s"]
    hidden = {key: value for key, value in machine.items() if key != "container"}
    ways = {"status": "up", "ssh_logins": [login]} if is_up else {"status": "booting"}
    return {"ssh_logins": [], "public_ipv4": None, "network_interfaces": [], **hidden, **ways}


def main(folder, *words):
    site = Site(Path(folder))
    if words == ("--version",):
        return "slices-cli 0 (STAND-IN)"
    if not site.token.exists():
        raise SystemExit("No valid credentials: please log in again with: slices auth login")
    if table := TABLES.get(words):
        bars = ["┃", *["│"] * (len(table) - 1)]
        return "\n".join(
            f"{bar} {f' {bar} '.join(row)} {bar}" for bar, row in zip(bars, table, strict=True)
        )
    command, plain, given = _parsed(words)
    if os.environ.get("SLICES_PROJECT") != PROJECT:
        _fail("you are not a member of this project")
    experiment = os.environ["SLICES_EXPERIMENT"]
    with site.held() as state:
        if command != ("experiment", "create") and experiment not in state["experiments"]:
            raise SystemExit(f"Experiment {experiment} not found")
        call = Call(site, state, experiment, given)
        return getattr(call, "_".join(command).replace("-", "_"))(*plain)


class Call:
    """One call; a method for each command."""

    def __init__(self, site, state, experiment, given):
        self._site, self._state, self._experiment, self._given = site, state, experiment, given
        self._own = [one for one in state["machines"] if one["experiment"] == experiment]
        self._lent = {one["friendly_name"]: one for one in self._own if not one["terminated_at"]}
        self._end = _end(given["--duration"]) if "--duration" in given else ""

    def experiment_create(self, name):
        if name in self._state["experiments"]:
            _fail("An active experiment with this name already exists.")
        self._state["experiments"][name] = self._end

    def experiment_extend(self, name):
        self._state["experiments"][name] = self._end

    def experiment_show(self, name):
        shown = {"id": "exp_01", "friendly_name": name, "project_id": "proj_01"}
        return json.dumps({**shown, "expires_at": self._state["experiments"][name]})

    def bi_list(self):
        return json.dumps([_shown(one, self._state) for one in self._own])

    def bi_create_from_file(self, path):
        [wanted] = json.loads(Path(path).read_text())["resources"]
        data = Path(wanted.pop("userdata_file")).read_text()
        name, infra, flavor = (wanted.pop(k) for k in ("friendly_name", "infra_id", "flavor"))
        assert wanted.keys() == {"disk_image"}
        if name in self._lent:
            _fail("A resource with this name already exists.")
        if flavor not in [row[0] for row in TABLES["bi", "flavor", "list"][1:]]:
            _fail(f"no flavor {flavor}")
        if self._end > self._state["experiments"][self._experiment]:
            _fail("the resource would outlive its experiment")
        node = self._site.start(data, self._state["next"])
        self._state["next"] += 1
        made = {
            "id": f"r_{infra}_{uuid.uuid4().hex}",
            "friendly_name": name,
            "infra_id": infra,
            "private_ipv4": node["control_address"],
            "created_at": _text(datetime.now(UTC)),
            "expires_at": self._end,
            "terminated_at": None,
            "container": node["id"],
            "experiment": self._experiment,
        }
        self._state["machines"].append(made)

    def bi_extend(self, name):
        if self._end < self._lent[name]["expires_at"]:
            _fail("a resource cannot be shortened")
        self._lent[name]["expires_at"] = self._end
        ends = self._state["experiments"]
        ends[self._experiment] = max(ends[self._experiment], self._end)

    def bi_destroy(self, name):
        if "--force" in self._given:  # else it would ask, and no terminal answers
            self._lent[name]["terminated_at"] = _text(datetime.now(UTC))
            self._site.remove(self._lent[name])


if __name__ == "__main__":
    sys.stdout.write(f"{main(*sys.argv[1:]) or ''}\n")
