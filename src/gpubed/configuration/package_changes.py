"""Predicts how roles would change an own host, above all its packages.

A role lists its packages in `meta/gpubed.yml`. The installer of role base (`packages.py look`)
simulates their installation. Packages that a role chooses on the node, such as a compiler, are not
predicted: the role itself refuses changes by them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal

from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template
from pydantic import BaseModel, ConfigDict, Field

from gpubed.configuration import roles
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.hardware import nvidia_driver
from gpubed.hardware.facts import Facts
from gpubed.nodes.ssh import SSH, run_program
from gpubed.spec.plan import ClusterPlan, NodePlan
from gpubed.testbeds.base import Finding

_DAY = 86400  # age in seconds after which roles renew package lists
_DRIVER = "nvidia_driver"
_TEMPLATING = threading.Lock()  # Ansible's loader of plugins is not safe for threads
# Errors about packages from sources that a role adds before it installs them.
_TO_COME = re.compile("Unable to locate|no installation candidate|was not found")


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Change(_Model):
    """A package that would change; `says` describes how."""

    package: reading.Name
    says: reading.Line
    refused: bool


class Installation(_Model):
    """Packages that come or change with a role; `failed` is why apt cannot predict them."""

    role: reading.Name
    comes: tuple[reading.Name, ...] = ()
    changes: tuple[Change, ...] = ()
    failed: reading.Line = ""


class Looked(_Model):
    """The output of `packages.py look`."""

    schema_: Literal["gpubed/packages/1"] = Field(alias="schema")
    lists_age_s: float | None  # None without package lists
    unfinished: tuple[reading.Name, ...] = ()  # packages that dpkg has not finished installing
    edits: tuple[reading.Line, ...] = ()  # existing files that roles edit
    roles: tuple[Installation, ...] = ()


def look(ssh: SSH, plan: ClusterPlan, node: NodePlan, replaced: str = "") -> list[Finding]:
    """Predict how the packages of all roles would change a host.

    `replaced` is the version of the installed driver if it would be replaced, else empty.
    """
    active = roles.active(plan)
    request = {
        "wanted": {role: listed(plan, role, node, "packages") for role in active},
        "unless": {role: roles.meta(role).packages_unless for role in active},
        "replaced": {_DRIVER: replaced} if replaced else {},
        "may_change": plan.spec.packages.may_change,
        "edits": sorted({path for role in active for path in listed(plan, role, node, "edits")}),
    }
    output = run_program(ssh, "base/files/packages.py", "look", json.dumps(request)).stdout
    looked = reading.reply(output, f"the packages of {ssh.node.name}").json(Looked)
    found = [*_findings(looked, plan, node)]
    if not ssh.node.id:
        found += _news(looked, plan, node)
        found += _owners_slurm(ssh, plan, node)
    return found


def replaced_drivers(sessions: Mapping[str, SSH], plan: ClusterPlan) -> dict[str, str]:
    """Return by node the versions of drivers that would be replaced, as the recipe cannot use them.

    Hosts that do not answer are left out.
    """
    table = reading.file(assets() / "roles/hardware/files/nvidia-gpus.json").text()
    facts = {}
    for name, ssh in sessions.items():
        with suppress(GpubedError):
            output = run_program(ssh, "hardware/files/gpubed-facts", "--table", table).stdout
            facts[name] = reading.reply(output, f"the hardware of {name}").json(Facts)
    if not facts:
        return {}
    variables = _variables(plan, _DRIVER, next(node for node in plan.nodes if node.name in facts))
    offers = {
        source: [nvidia_driver.Offer(**offer) for offer in offers]
        for source, offers in _value(variables, "{{ __nvidia_driver_offers }}").items()
    }
    recipe = nvidia_driver.Wanted(
        oldest=variables["nvidia_driver_oldest"] or None,
        cuda=variables["nvidia_driver_cuda"] or None,
    )
    try:
        choice = nvidia_driver.choose(facts, offers, recipe, {n.name: n.gpus for n in plan.nodes})
    except nvidia_driver.NoDriver:
        return {}  # the role reports it
    versions = {name: facts[name].driver.installed for name in choice.replaced}
    return {name: version for name, version in versions.items() if version}


def listed(plan: ClusterPlan, role: str, node: NodePlan, key: str) -> list[str]:
    """Render a list of a role's `meta/gpubed.yml` that is a template, such as `packages`."""
    template = getattr(roles.meta(role), key)
    with _TEMPLATING:
        return list(_value(_variables(plan, role, node), template)) if template else []


