"""Says what is on a node, as JSON: what a role that is taken away must leave as it found it.

Standard library only. Left out is what changes by itself: caches, logs, what systemd and apt note
for themselves; and what a package that was removed and not purged has left, whose own line says so.
"""

import hashlib
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

_FOLDERS = ("/etc", "/usr/local", "/opt", "/var/lib", "/run/systemd")
_CHANGES_BY_ITSELF = re.compile(
    r"/etc/(ld\.so\.cache|mtab|\.pwd\.lock|resolv\.conf)$"
    r"|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$"  # compared as users and groups
    r"|/var/lib/(apt|dpkg|systemd|ucf|private|misc|logrotate|man-db|dbus|pam|python)(/|$)"
    r"|/run/systemd/(?!system/|system$)"
    r"|/var/lib/gpubed/(health|use)\.json$"  # what role health saw last
    r"|/var/lib/gpubed/ledger(/|$)"  # what roles changed, so that they can undo it
    r"|/var/lib/gpubed/hosts$"  # what a local node keeps of /etc/hosts, a moment after it changed
    r"|/__pycache__(/|$)"
)


def said(*words: str) -> list[str]:
    """Return the lines that a command prints."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()


def described(path: Path) -> str:
    """Return what a file is, with its owner, mode and content."""
    found = path.lstat()
    access = f"{found.st_uid}:{found.st_gid} {found.st_mode:o}"
    if path.is_symlink():
        return f"{access} -> {path.readlink()}"
    if path.is_file():
        return f"{access} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    return access


def not_purged() -> set[str]:
    """Return the settings that removed packages left, and what starts their services at boot.

    Folders in which nothing else is are among them.
    """
    rows = said("dpkg-query", "--show", "--showformat=${db:Status-Status}\n${Conffiles}\n")
    status, found = "", set()
    for row in filter(None, rows):
        if not row.startswith(" "):
            status = row
        elif status == "config-files":
            found.add(row.split()[0])
    scripts = [Path(path).name for path in found if Path(path).parent == Path("/etc/init.d")]
    links = [link for name in scripts for link in Path("/etc").glob(f"rc?.d/[KS]??{name}")]
    found |= {str(link) for link in links}
    folders = {folder for path in found for folder in Path(path).parents if folder.is_dir()}
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        if {str(inner) for inner in folder.iterdir()} <= found:
            found.add(str(folder))
    return found


def files() -> dict[str, str]:
    """Return all files of the folders in which roles write."""
    found = {}
    for folder in _FOLDERS:
        for path in (Path(folder), *Path(folder).rglob("*")):
            if not _CHANGES_BY_ITSELF.search(str(path)):
                found[str(path)] = described(path)
    return found


def listening() -> list[str]:
    """Return protocols and addresses that something listens on, below the ports given at random."""
    rows = [line.split() for line in said("ss", "-Hltun")]
    return [f"{row[0]} {row[4]}" for row in rows if int(row[4].rpartition(":")[2]) < 32768]


def running() -> list[str]:
    """Return services, sockets and timers that run, but those that D-Bus starts for a moment."""
    kinds = "--type=service,socket,timer,path"
    rows = said("systemctl", "list-units", kinds, "--state=active", "--no-legend", "--plain")
    names = (row.split()[0] for row in rows)
    return [
        name
        for name in names
        if not re.match(r"(systemd-\w+d|apt-daily.*|user.*@\d+)[.]service", name)
    ]


def login_shell() -> list[str]:
    """Return what a login shell of an account that has changed nothing has in its environment."""
    shown = said("runuser", "-u", "nobody", "--", "env", "-i", "bash", "--login", "-c", "env")
    return [line for line in shown if re.match(r"[A-Z]\w*=", line)]


def state() -> dict[str, dict[str, str]]:
    """Return what is on the node, by kind and name."""
    packages = ("dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n")
    units = ("systemctl", "list-unit-files", "--state=enabled", "--no-legend", "--plain")
    return {
        "packages": dict.fromkeys(said(*packages), ""),
        "units": dict.fromkeys((line.split()[0] for line in said(*units)), "enabled"),
        "files": files(),
        "users": dict(line.split(":", 1) for line in said("getent", "passwd")),
        "groups": dict(line.split(":", 1) for line in said("getent", "group")),
        "ports": dict.fromkeys(listening(), ""),
        "holds": dict.fromkeys(said("apt-mark", "showhold"), ""),
        "manual": dict.fromkeys(said("apt-mark", "showmanual"), ""),
        "running": dict.fromkeys(running(), ""),
        "names": {"kernel": platform.node(), "file": Path("/etc/hostname").read_text().strip()},
        "environment": dict(line.split("=", 1) for line in login_shell()),
    }


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    """Return what is on the node that was not, is not that was, or is otherwise; a line each."""
    found = []
    for kind, was in before.items():
        now = after[kind]
        left = now.keys() - was.keys() - not_purged()
        found += [f"{kind}: {name} is left" for name in sorted(left)]
        found += [f"{kind}: {name} is gone" for name in sorted(was.keys() - now.keys())]
        changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
        found += [f"{kind}: {name} was {was[name]} and is {now[name]}" for name in changed]
    return found


def main() -> None:
    """Write the state to a file, or say in which the node differs from one that was written."""
    verb, file, *allowed = sys.argv[1:]
    if verb == "write":
        Path(file).write_text(json.dumps(state()))
        return
    lines = differences(json.loads(Path(file).read_text()), state())
    stays = [line for line in lines if not any(re.search(rule, line) for rule in allowed)]
    sys.stdout.write("".join(f"{line}\n" for line in stays))


if __name__ == "__main__":
    main()
