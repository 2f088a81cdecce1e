"""Reads a GPULab job, in the format of API v4 or the former one (`jobDefinition`)."""

from __future__ import annotations

import re
from functools import reduce
from operator import getitem
from typing import Any

from gpubed.testbeds.imports import Draft, Source

FORMATS = "a GPULab job (JSON)"
_PARENTS = {(), ("docker",), ("resources",), ("scheduling",), ("jobDefinition",), ("owner",)}
# Keys of both formats, with the names that `imported` uses.
_KEYS = {
    "image": "image", "dockerImage": "image", "cpus": "cpus", "cpuCores": "cpus", "gpus": "gpus",
    "cpuMemoryGb": "GB", "systemMemory": "MB", "storage": "mounts", "jobDataLocations": "mounts",
    "gpuModel": "gpu_model", "clusterId": "cluster", "minCudaVersion": "cuda", "name": "name",
    "projectUrn": "project", "maxDuration": "time", "deploymentEnvironment": "environment",
}  # fmt: skip
_LOGIN = re.compile(r"[^@/]+:[^@/]+@")


def imported(source: Source) -> Draft | None:
    """Return the draft for a job, with one node; None if the file is no job."""
    found = source.mapping
    if found is None or not {"request", "jobDefinition"} & found.data.keys():
        return None
    places = {
        _KEYS[str(at[-1])]: at
        for at in found.lines
        if at and at[-1] in _KEYS and at[-2:-1] in _PARENTS
    }
    job = {key: reduce(getitem, at, found.data) for key, at in places.items()}
    if not isinstance(job.get("image"), str):
        return None
    draft, line = Draft(source), {key: found.line(at) for key, at in places.items()}
    draft.omit_rest(found, places.values(), source)
    if login := _LOGIN.match(job["image"]):
        draft.omit(line["image"], "user and password of the image's registry")
        job["image"] = job["image"][login.end() :]
    job["gpu_model"] = _as_list(job.get("gpu_model")) or None
    job["cluster"] = (_as_list(job.get("cluster")) or [None])[0]
    if "project" in job:
        job["project"] = str(job["project"]).rpartition("+")[2]
    for mount in _as_list(job.get("mounts")):
        _mount(draft, mount if isinstance(mount, dict) else {"hostPath": mount}, line["mounts"])
    for key in ("image", "gpu_model", "cluster", "project", "environment"):
        if key in job:
            draft.put("backend", key, value=job[key], line=line.get(key, 1))
    memory = [f"{job[unit]} {unit}" for unit in ("GB", "MB") if unit in job] or ["1 GB"]
    machine, gpus = {"cpus": job.get("cpus", 1), "memory": memory[0]}, job.get("gpus") or 0
    node = {"name": "job", "count": 1, "gpus": gpus, "machine": machine}
    draft.put("nodes", value=[node], line=line.get("gpus", 1))
    draft.lines["nodes", 0, "machine"] = line.get("cpus", 1)
    cuda = "cuda13" if job.get("cuda") == 13 else "cuda12"
    draft.put("recipe", value=cuda if gpus else "cpu")
    if "time" in job:  # GPULab's units, by their first letters
        match = re.fullmatch(r"(\d[\d.]*) *([a-z])[a-z]*", str(job["time"])) or ["", "", ""]
        factor, unit = {"m": (1, "min"), "w": (7, "d")}.get(match[2], (1, match[2]))
        text = f"{float(match[1]) * factor:g} {unit}" if match[1] else job["time"]
        draft.put("lease", value={"duration": text}, line=line["time"])
    return draft


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _mount(draft: Draft, mount: dict[str, Any], line: int) -> None:
    host = str(mount.get("hostPath") or mount.get("sharePath") or "").rstrip("/")
    inside = str(mount.get("containerPath") or mount.get("mountPoint") or host).rstrip("/")
    if host == "tmpfs" and inside == "/dev/shm":  # noqa: S108
        draft.put("backend", "shm", value=f"{mount.get('sizeGb')} GB", line=line)
    elif (host or inside).startswith("/project") and ("storage",) not in draft.values:
        draft.put("backend", "storage", value=host or inside, line=line)
        draft.put("storage", value={"shared": {"path": inside}}, line=line)
    else:
        draft.omit(line, f"mount {host} at {inside}")
