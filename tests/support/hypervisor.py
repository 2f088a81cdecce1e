"""STAND-IN for the hypervisor of a cloud whose nova has its own `fake` one.

That one says of each server that it runs, and boots nothing. API, scheduler, ports, addresses
and quota stay the cloud's own: this watches nova and keeps for each server of a project that is
ACTIVE a container of the local backend's node image, with the addresses that neutron gave, and
does there what cloud-init makes of gpubed's user data. It is stopped, started, rebooted and
removed as the server is; a server in the state ERROR has none.

Nobody stands for security groups, link rates and volumes. Floating addresses lead to their nodes
by a route on this machine, and from nowhere else.
Subnets are Docker's, which knows each range once per machine: a second run beside this one may
pick the same one, and then its servers stay silent and stderr says so.

It is a process of its own that ends with whoever started it, killed ones included, and then
removes all that it made.
"""

import base64
import email
import os
import select
import shlex
import subprocess
import sys
import traceback
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openstack
import yaml
from openstack.exceptions import SDKException

from gpubed.backends.local import image, runtime
from gpubed.backends.local.container import runtime_of
from gpubed.backends.local.network import NetworkDriver
from gpubed.backends.local.node import NodeDriver
from gpubed.backends.local.runtime import NodeInputs
from support import containers

_PAUSE_S = 1.0
_FOLDER = Path(__file__).parents[1]
_HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
_BOOTS = {"reboot", "resize"}


def is_needed(connection):
    """Says whether a cloud's servers boot nothing; who may not ask has a cloud that is real."""
    try:
        kinds = {found.hypervisor_type for found in connection.compute.hypervisors(details=True)}
    except SDKException:
        return False
    return kinds == {"fake"}


