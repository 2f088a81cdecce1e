"""The node images of this machine, built when missing and kept when a cluster goes.

The base comes from a registry, or from mmdebstrap if no registry answers.
"""

from __future__ import annotations

import fcntl
import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from docker.errors import APIError, BuildError, DockerException, ImageNotFound

from gpubed.backends.local import apt_sources, daemon, environment
from gpubed.backends.local.image import LABEL, STAGE, Recipe, exists
from gpubed.backends.local.python_image import PythonImage
from gpubed.core import progress
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import cache
from gpubed.testbeds.driver import Driver, Properties

_TAIL = 10
_NOTE = "note: "


class ImageDriver(Driver):
    """Inputs: image, runtime, simulate, software, digest."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Build the image unless this machine has it."""
        runtime = inputs.get("runtime", "container")
        recipe = Recipe(inputs["image"], runtime, inputs.get("simulate", False))
        named = inputs.get("software")
        tag = ensure(PythonImage(recipe, named) if named else recipe)
        return tag, {"tag": tag}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look whether this machine has the image."""
        return {"tag": id} if exists(id) else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Keep the image: other clusters may use it."""


def ensure(recipe: Recipe | PythonImage) -> str:
    """Build an image unless this machine has it; returns its tag."""
    if exists(recipe.tag):
        return recipe.tag
    if recipe.below:
        ensure(recipe.below)
    with _lock(recipe):
        if not exists(recipe.tag):
            recipe.build() if isinstance(recipe, PythonImage) else _build(recipe)
    return recipe.tag


@contextmanager
def _lock(recipe: Recipe | PythonImage) -> Iterator[None]:
    # Two clusters that come up at the same time build a shared image only once.
    cache().mkdir(parents=True, exist_ok=True)
    kind = recipe.tag.partition(":")[2].rpartition("-")[0]
    if isinstance(recipe, PythonImage):
        kind += f"-{recipe.software}"
    with (cache() / f"image-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(recipe: Recipe) -> None:
    if recipe.below:
        _with_dockerfile(recipe, recipe.below.tag)
    elif refusal := _pull(recipe.release.base):
        _with_mmdebstrap(recipe, refusal)
    else:
        _with_dockerfile(recipe, recipe.release.base)


def without_registry(suite: str) -> str | None:
    """Return why an image cannot be made with mmdebstrap; None when it can."""
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed"
    if not apt_sources.sources(suite):
        return f"the apt sources of this machine have no Debian {suite}"
    return None


def _pull(base: str) -> str | None:
    """Get the base image; return the reason when it cannot be had."""
    images = daemon.client().images
    try:
        images.pull(base)
    except (DockerException, requests.RequestException) as error:
        try:
            images.get(base)
        except ImageNotFound:
            return daemon.reason(error) if isinstance(error, APIError) else str(error)
    return None


def _with_dockerfile(recipe: Recipe, base: str) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        parts = {name: recipe.read(name) for name in recipe.parts}
        for name, content in {**parts, "files.tar": recipe.files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    context.seek(0)
    with daemon.errors("build the node image"):
        try:
            _, log = daemon.client().images.build(
                fileobj=context,
                custom_context=True,
                tag=recipe.tag,
                buildargs={"BASE": base, **environment.proxies()},
                labels={LABEL: recipe.name},
                rm=True,
                forcerm=True,
            )
            for line in (line for text in _said(log) for line in text.splitlines()):
                if line.startswith(_NOTE):  # what a build does without
                    progress.emit("note", message=line.removeprefix(_NOTE))
        except BuildError as error:
            tail = "\n".join([str(error.msg), *_said(error.build_log)[-_TAIL:]])
            raise GpubedError(f"cannot build the node image: {tail}") from None
        finally:
            # Stages are large, and useless once the image is built.
            daemon.client().images.prune(filters={"dangling": True, "label": STAGE})


def _said(log: Iterable[Any]) -> list[str]:
    texts = (str(entry.get("stream", "")).strip() for entry in log)
    return [text for text in texts if text]


def _with_mmdebstrap(recipe: Recipe, refusal: str) -> None:
    suite = recipe.release.suite
    if why := without_registry(suite):
        raise PrerequisiteMissing(
            f"no node image can be made: {recipe.release.base} cannot be pulled ({refusal}), "
            f"and {why}",
            "give Docker a registry, or on Debian: sudo apt-get install mmdebstrap",
        )
    with tempfile.TemporaryDirectory(dir=cache(), prefix="image-") as folder:
        _bootstrap(recipe, Path(folder))
        _import(recipe, Path(folder) / "root.tar")


def _bootstrap(recipe: Recipe, folder: Path) -> None:
    (folder / "files.tar").write_bytes(recipe.files)
    command = [
        "mmdebstrap",
        "--variant=minbase",
        f"--include={','.join(recipe.packages)}",
        f"--essential-hook=tar-in '{folder}/files.tar' /",
        f"--customize-hook=upload '{recipe.folder}/setup' /tmp/setup",
        '--customize-hook=chroot "$1" sh /tmp/setup',
        recipe.release.suite,
        str(folder / "root.tar"),
        *map(str, apt_sources.sources(recipe.release.suite)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-_TAIL:])
        if "No space left on device" in done.stderr:
            raise PrerequisiteMissing(f"the disk that holds {cache()} is full", "df -h")
        raise GpubedError(f"mmdebstrap failed:\n{tail}", "gpubed doctor")


def _import(recipe: Recipe, root: Path) -> None:
    with daemon.errors("import the node image"):
        answer = daemon.client().api.import_image(
            str(root),
            repository=recipe.tag.partition(":")[0],
            tag=recipe.tag.partition(":")[2],
            changes=['CMD ["/sbin/init"]', f"LABEL {LABEL}={recipe.name}"],
        )
        try:
            daemon.client().images.get(recipe.tag)
        except ImageNotFound:
            # The daemon reports a failed import in the body of a successful response.
            raise GpubedError(f"cannot import the node image: {answer.strip()}") from None
