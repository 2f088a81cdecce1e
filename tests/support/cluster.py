"""A whole cluster on this machine, driven the way a user drives it."""

import json
import os
import subprocess
import sys
import uuid
from ipaddress import IPv4Network
from pathlib import Path

import docker
import yaml
from docker.errors import DockerException

from gpubed.spec.plan import slices

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def unique(purpose):
    """Return a cluster name of its own, so that a run that was killed is in nobody's way.

    The subnets that gpubed draws by the name are free on this machine.
    """
    taken = _subnets()
    while True:
        name = f"{purpose}-{uuid.uuid4().hex[:6]}"
        drawn = [next(slices(name, network)) for network in ("control", "experiment")]
        if not any(subnet.overlaps(other) for subnet in drawn for other in taken):
            return name


def _subnets():
    try:
        networks = docker.from_env().networks.list()
    except DockerException:
        return []
    pools = [pool for network in networks for pool in network.attrs["IPAM"]["Config"] or []]
    return [IPv4Network(pool["Subnet"]) for pool in pools if ":" not in pool["Subnet"]]


class Cluster:
    """A project folder of its own with one cluster; every call is a real process."""

    def __init__(self, root, name, **changes):
        self.root, self.name = root, name
        self.spec_path = root / "inventories" / name / "cluster.yml"
        self.spec_path.parent.mkdir(parents=True)
        base = yaml.safe_load((ROOT / "inventories" / "lab" / "cluster.yml").read_text())
        self.write({**base, **changes})
        self.state = root / ".gpubed" / name

    @property
    def spec(self):
        return yaml.safe_load(self.spec_path.read_text())

    def write(self, spec):
        self.spec_path.write_text(yaml.safe_dump(spec, sort_keys=False))

    def edit(self, change):
        spec = self.spec
        change(spec)
        self.write(spec)

    @property
    def environment(self):
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "GPUBED_ROOT": str(self.root), "PATH": path}

    def start(self, *words, **options):
        command = [str(BIN / "gpubed"), *words]
        return subprocess.Popen(command, env=self.environment, text=True, **options)

    def call(self, verb, *words, rc=0):
        command = [str(BIN / "gpubed"), verb, self.name, *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        assert rc in (None, done.returncode), f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, verb, *words, rc=0):
        document = json.loads(self.call(verb, *words, "--json", rc=rc).stdout)
        assert document["schema"] == f"gpubed/{verb}/1", document
        return document

    def playbook(self, *words, path="playbooks/site.yml", rc=0, **settings):
        """Run a playbook by hand, with settings of Ansible's in the environment."""
        command = [str(BIN / "ansible-playbook"), "-i", str(self.spec_path.parent)]
        done = subprocess.run(
            [*command, str(path), *words],
            cwd=ROOT,
            env={**self.environment, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout

    def node(self, name, command, text=None):
        config = str(self.state / "ssh_config")
        done = subprocess.run(
            ["ssh", "-F", config, name, command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def labelled(name):
    """Return everything on the Docker daemon that carries a cluster's name."""
    found = []
    for kind, verb in (
        ("container", ["ps", "-a"]),
        ("network", ["network", "ls"]),
        ("volume", ["volume", "ls"]),
        ("image", ["images"]),
    ):
        command = ["docker", *verb, "-q", "--filter", f"label=gpubed.name={name}"]
        ids = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        found += [f"{kind} {id_}" for id_ in ids]
    return found
