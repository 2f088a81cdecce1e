"""Installs packages, or predicts the changes; an owner's packages change only if that is allowed.

    packages.py look|begin|install REQUEST

`look` changes nothing; `begin` first lets dpkg finish an interrupted installation.

Roles install packages through this program only. apt simulates with the options of the
installation. Refused are removals, downgrades, and changes of packages that are on hold or
foreign: from neither the system's own archives nor a repository that gpubed added, such as a
vendor's or a .deb file. Packages that gpubed changed, by the ledger, and those of `may_change`, may
change.

Standard library only. REQUEST is JSON:
    wanted: Lists of packages by role, as apt-get takes them: `name`, `name=version`, a .deb file.
    unless: Programs by role; where one is there, the role installs nothing.
    replaced: Versions by role; all packages of that version would be replaced.
    may_change: Packages that may change though they are not gpubed's.
    edits: Files; the answer names those that exist.
    whole_host: Whether the host was made for the cluster: then only holds protect a package.
    lock_timeout: Seconds to wait for another process to leave apt.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OPTIONS = ["--yes", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages"]
KEEP_SETTINGS = ["--force-confdef", "--force-confold"]
UNFINISHED = {"half-installed", "unpacked", "half-configured"}
LISTS, SOURCES = Path("/var/lib/apt/lists"), Path("/etc/apt/sources.list.d")
LEDGER = Path("/var/lib/gpubed/ledger/ledger.json")
DRIVER = Path("/etc/gpubed/nvidia-driver")
ENVIRONMENT = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its messages are English."""
    return subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def installed() -> dict[str, tuple[str, str]]:
    """Return state and version of every package that dpkg knows."""
    shown = "--showformat=${Package} ${db:Status-Status} ${Version}\n"
    said = run("dpkg-query", "--show", shown)
    if said.returncode:
        sys.exit(said.stderr)
    rows = (line.split() for line in said.stdout.splitlines())
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def unfinished() -> list[str]:
    """Return the packages that dpkg has not finished installing."""
    return sorted(name for name, (state, _) in installed().items() if state in UNFINISHED)


def simulated(wanted: list[str]) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """Return apt's options and its simulation; holds are ignored if it fails otherwise."""
    options = OPTIONS
    said = run("apt-get", *options, "--simulate", "install", *wanted)
    if said.returncode and run("apt-mark", "showhold").stdout:
        options = [*OPTIONS, "--ignore-hold"]
        without = run("apt-get", *options, "--simulate", "install", *wanted)
        said = said if without.returncode else without
    return options, said


class Archives:
    """The sources of installed packages."""

    def __init__(self) -> None:
        releases = re.findall(
            r"(?m)^ *-?\d+ (\S+ .*)\n(?: +release (.*)\n)?", run("apt-cache", "policy").stdout
        )
        name = re.search(r"(?m)^ID=(\w+)", Path("/etc/os-release").read_text())
        system = name[1] if name else ""
        of_base = {source.split()[0] for _, source, _ in _table("base-files")}
        added = "".join(path.read_text() for path in SOURCES.glob("gpubed-*"))
        self._gpubeds = {url.rstrip("/") for url in re.findall(r"\b\w+:/[^\s\]]*", added)}
        # Mirrors may have their own origin: the archive with base-files is the system's.
        self._systems = {
            source
            for source, release in releases
            if re.search(rf"(?i)(^|,)o={system}", release) or source.split()[0] in of_base
        }

    def stranger(self, package: str) -> str | None:
        """Return the source of a foreign package; None if the package is not foreign."""
        table = _table(package)
        here = [source for _, source, is_here in table if is_here and "/dpkg/status" not in source]
        if any(self._is_known(source) for source in here):
            return None
        if here:
            return here[0].split()[0]
        mine = next((version for version, _, is_here in table if is_here), "")
        newer = (v for v, source, _ in table if source in self._systems and is_older(mine, v))
        # Archives remove versions that they have replaced.
        return None if next(newer, None) else "a .deb file"

    def _is_known(self, source: str) -> bool:
        return source in self._systems or source.split()[0].rstrip("/") in self._gpubeds


def _table(package: str) -> list[tuple[str, str, bool]]:
    """Return versions of a package, each with a source and whether it is installed."""
    rows, version, is_here = [], "", False
    for line in run("apt-cache", "policy", package).stdout.splitlines():
        if found := re.match(r" (\*\*\*|   ) (\S+) -?\d+$", line):
            version, is_here = found[2], found[1] == "***"
        elif version and (found := re.match(r" +-?\d+ (\S.*)$", line)):
            rows.append((version, found[1], is_here))
    return rows


def is_older(one: str, other: str) -> bool:
    """Return whether a version is older than another."""
    return run("dpkg", "--compare-versions", one, "lt", other).returncode == 0


def own() -> set[str]:
    """Return the packages that gpubed installed or replaced."""
    were = json.loads(LEDGER.read_text())["were"] if os.access(LEDGER, os.R_OK) else {}
    # Versions without a ledger listed the driver's packages, which are on hold, in a file.
    noted = DRIVER.read_text().split() if DRIVER.is_file() else ()
    return {n.split()[1].split(":")[0] for n in were if n.startswith("package ")}.union(noted)


