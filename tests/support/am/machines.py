"""Slivers as real nodes: containers of the local backend, made by its own drivers.

One experiment interface per node, since that is what those nodes have. Every disk image
is Debian 12. A node answers SSH at its control address, which also is its host name here:
nobody resolves the site's domain.
"""

import shlex
import threading
import uuid
from ipaddress import IPv4Network

from docker.errors import NotFound
from docker.types import IPAMConfig, IPAMPool

from gpubed.backends.local import daemon, image, ownership, runtime
from gpubed.backends.local.network import NetworkDriver, VolumeDriver
from gpubed.backends.local.node import NodeDriver
from gpubed.backends.local.ownership import Owner
from gpubed.core.errors import GpubedError
from support import containers

from .nodes import NodeBroken, Reach
from .request import script

_FIRST_ADDRESS = 10
_PROJECT_GID, _FIRST_UID = 6000, 20000
_MTU = 1500
# The node's first account is not one of the testbed's: nobody has the key of this one.
_NOBODY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA nobody"


class Machines:
    """Makes containers on a control network, each with the same limits.

    Everything that is made has `uuid` as its label `gpubed.cluster`.
    """

    def __init__(self, control, cpus=1.0, memory=1 << 30):
        self._control, self._limits = IPv4Network(control), {"cpus": cpus, "memory": memory}
        self.uuid = str(uuid.uuid4())
        self._lock = threading.RLock()
        self._inputs, self._uids, self._addresses = {}, {}, {}

    def reach(self, sliver):
        with self._lock:
            taken = set(self._addresses.values())
            hosts = range(_FIRST_ADDRESS, self._control.num_addresses - 1)
            free = (str(self._control[number]) for number in hosts)
            address = next(found for found in free if found not in taken)
            self._addresses[sliver.urn] = address
        return Reach(address, 22, address)

    def start(self, slice_, sliver):
        """Makes the container, or starts it again, and lets the users in."""
        try:
            with daemon.errors(f"start {sliver.request.client_id}"):
                inputs = self._node_inputs(slice_, sliver)
                NodeDriver().create(inputs)
                containers.let_out(self._container(sliver))
                self._set_users(slice_, sliver)
                for name in sliver.macs:
                    networks = self._container(sliver).attrs["NetworkSettings"]["Networks"]
                    sliver.macs[name] = networks[inputs["experiment"]["network"]]["MacAddress"]
                self._start_services(slice_, sliver)
        except GpubedError as error:
            raise NodeBroken(error.message) from None

    def restart(self, slice_, sliver):
        if container := self._container(sliver):
            container.stop()
        self.start(slice_, sliver)

    def _set_users(self, slice_, sliver):
        """Makes an account with sudo for each user, and takes away all others."""
        container = self._container(sliver)
        users = {name: (self._uid(name), keys) for name, keys in slice_.users.items()}
        for name, (uid, keys) in users.items():
            content = "".join(f"{key}\n" for key in keys).encode()
            path = f"var/lib/am/keys/{name}"
            runtime.put(container, runtime.File(path, content, 0o600, owner=uid))
        command = _ACCOUNTS.format(
            project=shlex.quote(slice_.project),
            gid=_PROJECT_GID,
            users=" ".join(f"{shlex.quote(name)}:{uid}" for name, (uid, _) in users.items()),
            share=shlex.quote(_share(slice_)),
        )
        code, output = container.exec_run(["sh", "-euc", command])
        if code:
            raise GpubedError(f"cannot make the accounts: {output.decode(errors='replace')}")

    def remove(self, slice_, slivers):
        """Removes containers, and the slice's networks once nobody is on them."""
        for sliver in slivers:
            if inputs := self._inputs.pop(sliver.urn, None):
                NodeDriver().delete("", inputs)
            with self._lock:
                self._addresses.pop(sliver.urn, None)
        name = f"{ownership.NAME}={self._owner(slice_).cluster}"
        client, mine = daemon.client(), {"label": [f"{ownership.CLUSTER}={self.uuid}", name]}
        with self._lock:
            if not client.containers.list(all=True, filters=mine):
                for network in client.networks.list(filters=mine):
                    network.remove()

    def close(self):
        """Removes everything that carries the server's id."""
        containers.remove(self.uuid)

    def _owner(self, slice_):
        return Owner(f"am-{slice_.name}", self.uuid)

    def _uid(self, name):
        with self._lock:
            return self._uids.setdefault(name, _FIRST_UID + len(self._uids))

    def _node_inputs(self, slice_, sliver):
        with self._lock:
            if sliver.urn not in self._inputs:
                owner = self._owner(slice_)
                self._inputs[sliver.urn] = {
                    "cluster": owner.cluster,
                    "uuid": owner.uuid,
                    "name": sliver.request.client_id,
                    "image": image.ensure(image.Recipe("debian-12")),
                    "public_key": _NOBODY,
                    "control": {
                        "network": self._control_network(),
                        "address": sliver.reach.control_address,
                    },
                    "shared": {"volume": self._volume(slice_), "path": _share(slice_)},
                    **self._limits,
                    **self._link(slice_, sliver),
                }
            return self._inputs[sliver.urn]

    def _control_network(self):
        inputs = {"cluster": "am", "uuid": self.uuid, "purpose": "control"}
        return NetworkDriver().create({**inputs, "subnet": str(self._control)})[1]["name"]

    def _volume(self, slice_):
        inputs = {"cluster": "am", "uuid": self.uuid, "purpose": f"proj-{slice_.project}"}
        return VolumeDriver().create(inputs)[1]["name"]

    def _link(self, slice_, sliver):
        """Returns the attachment to the experiment network, and what it is shaped to."""
        for name, address in sliver.request.interfaces.items():
            for link in slice_.request.links.values():
                if name in link.members:
                    network = self._link_network(slice_, link, address.network)
                    shape = {
                        "subnet": str(address.network),
                        "rate_bps": link.rates[name],
                        "mtu": _MTU,
                        "latency": link.latency[name],
                        "loss": link.loss[name],
                    }
                    experiment = {"network": network, "address": str(address.ip)}
                    return {"experiment": experiment, "link": shape}
        return {}

    def _link_network(self, slice_, link, subnet):
        """Returns the network of a link.

        Not by the backend's driver, which puts the bridge where requests like to have
        their first node.
        """
        owner = self._owner(slice_)
        name, networks = owner.name(f"link-{link.client_id}"), daemon.client().networks
        if networks.list(names=[f"^{name}$"]):
            return name
        nodes = [sliver.request for sliver in slice_.slivers.values()]
        taken = {address.ip for node in nodes for address in node.interfaces.values()}
        gateway = next(str(host) for host in reversed(list(subnet.hosts())) if host not in taken)
        networks.create(
            name,
            driver="bridge",
            internal=True,
            ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet), gateway=gateway)]),
            options={"com.docker.network.driver.mtu": "9216"},
            labels=owner.labels(""),
        )
        return name

    def _container(self, sliver):
        inputs = self._inputs.get(sliver.urn)
        if inputs is None:
            return None
        try:
            return daemon.client().containers.get(Owner.of(inputs).name(inputs["name"]))
        except NotFound:
            return None

    def _start_services(self, slice_, sliver):
        text = script(sliver.request.element)
        if text and slice_.users:
            container, user = self._container(sliver), next(iter(slice_.users))
            path = "var/lib/am/startup"
            runtime.put(container, runtime.File(path, text.encode(), 0o755))
            container.exec_run(["sh", f"/{path}"], user=user, workdir="/tmp", detach=True)


