"""Takes in a GPULab job: the format of API v4, and the former one (`jobDefinition`)."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

from gpubed.testbeds.imports import Draft, Source

FORMATS = "a GPULab job (JSON)"
_PARENTS = {"docker", "resources", "scheduling", "jobDefinition", "owner"}
# Keys of both formats, and what they become.
_KEYS = {
    "image": "image",
    "dockerImage": "image",
    "gpus": "gpus",
    "cpus": "cpus",
    "cpuCores": "cpus",
    "cpuMemoryGb": "GB",
    "systemMemory": "MB",
    "storage": "mounts",
    "jobDataLocations": "mounts",
    "gpuModel": "gpu_model",
    "clusterId": "cluster",
    "minCudaVersion": "cuda",
    "name": "name",
    "maxDuration": "duration",
    "projectUrn": "project",
    "deploymentEnvironment": "environment",
}
_UNIT = re.compile(r"(?<=\d) *(?:(h)|m(in)|(s)|(d))[a-z]*")
_LOGIN = re.compile(r"[^@/]+:[^@/]+@")


def imported(source: Source) -> Draft | None:
    """Return the cluster that a job asks for, of one node; None if the file is no job."""
    found = source.mapping
    if found is None or not {"request", "jobDefinition"} & found.data.keys():
        return None
    places = {
        _KEYS[str(at[-1])]: at
        for at in found.lines
        if at and at[-1] in _KEYS and (len(at) == 1 or at[-2] in _PARENTS)
    }
    said = {
        key: reduce(lambda data, part: data[part], at, found.data) for key, at in places.items()
    }
    if not isinstance(said.get("image"), str):
        return None
    draft, line = Draft(source), {key: found.line(at) for key, at in places.items()}
    draft.leave_rest(found, places.values(), source)
    if login := _LOGIN.match(said["image"]):
        draft.leave(line["image"], "user and password of the image's registry")
        said["image"] = said["image"][login.end() :]
    said["gpu_model"] = _listed(said.get("gpu_model")) or None
    said["cluster"], *others = _listed(said.get("cluster")) or [None]
    if others:
        draft.leave(line["cluster"], f"clusters {others}: a job names one")
    if "project" in said:
        said["project"] = str(said["project"]).rpartition("+")[2]
    for mount in _listed(said.get("mounts")):
        one = mount if isinstance(mount, dict) else {"hostPath": mount}
        host = str(one.get("hostPath") or one.get("sharePath") or "").rstrip("/")
        inside = str(one.get("containerPath") or one.get("mountPoint") or host).rstrip("/")
        if host == "tmpfs" and inside == "/dev/shm":  # noqa: S108
            said["shm"] = f"{one.get('sizeGb')} GB"
        elif (host or inside).startswith("/project") and "storage" not in said:
            said["storage"] = host or inside
            draft.put("storage", value={"shared": {"path": inside}}, line=line["mounts"])
        else:
            draft.leave(line["mounts"], f"mount {host} at {inside}")
    line |= dict.fromkeys(("storage", "shm"), line.get("mounts", 1))
    for key in ("image", "gpu_model", "cluster", "project", "environment", "shm", "storage"):
        if key in said:
            draft.put("backend", key, value=said[key], line=line.get(key, 1))

    memory = [f"{said[unit]} {unit}" for unit in ("GB", "MB") if unit in said] or ["1 GB"]
    machine = {"cpus": said.get("cpus", 1), "memory": memory[0]}
    gpus, cuda = said.get("gpus") or 0, "cuda13" if said.get("cuda") == 13 else "cuda12"
    node = {"name": "job", "count": 1, "gpus": gpus, "machine": machine}
    draft.put("nodes", value=[node], line=line.get("gpus", 1))
    draft.lines["nodes", 0, "machine"] = line.get("cpus", 1)
    draft.put("recipe", value=cuda if gpus else "cpu")
    if "duration" in said:
        text = _UNIT.sub(
            lambda unit: f" {unit[1] or (unit[2] and 'min') or unit[3] or unit[4]}",
            str(said["duration"]),
        )
        draft.put("lease", value={"duration": text}, line=line["duration"])
    return draft


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