def _findings(looked: Looked, plan: ClusterPlan, node: NodePlan) -> Iterator[Finding]:
    name, id_ = node.name, f"packages.{node.name}"
    changes = [change for one in looked.roles for change in one.changes]
    if refused := {change.package: change.says for change in changes if change.refused}:
        names = ", ".join(sorted({*plan.spec.packages.may_change, *refused}))
        yield Finding(
            id_,
            False,
            f"{name}: packages that gpubed did not install: {'; '.join(refused.values())}",
            f"if they may change, write into cluster.yml: packages: {{may_change: [{names}]}}",
        )
    notes = [f"{change.says} (allowed)" for change in changes if not change.refused]
    notes += [
        f"apt cannot predict the changes by role {one.role} ({one.failed})"
        for one in looked.roles
        if one.failed and not _TO_COME.search(one.failed)
    ]
    if looked.unfinished:
        notes.append(f"`up` first lets dpkg finish {', '.join(looked.unfinished)}")
    if looked.lists_age_s is None:
        notes.append("it has no package lists, so other changes are unknown")
    elif looked.lists_age_s > _DAY:
        days = f"{looked.lists_age_s / _DAY:.0f} days"
        notes.append(f"its package lists are {days} old; with newer ones more may change")
    if notes or not refused:
        yield Finding(id_, True, f"{name}: {'; '.join(notes) or 'no package of its owner changes'}")


def _news(looked: Looked, plan: ClusterPlan, node: NodePlan) -> list[Finding]:
    """Describe the packages, edited files and units that a new host would get."""
    comes = sorted({package for one in looked.roles for package in one.comes})
    units = {
        one.name
        for one in roles.units(plan)
        if one.node in (None, node.name) and not (one.where_enabled or one.is_file)
    }
    lines = {
        "would get the packages": comes,
        "would run the units": sorted(units),
        "has files that roles would edit:": looked.edits,
    }
    return [
        Finding(f"news.{node.name}", True, f"{node.name} {what} {', '.join(names)}")
        for what, names in lines.items()
        if names
    ]


def _owners_slurm(ssh: SSH, plan: ClusterPlan, node: NodePlan) -> list[Finding]:
    """Report a Slurm of the owner's, which role slurm refuses only after other roles ran."""
    if not plan.spec.services.slurm:
        return []
    marked, *words = _value(
        _variables(plan, "slurm", node), "{{ [__slurm_condition] + __slurm_foreign_words }}"
    )
    program = reading.file(assets() / "roles/slurm/files/foreign-slurm").text()
    command = " ".join(["[ -e %s ] || sudo -n sh -s --", *("%s" for _ in words)])
    # Without sudo the testbed refuses the host.
    output = ssh.run(command, marked, *words, stdin=program, check=False).stdout
    there = ", ".join(reading.reply(output, f"the Slurm of {node.name}").text().splitlines())
    message = f"{node.name} has what gpubed did not set up and Slurm would overwrite or stop: "
    fix = (
        "take services.slurm out of cluster.yml; or, if nobody needs these any more, stop the "
        "services, remove the packages and move the files away"
    )
    return [Finding(f"slurm.{node.name}", False, message + there, fix)] if there else []


def _value(variables: Mapping[str, Any], template: str) -> Any:
    templar = Templar(loader=_loader(), variables=dict(variables))
    return templar.template(trust_as_template(template))


def _variables(plan: ClusterPlan, role: str, node: NodePlan) -> dict[str, Any]:
    """Return a role's variables on a node, with expressions unevaluated."""
    name, _, version = node.image.partition("-")
    distribution = name.capitalize()
    facts = {
        "distribution": distribution,
        "distribution_version": version,
        "distribution_major_version": version.partition(".")[0],
    }
    return {
        **_of_role(role, distribution),
        **roles.inputs(plan, role),
        "ansible_facts": facts,
        "inventory_hostname": node.name,
        "gpubed_head": plan.nodes[0].name,
    }


@cache
def _of_role(role: str, distribution: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("defaults/main.yml", "vars/main.yml", f"vars/{distribution}.yml"):
        if (path := assets() / "roles" / role / name).is_file():
            found |= _loader().load_from_file(str(path), trusted_as_template=True) or {}
    return found


@cache
def _loader() -> DataLoader:
    init_plugin_loader()
    return DataLoader()
