"""gpubed init."""

import json
import os
import re
import tempfile
from pathlib import Path

from typer import Argument, Option

from gpubed.cli.options import Backend, Json, lost_specification
from gpubed.cli.ui import UI
from gpubed.core import files, record
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths, Project, assets
from gpubed.jobs import jobfile
from gpubed.spec import backend_config, clusterspec, schema

EXAMPLE = "gpubed init mycluster --from hosts.ini"
PLACE = ("Cluster", 10)
_SCHEMA = "cluster.schema.json"
_JOB_NAME = r"[a-z][a-z0-9_-]{0,28}"


def command(
    cluster: str | None = Argument(None, metavar="CLUSTER", help="Name of the new cluster."),
    backend: Backend = "local",
    source: str | None = Option(
        None, "--from", metavar="FILE", help="Take it from another tool's file; - is stdin."
    ),
    job: str | None = Option(
        None, "--job", metavar="NAME", help="Instead write a job to start from."
    ),
    as_json: Json = False,
) -> int:
    """Write a commented cluster.yml, or a job, to start from."""
    ui, project = UI(as_json), Project.find()
    project.require_states()
    if cluster is not None and job is None:
        made = _cluster(project.cluster(cluster), backend, source)
        then = f"edit it, then: gpubed check {cluster} && gpubed up {cluster}"
    elif job is not None and cluster is None and source is None:
        made = _job(project, job)
        then = f"it runs as it is: gpubed run CLUSTER {job}"
    else:
        raise UsageError("init writes a cluster or a job", f"{EXAMPLE}, or gpubed init --job myjob")
    ui.note(f"wrote {made}; {then}")
    ui.document("init", {"written": str(made)})
    return 0


def _job(project: Project, name: str) -> Path:
    if not re.fullmatch(_JOB_NAME, name):
        allowed = "lower-case letters, digits, '_' and '-', a letter first"
        raise UsageError(f"a job cannot be named {name!r}: {allowed}", "gpubed init --job myjob")
    folder = project.jobs / name
    if name in jobfile.names() or folder.exists():
        raise UsageError(f"there is a job {name!r} already", "gpubed init --job ANOTHER")
    # Renamed when complete, since an incomplete folder would count as a job.
    project.jobs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=project.jobs) as draft:
        made = Path(draft, name)
        made.mkdir()
        for template in sorted((assets() / "templates" / "job").iterdir()):
            text = template.read_text(encoding="utf-8").replace("JOB", name)
            files.write(made / template.name, text.encode())
        made.rename(folder)
    return folder


def _cluster(paths: ClusterPaths, backend: str, source: str | None) -> Path:
    if backend not in backend_config.types():
        names = ", ".join(backend_config.types())
        raise UsageError(f"there is no backend {backend!r}", f"backends: {names}")
    if why := clusterspec.name_fault(paths.name):
        raise UsageError(
            f"a cluster cannot be named {paths.name!r}: {why}", "gpubed init mycluster"
        )
    if paths.spec.exists():
        raise UsageError(f"{paths.spec} is already there", f"gpubed check {paths.name}")
    if record.was_made(paths):
        raise lost_specification(paths)
    if source is not None:
        from gpubed.testbeds import imports  # slow to import

        among = backend_config.names() if backend == "local" else (backend,)
        backend, draft = imports.take_in(imports.Source.open(source), among)
    text = backend_config.template(backend).read_text(encoding="utf-8")
    text = text.replace("CLUSTER", paths.name)
    if source is not None:
        text = imports.written(draft, text, paths.name)
    paths.project.prepare()
    paths.inventory.mkdir(parents=True, exist_ok=True)
    text = re.sub(r"(?<=\$schema=)\S+", _schema(paths), text, count=1)
    files.write(paths.spec, text.encode())
    return paths.spec


def _schema(paths: ClusterPaths) -> str:
    """Return the schema's path relative to the specification; write the schema if missing."""
    published = paths.project.root / "docs" / "reference" / _SCHEMA
    if not published.exists():
        published = paths.project.inventories / _SCHEMA
        text = json.dumps(schema.json_schema(), indent=2) + "\n"
        files.write(published, text.encode())
    return os.path.relpath(published, paths.inventory)
