"""The GPU report: all that a simulation of a node's GPUs can be recorded from, in one file.

A user with a GPU makes it (`gpubed verify CLUSTER --gpu-report FILE`) and may send it to
anyone: nothing in it names a person, a machine or a card (`anonymous`). `recording` makes
a model for simulated nodes of it.
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
    """What one node tells, as its programs and files say it.

    Attributes:
        simulated: The model of GPUs that it only pretends to have.
        facts: What `gpubed-facts` prints.
        host: What `gpubed-gpu-host` prints.
        commands: Output by command line: nvidia-smi's XML, topology and NVLinks.
        proc: Files of the driver in /proc, by path.
        pci: Attributes of NVIDIA's PCI devices in sysfs by address, with the `bridges` above.
        packages: Versions of what is installed of drivers and CUDA, by name.
        log: Lines of the kernel's log about GPUs.
    """

    name: str
    simulated: str | None
    kernel: str
    facts: dict[str, Any]
    host: dict[str, Any]
    commands: dict[str, str]
    proc: dict[str, str]
    pci: dict[str, dict[str, Any]]
    packages: dict[str, str]
    log: tuple[str, ...]


class Report(_Model):
    """The whole file."""

    schema_: Literal["gpubed/gpu-report/1"] = Field(alias="schema")
    gpubed: str
    at: datetime
    nodes: tuple[NodeReport, ...]


def of_cluster(cluster: Cluster) -> Report:
    """Return the report of the nodes that are to have GPUs.

    Raises:
        GpubedError: No node is, or one cannot be asked.
    """
    asked = [node for node in cluster.allocation.nodes if node.gpus]
    if not asked:
        raise GpubedError(f"no node of {cluster.name} is to have GPUs", "gpus: in cluster.yml")
    collected = {}
    for node in asked:
        with SSH(node, cluster.paths) as ssh:
            collected[node.name] = collect(ssh)
    return make(collected)


def collect(ssh: SSH) -> dict[str, Any]:
    """Ask a node for what its report is made of, names included.

    Raises:
        GpubedError: It cannot be reached, or does not answer.
    """
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
    """Return the report of what was collected, by node name, without any name."""
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
    """Write a report.

    Raises:
        GpubedError: The file cannot be written.
    """
    try:
        path.write_text(report.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise GpubedError(f"{path} cannot be written: {error.strerror}") from None


def described(report: Report, path: Path) -> str:
    """Say what was written where, and what of it is only pretended."""
    simulated = sorted({node.simulated for node in report.nodes if node.simulated})
    note = f"; simulated ({', '.join(simulated)}): no model can be recorded" if simulated else ""
    return f"GPU report of {len(report.nodes)} node(s): {path}{note}"


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        GpubedError: It is none.
    """
    return reading.file(path, "gpubed verify CLUSTER --gpu-report FILE").json(Report)


def _ask(ssh: SSH, command: str, stdin: str = "") -> dict[str, Any]:
    said = ssh.run(command, stdin=stdin, timeout=300)
    return reading.reply(said.stdout, f"what {ssh.node.name} tells about its GPUs").json(_ANSWER)
