"""Builds node images, which all clusters of this machine share.

An image's tag has a hash of its inputs. The base comes from a registry, or from mmdebstrap if no
registry answers. An image of a container also has a recipe's Python environment: a layer that all
nodes share, to which role python_env links.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import requests
from docker.errors import APIError, BuildError, DockerException, ImageNotFound
from docker.models.containers import Container

import simulated_gpus
from gpubed.backends.local import apt_sources, daemon, environment, runtime
from gpubed.backends.local.config import RELEASES, Release, Runtime
from gpubed.core import progress
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import assets, cache, private_cache
from gpubed.recipes import recipe as recipes
from gpubed.testbeds.driver import Driver, Properties

LABEL = "gpubed.image"
STAGE = "gpubed.stage"
REPOSITORIES: dict[Runtime, str] = {"container": "gpubed-node", "vm": "gpubed-machine"}

# Set here, since git and wheels do not keep them.
_MODES = {"usr/local/sbin": 0o755, "etc/sudoers.d": 0o440}
# Suffixes of files in a recipe's folder that do not affect the image.
_NO_PARTS = (".md", ".pyc")
_ROLE = assets() / "roles" / "python_env" / "files"
# Paths of role python_env.
_HOME = "/opt/gpubed"
_TOOLS = f"{_HOME}/uv"
_PYTHON = "/usr/bin/python3"
_INSTALLER = "bootstrap.txt"
_FILES = (_INSTALLER, "fetch_wheels.py", "make_environment.py")
_TAIL = 10
_NOTE = "note: "


@dataclass(frozen=True)
class Recipe:
    """The inputs of an image of an operating system (`name`, a key of `RELEASES`).

    With runtime `vm`, the image has that system and a kernel on a disk for qemu.
    """

    name: str
    runtime: Runtime = "container"
    simulate: bool = False

    @property
    def release(self) -> Release:
        """The operating system."""
        return RELEASES[self.name]

    @property
    def folder(self) -> Path:
        """The folder of the recipe's files."""
        if self.runtime == "vm":
            return assets() / "templates" / "machine"
        return simulated_gpus.IMAGE if self.simulate else assets() / "templates" / "node"

    @property
    def below(self) -> Recipe | None:
        """The recipe of the image that this one is built on; None for an image of Debian."""
        if self.runtime == "vm":
            return Recipe(self.name, simulate=self.simulate)
        return Recipe(self.name) if self.simulate else None

    @cached_property
    def packages(self) -> list[str]:
        """Names of the packages."""
        lines = (self.folder / "packages").read_text(encoding="utf-8").splitlines()
        return [name for line in lines if (name := line.partition("#")[0].strip())]

    @cached_property
    def files(self) -> bytes:
        """A tar archive of the files to copy into the system."""
        root, out = self.folder / "files", io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for path in sorted(root.rglob("*")):
                name = str(path.relative_to(root))
                info = tarfile.TarInfo(name)
                if path.is_dir():
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(info)
                else:
                    info.size = path.stat().st_size
                    info.mode = _MODES.get(str(Path(name).parent), 0o644)
                    tar.addfile(info, io.BytesIO(path.read_bytes()))
        return out.getvalue()

    @cached_property
    def digest(self) -> str:
        """A hash of the image's inputs."""
        base = self.below.digest if self.below else repr((self.name, self.release))
        digest = hashlib.sha256(base.encode())
        for content in (self.files, *(self.read(name) for name in self.parts)):
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()[:12]

    @property
    def tag(self) -> str:
        """The image's name in Docker."""
        kind = "-simulated" if self.simulate else ""
        return f"{REPOSITORIES[self.runtime]}:{self.name}{kind}-{self.digest}"

    @property
    def parts(self) -> list[str]:
        """Names of the recipe's own files: the Dockerfile and the files that it copies."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        names = {path.relative_to(self.folder) for path in found}
        return sorted(
            str(name) for name in names if name.parts[0] != "files" and name.suffix not in _NO_PARTS
        )

    def read(self, name: str) -> bytes:
        """Return one of the recipe's own files."""
        return (self.folder / name).read_bytes()


