"""Filters that derive drivers, bindings of ranks and Horovod's settings from the facts of nodes.

The choices are gpubed's own functions, so this needs the environment that gpubed
is installed in, such as the `ansible-playbook` beside `gpubed`. They are imported where
they are called: Ansible loads all filters in each process that it makes for a task of
a host, and the import takes longer than most tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError


def _hardware(module: str) -> Any:
    """Return a module of gpubed.hardware."""
    try:
        return import_module(f"gpubed.hardware.{module}")
    except ImportError as error:
        raise AnsibleFilterError(
            f"gpubed cannot be imported ({error}): run the ansible-playbook of its environment"
        ) from error


def driver(
    files: Mapping[str, str],
    offers: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    branch: int | str = 0,
    version: str = "",
    oldest: str = "",
    cuda: int | str = 0,
    asked: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Choose a driver: `{node: facts file} | gpubed_driver({source: [offer]})`.

    Offers are as `nvidia_driver.Offer`, the rest as in `nvidia_driver.Wanted`, where 0 and an empty
    text ask for nothing; `asked` is how many GPUs nodes are to have.
    """
    facts, drivers = _hardware("facts"), _hardware("nvidia_driver")
    found = {node: facts.load(Path(path)) for node, path in files.items()}
    if missing := [node for node, known in found.items() if known is None]:
        raise AnsibleFilterError(
            f"nothing is known about {', '.join(missing)}: apply the role hardware first"
        )
    try:
        choice = drivers.choose(
            {node: known for node, known in found.items() if known},
            {source: [drivers.Offer(**o) for o in there] for source, there in offers.items()},
            drivers.Wanted(int(branch) or None, version or None, oldest or None, int(cuda) or None),
            asked,
        )
    except drivers.NoDriver as error:
        raise AnsibleFilterError(str(error)) from error
    return asdict(choice)


def bindings(path: str, ranks: int) -> list[dict[str, Any]]:
    """Bind the ranks of a node; empty without stored facts."""
    known = _hardware("facts").load(Path(path))
    return [asdict(one) for one in _hardware("binding").bind(known, int(ranks))] if known else []


def horovod_settings(place: Mapping[str, Any], given: Mapping[str, float]) -> dict[str, Any]:
    """Derive Horovod's settings from a `horovod.Place`; given values of 0 and above win."""
    module = _hardware("horovod")
    derived = asdict(module.derive(module.Place(**place)))
    return derived | {name: value for name, value in given.items() if value >= 0}


class FilterModule:
    """Registers the filters with Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "gpubed_driver": driver,
            "gpubed_bindings": bindings,
            "gpubed_horovod_settings": horovod_settings,
        }
