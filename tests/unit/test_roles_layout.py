"""A role is complete, or it is not a role."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpubed.configuration.roles import PHASES
from gpubed.core.paths import assets
from support import role_reads

ROLES = sorted(path for path in (assets() / "roles").iterdir() if path.is_dir())
# What of a role needs no mark, since all its files are gpubed's by their names.
# How a task file that other roles borrow names the one that it runs for.
BORROWS = "{{ (ansible_parent_role_names | default([]) + [role_name]) | first }}"


@pytest.fixture(params=ROLES, ids=lambda path: path.name)
def role(request: pytest.FixtureRequest) -> Path:
    """Each role in turn."""
    return request.param


@cache
def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _options(role: Path) -> dict[str, Any]:
    main = _yaml(role / "meta" / "argument_specs.yml")["argument_specs"]["main"]
    return main.get("options") or {}


def _defaults(role: Path) -> dict[str, Any]:
    return _yaml(role / "defaults" / "main.yml") or {}


def _top_block(role: Path) -> dict[str, Any]:
    tasks = _yaml(role / "tasks" / "main.yml")
    assert len(tasks) == 1, "tasks/main.yml has one top block"
    return tasks[0]


def test_every_default_is_specified(role: Path) -> None:
    """Argument specs and defaults name the same inputs."""
    required = {name for name, option in _options(role).items() if option.get("required")}
    assert set(_options(role)) - required == set(_defaults(role))


def test_tasks_carry_the_roles_tag(role: Path) -> None:
    """`--tags <role>` applies the whole role."""
    assert _top_block(role)["tags"] == [role.name]


def test_last_task_records_the_application(role: Path) -> None:
    """gpubed learns that the role was applied, and only if all of it was."""
    last = _top_block(role)["block"][-1]
    assert last.get("gpubed_applied") == {"role": role.name}, "as docs/contributing/role.md shows"


def test_site_runs_all_phases_in_order() -> None:
    """site.yml is the phases, one after the other."""
    plays = _yaml(assets() / "playbooks" / "site.yml")
    imported = [p["ansible.builtin.import_playbook"] for p in plays if len(p) == 2]
    assert imported == [f"{phase}.yml" for phase in PHASES]


def test_handlers_survive_an_interruption(role: Path) -> None:
    """What a run notifies and does not come to, the next one notifies again.

    Of what the role borrows, too: a run that ends there has the borrower begun and not done.
    """
    tasks = _with_borrowed(role)
    begins = [t for t in tasks if t.get("gpubed_applied", {}).get("state") == "begun"]
    once, again = (
        {str(name) for task in some for name in _listed(task.get("notify"))}
        for some in (
            tasks,
            [t for t in begins if t["gpubed_applied"]["role"] in (role.name, BORROWS)],
        )
    )
    assert once == again


def test_a_role_is_done_when_its_handlers_have_run(role: Path) -> None:
    """They would run at the end of the phase, and a run may end before: the role is recorded then,
    and nobody notifies them again."""
    *_, before, _ = _top_block(role)["block"]
    flushes = before.get("ansible.builtin.meta") == "flush_handlers"
    notifies = any("notify" in task for task in _with_borrowed(role))
    assert flushes is notifies, (
        "the last task but one is `ansible.builtin.meta: flush_handlers`, where tasks notify any"
    )


def _tasks(found: Any) -> Iterator[dict[str, Any]]:
    for task in found or []:
        yield task
        yield from _tasks(task.get("block"))


@cache
def _with_borrowed(role: Path) -> list[dict[str, Any]]:
    texts = role_reads.task_files(role.name)
    return [task for text in texts for task in _tasks(yaml.safe_load(text))]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def test_every_entry_of_another_role_is_there() -> None:
    """Ansible finds out only when it gets there: in the last phase of an `up`."""
    asked = re.compile(r"name: (\w+)\n +tasks_from: (?:(\w+)|\"\{\{ (.*) \}\}\")")
    missing, found = [], 0
    for path in (assets() / "roles").glob("*/tasks/*.yml"):
        for role, entry, template in asked.findall(path.read_text()):
            for name in [entry] if entry else re.findall(r"'(\w+)'", template):
                found += 1
                if not (assets() / "roles" / role / "tasks" / f"{name}.yml").is_file():
                    missing.append(f"{path.parts[-3]}/{path.name}: {role}, {name}")
    assert not missing
    assert found > 30