@dataclass(frozen=True)
class PythonImage:
    """An image with the environment of the recipe `software`, on the image `below`."""

    below: Recipe
    software: str

    @property
    def name(self) -> str:
        """The name of the operating system."""
        return self.below.name

    @property
    def tag(self) -> str:
        """The image's name in Docker."""
        return f"{self.below.tag.rpartition('-')[0]}-{self.digest}"

    @cached_property
    def digest(self) -> str:
        """A hash of the image's inputs."""
        parts = (self.below.digest, self._lock_sha256, repr(self.steps()))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The environment's folder on nodes."""
        return f"{_HOME}/env/{self._lock_sha256[:12]}"

    @cached_property
    def _lock_sha256(self) -> str:
        return recipes.load(self.software).lock_sha256()

    def build(self) -> None:
        """Build the image on `below`, which must exist."""
        with daemon.errors("put the Python environment into the node image"):
            container = self._container()
            held = container.attach_socket(params={"stdin": 1, "stream": 1})
            try:
                container.start()
                for user, command in self.steps():
                    self._run(container, user, command)
                repository, _, tag = self.tag.partition(":")
                container.commit(repository, tag, changes=['CMD ["/sbin/init"]'])
            finally:
                held.close()
                with suppress(APIError):  # `auto_remove` may have removed it
                    container.remove(force=True, v=True)

    def _container(self) -> Container:
        client = daemon.client()
        cache = private_cache() / "nodes"
        cache.mkdir(exist_ok=True)
        own = {str(cache.resolve()): {"bind": runtime.NODE_CACHE, "mode": "rw"}}
        certificates = {
            source: {"bind": target, "mode": "ro"}
            for source, target in environment.ca_mount().items()
        }
        # The high-level call would make the mounts volumes of the image, and so of every node. The
        # container ends, and is removed, when its standard input is closed.
        made = client.api.create_container(
            self.below.tag,
            ["cat"],
            name=f"gpubed-image-{self.digest}-{uuid.uuid4().hex[:8]}",
            labels={LABEL: self.name},
            host_config=client.api.create_host_config(
                binds={**own, **certificates}, auto_remove=True
            ),
            stdin_open=True,
            use_config_proxy=False,
        )
        container: Container = client.containers.get(made["Id"])
        for file in _FILES:
            content = (_ROLE / file).read_bytes()
            runtime.put(container, runtime.File(f"{_HOME.lstrip('/')}/{file}", content))
        lock = recipes.load(self.software).lock_path.read_bytes()
        runtime.put(container, runtime.File(f"{_TOOLS.lstrip('/')}.lock", lock))
        return container

    def steps(self) -> list[tuple[str, str]]:
        """Return the commands that build the environment, each with its user."""
        store = f"{runtime.NODE_CACHE}/python"
        installer = shlex.join(
            [
                *(f"{_TOOLS}/bin/pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--no-cache-dir", "--require-hashes", "--only-binary", ":all:"),
                *("--requirement", f"{_HOME}/{_INSTALLER}"),
            ]
        )
        make = shlex.join(
            [
                *(f"{_TOOLS}/bin/python", f"{_HOME}/make_environment.py", "lock"),
                *(f"{_TOOLS}.lock", store, self.folder, _PYTHON),
            ]
        )
        lib = f"{self.folder}/lib"
        version = f"""$({_PYTHON} -c "import sys; print('%d.%d' % sys.version_info[:2])")"""
        torch = "import torch; print(torch.__version__.partition('+')[0])"
        note = f"{self.folder}/.complete-{version}"
        # The role skips its installer if it finds this hash.
        installed = b"".join((_ROLE / file).read_bytes() for file in _FILES)
        stamp = hashlib.sha256(installed).hexdigest()[:12]
        return [
            # Root on a node of another cluster may have put a symbolic link there.
            ("root", f"[ ! -L {store} ] || rm {store}; mkdir -p {store}; chown -h gpubed {store}"),
            ("root", f"install -d -o gpubed {self.folder}"),
            ("root", f"{_PYTHON} -m venv --clear {_TOOLS} && {installer}"),
            ("root", f"touch {_TOOLS}/.installed-{stamp}-{version}"),
            ("gpubed", make),
            # Accounts of nodes cannot write to it, so it is compiled here.
            ("root", f"chown -R root:root {self.folder}"),
            # Some packages have templates with the suffix .py, which do not compile.
            ("root", f"{self.folder}/bin/python -m compileall -q -j 0 {lib} >/dev/null || true"),
            ("root", f"rm -f {self.folder}/.lock"),
            ("root", f'{self.folder}/bin/python -c "{torch}" >{note}'),
        ]

    def _run(self, container: Container, user: str, command: str) -> None:
        done = container.exec_run(
            ["sh", "-c", command],
            user=user,
            environment={**environment.environment(), "HOME": "/tmp"},  # noqa: S108
        )
        if done.exit_code != 0:
            output = bytes(done.output).decode(errors="replace").strip()  # type: ignore[arg-type]
            raise GpubedError(
                f"the packages of recipe {self.software} cannot be put into the node image:\n"
                + "\n".join(output.splitlines()[-_TAIL:]),
                "gpubed doctor",
            )


