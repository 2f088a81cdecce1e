"""A host becomes a node: looked at first, then it learns the cluster's key and a mark."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from gpubed.backends.static import access, membership, named, turn
from gpubed.backends.static.access import UnknownHost, door
from gpubed.backends.static.config import Config, host_of
from gpubed.backends.static.membership import MARK
from gpubed.core import places, progress, reading, record, runlock
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.hardware.table import chip_of
from gpubed.nodes import programs
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH, LoginRefused, Unreachable
from gpubed.recipes import recipe as recipes
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.base import Finding
from gpubed.testbeds.driver import Change, Driver, NodeFailed, Properties, Silent
from gpubed.testbeds.reach import Reach

_FREE_GIB = 5
_CLOCK_S = 60  # by which a host's clock may differ from ours; munge allows 300
# The number that Slurm's packages give the account `slurm`.
_SLURM = 64030
# What may change without another host taking the node's place; of `host`, all but who it is.
_ACCESS = {"config", "gpus", "image", "public_key"}

# Prints one fact per line and changes nothing. `owner` is the mark of a cluster, if there is one.
_LOOK = r"""
. /etc/os-release
echo "system=$PRETTY_NAME"
echo "image=$ID-$VERSION_ID"
echo "user=$(id -un)"
said=$(LC_ALL=C sudo -n true 2>&1) && echo sudo=yes || echo "sudo=
sudo_said=$(echo "$said" | tail -n 1)"
echo "systemd=$([ -d /run/systemd/system ] && echo yes)"
echo "python=$(python3 -c 'import platform; print(platform.python_version())')"
echo "driver=$(cat /sys/module/nvidia/version 2> /dev/null)"
echo "clock=$(date +%s)"
echo "number=$(id -u)"
echo "slurm_number=$(id -u slurm 2> /dev/null)"
echo "failed=$(systemctl list-units --failed --plain --no-legend | cut -d ' ' -f 1 | tr '\n' ' ')"
echo "unfinished=$(dpkg-query --show --showformat='${db:Status-Status} ${Package}\n' |
  sed -n 's/^\(half-configured\|half-installed\|unpacked\) //p' | tr '\n' ' ')"
