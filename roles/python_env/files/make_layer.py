"""Adds a project's packages to the cluster's environment, without changing that.

make_layer.py run BASE ROOT     reads what a run wants as JSON, prints what it gets
make_layer.py own BASE TARGET   makes an environment that its owner installs into with pip

A layer is an environment that also finds the packages of BASE and changes none of them. Runs that
want the same packages share one, below ROOT. `run` needs uv and pip beside its own Python.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

_UV = Path(sys.executable).with_name("uv")
_SETTINGS = {"UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "hardlink"}
# pip's settings of indices, with uv's names.
_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
_UNUSED_S = 30 * 24 * 3600
_LONGEST = 12  # lines of uv that an error shows
# An option, and the file, folder or requirement behind it.
_LINE = re.compile(r"(-[a-z]|--[a-z-]+)?[ =]*([^\s;\[]*)")
_FILES = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE = ("-e", "--editable")


class Refused(Exception):
    """Packages cannot be installed; has the reason and a hint."""


def explained(said: str) -> Refused:
    """Return an error with uv's reason, in short, and a hint."""
    lines = [line for line in said.splitlines() if not line.startswith("Using Python")]
    hint = "correct requirements.txt, or what else names the packages"
    if "error sending request" in said or "Failed to fetch" in said:
        hint = (
            "does the head reach the package index? If not: pip download -d wheels PACKAGE…, and "
            "`--find-links wheels` and `--no-index` as lines of requirements.txt"
        )
    elif "No solution found" in said and "not found in the package registry" not in said:
        hint = (
            "ask for versions that exist and go together; the cluster's own packages, such as "
            "torch and numpy, keep theirs: write `torch`, not `torch==2.3.1`"
        )
    if len(lines) > _LONGEST:  # the end of a build's output has the reason
        lines = [*lines[: _LONGEST // 4], "…", *lines[-_LONGEST * 3 // 4 :]]
    return Refused("\n".join(lines).removeprefix("error: "), hint)


def uv(*words: str | Path, at: Path, given: str = "") -> str:
    """Run uv in a folder; return its output.

    Raises:
        Refused: It failed.
    """
    done = subprocess.run(
        [_UV, *words], cwd=at, input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise explained(done.stderr)
    return done.stdout + done.stderr


def lines(file: Path, seen: set[Path] | None = None) -> list[str]:
    """Return the lines of a requirements file and of the files that it names."""
    seen = {file, *(seen or ())}
    found = list[str]()
    for line in map(str.strip, file.read_text(errors="replace").splitlines()):
        option, word = _LINE.match(line).groups()  # type: ignore[union-attr]  # matches anything
        other = file.parent / word
        if option in _FILES and other.is_file():
            found += lines(other, seen) if other not in seen else []
        elif line and not line.startswith("#"):
            found.append(line)
    return found


def described(path: Path) -> list[str]:
    """Return texts that change with the dependencies of a local project or wheel."""
    if path.is_file():
        return [hashlib.sha256(path.read_bytes()).hexdigest()]
    names = [path / name for name in ("pyproject.toml", "setup.cfg", "setup.py")]
    said = [file.read_text(errors="replace") for file in names if file.is_file()]
    # Dependencies may be in text files that these name.
    texts = [file for file in sorted(path.glob("*.txt")) if any(file.name in one for one in said)]
    wheels = [
        hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in sorted(path.glob("*.whl"))
    ]
    return [*wheels, *said, *(file.read_text(errors="replace") for file in texts)]


class Wanted:
    """The requirements of a run: requirements.txt, else pyproject.toml with uv.lock; and others.

    Attributes:
        sources: Where the requirements are, as words of uv.
        options: Lines about indices.
        locked: Whether uv.lock names versions.
        digest: Checksum of all that the choice of versions depends on.
    """

    def __init__(self, folder: Path, packages: list[str], base: str) -> None:
        """Read the requirements in the folder of a run."""
        self.folder, self.sources, self.options = folder, [*packages], list[str]()
        content = [base, *packages]
        listed, project, lock = (
            folder / name for name in ("requirements.txt", "pyproject.toml", "uv.lock")
        )
        self.locked = not listed.is_file() and project.is_file() and lock.is_file()
        if listed.is_file():
            self.sources += ["-r", listed.name]
            for line in lines(listed):
                option, word = _LINE.match(line).groups()  # type: ignore[union-attr]
                if option and option not in (*_EDITABLE, *_FILES):
                    self.options.append(line)
                there = word and (folder / word).exists()
                content += [line, *(described(folder / word) if there else [])]
        elif self.locked:
            built = re.search(r"^\[build-system\]", project.read_text(), re.M)
            self.sources += ["-e", "."] if built else ["-r", project.name]
            content += [project.read_text(), lock.read_text()]
        self.digest = checksum(content)

    def resolve(self, base: Path) -> str:
        """Return the exact packages that the base lacks, with their hashes.

        Those that are in the folder itself are in comments, as no two runs share them.

        Raises:
            Refused: There are none that go with the base.
        """
        python = base / "bin" / "python"
        has = json.loads(
            uv("pip", "list", "-q", "--format=json", "--python", python, at=self.folder)
        )
        kept = {_name(one["name"]): f"{one['name']}=={one['version']}" for one in has}
        pins = list(kept.values())
        if self.locked:
            told = ("--no-dev", "--no-hashes", "--no-header", "--no-annotate", "--no-emit-project")
            exported = uv("export", "-q", "--frozen", *told, "--python", python, at=self.folder)
            own = [line for line in exported.splitlines() if _name(line) and "file:" not in line]
            pins += [line for line in own if _name(line) not in kept]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("".join(f"{pin}\n" for pin in pins))
            constraints.flush()
            asked = ("--dry-run", "--python", python, "-c", constraints.name, *self.sources)
            said = uv("pip", "install", *asked, at=self.folder)
        if "****" in said:
            raise Refused("a requirement's URL has a password", "put it into ~/.netrc on the head")
        found = re.findall(r"(?m)^ \+ (\S+(?: @ \S+)?)", said)
        if changed := sorted({_name(one) for one in found} & set(kept)):
            raise Refused(
                f"{', '.join(changed)} would take the place of the cluster's own",
                "uv's overrides do not hold here: take them out of pyproject.toml",
            )
        local = [one.partition("file://")[2] for one in found if " @ file://" in one]
        exact = "\n".join(one for one in found if " @ file://" not in one)
        ways = ("--no-deps", "--generate-hashes", "--no-header", "--no-annotate")
        given = "\n".join([*self.options, exact, ""])
        pinned = exact and uv(
            "pip", "compile", "-q", *ways, "--python", python, "-", at=self.folder, given=given
        )
        here = [f"# here: {os.path.relpath(path, self.folder)}\n" for path in local]
        return "".join([f"# for {self.digest}\n", *here, pinned])


def checksum(texts: list[str]) -> str:
    """Return a short checksum of texts."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def over(base: Path, target: Path, at: Path) -> None:
    """Make the packages and programs of another environment available in an empty one.

    Args:
        target: Where the environment is.
        at: Where it will be: its copies of the programs start its own Python.
    """
    (beside,) = base.glob("lib/python*/site-packages")
    found = target / beside.relative_to(base) / "gpubed-base.pth"
    found.write_text(f"import site; site.addsitedir({str(beside)!r})\n")
    real = os.fsencode(base.resolve() / "bin" / "python")
    for program in (base / "bin").iterdir():
        there = target / "bin" / program.name
        if there.exists() or program.is_symlink() or not program.is_file():
            continue
        content = program.read_bytes()
        if content.startswith(b"#!"):
            there.write_bytes(content.replace(real, os.fsencode(at / "bin" / "python")))
            there.chmod(0o755)


def empty(target: Path, base: Path) -> None:
    """Create an environment without packages, replacing an existing one."""
    python = base / "bin" / "python"
    uv("venv", "--quiet", "--clear", "--relocatable", "--python", python, target, at=base)


def install(target: Path, wanted: Wanted, *words: str, given: str = "") -> None:
    """Install the named packages without their dependencies."""
    ways = ("--quiet", "--no-deps", "--compile-bytecode", "--python", target / "bin" / "python")
    uv("pip", "install", *ways, *words, at=wanted.folder, given=given)


@contextmanager
def installing(root: Path) -> Iterator[None]:
    """Hold the lock of a folder, and give uv the indices of pip's settings."""
    os.environ |= {**_SETTINGS, "UV_CACHE_DIR": str(root / ".cache")}
    told = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(told, capture_output=True, text=True, check=False).stdout
    for name, value in re.findall(r"(?m)^\S*\.([a-z-]+)=(.*)$", listed):
        if variable := _OF_PIP.get(name):
            os.environ.setdefault(variable, " ".join(ast.literal_eval(value).split()))
    with (root / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forget(root: Path) -> None:
    """Remove drafts of interrupted builds, and layers that no run has used for 30 days."""
    for folder in [path for path in root.iterdir() if path.is_dir() and path.name != ".cache"]:
        unused = time.time() - folder.stat().st_mtime > _UNUSED_S
        if unused or folder.name.startswith("."):
            shutil.rmtree(folder)
        if unused:  # the cache has its files, too
            shutil.rmtree(root / ".cache", ignore_errors=True)


def layer(wanted: Wanted, base: Path, root: Path, lock: str) -> tuple[Path, str]:
    """Return the layer for a run, which is built if it is missing, and its lock.

    Args:
        lock: That of the run that this one repeats.

    Raises:
        Refused: It cannot be built.
    """
    lock = lock if lock.startswith(f"# for {wanted.digest}\n") else ""
    place = root / wanted.digest
    if lock and not (place.exists() and (place / "packages.txt").read_text() == lock):
        place = root / checksum([lock])
    if not place.exists():
        with installing(root):
            forget(root)
            if not place.exists():  # another run may have built it by now
                lock = lock or wanted.resolve(base)
                draft = root / f".{place.name}"
                empty(draft, base)
                over(base, draft, place)
                if any(not line.startswith("#") for line in lock.splitlines()):
                    given = "\n".join([*wanted.options, lock])
                    install(draft, wanted, "-r", "-", given=given)
                (draft / "packages.txt").write_text(lock)
                draft.rename(place)
    os.utime(place)
    return place, (place / "packages.txt").read_text()


def of_run(base: Path, root: Path, asked: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a run, and the lock of its packages beyond the base."""
    root.mkdir(exist_ok=True)
    os.environ |= asked["environment"]
    folder, base = Path(asked["folder"]), base.resolve()
    wanted = Wanted(folder, asked["packages"], base.name)
    place, lock = layer(wanted, base, root, asked["lock"])
    if here := re.findall(r"(?m)^# here: (.*)$", lock):
        # For this run only, as its project's modules are in its own folder.
        mine = root / folder.name
        with installing(root):
            empty(mine, base)
            over(place, mine, mine)
            for path in here:
                install(mine, wanted, *(["-e"] if (folder / path).is_dir() else []), path)
        place = mine
    return {"path": str(place), "lock": lock}


def own(base: Path, target: Path) -> None:
    """Create or update an account's environment for pip; its packages stay."""
    (beside,) = base.glob("lib/python*/site-packages")
    here = target / beside.relative_to(base)
    if not (here.is_dir() and (target / "pip.conf").exists()):  # which is written last
        subprocess.run([base / "bin" / "python", "-m", "venv", target], check=True)
        sys.stdout.write("made\n")
    over(base, target, target)
    constraints = target / "constraints.txt"
    has = metadata.distributions(path=[str(beside)])
    constraints.write_text("".join(f"{one.name}=={one.version}\n" for one in has))
    told = {
        "constraint": str(constraints),
        "index-url": os.environ.get("PIP_INDEX_URL"),
        "extra-index-url": os.environ.get("PIP_EXTRA_INDEX_URL"),
        "cert": os.environ.get("PIP_CERT"),
        "proxy": os.environ.get("HTTPS_PROXY"),
    }
    lines = [f"{name} = {value}\n" for name, value in told.items() if value]
    (target / "pip.conf").touch(0o600)  # an index's URL may have a password
    (target / "pip.conf").write_text("".join(["[global]\n", *lines]))


def main() -> None:
    """Run a verb; if packages cannot be installed, the reason is printed as JSON, too."""
    way, base, target = sys.argv[1], *map(Path, sys.argv[2:])
    if way == "own":
        own(base, target)
        return
    try:
        told = of_run(base, target, json.load(sys.stdin))
    except Refused as error:
        told = {"why": error.args[0], "hint": error.args[1]}
    except OSError as error:
        told = {"why": str(error), "hint": "correct requirements.txt, or make room"}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
