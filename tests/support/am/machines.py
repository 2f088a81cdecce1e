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

from gpubed.backends.local import daemon, image, image_cache, ownership, runtime
from gpubed.backends.local.network import NetworkDriver, VolumeDriver
from gpubed.backends.local.node import NodeDriver
from gpubed.backends.local.ownership import Owner
from gpubed.core.errors import GpubedError
from support import containers

from .nodes import NodeBroken, Nodes, Reach
from .startup import script

_FIRST_ADDRESS = 10
_PROJECT_GID, _FIRST_UID = 6000, 20000
_MTU = 1500
# The node's first account is not one of the testbed's: nobody has the key of this one.
_NOBODY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA nobody"


class Machines(Nodes):
    """Makes containers.

    Args:
        site: Names; also where the project's share is mounted.
        control: The control network, for all slices.
        cpus: Limit of a node, whatever its hardware type says.
        memory: Limit of a node in bytes.
    """

    max_links = 1

    def __init__(self, site, control="10.127.210.0/24", cpus=1.0, memory=1 << 30):
        self._site, self._control = site, IPv4Network(control)
        self._limits = {"cpus": cpus, "memory": memory}
        self.uuid = str(uuid.uuid4())
        """On the label `gpubed.cluster` of everything that is made."""
        self._lock = threading.RLock()
        self._inputs, self._uids, self._addresses = {}, {}, {}

    def reach(self, sliver):
        """Returns a free address of the control network."""
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
                self.set_users(slice_, sliver)
                self._note_mac(sliver, inputs)
                self._start_services(slice_, sliver)
        except GpubedError as error:
            raise NodeBroken(error.message) from None

    def stop(self, sliver):
        """Stops the container."""
        if container := self._container(sliver):
            container.stop()

    def restart(self, slice_, sliver):
        """Stops the container and starts it."""
        self.stop(sliver)
        self.start(slice_, sliver)

    def set_users(self, slice_, sliver):
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
            share=shlex.quote(self._share(slice_)),
        )
        self._run(container, command)

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

    def _share(self, slice_):
        return self._site.share.format(project=slice_.project)

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
                    "image": image_cache.ensure(image.Recipe("debian-12")),
                    "public_key": _NOBODY,
                    "control": {
                        "network": self._control_network(),
                        "address": sliver.reach.control_address,
                    },
                    "shared": {"volume": self._volume(slice_), "path": self._share(slice_)},
                    **self._limits,
                    **self._link(slice_, sliver),
                }
            return self._inputs[sliver.urn]

    def _control_network(self):
        inputs = {"cluster": "am", "uuid": self.uuid, "purpose": "control"}
        return NetworkDriver().create({**inputs, "subnet": str(self._control)})[1]["name"]

    def _volume(self, slice_):
        """Returns the project's volume, which outlives its slices."""
        inputs = {"cluster": "am", "uuid": self.uuid, "purpose": f"proj-{slice_.project}"}
        return VolumeDriver().create(inputs)[1]["name"]

    def _link(self, slice_, sliver):
        """Returns the attachment to the experiment network, and what it is shaped to."""
        for place in sliver.places:
            for link in slice_.request.links.values():
                name = place.request.client_id
                if name in link.members:
                    found = {
                        "network": self._link_network(slice_, link, place.address.network),
                        "address": str(place.address.ip),
                    }
                    return {"experiment": found, **_shape(link, place)}
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
        taken = {
            str(place.address.ip)
            for sliver in slice_.slivers.values()
            for place in sliver.places
            if place.address
        }
        gateway = next(
            str(host) for host in reversed(list(subnet.hosts())) if str(host) not in taken
        )
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

    def _note_mac(self, sliver, inputs):
        if "experiment" in inputs:
            container = self._container(sliver)
            attached = container.attrs["NetworkSettings"]["Networks"]
            sliver.places[0].mac = attached[inputs["experiment"]["network"]]["MacAddress"]

    def _start_services(self, slice_, sliver):
        """Starts what the request wants to be run at boot; nobody waits for it."""
        text = script(sliver.request.element)
        if text and slice_.users:
            container, user = self._container(sliver), next(iter(slice_.users))
            path = "var/lib/am/startup"
            runtime.put(container, runtime.File(path, text.encode(), 0o755))
            container.exec_run(["sh", f"/{path}"], user=user, workdir="/tmp", detach=True)

    def _run(self, container, command):
        code, output = container.exec_run(["sh", "-euc", command])
        if code:
            raise GpubedError(f"cannot make the accounts: {output.decode(errors='replace')}")


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


def _shape(link, place):
    name = place.request.client_id
    rate = link.rates.get(name)
    if rate is None:
        return {}
    return {
        "link": {
            "subnet": str(place.address.network),
            "rate_bps": rate,
            "mtu": _MTU,
            "latency": link.latency.get(name, 0.0),
            "loss": link.loss.get(name, 0.0),
        }
    }