_ACCOUNTS = """
project={project}
getent group "$project" >/dev/null || groupadd --gid {gid} "$project"
echo "%$project ALL=(ALL) NOPASSWD: ALL" > /etc/sudoers.d/site
chmod 440 /etc/sudoers.d/site
for name in $(awk -F: '$3 >= 1000 && $3 < 60000 {{ print $1 }}' /etc/passwd); do
  case " {users} " in
    *" $name:"*) ;;
    *) pkill -KILL -u "$name" || true; userdel --remove "$name" 2>/dev/null || true ;;
  esac
done
for entry in {users}; do
  name=${{entry%%:*}}
  uid=${{entry##*:}}
  id "$name" >/dev/null 2>&1 ||
    useradd --create-home --uid "$uid" --gid "$project" --shell /bin/bash "$name"
  home=$(getent passwd "$name" | cut -d: -f6)
  mkdir -p "$home/.ssh"
  mv "/var/lib/am/keys/$name" "$home/.ssh/authorized_keys"
  chown -R "$name:$project" "$home/.ssh"
  chmod 700 "$home/.ssh"
  chmod 600 "$home/.ssh/authorized_keys"
done
chgrp "$project" {share}
chmod 2775 {share}
if grep -q ^AllowUsers /etc/ssh/sshd_config.d/gpubed.conf; then
  sed -i /^AllowUsers/d /etc/ssh/sshd_config.d/gpubed.conf
  systemctl reload ssh
fi
"""


def _share(slice_):
    return f"/proj/{slice_.project}"
