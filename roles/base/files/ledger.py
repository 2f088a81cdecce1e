"""Records what roles change on a host, and gives the host back as it was.

    ledger.py open ROLE             before a role runs: the host as it is now is the owner's
    ledger.py close [ACCOUNT...]    after it: all that differs since then is the role's
    ledger.py undo ROLE [WORD...]   undoes what a role changed. Of a version without a record of
                                    it, units and files among WORD go; facts, as "package tini",
                                    stay
    ledger.py give-back             undoes what all roles changed, newest change first

Standard library only; runs as root. Roles need not know of it: it compares the host before
and after. It watches `/etc` and a few other folders as files, and packages, holds, units,
accounts, mounts and the host name as facts.

In a file that its owner has changed since, the owner's change stays: only gpubed's lines go.
Where they cannot be told from the owner's, the file stays, with its former text beside it as
`FILE.before-gpubed`. Folders with data stay and are named.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Kind (f, d or l), mode, uid, gid, and the SHA-256 of a file or the target of a link.
State = list[Any]

FOLDER = Path("/var/lib/gpubed/ledger")
_BOOK = FOLDER / "ledger.json"
# Exists while a role runs, and after a run that was killed.
_FLAG = FOLDER / "open"
# Watched folders, and the depth below each; None stands for any depth.
_WATCHED = {
    "/etc": None,
    "/usr/local/bin": None,
    "/usr/local/etc": None,
    "/usr/local/lib": None,
    "/usr/local/sbin": None,
    "/usr/local/share": None,
    "/usr/local": 1,
    "/usr/share/keyrings": 1,
    "/home": 1,
    "/opt": 1,
    "/srv": 1,
    "/var/cache": 1,
    "/var/lib": 1,
    "/": 1,
}
# Not watched: accounts are facts; the kernel, DHCP or other files determine the rest.
_PASSED_OVER = re.compile(
    r"/(etc/((passwd|group|shadow|gshadow|subuid|subgid)[-+]?|\.pwd\.lock|mtab"
    r"|ld\.so\.cache|adjtime|machine-id|resolv\.conf)"
    r"|usr/local/lib/(python3|node_modules).*|var/lib/gpubed|proc|sys|dev|run|tmp)"
)
# Folders of gpubed alone, which are removed with their content. /etc/gpubed and this ledger are
# removed last, after `give-back`.
_TREES = ["/opt/gpubed", "/usr/local/lib/gpubed", "/usr/local/share/gpubed", "/var/cache/gpubed"]
_BACKUPS = "/var/backups/gpubed"
_COPIED_BYTES = 64 << 20
# Seconds between two roles within which the host is not scanned again.
_FRESH_S = 5
# Purging these packages would delete users' data; their scripts that do so are removed before.
_HOLD_DATA = re.compile(r"(docker\.io|mariadb-server|slurm|prometheus)")
_FIRST_OF_PACKAGES = 100
# By Debian's policy, ids from 60000 on belong to packages, such as slurm's 64030.
_PEOPLE = range(1000, 60000)
_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*[$]?")
_SYSCTLS = ("net.ipv4.ip_forward", "net.ipv4.ip_local_port_range")
_MOUNTED = {"nfs", "nfs4", "ext2", "ext3", "ext4", "xfs", "btrfs"}
# Commands and services that read a file again; for drop-ins of a unit, it is the unit.
_READERS = {
    "/etc/ssh/sshd": "! sshd -t || systemctl try-reload-or-restart ssh.service",
    "/etc/systemd/logind": "systemctl try-restart systemd-logind.service",
    "/etc/systemd/system.conf": "systemctl daemon-reexec",
    "/etc/docker/": "systemctl try-restart docker.service",
    "/etc/exports": "! command -v exportfs || exportfs -ra",
    "/etc/nfs": "systemctl try-restart nfs-server.service",
    "/etc/chrony": "systemctl try-restart chrony.service",
    "/etc/sysctl": "sysctl --quiet --system",
    "/etc/udev": "udevadm control --reload",
    "/etc/ld.so": "ldconfig",
    "/etc/jupyter/": "systemctl try-restart jupyterlab.service",
    "/etc/gpubed/firewall/open.d/": "! command -v gpubed-firewall"
    " || { gpubed-firewall try 60 && gpubed-firewall keep; }",
}
_APT = [
    *("apt-get", "--yes", "--quiet", "--allow-change-held-packages"),
    *("-o", "DPkg::Lock::Timeout=300"),
]


def run(*words: str) -> str:
    """Return the output of a command; empty if the command does not exist."""
    try:
        return subprocess.run(
            words,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        ).stdout
    except FileNotFoundError:
        return ""


def note(text: str) -> None:
    """Print a message for the owner: `down` shows lines that begin with `note: `."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    print(f"note: {ascii(shown)[1:-1]}", flush=True)  # noqa: T201