@contextmanager
def running():
    """Serves the project that the environment's OS_ variables name."""
    command = [sys.executable, "-m", "support.hypervisor"]
    # A session of its own: Ctrl-C is for the tests, which still take their servers down.
    process = subprocess.Popen(
        command, cwd=_FOLDER, env=os.environ.copy(), stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        process.communicate()
    assert process.returncode == 0


@dataclass
class _Machine:
    """A server's container."""

    node: NodeInputs
    container: object
    ports: set
    links: dict
    commands: list
    updated: str
    boots: set
    runs: bool = False
    doors: set = field(default_factory=set)

    @property
    def networks(self):
        attached = (self.node.control, self.node.experiment)
        return {found.network for found in attached if found}


class Hypervisor:
    """Keeps containers as nova has servers."""

    def __init__(self, connection):
        self._nova, self._neutron = connection.compute, connection.network
        self._project = connection.current_project_id
        self.uuid = str(uuid.uuid4())
        """On the label `gpubed.cluster` of everything that is made."""
        self._machines, self._networks = {}, {}

    def look(self):
        """Makes what there is what nova says."""
        servers = {server.id: server for server in self._nova.servers(details=True)}
        for id_ in self._machines.keys() - servers.keys():
            NodeDriver().delete("", self._machines.pop(id_).node.model_dump())
        self._remove_networks()
        for server in servers.values():
            if server.status == "ACTIVE":
                self._run(server)
            elif server.status == "SHUTOFF" and server.id in self._machines:
                _stop(self._machines[server.id])
        self._lead()

    def close(self):
        """Removes everything."""
        containers.remove(self.uuid)

    def _run(self, server):
        machine = self._machines.get(server.id)
        if machine is None:
            self._make(server)
        elif server.updated_at != machine.updated or not machine.runs:
            boots = self._boots(server)
            if boots != machine.boots:
                _stop(machine)
            machine.updated, machine.boots = server.updated_at, boots
            _start(machine)

    def _boots(self, server):
        return {a.request_id for a in self._nova.server_actions(server) if a.action in _BOOTS}

    def _make(self, server):
        ports = list(self._neutron.ports(device_id=server.id))
        attached, links = {}, {}
        for port in ports:
            ((purpose, network, address),) = self._attachments(port)
            attached[purpose] = {"network": network, "address": address}
            links[address] = self._neutron.get_network(port.network_id).mtu
        if "control" not in attached:  # it goes as we look
            return
        data = _cloud_config(base64.b64decode(server.user_data).decode())
        (user,) = data["users"]
        node = NodeInputs(
            cluster=_name(server.id),
            uuid=self.uuid,
            name=data["hostname"],
            image=image.ensure(image.Recipe("debian-12")),
            public_key=user["ssh_authorized_keys"][0],
            cpus=server.flavor.vcpus,
            memory=server.flavor.ram << 20,
            **attached,
        )
        container = _container(node, data)
        ids, commands = {port.id for port in ports}, data["runcmd"]
        machine = _Machine(node, container, ids, links, commands, server.updated_at, set())
        self._machines[server.id] = machine
        machine.boots = self._boots(server)
        _start(machine)

    def _attachments(self, port):
        """Yields purpose, Docker's network and address of a port; a way out tells the purpose."""
        for fixed in port.fixed_ips:
            subnet = self._neutron.get_subnet(fixed["subnet_id"])
            inputs = {
                "cluster": _name(port.network_id),
                "uuid": self.uuid,
                "purpose": "control" if subnet.gateway_ip else "experiment",
                "subnet": subnet.cidr,
            }
            name = NetworkDriver().create(inputs)[1]["name"]
            self._networks[name] = inputs
            yield inputs["purpose"], name, fixed["ip_address"]

    def _remove_networks(self):
        used = {name for machine in self._machines.values() for name in machine.networks}
        for name in self._networks.keys() - used:
            NetworkDriver().delete("", self._networks.pop(name))

    def _lead(self):
        """Lets floating addresses lead to their nodes, and nowhere where they are gone."""
        ports = {port: m for m in self._machines.values() for port in m.ports}
        wanted = {}
        for ip in self._neutron.ips(project_id=self._project):
            if ip.port_id in ports:
                wanted.setdefault(id(ports[ip.port_id]), set()).add(ip.floating_ip_address)
        for machine in [machine for machine in self._machines.values() if machine.runs]:
            doors, via = wanted.get(id(machine), set()), machine.node.control.address
            for address in machine.doors - doors:
                _execute(machine.container, "ip addr del $1/32 dev lo", address)
                subprocess.run(["ip", "route", "del", f"{address}/32", "via", via], check=False)
            for address in doors - machine.doors:
                _execute(machine.container, "ip addr add $1/32 dev lo", address)
                subprocess.run(["ip", "route", "replace", f"{address}/32", "via", via], check=True)
            machine.doors = doors


_MTU = 'ip link set "$(ip -o -4 addr show to "$1" | cut -d" " -f2)" mtu "$2"'
_BOOTED = "until systemctl is-system-running | grep -Eq 'running|degraded'; do sleep 0.3; done; "


def _name(id_):
    return f"stand-in-{id_[:8]}"


def _cloud_config(text):
    """Returns gpubed's part of user data; nobody stands for what cloud-init makes of others."""
    if text.startswith("#cloud-config"):
        return yaml.safe_load(text)
    ours, _ = email.message_from_string(text).get_payload()
    return yaml.safe_load(ours.get_payload(decode=True))


def _container(node, data):
    """Makes a server's container, and does what cloud-init does before SSH starts."""
    try:
        made = runtime_of(node).make(node)
        runtime_of(node).prepare(made, node)
        keys = data["ssh_keys"]
        for path, content, mode in (
            (_HOST_KEY, keys["ed25519_private"], 0o600),
            (f"{_HOST_KEY}.pub", keys["ed25519_public"] + "\n", 0o644),
            *((file["path"].lstrip("/"), file["content"], 0o644) for file in data["write_files"]),
        ):
            runtime.put(made, runtime.File(path, content.encode(), mode))
        containers.let_out(made)
    except Exception:
        NodeDriver().delete("", node.model_dump())  # the next look tries again
        raise
    return made


def _start(machine):
    if machine.runs:
        return
    machine.container.start()
    machine.runs, machine.doors = True, set()
    for address, mtu in machine.links.items():
        _execute(machine.container, _MTU, address, str(mtu))
    if machine.commands:
        later = "; ".join(shlex.join(command) for command in machine.commands)
        machine.container.exec_run(["sh", "-c", _BOOTED + later], detach=True)
        machine.commands = []


def _stop(machine):
    machine.runs = False
    machine.container.stop()


def _execute(container, command, *arguments):
    code, output = container.exec_run(["sh", "-euc", command, "sh", *arguments])
    assert code == 0, output.decode(errors="replace")


def _serve():
    found, said = Hypervisor(openstack.connect()), ""
    try:
        # Its end closes the pipe, however it comes.
        while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            try:
                found.look()
            except Exception as error:  # a server may go as we look; the next look says
                if said != (said := str(error)):
                    traceback.print_exc()
    finally:
        found.close()


if __name__ == "__main__":
    _serve()
