"""gpubed audit."""

from typer import Option

from gpubed.cli import status_view
from gpubed.cli.display import Display, asking
from gpubed.cli.options import ClusterName, EngineOption, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.cluster import audit as audits
from gpubed.cluster import up
from gpubed.cluster.events import event_file
from gpubed.core import record, runlock, secret
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import stack
from gpubed.testbeds import registry
from gpubed.testbeds.base import Backend, Existing

EXAMPLE = "gpubed audit lab --remove"
PLACE = ("Care", 50)


def command(
    name: ClusterName,
    adopt: bool = Option(
        False, "--adopt", help="Take the resources of the specification into the state."
    ),
    remove: bool = Option(False, "--remove", help="Remove resources that are not in the state."),
    uuid: str | None = Option(
        None, "--uuid", help="Let --adopt or --remove act on the resources of a lost state."
    ),
    data: bool = Option(False, "--data", help="With --remove --uuid: also its volumes, for good."),
    as_json: Json = False,
    yes: Yes = False,
    engine: EngineOption = None,
) -> int:
    """Compare state and testbed; adopt or remove what differs."""
    if data and not (remove and uuid):
        raise UsageError(
            "--data goes with --remove --uuid; `down` removes a cluster's own data",
            f"gpubed down {name}",
        )
    if adopt and remove:
        raise UsageError("--adopt and --remove exclude each other", f"gpubed audit {name}")
    ui, paths = UI(as_json), find(name, from_state=not adopt)
    runlock.require_free(paths.state)  # what another run is making would count as left over
    paths.prepare(leftovers=True)
    driven = stack.Stack(paths, stack.choose(engine))
    found = audits.audit(driven)
    if (adopt or remove) and not uuid:
        _require_state(paths, found, "--adopt" if adopt else "--remove")
    if adopt and (uuid or _is_incomplete(paths, driven) or not found.clean):
        if uuid:
            with runlock.hold(paths.state, "audit"):
                _take_over(ui, paths, driven, uuid, yes)
        _adopt(ui, paths, driven, yes, new=found.uuid is None)
        found = audits.audit(driven)
    removed: list[str] = []
    if remove:
        removed = _remove(ui, paths, driven, uuid, data, yes)
        found = audits.audit(driven)
    ui.document("audit", {**_document(found), "removed": removed})
    _show(ui, name, found, removed)
    if _is_incomplete(paths, driven) and found.clean:
        ui.say(f"the last up did not come to its end: gpubed up {name}", whole=True)
    return 0 if found.clean and not found.unseen else 1


def _is_incomplete(paths: ClusterPaths, driven: stack.Stack) -> bool:
    """Return whether `up` was interrupted before it had all nodes."""
    return driven.has_resources() and not paths.allocation.exists()


def _require_state(paths: ClusterPaths, found: audits.Audit, option: str) -> None:
    if found.clean and found.uuid is None and found.others:
        uuids = sorted({thing.uuid for thing in found.others})
        raise UsageError(
            f"{paths.name} has no state here; its resources have the uuid {', '.join(uuids)}",
            f"gpubed audit {paths.name} {option} --uuid {uuids[0]}",
        )


def _take_over(ui: UI, paths: ClusterPaths, driven: stack.Stack, uuid: str, yes: bool) -> None:
    """Record a UUID that exists on the testbed, so that `up` adopts its resources.

    Nodes whose SSH key is lost, and resources that cannot be adopted, are removed, so that `up`
    makes new ones.
    """
    found = audits.audit(driven)  # again, since another run may just have ended
    if found.uuid == uuid:
        return  # an earlier, interrupted audit recorded it
    if found.uuid is not None and not driven.has_resources():
        raise UsageError(
            f"{paths.name} keeps data of its own, with the uuid {found.uuid}",
            f"gpubed up {paths.name} adopts that; adopt the other resources in another "
            "project's folder, with their cluster.yml",
        )
    if found.uuid is not None:
        raise UsageError(
            f"{paths.name} has a state with another uuid, {found.uuid}",
            f"gpubed down {paths.name} first, or --remove the resources of {uuid}",
        )
    if uuid not in {thing.uuid for thing in found.within}:
        _require_existing(paths, found, uuid)
    lost = [thing for thing in found.others if thing.uuid == uuid and not thing.data]
    testbeds = [registry.backend(name) for name in sorted({thing.backend for thing in lost})]
    why = "; ".join(filter(None, (_why_not_adopted(paths, testbed) for testbed in testbeds)))
    if not why:
        record.keep_uuid(paths, uuid)
        return
    listed = ", ".join(map(str, lost))
    if not ui.confirm(f"{why}: give back and ask again for {listed}?", yes=yes):
        raise UsageError(
            f"not confirmed, so nothing was changed: {why}",
            f"put back what was lost, or ask for new nodes: gpubed audit {paths.name} --adopt "
            f"--uuid {uuid} -y",
        )
    record.keep_uuid(paths, uuid)  # by which `up` finds the data
    found.testbeds.remove(lost)


def _why_not_adopted(paths: ClusterPaths, backend: Backend) -> str:
    if backend.native:
        return "resources of a Pulumi plugin cannot be adopted into a new state"
    if backend.exchanges_keys or secret.public_key(paths.private_key):
        return ""
    return f"nodes let in the key {paths.private_key} alone, which is lost"