def planned(said: str) -> dict[str, tuple[str, str]]:
    """Return the installed packages that apt would change: version now, and then, if any."""
    changes = {}
    for name, version in re.findall(r"(?m)^(?:Remv|Purg) (\S+) \[(\S+?)\]", said):
        changes[name.split(":")[0]] = (version, "")
    for name, version, to in re.findall(r"(?m)^Inst (\S+) \[(\S+?)\] \((\S+)", said):
        changes[name.split(":")[0]] = (version, to)
    return changes


def judged(changes: dict[str, tuple[str, str]], request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each change of a package with a description, and whether it is refused."""
    if not changes:
        return []
    held = set(run("apt-mark", "showhold").stdout.split())
    archives, ours = Archives(), own()
    allowed, whole = set(request.get("may_change", [])), request.get("whole_host", False)
    found = []
    for name, (version, to) in sorted(changes.items()):
        if not to:
            does = "removed"
        elif is_older(to, version):
            does = f"downgraded to {to}"
        else:
            does = f"replaced by {to}"
        stranger = archives.stranger(name)
        why = ["on hold"] if name in held else []
        why += [f"from {stranger}"] if stranger else []
        reasons = f" ({', '.join(why)})" if why else ""
        is_theirs = name in held or not (whole or (does.startswith("replaced") and not stranger))
        found.append(
            {
                "package": name,
                "says": f"{name} {version}{reasons} would be {does}",
                "held": name in held,
                "refused": is_theirs and name not in ours | allowed,
            }
        )
    return found


def look(request: dict[str, Any], role: str) -> dict[str, Any]:
    """Return the changes that installing a role's packages would make."""
    there = installed()
    wanted = [name for name in request["wanted"][role] if there.get(name, ("",))[0] != "installed"]
    answer = {"role": role, "wanted": wanted, "options": [], "comes": [], "changes": []}
    program = request.get("unless", {}).get(role)
    if (program and shutil.which(program)) or not wanted:
        return {**answer, "wanted": [], "failed": ""}
    options, said = simulated(wanted)
    # Lines with a version in brackets are changes: "Inst libc6 [2.36-9] (2.36-10 ...)".
    comes = re.findall(r"(?m)^Inst (\S+) \(", said.stdout)
    errors = re.findall(r"(?m)^E: (.*)$", said.stderr)
    return {
        **answer,
        "options": options,
        "comes": comes,
        "changes": judged(planned(said.stdout), request),
        "failed": "; ".join(errors) or "apt gave no reason" if said.returncode else "",
    }


def replaced(request: dict[str, Any], role: str, version: str) -> dict[str, Any]:
    """Return the changes by replacing all packages of one version."""
    changes = {
        name: (there, "another version")
        for name, (state, there) in installed().items()
        if state == "installed" and re.match(rf"(\d+:)?{re.escape(version)}-", there)
    }
    return {"role": role, "comes": [], "changes": judged(changes, request), "failed": ""}


def lists_age() -> float | None:
    """Return the age of the package lists, in seconds; None if there are none."""
    if not any(LISTS.glob("*_Packages*")):
        return None
    return max(0.0, time.time() - LISTS.stat().st_mtime)


def finish() -> None:
    """Let dpkg finish an interrupted installation, without which apt refuses to install."""
    done = run("dpkg", *KEEP_SETTINGS, "--configure", "--pending")
    # A broken package of gpubed may be repaired by the replacement that follows.
    left = set(unfinished()) - own()
    if left:
        why = " ".join(done.stderr.partition("Errors were encountered")[0].split())
        sys.exit(
            f"dpkg cannot finish the installation of {', '.join(sorted(left))}: {why}. "
            "Repair it: sudo apt-get --fix-broken install"
        )


def install(request: dict[str, Any], role: str) -> dict[str, Any]:
    """Install missing packages; exit with an error if that is refused or fails."""
    asked = look(request, role)
    if refused := [change["says"] for change in asked["changes"] if change["refused"]]:
        sys.exit(f"refused: {', '.join(refused)}")
    if not asked["comes"] and not asked["changes"]:
        if asked["failed"]:
            sys.exit(asked["failed"])
        return {**asked, "changed": False}
    settings = [f"--option=Dpkg::Options::={option}" for option in KEEP_SETTINGS]
    settings.append(f"--option=DPkg::Lock::Timeout={request['lock_timeout']}")
    words = ["apt-get", "--quiet", *asked["options"], *settings, "install"]
    try:
        done = run(*words, *asked["wanted"])
    finally:
        there = installed()
        kept = [c["package"] for c in asked["changes"] if c["held"] and c["package"] in there]
        if kept:
            run("apt-mark", "hold", *kept)
    if done.returncode:
        errors = re.findall(r"(?m)^(?:E: |dpkg: error ).*$", done.stderr)
        sys.stderr.write(done.stdout + done.stderr)
        sys.exit(f"\n{'; '.join(errors) or 'apt-get failed'}")
    return {**asked, "changed": True}


def main(verb: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run a verb; return its output."""
    if verb == "install":
        [role] = request["wanted"]
        return install(request, role)
    roles = [look(request, role) for role in request["wanted"]]
    roles += [replaced(request, role, old) for role, old in request.get("replaced", {}).items()]
    changes = [change for role in roles for change in role["changes"]]
    left = unfinished()
    if verb == "begin" and left and not any(change["refused"] for change in changes):
        finish()
        return main("look", request)
    return {
        "schema": "gpubed/packages/1",
        "lists_age_s": lists_age(),
        "unfinished": left,
        "edits": [path for path in request.get("edits", []) if Path(path).exists()],
        "roles": roles,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
