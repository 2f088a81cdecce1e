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
        False, "--adopt", help="Take into the state what the specification wants."
    ),
    remove: bool = Option(False, "--remove", help="Remove what is not in the state."),
    uuid: str | None = Option(
        None, "--uuid", help="Of a cluster whose state was lost: what --adopt or --remove is about."
    ),
    data: bool = Option(False, "--data", help="With --remove --uuid: also its volumes, for good."),
    as_json: Json = False,
    yes: Yes = False,
    engine: EngineOption = None,
) -> int:
    """Compare state and testbed; adopt or remove what differs."""
    if data and not (remove and uuid):
        raise UsageError(
            "--data is for what --remove --uuid finds; a cluster's own data goes with `down`",
            f"gpubed down {name}",
        )
    if adopt and remove:
        raise UsageError("--adopt and --remove exclude each other", f"gpubed audit {name}")
    ui, paths = UI(as_json), find(name, from_state=not adopt)
    runlock.require_free(paths.state)  # what is being made would look as if a kill had left it
    paths.prepare(leftovers=True)
    driven = stack.Stack(paths, stack.choose(engine))
    found = audits.audit(driven)
    if (adopt or remove) and not uuid:
        _require_one(paths, found, "--adopt" if adopt else "--remove")
    if adopt and (uuid or _is_cut_short(paths, driven) or not found.clean):
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
    cut_short = _is_cut_short(paths, driven)
    keeps = any(thing.data for thing in (*found.unrecorded, *found.within))
    half_made = cut_short or not (paths.allocation.exists() or keeps)
    _show(ui, name, found, removed, half_made=half_made)
    if cut_short and found.clean:
        ui.say(f"it was not handed over yet: gpubed up {name}", whole=True)
    return 0 if found.clean and not found.unseen else 1


def _is_cut_short(paths: ClusterPaths, driven: stack.Stack) -> bool:
    return driven.has_resources() and not paths.allocation.exists()


def _require_one(paths: ClusterPaths, found: audits.Audit, option: str) -> None:
    if found.clean and found.uuid is None and found.others:
        uuids = sorted({thing.uuid for thing in found.others})
        raise UsageError(
            f"{paths.name} has no state here; what is there carries the uuid {', '.join(uuids)}",
            f"gpubed audit {paths.name} {option} --uuid {uuids[0]}",
        )


def _take_over(ui: UI, paths: ClusterPaths, driven: stack.Stack, uuid: str, yes: bool) -> None:
    """Let the next `up` make the cluster with a UUID that exists on the testbed.

    Nodes that nobody can get into any more are given back, and asked for again.
    """
    # Looked at again, since another run may just have ended.
    found = audits.audit(driven)
    if found.uuid == uuid:
        return  # as it says: a run before this one came that far
    if found.uuid is not None and not driven.has_resources():
        raise UsageError(
            f"{paths.name} has kept data of its own, under the uuid {found.uuid}",
            f"gpubed up {paths.name} takes that over; take the other one over from another "
            "project's folder, with its cluster.yml",
        )
    if found.uuid is not None:
        raise UsageError(
            f"{paths.name} has a state, and in it the uuid {found.uuid}",
            f"gpubed down {paths.name} first, or --remove what carries {uuid}",
        )
    if uuid not in {thing.uuid for thing in found.within}:
        _require_known(paths, found, uuid)
    lost = [e for e in found.others if e.uuid == uuid and not e.data]
    testbeds = [registry.backend(name) for name in sorted({thing.backend for thing in lost})]
    if not (said := "; ".join(filter(None, (_lost_for_good(paths, each) for each in testbeds)))):
        record.keep_uuid(paths, uuid)
        return
    listed = ", ".join(map(str, lost))
    if not ui.confirm(f"{said}: give back and ask again for {listed}?", yes=yes, default=False):
        raise UsageError(
            f"not confirmed, so nothing was changed: {said}",
            f"put back what was lost, or ask for new nodes: gpubed audit {paths.name} --adopt "
            f"--uuid {uuid} -y",
        )
    record.keep_uuid(paths, uuid)  # data that is elsewhere is found again by it
    found.testbeds.remove(lost)


def _lost_for_good(paths: ClusterPaths, backend: Backend) -> str:
    if backend.native:
        return "what Pulumi's plugin has made cannot be taken into a new state"
    if backend.exchanges_keys or secret.public_key(paths.private_key):
        return ""
    return f"nodes let in the key {paths.private_key} alone, which is lost"


def _adopt(ui: UI, paths: ClusterPaths, driven: stack.Stack, yes: bool, *, new: bool) -> None:
    """Run an `up` that looks first: drivers adopt what an interrupted run made.

    A UUID that was taken over (`new`) is forgotten if that fails before anything is in the state:
    else the next `down` would remove what carries it.
    """
    display = Display(ui)
    approve = asking(ui, display, f"gpubed audit {paths.name} --adopt -y", yes=yes)
    try:
        with event_file(paths, "audit", None) as path, display.following(path):
            up.up(paths, driven.engine, approve=approve, refresh=True)
    except BaseException:
        if new and not driven.has_resources() and not driven.interrupted():
            with record.changed(paths) as known:
                known.uuid = None
        raise