def _adopt(ui: UI, paths: ClusterPaths, driven: stack.Stack, yes: bool, *, new: bool) -> None:
    """Run `up` with a refresh: drivers adopt the resources of an interrupted run.

    If that fails while the state is still empty, a UUID that was just recorded (`new`) is removed
    again: else the next `down` would remove its resources.
    """
    display = Display(ui)
    approve = asking(ui, display, f"gpubed audit {paths.name} --adopt -y", yes=yes)
    try:
        with event_file(paths, "audit", None) as path, display.following(path):
            up.up(paths, driven.engine, approve=approve, refresh=True)
    except BaseException:
        if new and not driven.has_resources() and not driven.interrupted():
            with record.changed(paths) as cluster:
                cluster.uuid = None
        raise


def _require_existing(paths: ClusterPaths, found: audits.Audit, uuid: str | None) -> None:
    if uuid is None or uuid in {thing.uuid for thing in found.others}:
        return
    if uuid == found.uuid:
        raise UsageError(
            f"{uuid} is the uuid of {paths.name} itself",
            f"gpubed down {paths.name}   (or only resources outside its state: gpubed audit "
            f"{paths.name} --remove)",
        )
    raise UsageError(f"no resource has the uuid {uuid}", f"gpubed audit {paths.name}")


def _remove(
    ui: UI, paths: ClusterPaths, driven: stack.Stack, uuid: str | None, data: bool, yes: bool
) -> list[str]:
    with runlock.hold(paths.state, "audit"):
        found = audits.audit(driven)  # again, since another run may just have ended
        _require_existing(paths, found, uuid)
        doomed = [thing for thing in found.others if thing.uuid == uuid] if uuid else found.extra
        if not data and (kept := [thing for thing in doomed if thing.data]):
            doomed = [thing for thing in doomed if not thing.data]
            ui.note(f"kept: {', '.join(map(status_view.described, kept))}", whole=True)
            ui.note(
                f"if nobody needs that: gpubed audit {paths.name} --remove --uuid {uuid} --data"
            )
        if not doomed:
            return []
        listed = ", ".join(status_view.described(thing) for thing in doomed)
        if not ui.confirm(f"Remove {listed}?", yes=yes):
            options = f"--remove{f' --uuid {uuid}' if uuid else ''}{' --data' if data else ''} -y"
            raise UsageError(
                f"not confirmed, so nothing was removed: {listed}",
                f"gpubed audit {paths.name} {options}",
            )
        return found.testbeds.remove(doomed)


def _document(found: audits.Audit) -> dict[str, object]:
    def rows(things: list[audits.Recorded] | list[Existing]) -> list[dict[str, str]]:
        keys = ("kind", "name", "id", "uuid")
        return [{key: getattr(it, key) for key in keys if hasattr(it, key)} for it in things]

    return {
        "uuid": found.uuid,
        "recorded": rows(found.recorded),
        "missing": rows(found.missing),
        "unrecorded": rows(found.unrecorded),
        "elsewhere": rows([left.thing for left in found.elsewhere]),
        "others": rows(found.others),
        "within": rows(found.within),
        "interrupted": found.interrupted,
        "unseen": found.unseen,
    }


def _show(ui: UI, cluster: str, found: audits.Audit, removed: list[str]) -> None:
    for name in removed:
        ui.say(f"removed {name}")
    for gone in found.missing:
        ui.say(f"missing     {gone}: in the state, but it does not exist")
    for thing in found.unrecorded:
        note = "; it holds data and stays until `gpubed down`" if thing.data else ""
        ui.say(f"unrecorded  {thing}: it exists, but is not in the state{note}")
    for left in found.elsewhere:
        where = "at a place that only an earlier specification names"
        ui.say(f"elsewhere   {left.thing}: {where}; it stays until `gpubed down`")
    for thing in found.within:
        ui.say(f"data        {thing}: only nodes reach it; it stays until `gpubed down`")
    for operation in found.interrupted:
        ui.say(f"interrupted {operation}: a run was killed meanwhile")
    for other in found.others:
        ui.say(f"other       {other}: it belongs to another {cluster} (uuid {other.uuid})")
    for host in found.unseen:
        ui.say(f"unseen      {host}; it could not be looked at, and may be a node still")
    ui.say(f"{len(found.recorded)} resource(s) are in the state and exist")
    _show_next(ui, cluster, found)


def _show_next(ui: UI, cluster: str, found: audits.Audit) -> None:
    if found.missing or found.extra or found.interrupted:
        ui.say(f"adopt:  gpubed audit {cluster} --adopt    (an `up` that looks first)", whole=True)
    if found.extra:
        ui.say(f"remove: gpubed audit {cluster} --remove", whole=True)
    others = {other.uuid for other in found.others}
    for uuid in sorted(others | {thing.uuid for thing in found.within} - {found.uuid}):
        if found.uuid is None or uuid not in others:
            adopt = f"gpubed audit {cluster} --adopt --uuid {uuid}"
            ui.say(f"if it is yours, take it over: {adopt}", whole=True)
        if its := [other for other in found.others if other.uuid == uuid]:
            ui.say(f"when nobody needs it: {status_view.remove_command(cluster, its)}", whole=True)
