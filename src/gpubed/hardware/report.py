"""The GPU report: all that is needed to simulate a node's GPUs, in one file.

`gpubed verify CLUSTER --gpu-report FILE` makes it. Nothing in it names a person, a machine or a
card (`anonymous`). `recording` makes a model for simulated nodes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gpubed import __version__
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.hardware.anonymous import Anonymous
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH

# Facts that have nothing to do with GPUs.
_NOT_ASKED = ("failed_units", "disks")
_ANSWER = TypeAdapter(dict[str, Any])


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeReport(_Model):
    """The report of one node, as its programs and files print it."""

    name: str
    simulated: str | None  # the model of its GPUs if they are simulated
    kernel: str
    facts: dict[str, Any]  # output of `gpubed-facts`
    host: dict[str, Any]  # output of `gpubed-gpu-host`
    commands: dict[str, str]  # output by command line: nvidia-smi's XML, topology and NVLinks
    proc: dict[str, str]  # files of the driver in /proc, by path
    # Attributes of NVIDIA's PCI devices in sysfs by address, with the `bridges` above.
    pci: dict[str, dict[str, Any]]
    packages: dict[str, str]  # versions of installed packages of drivers and CUDA, by name
    log: tuple[str, ...]  # lines of the kernel's log about GPUs


class Report(_Model):
    """The whole file."""

    schema_: Literal["gpubed/gpu-report/1"] = Field(alias="schema")
    gpubed: str
    at: datetime
    nodes: tuple[NodeReport, ...]


def of_cluster(cluster: Cluster) -> Report:
    """Return the report of the nodes that are to have GPUs; at least one."""
    asked = [node for node in cluster.allocation.nodes if node.gpus]
    if not asked:
        raise GpubedError(f"no node of {cluster.name} is to have GPUs", "gpus: in cluster.yml")
    collected = {}
    for node in asked:
        with SSH(node, cluster.paths) as ssh:
            collected[node.name] = collect(ssh)
    return make(collected)


def collect(ssh: SSH) -> dict[str, Any]:
    """Collect the content of a node's report, names included."""
    programs = assets() / "roles" / "hardware" / "files"
    found = _ask(ssh, "sudo -n python3 -", reading.file(programs / "gpubed-gpu-report").text())
    facts = _ask(ssh, "gpubed-facts")
    return {
        **found,
        "simulated": facts["simulated"],
        "facts": {key: value for key, value in facts.items() if key not in _NOT_ASKED},
        "host": _ask(ssh, "sudo -n python3 -", reading.file(programs / "gpubed-gpu-host").text()),
    }


def make(collected: Mapping[str, Mapping[str, Any]]) -> Report:
    """Return an anonymous report of what was collected, by node name."""
    hosts = {*collected, *(str(found["facts"]["host"]) for found in collected.values())}
    anonymous = Anonymous(sorted(hosts))
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
    """Return a message about where the report is, and which GPUs in it are simulated."""
    simulated = sorted({node.simulated for node in report.nodes if node.simulated})
    note = f"; simulated ({', '.join(simulated)}): no model can be recorded" if simulated else ""
    return f"GPU report of {len(report.nodes)} node(s): {path}{note}"


def read(path: Path) -> Report:
    """Read a report."""
    return reading.file(path, "gpubed verify CLUSTER --gpu-report FILE").json(Report)


def _ask(ssh: SSH, command: str, stdin: str = "") -> dict[str, Any]:
    said = ssh.run(command, stdin=stdin, timeout=300)
    return reading.reply(said.stdout, f"what {ssh.node.name} tells about its GPUs").json(_ANSWER)