class Ledger:
    """The record of one host.

    Attributes:
        files: States of files at the last look, by path.
        facts: Packages, holds, units, accounts, mounts and the name at the last look.
        changes: By path, lists of the states before and after a change and the role, oldest
            first. Where the owner or another role changed a file in between, there are several.
        accounts: Names of accounts that roles may have made for persons.
        were: By fact, the value before gpubed changed it; None where there was none.
        by: By fact, the role that changed it first.
        edited: Files that their owner changed since, and that stay.
    """

    def __init__(self) -> None:
        self.files: dict[str, State] = {}
        self.facts: dict[str, str] = {}
        self.changes: dict[str, list[list[Any]]] = {}
        self.were: dict[str, str | None] = {}
        self.by: dict[str, str] = {}
        self.accounts: list[str] = []
        self.edited: list[str] = []
        self._stamps: dict[str, list[int]] = {}
        self._role: str | None = None
        self._stays: set[str] = set()
        if _BOOK.exists():
            for name, value in json.loads(_BOOK.read_text()).items():
                setattr(self, name, value)
        for rows in self.changes.values():  # a former version noted no role
            rows[:] = [[*row, ""][:3] for row in rows]

    def open(self, role: str = "") -> None:
        """Record the present state as the owner's, except changes of a killed run."""
        is_first = not self.files
        if _FLAG.exists():
            self.close()
        if is_first or not 0 <= time.time() - _BOOK.stat().st_mtime <= _FRESH_S:
            self.files, self.facts = self._look(), facts()
        if is_first and Path("/etc/gpubed/leave.d").exists():
            # A version without a ledger configured this host: its files are gpubed's.
            ours = (p for p in self.files if re.search(r"/[\w-]*gpubed[^/]*$", p))
            self.changes = {path: [[None, self.files[path], ""]] for path in ours}
        self._save()
        _FLAG.write_text(role)

    def close(self, *accounts: str) -> None:
        """Record the changes since `open` as the role's.

        Args:
            accounts: Names of accounts that roles may make for persons; others are the owner's.
        """
        self.accounts = sorted({*self.accounts, *accounts})
        if not _FLAG.exists():
            return
        role, files, now = _FLAG.read_text(), self._look(), facts()
        for path in {*self.files, *files}:
            before, after = self.files.get(path), files.get(path)
            if before != after:
                self._change(path, before, after, role)
        for name in {*self.facts, *now}:
            if self.facts.get(name) != now.get(name):
                self.were.setdefault(name, self.facts.get(name))
                self.by.setdefault(name, role)
        self._forget(now)
        self.files, self.facts = files, now
        self._save()
        _FLAG.unlink()

    def undo(self, role: str, *words: str) -> bool:
        """Undo what a role changed, between `open` and `close` of a role or at another time.

        Args:
            role: Its name.
            words: Facts that stay; and of a version that recorded no roles, units of systemd and
                files, as PATH:TEXT, that go where gpubed, or TEXT, is in them.

        Returns:
            Whether nothing failed.
        """
        is_open, self._stays = _FLAG.exists(), {word for word in words if " " in word}
        self.close()
        self._role = role
        rows = [row for rows in self.changes.values() for row in rows]
        is_recorded = any(row[2] == role for row in rows) or role in self.by.values()
        done = not is_recorded or self._undo()
        if not ((done and self._swept(role, *words)) or is_recorded):
            return True
        if _BOOK.exists():
            self.files = {}  # `_now` has taken stamps of files that were restored since
            self.files, self.facts = self._look(), facts()
            self._forget(self.facts)
            self._save()
        if is_open:
            _FLAG.write_text(role)
        print("changed")  # noqa: T201
        return done

    def _swept(self, role: str, *words: str) -> bool:
        """Remove files of a role from versions without a ledger; return whether there were any."""
        units = [
            word
            for word in words
            if re.fullmatch(r"[^/ ]+", word)
            and run("systemctl", "is-active", word).strip() == "active"
            and "gpubed" in run("systemctl", "cat", word)
        ]
        if units:
            run("systemctl", "disable", "--now", *units)
        # Files by their name, as open.d/slurm.nft and 60-gpubed-slurm.conf; others by their text.
        named = re.compile(rf"(.*[^a-z_])?{role.replace('_', '[_-]')}(\..*)?")
        places = ("/etc", "/usr/local", "-path", "*gpubed*", "-not", "-path", "*/authorized_keys*")
        paths = [p for p in run("find", *places).splitlines() if named.fullmatch(Path(p).name)]
        for path, _, text in (word.partition(":") for word in words if word[0] == "/"):
            paths += run("grep", "-ls", text or "gpubed", path).splitlines()
        paths = [path for path in paths if path not in self.edited]
        for at in (Path(p) for p in paths if os.path.lexists(p)):
            if at.is_dir() and not at.is_symlink():
                shutil.rmtree(at)
            else:
                at.unlink()
            if (before := at.with_name(f"{at.name}.before-gpubed")).exists():
                before.rename(at)
        block = f"^# BEGIN gpubed (role )?{role}$"
        if blocks := run("grep", "-rlsE", block, "/etc").splitlines():
            run("sed", "-i", "-E", f"/{block}/,/^# END gpubed/d", *blocks)
        if not (units or paths or blocks):
            return False
        self._start_units(paths + blocks)
        note(f"{role} was set up by a version that recorded nothing of it: its packages stay")
        return True

    def give_back(self) -> bool:
        """Undo all changes.

        Returns:
            Whether nothing failed; all that stays has been printed.
        """
        self.close()
        done = self._undo()
        made = (p for p, rows in self.changes.items() if rows[0][0] is None and p not in _TREES)
        self._save()
        if kept := sorted(path for path in made if Path(path).is_dir() and not _is_own(path)):
            note(f"these folders hold data and stay: {', '.join(kept)}")
        if Path(_BACKUPS).exists():
            note(f"copies of files that were replaced or removed are in {_BACKUPS}")
        if done:
            for tree in _TREES:
                if tree in self.changes:
                    shutil.rmtree(Path(tree), ignore_errors=True)
        return done

    def _undo(self) -> bool:
        self._stop_units()
        self._unmount()
        done = self._packages()
        self._accounts()
        # Files of a folder before the folder.
        paths = sorted(self._paths() - self._files_of_packages(), reverse=True)
        if not done:  # roles know by their own files that there is something to undo
            paths = [path for path in paths if not _is_own(path)]
        restored = [path for path in paths if self._restored(path)]
        done = done and not any(self._is_stuck(path) for path in paths)
        self._kernel()
        self._start_units(restored)
        self._marks()
        return done

    def _paths(self) -> set[str]:
        if self._role is None:
            return {path for path in self.changes if not _is_own(path)}
        return {p for p, rows in self.changes.items() if any(self._is_role(row[2]) for row in rows)}

    def _is_role(self, role: str) -> bool:
        return self._role in (None, role)

    def _forget(self, now: dict[str, str]) -> None:
        """Delete recorded facts that have their former value again."""
        for name in [name for name, was in self.were.items() if now.get(name) == was]:
            del self.were[name]
            self.by.pop(name, None)

    # Files

    def _look(self) -> dict[str, State]:
        found: dict[str, State] = {}
        for top, depth in _WATCHED.items():
            for path, status in self._walk(top, depth):
                if not _PASSED_OVER.fullmatch(path):
                    state = self._state(path, status)
                    if state:
                        found[path] = state
        return found

    def _walk(self, top: str, depth: int | None) -> Iterator[tuple[str, os.stat_result]]:
        try:
            entries = sorted(os.scandir(top), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            path = f"{top.rstrip('/')}/{entry.name}"
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # it has gone, or is a mount of another account's
                continue
            yield path, status
            if depth is None and stat.S_ISDIR(status.st_mode) and _is_roots(status):
                yield from self._walk(path, None)

    def _state(self, path: str, status: os.stat_result) -> State | None:
        if not path.startswith(("/etc/", "/usr/")):  # a home, or data: only that it is there
            return ["d", 0, 0, 0, ""] if stat.S_ISDIR(status.st_mode) else None
        common = [stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid]
        if stat.S_ISLNK(status.st_mode):
            return ["l", *common, str(Path(path).readlink())]
        if stat.S_ISDIR(status.st_mode):
            return ["d", *common, ""]
        if not stat.S_ISREG(status.st_mode):
            return None
        stamp = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        known = self.files.get(path)
        if known and self._stamps.get(path) == stamp:
            return ["f", *common, known[4]]
        self._stamps[path] = stamp
        return ["f", *common, self._copied(path)]

    def _copied(self, path: str) -> str:
        """Return the digest of a file, of which a copy is kept; of a large one, its stamp."""
        if self._stamps[path][1] > _COPIED_BYTES:
            return "large " + " ".join(map(str, self._stamps[path]))
        content = Path(path).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        copy = FOLDER / "copies" / digest
        if not copy.exists():
            copy.parent.mkdir(mode=0o700, exist_ok=True)
            draft = copy.with_suffix(".draft")
            draft.write_bytes(content)  # the disk may be full
            draft.replace(copy)
        return digest

    def _change(self, path: str, before: State | None, after: State | None, role: str) -> None:
        rows = self.changes.setdefault(path, [])
        if rows and rows[-1][1:] == [before, role]:
            rows[-1][1] = after
        else:
            rows.append([before, after, role])
        if rows[-1][0] == after:
            rows.pop()
        if not rows:
            del self.changes[path]

    def _restored(self, path: str) -> bool:
        """Undo the changes of a file; return whether that changed it."""
        if path.startswith("/etc/ssh/") and "gpubed" not in path:
            # gpubed writes no other file there, and restoring one could lock an account out.
            del self.changes[path]
            return False
        folders = [folder for folder in Path(path).parents if folder.exists()]
        try:
            if not all(_is_roots(folder.lstat()) for folder in folders):
                raise PermissionError(errno.EPERM, "an account that is not root can write there")
            changed = self._restore(path)
        except OSError as error:
            note(f"{path} stays: {error.strerror}")
            return False
        if not Path(path).is_dir():
            self.changes[path] = [r for r in self.changes[path] if not self._is_role(r[2])]
            if not self.changes[path]:
                del self.changes[path]
        return changed

    def _is_stuck(self, path: str) -> bool:
        rows = self.changes.get(path, ())
        return any(self._is_role(row[2]) for row in rows) and not Path(path).is_dir()

    def _restore(self, path: str) -> bool:
        at, changed = Path(path), False
        for before, after, role in reversed(self.changes[path]):
            now = self._now(path)
            if not self._is_role(role) or now == before or (now is None and after is not None):
                continue  # it is as it was, or its owner has removed it
            if before and not path.startswith(("/etc/", "/usr/")):
                continue
            if now == after or (now and before is None and _is_own(path)):
                self._back_up(path)
                changed |= self._put(at, before)
            elif _is_own(path) or (now and now[0] == "d"):
                continue
            elif (text := self._merged(now, after, before)) is not None:
                self._back_up(path)
                _write(at, text, now[1:4] if now else [])
                changed = True
            elif now:
                aside = at.with_name(f"{at.name}.before-gpubed")
                former = ""
                if before:
                    self._put(aside, before)
                    former = f"; before gpubed: {aside}"
                self.edited.append(path)
                note(f"{path} was changed since gpubed wrote it, and stays{former}")
        return changed

    def _back_up(self, path: str) -> None:
        """Copy a file before it is replaced, as its owner may have changed it while a role ran."""
        at, aside = Path(path), Path(f"{_BACKUPS}{path}")
        if at.is_file() and not at.is_symlink() and "gpubed" not in path:
            aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(at, aside)

    def _now(self, path: str) -> State | None:
        at = Path(path)
        return self._state(path, at.lstat()) if os.path.lexists(at) else None

    def _put(self, at: Path, state: State | None) -> bool:
        if at.is_dir() and not at.is_symlink():
            if state and state[0] == "d":
                os.chown(at, *state[2:4])
                at.chmod(state[1])
                return True
            if str(at).startswith("/etc/") and not _is_roots(at.lstat()):
                shutil.rmtree(at)  # of an account that came: its content was never recorded
            elif any(at.iterdir()):
                return False
            else:
                at.rmdir()
        elif os.path.lexists(at) and (state is None or state[0] != "f" or at.is_symlink()):
            at.unlink()
        if state is None:
            return True
        at.parent.mkdir(parents=True, exist_ok=True)
        if state[0] == "d":
            at.mkdir()
            os.chown(at, *state[2:4])
            at.chmod(state[1])
        elif state[0] == "l":
            at.symlink_to(state[4])
            os.lchown(at, *state[2:4])
        else:
            content = (FOLDER / "copies" / state[4]).read_bytes()
            if hashlib.sha256(content).hexdigest() != state[4]:
                raise OSError(errno.EIO, "the copy of what it was is damaged")
            _write(at, content, state[1:4])
        return True

    def _merged(self, now: State | None, after: State | None, before: State | None) -> bytes | None:
        """Return the text of a file without gpubed's change; None if that is not possible."""
        texts = []
        for state in (now, after, before):
            copy = FOLDER / "copies" / (state[4] if state and state[0] == "f" else "none")
            if not copy.exists():
                return None
            texts.append(copy.read_bytes().splitlines(keepends=True))
        return without(*texts)

    # Facts

    def _ours(self, kind: str, now: dict[str, str]) -> dict[str, str | None]:
        """Return the former values of the facts of a kind that differ now.

        Scripts in `leave.d` write into `keep` what others use by now.
        """
        keep = FOLDER / "keep"
        kept = self._stays.union(keep.read_text().splitlines() if keep.exists() else ())
        names = (name for name in self.were if name.startswith(f"{kind} ") and name not in kept)
        return {
            name.partition(" ")[2]: self.were[name]
            for name in names
            if now.get(name) != self.were[name] and self._is_role(self.by.get(name, ""))
        }

    def _stop_units(self) -> None:
        ours = [name for name, was in self._ours("unit", facts()).items() if was is None]
        if ours:
            # In one call with timers and sockets, which could start the units again.
            run("systemctl", "stop", *ours)

    def _start_units(self, restored: list[str]) -> None:
        run("systemctl", "daemon-reload")
        for name, was in self._ours("unit", facts()).items():
            if was and run("systemctl", "is-enabled", name).strip() not in ("", "masked"):
                run("systemctl", "start", name)
        due = {c: None for p in restored for start, c in _READERS.items() if p.startswith(start)}
        for path in restored:
            unit = re.match(r"/etc/systemd/system/([^/]+)\.d/", path)
            # A unit of type oneshot may first undo its work: nftables flushes all rules.
            if unit and "oneshot" not in run("systemctl", "show", "--property=Type", unit[1]):
                due[f"systemctl try-restart {unit[1]}"] = None
        for command in due:
            run("sh", "-c", command)

    def _unmount(self) -> None:
        for place, was in self._ours("mount", facts()).items():
            if was is None:
                run("umount", "--lazy", "--no-canonicalize", place)

    def _packages(self) -> bool:
        """Remove packages that roles installed, and install those that roles removed."""
        changed = self._ours("package", facts())
        came = sorted(name for name, was in changed.items() if was is None)
        removable = came
        if not _goes_with(came) <= {*came}:
            removable = [name for name in came if _goes_with([name]) <= {*came}]
        if stay := sorted({*came} - {*removable}):
            note(f"these packages stay, since others need them: {', '.join(stay)}")
        for script in Path("/var/lib/dpkg/info").glob("*.postrm") if removable else ():
            if script.stem.partition(":")[0] in removable and _HOLD_DATA.match(script.name):
                script.unlink()
        purged = [name for name in removable if not self.were.get(f"settings {name}")]
        done = not removable or _apt("remove", *removable)
        done = done and (not purged or _apt("purge", *purged))
        there = facts()
        went = {name: was for name, was in changed.items() if was}
        for name, was in went.items():
            if f"package {name}" not in there:
                _apt("--allow-downgrades", "--no-install-recommends", "install", f"{name}={was}")
        there = facts()
        for name, was in went.items():
            now = there.get(f"package {name}")
            if now is None:
                note(f"{name} {was} was removed and cannot be had again: apt-get install {name}")
            elif now != was:
                note(f"{name} was {was} before, and stays as it is")
        return done

    def _files_of_packages(self) -> set[str]:
        """Return the files that packages installed by roles brought, if these packages stay."""
        now = facts()
        came = (name for name, was in self.were.items() if was is None and name in now)
        names = [name.partition(" ")[2] for name in came if name.startswith("package ")]
        listed = {*run("dpkg-query", "--listfiles", *names).splitlines()} if names else set()
        units = {Path(p).name for p in listed if re.search(r"/(init\.d|systemd/system)/", p)}
        return {
            path
            for path, ((before, after, _), *_) in self.changes.items()
            if before is None
            and after
            and (
                path in listed
                or ({path.rpartition("/")[0]} & listed & self.changes.keys())
                or re.sub(r"^[SK]\d\d", "", Path(path).name) in units
                or after[4] in listed
            )
        }

    def _accounts(self) -> None:
        now = facts()
        for pair, was in self._ours("member", now).items():
            user, group = pair.split()
            if f"user {user}" in now and f"group {group}" in now:
                run("gpasswd", "--delete" if was is None else "--add", user, group)
        numbers = [value for name, value in now.items() if name.startswith("user ")]
        for name, was in self._ours("user", now).items():
            number = now[f"user {name}"]
            if was is None and self._is_made(number, name):
                if int(number) >= _FIRST_OF_PACKAGES and numbers.count(number) == 1:
                    run("pkill", "--signal", "KILL", "--uid", number)
                run("userdel", "--force", "--", name)
        for name, was in self._ours("group", now).items():
            if was is None and self._is_made(now[f"group {name}"], name):
                run("groupdel", "--", name)

    def _is_made(self, number: str, name: str) -> bool:
        """Return whether a role or a package created an account; all others are the owner's."""
        return int(number) not in _PEOPLE or name in self.accounts

    def _kernel(self) -> None:
        now = facts()
        if was := self._ours("host", now).get("name"):
            run("hostname", was)
        for name, value in self._ours("sysctl", now).items():
            _sysctl(name).write_text(value or "")

    def _marks(self) -> None:
        now = facts()
        for name, was in self._ours("hold", now).items():
            if was or f"package {name}" in now:
                run("apt-mark", "hold" if was else "unhold", name)
        for name, was in self._ours("manual", now).items():
            if f"package {name}" in now:
                run("apt-mark", "manual" if was else "auto", name)

    def _save(self) -> None:
        kept = ("files", "facts", "changes", "were", "by", "accounts", "edited", "_stamps")
        FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = _BOOK.with_suffix(".draft")
        draft.write_text(json.dumps({name: getattr(self, name) for name in kept}))
        draft.replace(_BOOK)


def without(now: list[bytes], after: list[bytes], before: list[bytes]) -> bytes | None:
    """Revert the change from `before` to `after` in a text that was changed further.

    Args:
        now: Lines of the text.
        after: Lines that gpubed left.
        before: Lines that it found.

    Returns:
        The text; None where gpubed's lines are not in it as they were written.
    """
    result = list(now)
    steps = difflib.SequenceMatcher(a=after, b=before, autojunk=False).get_opcodes()
    for tag, start, end, first, last in reversed(steps):
        ours, theirs = after[start:end], before[first:last]
        if tag == "equal":
            continue
        if ours:
            size = len(ours)
            places = [i for i in range(len(result) - size + 1) if result[i : i + size] == ours]
            if not places:
                return None
            result[places[-1] : places[-1] + size] = theirs
        elif any(line not in result for line in theirs):
            known = start > 0 and after[start - 1] in result
            place = result.index(after[start - 1]) + 1 if known else len(result)
            result[place:place] = theirs
    return b"".join(result)


def facts() -> dict[str, str]:
    """Return packages with their versions, holds, running units, accounts, mounts and the name."""
    found = {"host name": os.uname().nodename}
    found |= _packages()
    found |= {f"hold {name}": "yes" for name in run("apt-mark", "showhold").split()}
    found |= {f"manual {name}": "yes" for name in run("apt-mark", "showmanual").split()}
    kinds = "--type=service,socket,timer,path"
    listing = ("--plain", "--no-legend", "--no-pager", kinds)
    files = run("systemctl", "list-unit-files", *listing).splitlines()
    # Units that can be enabled; others are started by D-Bus or by units, as systemd-hostnamed is.
    startable = {
        line.split()[0] for line in files if re.search(r"\s(enabled|disabled|linked)", line)
    }
    for line in run("systemctl", "list-units", "--state=active,activating", *listing).splitlines():
        if (name := line.split()[0]) in startable:
            found[f"unit {name}"] = "active"
    for name, _, number, *_ in _entries("/etc/passwd"):
        found[f"user {name}"] = number
    for name, _, number, members, *_ in _entries("/etc/group"):
        found[f"group {name}"] = number
        found |= {f"member {user} {name}": "yes" for user in members.split(",") if user}
    for name in _SYSCTLS:
        found[f"sysctl {name}"] = _sysctl(name).read_text().strip()
    for line in Path("/proc/self/mounts").read_text(errors="replace").split("\n")[:-1]:
        source, place, kind, *_ = line.split(" ")
        if kind in _MOUNTED:
            found[f"mount {place.encode().decode('unicode_escape')}"] = source
    return found


def _packages() -> dict[str, str]:
    """Return packages with their versions, and removed packages whose settings remain."""
    found = {}
    shown = "${db:Status-Status} ${Architecture} ${Package} ${Version}\n"
    native = ("all", run("dpkg", "--print-architecture").strip())
    for line in run("dpkg-query", "--show", f"--showformat={shown}").splitlines():
        status, architecture, name, version, *_ = [*line.split(), ""]
        foreign = "" if architecture in native else f":{architecture}"
        if status == "installed":
            found[f"package {name}{foreign}"] = version
        elif status == "config-files":
            found[f"settings {name}{foreign}"] = "yes"
    return found


def _entries(file: str) -> list[list[str]]:
    """Return the entries of a file of accounts, without NIS's lines, which have no number."""
    # Split by line feeds alone: full names may contain other line separators.
    lines = Path(file).read_bytes().decode(errors="replace").split("\n")
    rows = [line.split(":") for line in lines]
    return [
        row
        for row in rows
        if len(row) >= 4 and _ACCOUNT.fullmatch(row[0]) and re.fullmatch("[0-9]+", row[2])
    ]


def _is_own(path: str) -> bool:
    """Return whether a file belongs to gpubed alone and is removed with its folder."""
    return f"{path}/".startswith("/etc/gpubed/")


def _is_roots(status: os.stat_result) -> bool:
    """Return whether only root can write in a folder; elsewhere, files may be replaced by links."""
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _sysctl(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def _write(at: Path, content: bytes, common: list[int]) -> None:
    """Replace a file; a file that is a mount, as in containers, is written in place."""
    draft = at.with_name(f".{at.name}.gpubed")
    draft.write_bytes(content)
    if common:
        os.chown(draft, *common[1:])
        draft.chmod(common[0])
    try:
        draft.replace(at)
    except OSError:
        draft.unlink()
        at.write_bytes(content)


def _goes_with(names: list[str]) -> set[str]:
    """Return the packages that apt would remove with some packages, including these."""
    words = (*_APT, "--simulate", "remove", *names)
    return set(re.findall(r"(?m)^(?:Remv|Purg) (\S+)", run(*words)))


def _apt(*words: str) -> bool:
    done = subprocess.run(
        [*_APT, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        last = " ".join((done.stderr or done.stdout).splitlines()[-3:])
        note(f"apt-get {' '.join(words[:6])} …: {last}")
    return done.returncode == 0


if __name__ == "__main__":
    # For files that packages' scripts create; the ledger's folder has its own mode.
    os.umask(0o022)
    verb, words = "".join(sys.argv[1:2]), sys.argv[2:]
    if verb not in ("open", "close", "undo", "give-back"):
        sys.exit(__doc__)
    try:
        ledger = Ledger()
    except (ValueError, AttributeError) as error:
        sys.exit(f"{_BOOK} is damaged ({error}): restore it from a backup, or move it away")
    if getattr(ledger, verb.replace("-", "_"))(*words) is False:
        sys.exit(1)
