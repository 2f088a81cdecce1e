"""Node images with a recipe's unpacked Python environment.

All nodes share its gigabytes as a layer of their image; root of a node changes its own copy alone.
Role python_env links to them.
"""

from __future__ import annotations

import hashlib
import shlex
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from docker.errors import APIError
from docker.models.containers import Container

from gpubed.backends.local import daemon, environment, image, runtime
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets, private_cache
from gpubed.recipes import recipe

# Paths of role python_env.
_HOME = "/opt/gpubed"
_TOOLS = f"{_HOME}/uv"
_PYTHON = "/usr/bin/python3"
_INSTALLER = "bootstrap.txt"
_FILES = (_INSTALLER, "fetch_wheels.py", "make_environment.py")
_TAIL = 10


@dataclass(frozen=True)
class PythonImage:
    """An image with the environment of the recipe `software`, on the image `below`."""

    below: image.Recipe
    software: str

    @property
    def name(self) -> str:
        """The name of the operating system."""
        return self.below.name

    @property
    def tag(self) -> str:
        """The image's name in Docker: one more version of the system below."""
        return f"{self.below.tag.rpartition('-')[0]}-{self.digest}"

    @cached_property
    def digest(self) -> str:
        """A hash of everything the image is built from."""
        parts = (self.below.digest, self._lock_sha256, repr(self.steps()))
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """Where the environment is."""
        return f"{_HOME}/env/{self._lock_sha256[:12]}"

    @cached_property
    def _lock_sha256(self) -> str:
        return recipe.load(self.software).lock_sha256()

    def build(self) -> None:
        """Build the image on the one below, which must exist."""
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
                with suppress(APIError):  # Docker removes it, too
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
        # The low-level call keeps mounts out of the image's description, where they would become
        # volumes of every node. The container ends, and is removed, when its input is closed.
        made = client.api.create_container(
            self.below.tag,
            ["cat"],
            name=f"gpubed-image-{self.digest}-{uuid.uuid4().hex[:8]}",
            labels={image.LABEL: self.name},
            host_config=client.api.create_host_config(
                binds={**own, **certificates}, auto_remove=True
            ),
            stdin_open=True,
            use_config_proxy=False,
        )
        container: Container = client.containers.get(made["Id"])
        for file in _FILES:
            content = (_role() / file).read_bytes()
            runtime.put(container, runtime.File(f"{_HOME.lstrip('/')}/{file}", content))
        lock = recipe.load(self.software).lock_path.read_bytes()
        runtime.put(container, runtime.File(f"{_TOOLS.lstrip('/')}.lock", lock))
        return container

    def steps(self) -> list[tuple[str, str]]:
        """Return the users and their commands, in order."""
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
        # The hash by which the role knows its installer.
        installed = b"".join((_role() / file).read_bytes() for file in _FILES)
        stamp = hashlib.sha256(installed).hexdigest()[:12]
        return [
            # Root of another cluster's node may have put a symbolic link there.
            ("root", f"[ ! -L {store} ] || rm {store}; mkdir -p {store}; chown -h gpubed {store}"),
            ("root", f"install -d -o gpubed {self.folder}"),
            ("root", f"{_PYTHON} -m venv --clear {_TOOLS} && {installer}"),
            ("root", f"touch {_TOOLS}/.installed-{stamp}-{version}"),
            ("gpubed", make),
            # No account of a node can write to it, so everything is compiled here.
            ("root", f"chown -R root:root {self.folder}"),
            # Some packages have files that are templates, not valid Python.
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
            said = bytes(done.output).decode(errors="replace").strip()  # type: ignore[arg-type]
            raise GpubedError(
                f"the packages of recipe {self.software} cannot be put into the node image:\n"
                + "\n".join(said.splitlines()[-_TAIL:]),
                "gpubed doctor",
            )


def node_image(system: image.Recipe, software: str | None) -> image.Recipe | PythonImage:
    """Return the image for an operating system and a recipe's software, if any.

    A virtual machine gets the system alone, as its disk is a copy.
    """
    if system.runtime == "vm" or not software:
        return system
    return PythonImage(system, software)


def _role() -> Path:
    return assets() / "roles" / "python_env" / "files"
