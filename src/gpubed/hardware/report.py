"""The GPU report: a file with all data that simulating a node's GPUs needs.

`gpubed verify CLUSTER --gpu-report FILE` writes it; `recording` converts it to the model of a
simulated GPU. Names of persons, machines and cards are replaced by stable pseudonyms.

| what | becomes |
| --- | --- |
| UUIDs, of GPUs and others | `GPU-00000000-0000-0000-0000-000000000001`, … |
| serial numbers and GUIDs | digits of the same length |
| hardware (MAC) addresses | `02:00:00:00:00:01`, … |
| IP addresses | `192.0.2.1`, … and `2001:db8::1`, … (for documentation: RFC 5737, RFC 3849) |
| host names | `host-1`, … |
| programs that used a GPU | left out; in the kernel's log `name=program` |

PCI addresses, part numbers, versions of VBIOS, InfoROM and packages stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gpubed import __version__
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH

# Facts that do not concern GPUs.
_LEFT_OUT = ("failed_units", "disks")
_ANSWER = TypeAdapter(dict[str, Any])
_PROCESSES = re.compile(r"<processes>.*?</processes>", re.DOTALL)
_PROGRAM = re.compile(r"\bname=[^,\s]+")
# An element of nvidia-smi's XML; N/A does not match.
_SERIAL = re.compile(r"(<\w*(?:serial|guid)\w*>\s*)((?:0x)?[0-9][\w-]*)")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
# Candidates for IP addresses; `ip_address` rejects versions and PCI addresses.
_IP = re.compile(
    r"(?<![\w.:])(?:(?:\d{1,3}\.){3}\d{1,3}|(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4})(?![\w.:])"
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeReport(_Model):
    """The report of one node: outputs of programs and contents of files."""

    name: str
    simulated: str | None  # the model of its GPUs if they are simulated
    kernel: str
    facts: dict[str, Any]  # output of `gpubed-facts`
    host: dict[str, Any]  # output of `gpubed-gpu-host`
    commands: dict[str, str]  # output by command line: nvidia-smi's XML, topology and NVLinks
    proc: dict[str, str]  # files of the driver in /proc, by path
    pci: dict[str, dict[str, Any]]  # NVIDIA's devices in sysfs by address, with `bridges` above
    packages: dict[str, str]  # versions of installed packages of drivers and CUDA, by name
    log: tuple[str, ...]  # lines of the kernel's log about GPUs


class Report(_Model):
    """The GPU report of a cluster."""

    schema_: Literal["gpubed/gpu-report/1"] = Field(alias="schema")
    gpubed: str
    at: datetime
    nodes: tuple[NodeReport, ...]


def of_cluster(cluster: Cluster) -> Report:
    """Return the report of a cluster's nodes with GPUs.

    Raises:
        GpubedError: No node has GPUs.
    """
    nodes = [node for node in cluster.allocation.nodes if node.gpus]
    if not nodes:
        raise GpubedError(f"no node of {cluster.name} has GPUs", "gpus: in cluster.yml")
    collected = {}
    for node in nodes:
        with SSH(node, cluster.paths) as ssh:
            collected[node.name] = collect(ssh)
    return make(collected)


def collect(ssh: SSH) -> dict[str, Any]:
    """Collect the content of a node's report, with real names."""
    programs = assets() / "roles" / "hardware" / "files"
    report = _run(ssh, "sudo -n python3 -", reading.file(programs / "gpubed-gpu-report").text())
    facts = _run(ssh, "gpubed-facts")
    return {
        **report,
        "simulated": facts["simulated"],
        "facts": {key: value for key, value in facts.items() if key not in _LEFT_OUT},
        "host": _run(ssh, "sudo -n python3 -", reading.file(programs / "gpubed-gpu-host").text()),
    }


def make(collected: Mapping[str, Mapping[str, Any]]) -> Report:
    """Return an anonymous report from the data that `collect` returned, by node name."""
    hosts = {*collected, *(str(found["facts"]["host"]) for found in collected.values())}
    anonymous = _Anonymous(sorted(hosts))
    nodes = [{"name": name, **found} for name, found in collected.items()]
    return Report.model_validate(
        {
            "schema": "gpubed/gpu-report/1",
            "gpubed": __version__,
            "at": datetime.now(UTC),
            "nodes": anonymous.value(nodes),
        }
    )


def write(path: Path, report: Report) -> None:
    """Write a report."""
    try:
        path.write_text(report.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise GpubedError(f"{path} cannot be written: {error.strerror}") from None


def described(report: Report, path: Path) -> str:
    """Return a message with the report's path and its simulated GPUs."""
    simulated = sorted({node.simulated for node in report.nodes if node.simulated})
    note = f"; simulated ({', '.join(simulated)}): no model can be recorded" if simulated else ""
    return f"GPU report of {len(report.nodes)} node(s): {path}{note}"


def read(path: Path) -> Report:
    """Read a report."""
    return reading.file(path, "gpubed verify CLUSTER --gpu-report FILE").json(Report)


def _run(ssh: SSH, command: str, stdin: str = "") -> dict[str, Any]:
    output = ssh.run(command, stdin=stdin, timeout=300).stdout
    return reading.reply(output, f"the description of {ssh.node.name}'s GPUs").json(_ANSWER)


class _Anonymous:
    """Replaces names in texts by stable pseudonyms.

    `hosts` lists the host names, which have no pattern of their own.
    """

    def __init__(self, hosts: list[str]) -> None:
        self._known: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        for host in hosts:
            self._become("host", host, lambda number: f"host-{number}")
        words = "|".join(map(re.escape, sorted(hosts, key=len, reverse=True))) or "(?!)"
        self._hosts = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])")

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its texts anonymous; keys stay."""
        if isinstance(value, dict):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        text = _PROCESSES.sub("<processes></processes>", text)
        text = _PROGRAM.sub("name=program", text)
        text = _SERIAL.sub(self._serial, text)
        uuid = "00000000-0000-0000-0000-{:012d}".format
        text = _UUID.sub(lambda m: self._become("uuid", m[0].lower(), uuid), text)
        text = _MAC.sub(lambda m: self._become("mac", m[0].lower(), _mac), text)
        text = _IP.sub(lambda m: self._address(m[0]), text)
        return self._hosts.sub(lambda m: self._known[m[0]], text)

    def _become(self, kind: str, value: str, shape: Callable[[int], str]) -> str:
        if value not in self._known:
            self._counts[kind] += 1
            self._known[value] = shape(self._counts[kind])
        return self._known[value]

    def _serial(self, match: re.Match[str]) -> str:
        width = len(match[2])
        return match[1] + self._become("serial", match[2], lambda number: f"{number:0{width}d}")

    def _address(self, text: str) -> str:
        try:
            before = {4: "192.0.2.{}", 6: "2001:db8::{:x}"}[ip_address(text).version]
        except ValueError:
            return text
        return self._become(before, text, before.format)


def _mac(number: int) -> str:
    return "02:00:00:" + number.to_bytes(3).hex(":")