def _require_known(paths: ClusterPaths, found: audits.Audit, uuid: str | None) -> None:
    if uuid is None or uuid in {thing.uuid for thing in found.others}:
        return
    if uuid == found.uuid:
        raise UsageError(
            f"{uuid} is the uuid of {paths.name} itself",
            f"gpubed down {paths.name}   (or what its state does not know: gpubed audit "
            f"{paths.name} --remove)",
        )
    raise UsageError(f"nothing carries the uuid {uuid}", f"gpubed audit {paths.name}")


def _remove(
    ui: UI, paths: ClusterPaths, driven: stack.Stack, uuid: str | None, data: bool, yes: bool
) -> list[str]:
    with runlock.hold(paths.state, "audit"):
        # Looked at again, since another run may just have ended.
        found = audits.audit(driven)
        _require_known(paths, found, uuid)
        doomed = [e for e in found.others if e.uuid == uuid] if uuid else found.extra
        asked = [*([f"--uuid {uuid}"] if uuid else []), *(["--data"] if data else [])]
        if not data and (kept := [thing for thing in doomed if thing.data]):
            doomed = [thing for thing in doomed if not thing.data]
            ui.note(f"kept: {', '.join(map(status_view.described, kept))}", whole=True)
            ui.note(
                f"if nobody needs that: gpubed audit {paths.name} --remove --uuid {uuid} --data"
            )
        if not doomed:
            return []
        listed = ", ".join(status_view.described(thing) for thing in doomed)
        if not ui.confirm(f"Remove {listed}?", yes=yes, default=False):
            raise UsageError(
                f"not confirmed, so nothing was removed: {listed}",
                " ".join([f"gpubed audit {paths.name} --remove", *asked, "-y"]),
            )
        return found.testbeds.remove(doomed)


def _document(found: audits.Audit) -> dict[str, object]:
    def rows(things: list[audits.Recorded] | list[Existing]) -> list[dict[str, str]]:
        keys = ("kind", "name", "id", "uuid")
        return [{key: getattr(t, key) for key in keys if hasattr(t, key)} for t in things]

    return {
        "uuid": found.uuid,
        "recorded": rows(found.recorded),
        "missing": rows(found.missing),
        "unrecorded": rows(found.unrecorded),
        "elsewhere": rows([one.thing for one in found.elsewhere]),
        "others": rows(found.others),
        "within": rows(found.within),
        "interrupted": found.interrupted,
        "unseen": found.unseen,
    }


def _show(
    ui: UI, cluster: str, found: audits.Audit, removed: list[str], *, half_made: bool
) -> None:
    for name in removed:
        ui.say(f"removed {name}")
    for gone in found.missing:
        ui.say(f"missing     {gone}: in the state, but it does not exist")
    for thing in found.unrecorded:
        note = "; it holds data and stays until `gpubed down`" if thing.data else ""
        ui.say(f"unrecorded  {thing}: it exists, but is not in the state{note}")
    for one in found.elsewhere:
        where = "where a former specification led"
        ui.say(f"elsewhere   {one.thing}: {where}; it stays until `gpubed down`")
    for thing in found.within:
        ui.say(f"data        {thing}: only nodes reach it; it stays until `gpubed down`")
    for what in found.interrupted:
        ui.say(f"interrupted {what}: a run was killed in it")
    for other in found.others:
        ui.say(f"other       {other}: it belongs to another {cluster} (uuid {other.uuid})")
    for what in found.unseen:
        ui.say(f"unseen      {what}; it could not be looked at, and may be a node still")
    ui.say(f"{len(found.recorded)} resource(s) are in the state and exist")
    _lead_on(ui, cluster, found, half_made=half_made)


def _lead_on(ui: UI, cluster: str, found: audits.Audit, *, half_made: bool) -> None:
    if found.missing or found.extra or found.interrupted:
        ui.say(f"adopt:  gpubed audit {cluster} --adopt    (an `up` that looks first)", whole=True)
    if found.extra:
        ui.say(f"remove: gpubed audit {cluster} --remove", whole=True)
    listed = {other.uuid for other in found.others}
    for uuid in sorted({thing.uuid for thing in found.within} - listed - {found.uuid}):
        ui.say(_offer(cluster, uuid), whole=True)
    for uuid in sorted(listed):
        if found.uuid is None:
            ui.say(_offer(cluster, uuid), whole=True)
        elif half_made:
            # Somebody went on where a state was lost, and came as far as the first thing in use.
            ui.say(f"first remove what is half made: gpubed down {cluster}", whole=True)
            ui.say(_offer(cluster, uuid), whole=True)
        its = [other for other in found.others if other.uuid == uuid]
        ui.say(f"when nobody needs it: {status_view.remove_command(cluster, its)}", whole=True)


def _offer(cluster: str, uuid: str) -> str:
    return f"if it is yours, take it over: gpubed audit {cluster} --adopt --uuid {uuid}"
