"""Collects facts from a host, and decides whether it can be a node."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_network
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpubed.backends.static import access
from gpubed.backends.static.config import Config, host_of
from gpubed.backends.static.membership import MARK
from gpubed.core import reading
from gpubed.core.errors import PrerequisiteMissing
from gpubed.hardware.table import chip_of
from gpubed.nodes.ssh import SSH, Unreachable, run_program
from gpubed.recipes import recipe as recipes
from gpubed.spec.clusterspec import ClusterSpec, systems
from gpubed.testbeds.base import Finding
from gpubed.testbeds.driver import Properties

_FREE_GIB = 5
_CLOCK_S = 60  # maximum clock difference between a host and this machine; munge allows 300
# The uid that Slurm's packages give the account `slurm`.
_SLURM = "64030"

# Prints one fact per line, and changes nothing. `owner` is the mark of a node's cluster.
LOOK = r"""
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
echo "ports=$(ss -Hltun |
  awk '$5 !~ /^(127|\[::1\]|\[::ffff:127)/ { sub(/.*:/, "", $5); print $1 ":" $5 }' |
  sort -u | tr '\n' ' ')"
echo "forwards=$(cd /proc/sys/net && cat ipv4/ip_forward ipv6/conf/all/forwarding | tr -dc 1)"
echo "ufw=$(LC_ALL=C sudo -n ufw status 2> /dev/null |
  sed -n 's/^Status: active/on/p; s/^Anywhere\( on [^ ]*\)\? *ALLOW\( IN\)\? *\([^ ]*\).*/\3/p' |
  tr '\n' ' ')"
