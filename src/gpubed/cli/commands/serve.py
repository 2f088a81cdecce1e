"""gpubed serve."""

import time

from typer import Argument, Option

from gpubed.access import https, serving
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed serve lab digits@champion --replicas 2"
PLACE = ("Work", 45)
_PAUSE_S, _QUEUED_S, _PATIENCE_S = 1.0, 30.0, 600.0
_AS_DEFAULT = "gpubed serve CLUSTER MODEL@VERSION, or MODEL@ALIAS"


def command(
    name: ClusterName,
    model: str = Argument("", metavar="[MODEL@VERSION]", help="A registered model, or @ALIAS."),
    status: bool = Option(False, "--status", help="Show what is served."),
    rollback: bool = Option(False, "--rollback", help="Serve what MODEL was before."),
    stop: bool = Option(False, "--stop", help="Serve MODEL no more."),
    replicas: int = Option(1, min=1, max=16, help="How many there are."),
    least: int | None = Option(None, "--min", min=1, max=16, help="At least, when they follow"),
    most: int | None = Option(None, "--max", min=1, max=16, help="the backlog; at most."),
    gpus: int = Option(0, min=0, help="GPUs of each replica."),
    cpus: int = Option(1, min=1, help="CPUs of each replica."),
    canary: int = Option(0, min=0, max=50, help="Per cent of the requests, at most 50."),
    source: str = Option("", "--from", metavar="STREAM", help="Score the messages of a stream"),
    target: str = Option("", "--to", metavar="STREAM", help="into another one."),
    as_json: Json = False,
) -> int:
    """Serve a registered model, with replicas that are Slurm jobs.

    A version that is served already is replaced without a failed request.
    """
    ui, cluster = UI(as_json), load_cluster(find(name))
    serving.require(cluster)
    model_name, _, version = model.partition("@")
    action = "rollback" if rollback else "stop" if stop else "serve"
    version = f"@{version}" if version and not version.isdigit() else version
    low, high = least or min(replicas, most or replicas), most or max(replicas, least or replicas)
    if low > high:
        raise UsageError(f"--min {low} is above --max {high}", "give a --max of at least --min")
    if bool(source) != bool(target):
        raise UsageError("--from and --to go together", "give both streams, or neither")
    with SSH(cluster.allocation.head, cluster.paths) as head:
        if status or not model:
            return _show(ui, cluster, serving.state(cluster, head))
        if action == "serve" and not version:
            raise UsageError(f"{model} names no version", _AS_DEFAULT)
        streams = {"source": source, "target": target}
        amounts = {"min": low, "max": high, "cpus": cpus, "gpus": gpus, "canary": canary}
        request = {"action": action, "model": model_name, "version": version, **amounts, **streams}
        with ui.working(f"{model}: {action}") as tell:
            revision = serving.ask(cluster, head, request)
            tell(f"{model}: replicas {'end' if stop else 'start'}")
            found = _await(cluster, head, model_name, revision)
        return _show(ui, cluster, found)


def _await(cluster: Cluster, head: SSH, name: str, revision: int) -> serving.State:
    """Wait until a model is served as it is wanted; raise `GpubedError` that says why it is not."""
    start, again = time.monotonic(), f"gpubed serve {cluster.name}"
    while (waited := time.monotonic() - start) < _PATIENCE_S:
        state = serving.state(cluster, head)
        model = state.models.get(name)
        if not revision and not (model and model.former):
            return state
        if model and model.revision == revision:
            if model.complete and not model.former:
                return state
            rest = f"; what was served before goes on: {again} {name} --rollback"
            for track in (track for track in model.tracks if track.ready < track.replicas):
                label = f"{name}@{track.version}"
                if track.failed:
                    raise GpubedError(f"{label} does not start: {track.reason}{rest}")
                if track.waits and waited > _QUEUED_S:
                    why = f"{label} waits in Slurm's queue for a place: {track.waits}"
                    queue = f"gpubed ssh {cluster.name} head -- squeue"
                    raise GpubedError(why, f"{again} --status says when it is ready; {queue}")
        time.sleep(_PAUSE_S)
    raise GpubedError(f"{name} is not ready after {_PATIENCE_S:.0f} s", f"{again} --status")


def _show(ui: UI, cluster: Cluster, state: serving.State) -> int:
    port, paths = serving.require(cluster), cluster.paths
    host = "localhost" if cluster.allocation.head.via else cluster.allocation.head.control_address
    url = f"https://{host}:{port}/v2"
    token, authority = (
        str(paths.secrets / "serving_token"),
        str(https.certificate(cluster, "serving")),
    )
    ways = {"url": url, "token_file": str(token), "certificate": str(authority)}
    models = {name: model.model_dump() for name, model in state.models.items()}
    ui.document("serve", {"models": models, **ways, "age_s": time.time() - state.time})

    def ms(seconds: float | None) -> str:
        return "" if seconds is None else f"{seconds * 1000:.0f} ms"

    rows = [
        (
            f"{name}@{track.version}",
            f"{track.share} %",
            f"{track.ready} of {track.replicas}",
            *(ms(track.p50_s), ms(track.p99_s)),
            *(f"{track.per_s:.0f}/s", track.backlog),
            f"{track.source} → {track.target}" if track.source else "",
            track.reason or (f"waits: {track.waits}" if track.waits else ""),
        )
        for name, model in state.models.items()
        for track in model.tracks
    ]
    if rows:
        heads = ["model", "share", "ready", "p50", "p99", "rows", "backlog", "streams", "why"]
        ui.table(heads, rows)
    else:
        ui.say(f"no model is served; {_AS_DEFAULT.replace('CLUSTER', cluster.name)}")
    ui.note(f"URL {url}; its token is in {token}", whole=True)
    header = f"""printf 'header = "Authorization: Bearer %s"' "$(cat {token})" """
    ui.note(f"{header}| curl --config - --cacert {authority} {url}/models/MODEL", whole=True)
    return 0