def node_image(system: Recipe, software: str | None) -> Recipe | PythonImage:
    """Return the image of an operating system, with a recipe's software for containers.

    The disk of a virtual machine is a copy, so its image has no software.
    """
    if system.runtime == "vm" or not software:
        return system
    return PythonImage(system, software)


def exists(tag: str) -> bool:
    """Return whether this machine has the image."""
    with daemon.errors(f"look for the image {tag}"):
        try:
            daemon.look().images.get(tag)
        except ImageNotFound:
            return False
    return True


def is_same_system(one: str, other: str) -> bool:
    """Return whether two tags are images of the same system, of any version."""
    return one.rpartition("-")[0] == other.rpartition("-")[0]


class ImageDriver(Driver):
    """Driver of a node image. Inputs: image, runtime, simulate, software, digest."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Build the image unless this machine has it."""
        runtime = inputs.get("runtime", "container")
        recipe = Recipe(inputs["image"], runtime, inputs.get("simulate", False))
        named = inputs.get("software")
        tag = ensure(PythonImage(recipe, named) if named else recipe)
        return tag, {"tag": tag}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the tag if this machine has the image."""
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
        if exists(recipe.tag):
            return recipe.tag
        if isinstance(recipe, PythonImage):
            recipe.build()
        elif recipe.below:
            _with_dockerfile(recipe, recipe.below.tag)
        elif refusal := _pull(recipe.release.base):
            _with_mmdebstrap(recipe, refusal)
        else:
            _with_dockerfile(recipe, recipe.release.base)
    return recipe.tag


@contextmanager
def _lock(recipe: Recipe | PythonImage) -> Iterator[None]:
    # Clusters that are made at the same time build a shared image only once.
    cache().mkdir(parents=True, exist_ok=True)
    kind = recipe.tag.partition(":")[2].rpartition("-")[0]
    if isinstance(recipe, PythonImage):
        kind += f"-{recipe.software}"
    with (cache() / f"image-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def without_registry(suite: str) -> str | None:
    """Return why mmdebstrap cannot make an image; None if it can."""
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed"
    if not apt_sources.sources(suite):
        return f"the apt sources of this machine have no Debian {suite}"
    return None


def _pull(base: str) -> str | None:
    """Pull the base image; return the reason if that fails and this machine does not have it."""
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
            for line in (line for text in _texts(log) for line in text.splitlines()):
                if line.startswith(_NOTE):  # about a part that the build left out
                    progress.emit("note", message=line.removeprefix(_NOTE))
        except BuildError as error:
            tail = "\n".join([str(error.msg), *_texts(error.build_log)[-_TAIL:]])
            raise GpubedError(f"cannot build the node image: {tail}") from None
        finally:
            # Removes the large intermediate stages.
            daemon.client().images.prune(filters={"dangling": True, "label": STAGE})


def _texts(log: Iterable[Any]) -> list[str]:
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
        Path(folder, "files.tar").write_bytes(recipe.files)
        command = [
            "mmdebstrap",
            "--variant=minbase",
            f"--include={','.join(recipe.packages)}",
            f"--essential-hook=tar-in '{folder}/files.tar' /",
            f"--customize-hook=upload '{recipe.folder}/setup' /tmp/setup",
            '--customize-hook=chroot "$1" sh /tmp/setup',
            suite,
            f"{folder}/root.tar",
            *map(str, apt_sources.sources(suite)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            tail = "\n".join(done.stderr.splitlines()[-_TAIL:])
            if "No space left on device" in done.stderr:
                raise PrerequisiteMissing(f"the disk that holds {cache()} is full", "df -h")
            raise GpubedError(f"mmdebstrap failed:\n{tail}", "gpubed doctor")
        _import(recipe, Path(folder, "root.tar"))


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
