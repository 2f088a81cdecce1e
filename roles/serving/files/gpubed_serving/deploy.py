"""Writes down what is to be served; runs on the head, in the cluster's environment.

It reads a request as JSON from stdin, and writes a reply to stdout: the revision that it
made, or what is wrong and what helps.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpubed_serving.controller import MODELS, ROOT, SETTINGS, size, write

TAG = "gpubed.environment"
OF_REPLICAS = ("min", "max", "cpus", "gpus", "source", "target")


class Refused(Exception):
    """A request that cannot be followed: why, and what helps."""


def _there(client: Any, name: str) -> str:
    """Return what can be served, as a hint: versions of the model, else other models."""
    models = {one.name: one for one in client.search_registered_models()}
    versions = [one.version for one in client.search_model_versions() if one.name == name]
    if versions:
        names = [*sorted(versions, key=int), *models[name].aliases]
        return f"there are {', '.join(f'{name}@{one}' for one in names)}"
    if models:
        return f"registered models: {', '.join(models)}"
    return "gpubed run CLUSTER digits --set register=NAME registers a model"


def _registered(name: str, wanted: str) -> dict[str, str]:
    """Return version, files and environment of a registered model; the files are copied once."""
    os.environ["MLFLOW_TRACKING_URI"] = SETTINGS["tracking"]
    os.environ["MLFLOW_TRACKING_SERVER_CERT_PATH"] = SETTINGS["authority"]
    import mlflow
    from mlflow.exceptions import MlflowException

    client, label = mlflow.MlflowClient(), f"{name}@{wanted.removeprefix('@')}"
    by_alias = wanted.startswith("@")
    ask = client.get_model_version_by_alias if by_alias else client.get_model_version
    hint = lost = "gpubed verify CLUSTER says whether the tracking server answers"
    try:
        hint = _there(client, name)
        found = ask(name, wanted.removeprefix("@"))
        # A version of MLflow 3 names a logged model, which names its run.
        of_model = found.source.startswith("models:/m-")
        logged = client.get_logged_model(found.source.rpartition("/")[2]) if of_model else None
        run_id = logged.source_run_id if logged else found.run_id
        run = client.get_run(run_id) if run_id else None
        files = client.get_model_version_download_uri(name, found.version)
    except MlflowException as error:
        raise Refused(f"{label} is not served: {error.message}", hint) from None
    # Of a researcher's file:///, the account's own files would come.
    if not files.startswith("mlflow-artifacts:"):
        raise Refused(
            f"{label} is not served: its files are not on the tracking server, but at {files}",
            "register it from a run whose experiment has no artifact location of its own",
        )
    environment = run.data.tags.get(TAG, "") if run else ""
    hint = "set the tag of its run to the folder of its Python environment, on shared storage"
    if not (environment and Path(environment, "bin/python").exists()):
        gone = f"{environment} is gone" if environment else f"its run has no tag {TAG}"
        raise Refused(f"{label} has no environment: {gone}", hint)
    # Whoever has a login to the tracking server can change the tag.
    if not Path(environment).resolve().is_relative_to((ROOT.parent / "env").resolve()):
        raise Refused(f"{label}: {environment} is none of the cluster's environments", hint)
    folder = ROOT / "files" / f"{name}-{found.version}-{run_id}"
    if not folder.exists():
        with TemporaryDirectory(dir=ROOT / "files") as draft:
            uri = f"models:/{name}/{found.version}"
            try:
                Path(mlflow.artifacts.download_artifacts(uri, dst_path=draft)).rename(folder)
            except (MlflowException, OSError) as error:
                raise Refused(f"{label}: its files cannot be fetched: {error}", lost) from None
        folder.chmod(0o2750)
    where = {"folder": str(folder), "environment": str(Path(environment).resolve())}
    return {"version": str(found.version), **where}


def _tracks(request: dict[str, Any], now: list[Any]) -> list[Any]:
    """Return the versions that are to be served, with their shares."""
    name, canary = request["model"], request["canary"]
    if canary and not request["source"]:  # it scores the stream that is scored
        request |= {end: one[end] for one in now[:1] for end in ("source", "target")}
    asked = ["sudo", "-u", "gpubed-serving", "sbatch", "--test-only", "--chdir=/", "--wrap=true"]
    tried = subprocess.run([*asked, *size(request)], capture_output=True, text=True, check=False)
    if tried.returncode:
        why = " ".join(tried.stderr.split())
        there = "gpubed ssh CLUSTER head -- sinfo --Node --long   shows what nodes have"
        raise Refused(f"Slurm refuses a replica of {name}: {why}", there)
    track = _registered(name, request["version"]) | {n: request[n] for n in OF_REPLICAS}
    if track["source"]:  # replicas read and write streams of this account
        shutil.copyfile(Path.home() / ".config/gpubed/streams.json", ROOT / "streams.json")
    # Replicas serve on where only their number changes.
    same = [name, *(value for key, value in sorted(track.items()) if key not in ("min", "max"))]
    track["key"] = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:12]
    rest = [one for one in now[:1] if one["key"] != track["key"]]
    if canary and not rest:
        raise Refused(f"no other version of {name} is served", "leave --canary out")
    share = canary or 100
    return [*({**one, "share": 100 - share} for one in rest if canary), {**track, "share": share}]


def _changed(request: dict[str, Any]) -> int:
    path = ROOT / "models" / f"{request['model']}.json"
    former = json.loads(path.read_text()) if path.exists() else {"tracks": [], "revision": 0}
    if request["action"] == "serve":
        tracks = _tracks(request, former["tracks"])
        if not former["tracks"] and len([*path.parent.glob("*.json")]) >= MODELS:
            most = f"{MODELS} models are served, and there is no place for more"
            raise Refused(most, "gpubed serve CLUSTER MODEL --stop")
    elif not former["tracks"]:
        raise Refused(f"{request['model']} is not served", "gpubed serve CLUSTER --status")
    elif request["action"] == "stop":
        path.unlink()
        return 0
    elif not (tracks := former.get("previous")):
        raise Refused(f"{request['model']} was not served before", "gpubed serve CLUSTER --status")
    previous = former["tracks"] if former["tracks"] != tracks else former.get("previous")
    revision = former["revision"] + 1
    write(path, {"revision": revision, "tracks": tracks, "previous": previous})
    return revision


def main() -> None:
    """Does what is asked."""
    os.umask(0o027)  # replicas read, by their group, what is written here
    try:
        reply: dict[str, Any] = {"revision": _changed(json.load(sys.stdin))}
    except Refused as error:
        reply = dict(zip(("error", "hint"), error.args, strict=True))
    sys.stdout.write(f"\n{json.dumps(reply)}\n")


if __name__ == "__main__":
    main()
