"""Writes down what is to be served; runs on the head, in the cluster's environment.

deploy.py reads a request as JSON from stdin and prints {"revision": …} or {"error": …, "hint": …}.
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

SETTINGS = json.loads(Path("/etc/gpubed/serving/settings.json").read_text())
ROOT = Path(SETTINGS["folder"])
OF_A_RUN = "gpubed.environment"


class Refused(Exception):
    """What cannot be served: what, and what helps."""


def registered(name, wanted):
    """Return version, folder and environment of a registered model; copies its files once."""
    os.environ.setdefault("MLFLOW_TRACKING_URI", SETTINGS["tracking"])
    os.environ.setdefault("MLFLOW_TRACKING_SERVER_CERT_PATH", SETTINGS["authority"])
    import mlflow
    from mlflow.exceptions import MlflowException

    client, label = mlflow.MlflowClient(), f"{name}{'' if wanted.startswith('@') else '@'}{wanted}"
    try:
        found = (
            client.get_model_version_by_alias(name, wanted[1:])
            if wanted.startswith("@")
            else client.get_model_version(name, wanted)
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST" and "not found" not in str(error):
            raise Refused(
                f"the tracking server does not answer: {error}", "gpubed verify CLUSTER"
            ) from None
        try:
            versions = [one.version for one in client.search_model_versions(f"name='{name}'")]
        except MlflowException:
            versions = []
        there = (
            f"its versions: {', '.join(sorted(versions, key=int))}"
            if versions
            else "no model has this name"
        )
        raise Refused(
            f"{label} is not registered",
            f"{there}; gpubed run CLUSTER digits --set register={name}",
        ) from None
    environment = client.get_run(found.run_id).data.tags.get(OF_A_RUN) if found.run_id else None
    help_ = f"train it with `gpubed run`, or give the tag {OF_A_RUN} to its run: the folder of a Python environment on shared storage"
    if not environment:
        raise Refused(f"{label} has no environment: its run has no tag {OF_A_RUN}", help_)
    if not Path(environment, "bin/python").exists():
        raise Refused(f"{label} has lost its environment: {environment} is gone", help_)
    folder = ROOT / "files" / name / str(found.version)
    if not folder.exists():
        draft = folder.with_name(f".{found.version}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        place = Path(
            mlflow.artifacts.download_artifacts(
                f"models:/{name}/{found.version}", dst_path=str(draft)
            )
        )
        place.rename(folder)
    return {
        "version": str(found.version),
        "folder": str(folder),
        "environment": str(Path(environment).resolve()),
    }


def changed(request, former):
    """Return what is wanted after a request, given what is wanted now."""
    name, action = request["model"], request["action"]
    if action == "rollback":
        if not former or not former.get("previous"):
            raise Refused(f"{name} has no former state", "gpubed serve CLUSTER --status")
        return former["previous"]
    track = registered(name, request["version"]) | {
        n: request[n] for n in ("min", "max", "cpus", "gpus", "source", "target")
    }
    # A change of any of these needs another replica.
    same = {n: track[n] for n in track if n not in ("min", "max")}
    track["key"] = hashlib.sha256(json.dumps([name, same], sort_keys=True).encode()).hexdigest()[
        :12
    ]
    if not request["canary"]:
        return [{**track, "share": 100}]
    stable = (
        [one for one in former["tracks"] if one["share"] >= 50 and one["key"] != track["key"]]
        if former
        else []
    )
    if not stable:
        raise Refused(
            f"no other version of {name} is served, which would have the rest", "leave --canary out"
        )
    return [{**stable[0], "share": 100 - request["canary"]}, {**track, "share": request["canary"]}]


def main():
    """Does what is asked."""
    request = json.load(sys.stdin)
    path = ROOT / "models" / f"{request['model']}.json"
    former = json.loads(path.read_text()) if path.exists() else None
    try:
        if request["action"] == "stop":
            if not former:
                raise Refused(f"{request['model']} is not served", "gpubed serve CLUSTER --status")
            path.unlink()
            print(json.dumps({"revision": 0}))
            return
        if not former and len([*path.parent.glob("*.json")]) >= SETTINGS["models"]:
            raise Refused(
                f"{SETTINGS['models']} models are served already",
                "gpubed serve CLUSTER --stop MODEL",
            )
        tracks = changed(request, former)
        revision = former["revision"] + 1 if former else 1
        draft = path.with_suffix(".new")
        previous = (
            former["tracks"]
            if former and former["tracks"] != tracks
            else (former or {}).get("previous")
        )
        draft.write_text(json.dumps({"revision": revision, "tracks": tracks, "previous": previous}))
        draft.rename(path)
        print(json.dumps({"revision": revision}))
    except Refused as error:
        print(json.dumps({"error": error.args[0], "hint": error.args[1]}))


if __name__ == "__main__":
    main()
