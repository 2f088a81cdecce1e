"""gpubed plan."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gpubed.campaigns.predictions import Known
from gpubed.cli import status_view
from gpubed.cli.display import Display
from gpubed.cli.options import ClusterName, EngineOption, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import doctor, removals, up
from gpubed.cluster.events import event_file
from gpubed.configuration import due
from gpubed.core.errors import GpubedError, Refused, of_cluster
from gpubed.core.paths import ClusterPaths
from gpubed.engines import stack
from gpubed.engines.embedded import ResourceEvent
from gpubed.prediction import forecast
from gpubed.prediction.questions import COLUMNS, Answer, Row
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry

EXAMPLE = "gpubed plan lab"
PLACE = ("Cluster", 40)
_STACK = "pulumi:pulumi:Stack"  # Pulumi's own record of the rest, no resource of a cluster
_SHOWN = {"create", "update", "replace", "delete"}


def command(name: ClusterName, as_json: Json = False, engine: EngineOption = None) -> int:
    """Show what `up` would create, update, replace and delete. Nothing is changed.

    Ends with 4 where the testbed could not make it now, with 5 beside a run that changes it.
    """
    ui, paths = UI(as_json), find(name)
    chosen = stack.choose(engine)
    with TemporaryDirectory() as folder:  # nothing is left behind
        file = event_file(paths, "plan", Path(folder) / "events.jsonl")
        with file as path, Display(ui).following(path):
            seen = up.preview(paths, chosen)
    plan, damage, steps = seen.plan, seen.damage, seen.steps
    going = removals.destructive_steps(steps)
    others = [step for step in steps.steps if step not in going]
    changes = [
        {"urn": step.urn, "op": step.op, "why": list(step.why)}
        for step in [*going, *_in_order(others)]
        if step.op in _SHOWN and step.type != _STACK
    ]
    hours = plan.node_hours
    testbed = registry.bound(plan.backend, paths)
    # What is refused now may be what does not fit, either.
    found = [*testbed.fits(plan), *doctor.owners_packages(paths, plan)]
    refused = [*seen.refused, *(one for one in found if not one.ok)]
    obstacles = {one.message: one for one in refused}
    remedies = {why: of_cluster(one.fix or "", paths.name) for why, one in obstacles.items()}
    warnings = testbed.backend.warnings(plan.spec)
    warnings = [*seen.notes, *warnings, *doctor.exposed(chosen, testbed.backend)]
    warnings += [one.message for one in found if one.ok]
    scaling, answer, unpredicted = _predict(plan, paths)
    ui.document(
        "plan",
        {
            "damage": list(damage),
            "lost": list(seen.lost),
            "changes": changes,
            "roles": due.document(seen.roles),
            "lease": None if hours is None else {"duration_s": plan.spec.lease.duration},
            "node_hours": None if hours is None else round(hours, 2),
            "obstacles": list(obstacles),
            "remedies": list(remedies.values()),
            "prediction": answer
            and scaling[-1].document()
            | {"scaling": [row.document() for row in scaling], "answer": answer.document()},
            "warnings": warnings,
        },
    )
    for line in damage:
        ui.mark("fail", line)
    for change in changes:
        kind, name = str(change["urn"]).split("::")[-2:]
        why = f"  ({', '.join(change['why'])})" if change["why"] else ""
        label = f"{change['op']:8} {kind.rsplit(':', 1)[-1]} {name}{why}"
        ui.say(label)
    same = sum(step.op == "same" and step.type != _STACK for step in steps.steps)
    ui.say(
        f"{len(changes)} change(s); {same} resource(s) stay as they are, nothing else is touched"
    )
    for line in status_view.due(due.document(seen.roles)):
        ui.say(line)
    for line in seen.lost:
        ui.mark("delete", line)
    if hours is not None:
        written = f"{hours:.2f}".rstrip("0").rstrip(".")
        ui.say(f"{written} node-hours over the lease")
    for group in plan.spec.nodes:
        if group.simulate:
            ui.say(f"{group.name}: GPUs are simulated ({group.simulate.model}); none computes")
    _tell_prediction(ui, scaling, answer, unpredicted)
    for warning in warnings:
        ui.note(warning)
    _tell_obstacles(ui, remedies)
    return Refused.exit_code if obstacles else 0


def _predict(plan: ClusterPlan, paths: ClusterPaths) -> tuple[list[Row], Answer | None, str]:
    """Return the scaling of the experiment and what it costs; or why it is not predicted."""
    try:
        asked = forecast.of_plan(plan, paths, Known(paths).rate)
        if asked is None:
            return [], None, ""
        target = plan.spec.experiment.target if plan.spec.experiment else None
        answer = asked.reach(target, [asked.setup.link_bps]) if target else asked.cost()
        return asked.scaling(), answer, ""
    except GpubedError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return [], None, f"the experiment is not predicted: {error.message}{hint}"


def _tell_prediction(ui: UI, scaling: list[Row], answer: Answer | None, why: str) -> None:
    if answer:
        ui.say(f"predicted for {scaling[-1].words}:")
        ui.table(COLUMNS, [row.cells for row in scaling])
    for line in answer.lines() if answer else filter(None, [why]):
        ui.say(line)


def _tell_obstacles(ui: UI, remedies: Mapping[str, str]) -> None:
    for obstacle, remedy in remedies.items():
        ui.mark("fail", f"does not fit now: {obstacle}")
        if remedy:
            ui.note(f"  → {remedy}", whole=True)


def _in_order(steps: Sequence[ResourceEvent]) -> list[ResourceEvent]:
    """Put resources of a type together, by name: engines plan them side by side."""
    types = list(dict.fromkeys(step.type for step in steps))

    def place(step: ResourceEvent) -> tuple[int, list[str | int]]:
        parts = re.split(r"(\d+)", step.urn.rsplit("::", 1)[-1])
        return types.index(step.type), [int(part) if part.isdigit() else part for part in parts]

    return sorted(steps, key=place)