echo "free_gib=$(df --output=avail -BG / | tail -n 1 | tr -dc 0-9)"
echo "addresses=$(hostname -I)"
echo "own_address=$(echo $SSH_CONNECTION | cut -d ' ' -f 3)"
gpus=
for device in /sys/bus/pci/devices/*; do
  case "$(cat $device/vendor $device/class 2> /dev/null | tr '\n' ' ')" in
    "0x10de 0x030"*) gpus="$gpus $(cat $device/device)" ;;
  esac
done
echo "gpus=$gpus"
echo "owner=$(sudo -n cat /etc/gpubed/owner.json 2> /dev/null)"
"""
_KEYS = "cat /etc/ssh/ssh_host_*_key.pub"
_LATER = (
    "%s; it leaves the cluster as it is. When it is back, all that the cluster has there ends"
    " with: %s   (packages and data stay)"
)


class NodeDriver(Driver):
    """Inputs: cluster, uuid, name, host, config, image, gpus, public_key."""

    def __init__(self, reach: Reach, paths: ClusterPaths) -> None:
        self._reach, self._paths = reach, paths

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Another host replaces the node; another way to it does not."""
        changed = {key for key in {*olds, *news} if olds.get(key) != news.get(key)}
        in_place = _ACCESS | ({"host"} if self._is_same_host(result, olds, news) else set())
        return Change(replace=sorted(changed - in_place), update=sorted(changed & in_place))

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Look at the host, then admit the cluster's key and mark the host as its node."""
        return self._joined(inputs, None)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return what `create` did, or None when the host is no longer marked as this node."""
        try:
            with self._connected(inputs) as ssh:
                found = look(ssh)
                if found.owner.get("id") != id or found.owner.get("uuid") != inputs["uuid"]:
                    return None
                return _result(ssh, id, found, inputs)
        except (Unreachable, UnknownHost) as error:
            if _is_silence(error) or self._is_gone(error, inputs):
                raise Silent(f"{inputs['name']} is not looked at: {error.message}") from error
            raise

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Take another way to the same host, and let the cluster in by no other."""
        _, result = self._joined(news, id)
        former = olds["config"]["user"]
        if former != news["config"]["user"]:
            with self._connected(news) as ssh:
                membership.expel(ssh, former, news["uuid"])
        return result

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Take back the cluster's key and mark, and stop its services; the host stays as it is.

        `gpubed down --without` goes on where it cannot be logged in to, whatever the reason.

        One that is another node of the cluster by now is left alone. One that is silent may
        have died, and nobody logs in where another key answers or none is known: where the
        specification does not name it any more, the node goes without it.
        """
        try:
            with turn.of(inputs), self._connected(inputs) as ssh:
                if is_node(look(ssh), inputs):
                    self._let_go(ssh, inputs)
        except GpubedError as error:
            if self._is_left(inputs):
                return  # `down` says what stays there
            if not isinstance(error, Unreachable | UnknownHost):
                raise
            if self._is_gone(error, inputs):
                commands = membership.by_hand(inputs["uuid"])
                progress.emit("note", message=_LATER % (error.message, commands))
                return
            if _is_silence(error):
                raise GpubedError(error.message, self._without(inputs)) from error
            raise

    def _joined(self, inputs: Properties, id_: str | None) -> tuple[str, dict[str, Any]]:
        """Make a host the cluster's node; one that is a node already (`id_`) stays the same one."""
        try:
            with turn.of(inputs), self._connected(inputs) as ssh:
                return _admit(ssh, inputs, id_, self._reach.wanted)
        except NodeFailed:
            raise
        except GpubedError as error:
            raise NodeFailed(error.message, error.hint) from error

    def _let_go(self, ssh: SSH, inputs: Properties) -> None:
        """Let a host go; what roles keep for its next node stays, where it is to be one.

        Engines remove a node before they make the one that replaces it. A host that becomes
        another node keeps its mark, so that it is found should that one never come, which ends
        what is this one's. Only the key goes: that one may log in to another account.
        """
        uuid, heir = inputs["uuid"], self._heir(inputs)
        if heir in ("", inputs["name"]):
            membership.release(ssh, uuid, stays=bool(heir))
        else:
            membership.expel(ssh, ssh.node.user, uuid)

    def _heir(self, inputs: Properties) -> str:
        """Return the node that an `up` is about to make of a node's host; empty for none."""
        run = runlock.holder(self._paths.state)
        return named.heir(self._reach, _place(inputs)) if run and run.verb == "up" else ""

    def _is_same_host(self, result: Properties, olds: Properties, news: Properties) -> bool:
        """Say whether a node stays on its host: several may share an address, each at its port.

        At another port of the address, the host is told by its keys, as far as they are known.
        """
        if _place(olds) == _place(news):
            return True
        if _address(olds) != _address(news):
            return False
        if self._is_named(olds):
            return False  # its place is another node's by now
        try:
            keys = _door(news).host_keys
        except PrerequisiteMissing:
            return True  # `update` does not go there, either
        return not set(keys).isdisjoint(result.get("host_keys", ()))

    def _is_gone(self, error: Unreachable | UnknownHost, inputs: Properties) -> bool:
        """Say whether nobody could log in to a host that the specification does without."""
        if isinstance(error, LoginRefused) or (isinstance(error, Unreachable) and error.on_the_way):
            return False  # it lives, or may well do so
        return not self._is_named(inputs)

    def _without(self, inputs: Properties) -> str:
        paths, name = self._paths, inputs["name"]
        return (
            f"wait for it; or take it out of hosts in {paths.spec}, and the node goes without it"
            f"; or take the whole cluster down: gpubed down {paths.name} --without {name}"
        )

    def _is_left(self, inputs: Properties) -> bool:
        host = host_of(inputs)
        return places.ssh(host.address, host.port) in record.read(self._paths).without

    def _is_named(self, inputs: Properties) -> bool:
        return named.may_have(self._reach, _place(inputs))

    def _connected(self, inputs: Properties) -> SSH:
        return SSH(_door(inputs), self._paths, _config(inputs).key)


class _Mark(BaseModel):
    """What `owner.json` says: which node of which cluster the host is."""

    uuid: str
    cluster: str
    node: str
    # The host says it, and files of the controller are called by it.
    id: str = Field(pattern=r"^\w[\w.-]*$")


@dataclass(frozen=True)
class Found:
    """What a host says about itself.

    Attributes:
        image: Its operating system as `cluster.yml` names it.
        sudo_said: The last line of sudo's refusal.
        python: The version of `python3`; empty without.
        driver: The version of the NVIDIA driver that is loaded; empty without.
        clock_off_s: Seconds that its clock is ahead of ours.
        number: The user's number.
        slurm_number: The number of the account `slurm`; empty without.
        failed: Units that systemd calls failed.
        unfinished: Packages whose installation or configuration has not ended.
        addresses: All that it has.
        own_address: The one that we came in by.
        gpu_ids: PCI device ids of its NVIDIA GPUs, four hexadecimal digits each.
        owner: The mark of the cluster whose node it is; empty when it is free.
        shut_out: Lines of sshd's settings that keep an account of the cluster out.
    """

    system: str
    image: str
    user: str
    sudo: bool
    sudo_said: str
    systemd: bool
    python: str
    driver: str
    clock_off_s: float
    number: str
    slurm_number: str
    failed: tuple[str, ...]
    unfinished: tuple[str, ...]
    free_gib: int
    addresses: tuple[str, ...]
    own_address: str
    gpu_ids: tuple[str, ...]
    owner: dict[str, str]
    shut_out: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """How many NVIDIA GPUs it has."""
        return len(self.gpu_ids)


def look(ssh: SSH) -> Found:
    """Ask a host about itself; nothing on it is changed.

    Raises:
        Unreadable: It answers something else, or its mark is damaged.
    """
    said = reading.reply(
        ssh.run("sh -c %s", _LOOK).stdout,
        f"what {ssh.node.name} says about itself",
        f"ssh -p {ssh.node.port} {ssh.node.user}@{ssh.node.control_address} true"
        "   (must print nothing)",
    )
    return _found(said, ssh.node.name)


def candidate(ssh: SSH) -> Found:
    """Look at a host that is to be a node: its cluster, too, must be able to log in there.

    Raises:
        PrerequisiteMissing: It cannot, since the way here is one that only looks like the host's
            own address: a forwarded port, or another translation of addresses.
        Unreadable: See `look`.
    """
    found, node = look(ssh), ssh.node
    try:
        if found.own_address != node.control_address:
            with ssh.at(found.own_address) as there:
                there.run("true")
    except Unreachable as error:
        raise PrerequisiteMissing(
            f"{node.control_address}:{node.port} sees itself at {found.own_address}, where the "
            f"cluster would log in at the same port, and cannot: {error.message}",
            "name a bastion from which hosts are reached at their own addresses, and these in "
            "hosts (docs/how-to/own-hosts.md)",
        ) from None
    return found


def _found(said: reading.Document, name: str) -> Found:
    facts = dict(line.partition("=")[::2] for line in said.text().splitlines() if "=" in line)
    mark = reading.reply(
        facts.get("owner", ""),
        f"{MARK} of {name}",
        f"remove {MARK} there, if the host is in no cluster",
    )
    try:
        return Found(
            system=facts["system"],
            image=facts["image"],
            user=facts["user"],
            sudo=bool(facts["sudo"]),
            sudo_said=facts.get("sudo_said", ""),
            systemd=bool(facts["systemd"]),
            python=facts["python"],
            driver=facts["driver"],
            clock_off_s=int(facts["clock"]) - time.time(),
            number=facts["number"],
            slurm_number=facts["slurm_number"],
            failed=tuple(facts["failed"].split()),
            unfinished=tuple(facts["unfinished"].split()),
            free_gib=int(facts["free_gib"] or 0),
            addresses=tuple(facts["addresses"].split()),
            own_address=facts["own_address"],
            gpu_ids=tuple(word.removeprefix("0x") for word in facts["gpus"].split()),
            owner=mark.json(_Mark).model_dump() if facts["owner"] else {},
        )
    except (KeyError, ValueError) as error:
        raise said.refusal(str(error)) from None


def _admit(
    ssh: SSH, inputs: Properties, id_: str | None, spec: ClusterSpec | None
) -> tuple[str, dict[str, Any]]:
    found, name = candidate(ssh), inputs["name"]
    if wrong := problems(found, inputs):
        raise NodeFailed(
            f"{name} ({ssh.node.control_address}) {'; '.join(wrong)}",
            "; ".join(filter(None, wrong.values())),
        )
    if spec and isinstance(spec.backend, Config) and (shut := shut_out(ssh, spec, name)):
        raise NodeFailed(f"{name} ({ssh.node.control_address}) {'; '.join(shut)}")
    if is_node(found, inputs):
        id_ = id_ or found.owner["id"]
    elif found.owner:  # it was another node of the cluster, whose services must not go on
        membership.release(ssh, inputs["uuid"], stays=True)
    id_ = id_ or f"{name}-{secrets.token_hex(4)}"
    owner = {"uuid": inputs["uuid"], "cluster": inputs["cluster"], "node": name, "id": id_}
    membership.admit(ssh, owner, inputs["public_key"])
    return id_, _result(ssh, id_, found, inputs)


def is_node(found: Found, inputs: Properties) -> bool:
    """Say whether a host carries the mark of this very node."""
    marked = found.owner.get("uuid"), found.owner.get("node")
    return marked == (inputs["uuid"], inputs["name"])


def _address(inputs: Properties) -> object:
    host = inputs.get("host")
    return host.get("address") if isinstance(host, Mapping) else host


def _place(inputs: Properties) -> object:
    host = inputs.get("host")
    return (host.get("address"), host.get("port", 22)) if isinstance(host, Mapping) else host


def _is_silence(error: Unreachable | UnknownHost) -> bool:
    return isinstance(error, Unreachable) and error.is_silence


def problems(found: Found, inputs: Properties) -> dict[str, str]:
    """Return why a host cannot be a node of the cluster, and what repairs each.

    Failed units and unfinished packages of a host that is a node are left to `up`.
    """
    host, image, gpus = host_of(inputs), inputs["image"], inputs["gpus"]
    experiment = host.experiment_address and str(host.experiment_address)
    failed, unfinished = (" ".join(each) for each in (found.failed, found.unfinished))
    wants_tty = " tty " in found.sudo_said
    allowing = (
        f"Defaults:{found.user} !requiretty"
        if wants_tty
        else f"{found.user} ALL=(ALL) NOPASSWD: ALL"
    )
    wrong = [
        (
            not found.sudo,
            f"does not let {found.user} use sudo without a password and a terminal: "
            f"{found.sudo_said}",
            f"on it, in `sudo visudo -f /etc/sudoers.d/gpubed`, write: {allowing}",
        ),
        (not found.systemd, "does not run systemd", ""),
        (not found.python, "has no python3", "on it: sudo apt-get install python3"),
        (
            found.image != image,
            f"runs {found.image}, but cluster.yml says image: {image}",
            f"correct image, or name a host that runs {image}",
        ),
        (
            found.free_gib < _FREE_GIB,
            f"has {found.free_gib} GiB free on /, {_FREE_GIB} are needed",
            "on it: sudo du -xh / | sort -h | tail",
        ),
        (found.gpus < gpus, _too_few(found, gpus), "name another host, or lower gpus"),
        (
            bool(experiment and experiment not in found.addresses),
            f"has no address {experiment}, only {', '.join(found.addresses)}",
            "correct its experiment_address",
        ),
        (
            bool(found.owner and found.owner.get("uuid") != inputs["uuid"]),
            f"is a node of cluster {found.owner.get('cluster')}, see {MARK}",
            "name another host, or take that cluster down",
        ),
        (
            abs(found.clock_off_s) > _CLOCK_S,
            f"has a clock that differs from this machine's by {abs(found.clock_off_s):.0f} s",
            "correct the one that is wrong: sudo timedatectl set-ntp true",
        ),
        (
            bool(failed and not found.owner),
            f"has units of its owner that have failed: {failed}",
            f"on it: systemctl status {failed}; if they may stay failed: "
            f"sudo systemctl reset-failed {failed}",
        ),
        (
            bool(unfinished and not found.owner),
            f"has packages of its owner that are not configured: {unfinished}",
            "on it: sudo dpkg --configure -a; sudo apt-get --fix-broken install",
        ),
    ]
    return {why: fix for is_so, why, fix in wrong if is_so}


def differences(hosts: Mapping[str, Found], spec: ClusterSpec) -> list[Finding]:
    """Compare hosts: an account must have one number on all; other differences are only told."""
    shared = spec.storage.shared.provider
    numbers = {
        f"the account {', '.join(sorted({found.user for found in hosts.values()}))}": (
            {name: found.number for name, found in hosts.items()} if shared == "nfs" else {},
            "shared storage identifies accounts by their numbers",
        ),
        "the account slurm": (
            {name: found.slurm_number or str(_SLURM) for name, found in hosts.items()}
            if spec.services.slurm
            else {},
            f"Slurm's services identify each other by it; its packages give it {_SLURM}",
        ),
    }
    unlike = [
        Finding(
            "static.accounts",
            False,
            f"{account} has the number {_each(of_hosts)}, and must have the same on all: {why}",
            "end its processes, then on each host with another number: sudo usermod --uid "
            "NUMBER ACCOUNT && sudo find / -xdev -uid FORMER -exec chown -h NUMBER {} +; if it is "
            "not needed there: sudo deluser ACCOUNT",
        )
        for account, (of_hosts, why) in numbers.items()
        if len({*of_hosts.values()}) > 1
    ]
    told = {
        "Python": {name: found.python for name, found in hosts.items()},
        "NVIDIA driver": {name: found.driver or "none" for name, found in hosts.items()},
    }
    return unlike + [
        Finding("static.hosts", True, f"hosts differ in {what}: {_each(of_hosts)}")
        for what, of_hosts in told.items()
        if len({*of_hosts.values()}) > 1
    ]


def _each(of_hosts: Mapping[str, str]) -> str:
    return ", ".join(f"{value} on {name}" for name, value in of_hosts.items())


def shut_out(ssh: SSH, spec: ClusterSpec, name: str) -> list[str]:
    """Return which lines of a host's sshd settings keep out an account of the cluster.

    Args:
        ssh: A session on the host.
        spec: The cluster's specification.
        name: The node that the host is to be.
    """
    services, accounts = spec.services, {ssh.node.user: [ssh.node.user]}
    if services.jupyterlab and not services.jupyterlab.sudo:
        accounts["jupyter"] = ["jupyter"]
    if services.slurm and name == spec.nodes[0].node_names[0]:
        accounts |= {user.name: ["researchers", user.name] for user in services.slurm.users}
    hosts = [host.address for host, _ in named.each(named.options(spec))]
    asked = {"accounts": accounts, "addresses": hosts}
    program = "ssh_mesh/files/sshd_settings.py"
    said = programs.run(ssh, program, "shut-out", json.dumps(asked), check=False)
    return said.stderr.splitlines()[-1:] if said.exit_code else said.stdout.splitlines()


def lacking(found: Found, gpus: int, recipe: str) -> list[str]:
    """Return why the GPUs of a host will not do: too few, or the recipe has no code for them."""
    chips, known = [chip_of(id_) for id_ in found.gpu_ids], recipes.load(recipe)
    reasons = [recipes.why_not(known, chip.compute_capability) if chip else "" for chip in chips]
    few = [_too_few(found, gpus)] if found.gpus < gpus else []
    # Beside as many as were asked for there may be an older one, for a screen.
    if not few and reasons.count("") >= gpus:
        return []
    return few + [f"cannot run its GPUs: {why}" for why in sorted(filter(None, {*reasons}))]


def _too_few(found: Found, gpus: int) -> str:
    return f"has {found.gpus} NVIDIA GPUs, {gpus} are asked for"


def _door(inputs: Properties) -> Node:
    return door(_config(inputs), host_of(inputs), inputs["name"])


def _config(inputs: Properties) -> Config:
    # A newer version may have written the state, with more options.
    return Config.model_validate({**inputs["config"], "hosts": {}}, extra="ignore")


def _result(ssh: SSH, id_: str, found: Found, inputs: Properties) -> dict[str, Any]:
    host, node = host_of(inputs), ssh.node
    keys = [" ".join(line.split()[:2]) for line in ssh.run(_KEYS).stdout.splitlines()]
    return {
        "id": id_,
        # As the host itself sees it: other nodes and bastions may not know its name.
        "control_address": found.own_address,
        "experiment_address": host.experiment_address and str(host.experiment_address),
        "port": node.port,
        "user": node.user,
        # Of these, the user may have revoked one, which must not come back through the host.
        "host_keys": sorted(access.trusted(_config(inputs), host, keys)),
        "via": [hop.model_dump() for hop in node.via],
    }