gpus=
for device in /sys/bus/pci/devices/*; do
  case "$(cat $device/vendor $device/class 2> /dev/null | tr '\n' ' ')" in
    "0x10de 0x030"*) gpus="$gpus $(cut -c 3- $device/device)" ;;
  esac
done
echo "gpu_ids=$gpus"
echo "owner=$(sudo -n cat /etc/gpubed/owner.json 2> /dev/null)"
"""
_Words = Annotated[tuple[str, ...], BeforeValidator(lambda it: tuple(it.split()))]
_Ports = Annotated[
    tuple[str, ...], BeforeValidator(lambda it: re.findall(r"\b(?:tcp|udp):\d{1,5}\b", it))
]
_Yes = Annotated[bool, BeforeValidator(bool)]


class _Mark(BaseModel):
    """Content of `owner.json`: the cluster and node that the host belongs to."""

    uuid: str
    cluster: str
    node: str
    # The host is not trusted, and the controller names files by the id.
    id: str = Field(pattern=r"^\w[\w.-]*$")


class Found(BaseModel):
    """Facts from a host; empty for parts that it lacks."""

    model_config = ConfigDict(frozen=True)

    system: str
    image: str  # as `cluster.yml` names the operating system
    user: str
    sudo: _Yes
    sudo_said: str = ""  # the last line of sudo's refusal
    systemd: _Yes
    python: str
    driver: str  # version of the loaded NVIDIA driver
    clock: int  # seconds since the epoch
    clock_off_s: float = 0  # seconds ahead of this machine's
    number: str  # the user's uid
    slurm_number: str  # the uid of the account `slurm`
    failed: _Words  # systemd units
    unfinished: _Words  # packages that are not completely installed or configured
    free_gib: int
    addresses: _Words
    own_address: str  # of this SSH connection
    ports: _Ports = ()  # open ports except on the loopback, such as `tcp:22`
    forwards: _Yes = False  # whether the host forwards packets, as with Docker
    ufw: _Words = ()  # `on` if ufw is active, then the networks that may connect to all ports
    gpu_ids: _Words  # PCI device ids of its NVIDIA GPUs, four hexadecimal digits each
    owner: dict[str, str] = {}  # content of `_Mark`; empty if it is no node
    shut_out: tuple[str, ...] = ()  # settings that keep out the cluster's accounts or nodes

    @property
    def gpus(self) -> int:
        """Number of NVIDIA GPUs."""
        return len(self.gpu_ids)

    @property
    def stays_open(self) -> str:
        """Ports and `forward` that role firewall leaves open, as the owner had them before."""
        return "" if self.owner else " ".join(["forward"] * self.forwards + [*self.ports])


def look(ssh: SSH) -> Found:
    """Collect facts from a host, without changing anything on it."""
    node = ssh.node
    fix = f"ssh -p {node.port} {node.user}@{node.control_address} true   (must print nothing)"
    output = ssh.run("sh -c %s", LOOK).stdout
    return parsed(reading.reply(output, f"what {node.name} says about itself", fix), node.name)


def parsed(output: reading.Document, name: str) -> Found:
    """Parse a host's answer to `LOOK`; Unreadable if it or the host's mark is damaged."""
    facts = dict(line.partition("=")[::2] for line in output.text().splitlines() if "=" in line)
    owner = facts.pop("owner", "")
    remove = f"remove {MARK} there, if the host is in no cluster"
    mark = reading.reply(owner, f"{MARK} of {name}", remove).json(_Mark) if owner else None
    try:
        found = Found.model_validate({**facts, "owner": mark.model_dump() if mark else {}})
    except ValueError as error:
        raise output.refusal(str(error)) from None
    return found.model_copy(update={"clock_off_s": found.clock - time.time()})


def candidate(ssh: SSH, spec: ClusterSpec | None) -> Found:
    """Collect facts from a host that is to be a node, and check that the cluster can log in.

    With `spec`, also checks that sshd and ufw let in the cluster's accounts and nodes. Raises
    PrerequisiteMissing if other nodes cannot reach the host, as behind a forwarded port.
    """
    found, node = look(ssh), ssh.node
    try:
        if found.own_address != node.control_address:
            with ssh.at(found.own_address) as there:
                there.run("true")
    except Unreachable as error:
        raise PrerequisiteMissing(
            f"{node.control_address}:{node.port} sees itself at {found.own_address}, and the "
            f"cluster cannot log in there at the same port: {error.message}",
            "name a bastion from which hosts are reached at their own addresses, and these in "
            "hosts (docs/how-to/own-hosts.md)",
        ) from None
    if not found.sudo or spec is None or not isinstance(spec.backend, Config):
        return found
    services, accounts = spec.services, {node.user: [node.user]}
    if services.jupyterlab and not services.jupyterlab.sudo:
        accounts["jupyter"] = ["jupyter"]
    if services.slurm and node.name == spec.nodes[0].node_names[0]:
        accounts |= {user.name: ["researchers", user.name] for user in services.slurm.users}
    addresses = [host.address for host, _ in access.each(spec.backend)]
    wanted = json.dumps({"accounts": accounts, "addresses": addresses})
    done = run_program(ssh, "ssh_mesh/files/sshd_settings.py", "shut-out", wanted, check=False)
    lines = done.stderr.splitlines()[-1:] if done.exit_code else done.stdout.splitlines()
    return found.model_copy(update={"shut_out": (*lines, *_closed_ufw(found, spec))})


def _closed_ufw(found: Found, spec: ClusterSpec) -> list[str]:
    """Return a problem if the host's ufw blocks the network that jobs communicate over."""
    subnet = (spec.networks.experiment or spec.networks.control).subnet
    if "on" not in found.ufw or "Anywhere" in found.ufw or subnet is None or spec.count == 1:
        return []
    for source in found.ufw[1:]:
        with suppress(ValueError):  # such as "Anywhere" for a service
            network = ip_network(source, strict=False)
            if network.version == subnet.version and subnet.subnet_of(network):
                return []
    return [
        f"has ufw on, which lets in nothing from {subnet}, where jobs communicate: on it, "
        f"sudo ufw allow from {subnet}"
    ]


def is_node(found: Found, inputs: Properties) -> bool:
    """Return whether a host is marked as this node."""
    marked = found.owner.get("uuid"), found.owner.get("node")
    return marked == (inputs["uuid"], inputs["name"])


def problems(found: Found, inputs: Properties) -> dict[str, str]:
    """Return the reasons why a host cannot be a node of the cluster, each with its fix.

    Failed units and unfinished packages of a host that is a node already are left to `up`.
    """
    host, image, gpus = host_of(inputs), inputs["image"], inputs["gpus"]
    experiment = str(host.experiment_address or "")
    failed, unfinished = (
        ("", "") if found.owner else (" ".join(each) for each in (found.failed, found.unfinished))
    )
    allowing = f"{found.user} ALL=(ALL) NOPASSWD: ALL"
    if " tty " in found.sudo_said:
        allowing = f"Defaults:{found.user} !requiretty"
    wrong = [
        (
            not found.sudo,
            f"does not let {found.user} use sudo without a password and a terminal: "
            f"{found.sudo_said}",
            "gpubed asks for no password, since roles and services use sudo, too: on it, in "
            f"`sudo visudo -f /etc/sudoers.d/gpubed` (remove it after `down`), write: {allowing}",
        ),
        (not found.systemd, "does not run systemd", ""),
        (not found.python, "has no python3", "on it: sudo apt-get install python3"),
        (
            found.image != image,
            f"runs {found.image}, but cluster.yml says image: {image}",
            f"correct image, or name a host that runs {image}"
            if found.image in systems()
            else f"name a host that runs one of {', '.join(systems())}",
        ),
        (not found.ports, "has no ss", "on it: sudo apt-get install iproute2"),
        (
            found.free_gib < _FREE_GIB,
            f"has {found.free_gib} GiB free on /, {_FREE_GIB} are needed",
            "on it: sudo du -xh / | sort -h | tail",
        ),
        (found.gpus < gpus, _too_few(found, gpus), "name another host, or lower gpus"),
        (
            experiment not in ("", *found.addresses),
            f"has no address {experiment}, only {', '.join(found.addresses)}",
            "correct its experiment_address",
        ),
        (
            found.owner.get("uuid", inputs["uuid"]) != inputs["uuid"],
            f"is a node of cluster {found.owner.get('cluster')}, see {MARK}",
            "name another host, or take that cluster down",
        ),
        (
            abs(found.clock_off_s) > _CLOCK_S,
            f"has a clock that differs from this machine's by {abs(found.clock_off_s):.0f} s",
            "correct the one that is wrong: sudo timedatectl set-ntp true",
        ),
        (
            failed,
            f"has units of its owner that have failed: {failed}",
            f"on it: systemctl status {failed}; if they may stay failed: "
            f"sudo systemctl reset-failed {failed}",
        ),
        (
            unfinished,
            f"has packages of its owner that are not configured: {unfinished}",
            "on it: sudo dpkg --configure -a; sudo apt-get --fix-broken install",
        ),
    ]
    return {why: fix for is_so, why, fix in wrong if is_so} | dict.fromkeys(found.shut_out, "")


def differences(hosts: Mapping[str, Found], spec: ClusterSpec) -> list[Finding]:
    """Compare hosts: an account with different uids is an error, different versions are notes."""

    def unlike(of_hosts: Mapping[str, str]) -> str:
        values = ", ".join(f"{value} on {name}" for name, value in of_hosts.items())
        return values if len({*of_hosts.values()}) > 1 else ""

    numbers = {}
    if spec.storage.shared.provider == "nfs":
        users = ", ".join(sorted({found.user for found in hosts.values()}))
        why = f"the account {users}", "shared storage identifies accounts by their numbers"
        numbers[why] = {name: found.number for name, found in hosts.items()}
    if spec.services.slurm:
        why = "the account slurm", f"Slurm's packages give it {_SLURM}"
        numbers[why] = {name: found.slurm_number or _SLURM for name, found in hosts.items()}
    found = [
        Finding(
            "static.accounts",
            False,
            f"{account} has the number {each}, and must have the same on all: {why}",
            "end its processes, then on each host with another number: sudo usermod --uid "
            "NUMBER ACCOUNT && sudo find / -xdev -uid FORMER -exec chown -h NUMBER {} +; if it is "
            "not needed there: sudo deluser ACCOUNT",
        )
        for (account, why), of_hosts in numbers.items()
        if (each := unlike(of_hosts))
    ]
    versions = {
        "Python": {name: found.python for name, found in hosts.items()},
        "NVIDIA driver": {name: found.driver or "none" for name, found in hosts.items()},
    }
    return found + [
        Finding("static.hosts", True, f"hosts differ in {what}: {each}")
        for what, of_hosts in versions.items()
        if (each := unlike(of_hosts))
    ]


def lacking(found: Found, gpus: int, recipe: str) -> list[str]:
    """Return why a host's GPUs are too few, or not supported by the recipe."""
    chips, known = [chip_of(id_) for id_ in found.gpu_ids], recipes.load(recipe)
    reasons = [recipes.why_not(known, chip.compute_capability) if chip else "" for chip in chips]
    few = [_too_few(found, gpus)] if found.gpus < gpus else []
    # Additional GPUs, such as an old one for a screen, may be unsupported.
    if not few and reasons.count("") >= gpus:
        return []
    return few + [f"cannot run its GPUs: {why}" for why in sorted(filter(None, {*reasons}))]


def _too_few(found: Found, gpus: int) -> str:
    return f"has {found.gpus} NVIDIA GPUs, {gpus} are asked for"
