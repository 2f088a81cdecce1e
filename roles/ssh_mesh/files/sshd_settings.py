"""Changes sshd's settings, and reverts them if a login fails then. Runs as root on a node.

    sshd_settings.py shut-out JSON  prints which lines of the settings keep out which accounts
    sshd_settings.py try JSON       puts settings into force, until a timer takes them back
    sshd_settings.py keep           stops the timer: the settings stay

All settings are checked together, in a copy of /etc/ssh, before anything is written.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

SSH = Path("/etc/ssh")
SSHD = "/usr/sbin/sshd"
# Former files, while new settings are not proven; they survive a restart of the machine.
BEFORE = Path("/var/lib/gpubed/sshd")
UNDO = "gpubed-sshd-undo"
RELOAD = ["systemctl", "try-reload-or-restart", "ssh.service"]
INCLUDE = re.compile(r"(?im)^([ \t]*include[ \t=]+)(.+)$")


@contextlib.contextmanager
def copy_with(files: Mapping[str, str | None]) -> Iterator[Path]:
    """Yield the sshd_config of a copy of /etc/ssh with other texts by path; None removes one."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "ssh"
        keys = shutil.ignore_patterns("ssh_host_*", "moduli")
        shutil.copytree(SSH, copy, ignore=keys, ignore_dangling_symlinks=True)
        for path, text in files.items():
            place = copy / Path(path).relative_to(SSH)
            place.unlink(missing_ok=True)
            if text is not None:
                place.parent.mkdir(exist_ok=True)
                place.write_text(text)

        def inside(line: re.Match[str]) -> str:
            words = [SSH / word for word in shlex.split(line[2], comments=True)]
            below = [copy / w.relative_to(SSH) if SSH in w.parents else w for w in words]
            return line[1] + " ".join(map(str, below))

        for file in filter(Path.is_file, copy.rglob("*")):
            text = INCLUDE.sub(inside, file.read_text(errors="surrogateescape"))
            file.write_text(text, errors="surrogateescape")
        yield copy / "sshd_config"


def effective(config: Path, account: str, address: str = "127.0.0.1") -> str:
    """Return the settings in force for an account, one a line; exit if sshd refuses them.

    Values for all criteria of Match blocks are given, without which sshd fails.
    """
    whom = f"user={account},host={address},addr={address},laddr=127.0.0.1,lport=22,rdomain="
    command = [SSHD, "-T", "-f", str(config), "-C", whom]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().replace(str(config.parent), str(SSH))
        sys.exit(f"sshd refuses its settings, and nothing was changed: {words}")
    return done.stdout


def matches(pattern: str, word: str) -> bool:
    """Return whether a pattern of sshd (`*`, `?`) matches a word."""
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, word) is not None


def comes_from(pattern: str, address: str) -> bool:
    """Return whether a pattern or a network contains an address."""
    if "/" in pattern:
        return ipaddress.ip_address(address) in ipaddress.ip_network(pattern, strict=False)
    return matches(pattern, address)


def shut_out(
    config: Path, accounts: Mapping[str, Sequence[str]], addresses: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each list of sshd that excludes an account (`{name: groups}`).

    An account that does not exist yet has the given groups. sshd sees addresses only, so names of
    hosts are left out.
    """
    addresses = [one for one in addresses if re.fullmatch(r"[\d.]+|[\da-f]*:[\da-f:.]*", one)]
    for account, wanted in accounts.items():
        said = effective(config, account, *addresses[:1])
        asked = subprocess.run(["id", "-Gn", account], capture_output=True, text=True, check=False)
        groups = [*wanted, *asked.stdout.split(), account]

        def user(pattern: str, address: str, account: str = account) -> bool:
            name, _, place = pattern.partition("@")
            return matches(name, account) and (not place or comes_from(place, address))

        def group(pattern: str, _: str, groups: list[str] = groups) -> bool:
            return any(matches(pattern, name) for name in groups)

        for keyword, is_meant, own in (("Users", user, account), ("Groups", group, groups[0])):
            for verb in ("Deny", "Allow"):
                lines = re.findall(rf"(?m)^{verb}{keyword} (.+)$".lower(), said)
                patterns = " ".join(lines).split()
                for address in addresses or ["127.0.0.1"]:
                    meant = [pattern for pattern in patterns if is_meant(pattern, address)]
                    if patterns and bool(meant) is (verb == "Deny"):
                        fix = f"take {meant[0]} out of it" if meant else f"add {own} to it"
                        yield (
                            f"{places(verb + keyword)} keeps {account} out: {fix}, then: "
                            "sudo systemctl reload ssh"
                        )
                        break


def places(keyword: str) -> str:
    """Return the lines with a keyword in the settings, each with its file and number."""
    found = []
    for path in [SSH / "sshd_config", *sorted(SSH.glob("sshd_config.d/*.conf"))]:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if re.match(rf"(?i)\s*{keyword}\b", line):
                found.append(f"`{line.strip()}` ({path}, line {number})")
    return ", ".join(found) or keyword


def change(
    files: Mapping[str, str | None],
    needs: Mapping[str, str] | None = None,
    accounts: Mapping[str, Sequence[str]] | None = None,
    addresses: Sequence[str] = (),
    account: str = "root",
    seconds: int = 60,
    *,
    check: bool = False,
) -> None:
    """Apply files and print their names; a timer reverts them after some seconds.

    Args:
        files: Texts by path; None for a file that is to go.
        needs: A word by keyword, which the settings in force for `account` must have.
        accounts: The groups of accounts that must be let in, by name.
        addresses: Addresses from which these must be let in.
        account: The account of `needs`.
        seconds: How long unproven settings stay.
        check: Whether to change nothing.
    """
    if not check:
        undo()
    there = {path: Path(path).read_text() if Path(path).exists() else None for path in files}
    wanted = {path: text for path, text in files.items() if text != there[path]}
    with copy_with(wanted) as config:
        said = effective(config, account, *addresses[:1])
        for keyword, word in (needs or {}).items():
            if not re.search(rf"(?m)^{keyword} (.* )?{re.escape(word)}( |$)", said):
                sys.exit(
                    f"sshd would ignore {', '.join(files)}: {keyword} lacks {word}. Write "
                    f"`Include {SSH}/sshd_config.d/*.conf` into {SSH}/sshd_config before any "
                    f"Match, and let no file that sorts before set {keyword}. Nothing was changed."
                )
        if problems := list(shut_out(config, accounts or {}, list(addresses))):
            sys.exit("\n".join(problems))
    if not wanted or check:
        say(wanted)
        return
    BEFORE.mkdir(mode=0o700, parents=True)
    lines = []
    for number, path in enumerate(map(Path, wanted)):
        if path.exists():
            shutil.copy2(path, BEFORE / str(number))
            lines.append(f"cp -p {BEFORE / str(number)} {path}.new && mv {path}.new {path}")
        else:
            lines.append(f"rm -f {path}")
    lines += [shlex.join(RELOAD), f"rm -r {BEFORE}"]
    (BEFORE / "undo").write_text("\n".join(lines) + "\n")
    timer = ["--collect", f"--on-active={seconds}", "--timer-property=AccuracySec=100ms"]
    subprocess.run(
        ["systemd-run", "--quiet", f"--unit={UNDO}", *timer, "sh", str(BEFORE / "undo")], check=True
    )
    for name, text in wanted.items():
        if text is None:
            Path(name).unlink()
        else:
            Path(name).parent.mkdir(exist_ok=True)
            new = Path(f"{name}.new")
            new.write_text(text)
            new.replace(name)
    subprocess.run(RELOAD, check=True)
    say(wanted)


def say(lines: Iterable[str]) -> None:
    """Print lines for Ansible."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def stop_timer() -> None:
    """Stop the timer, and the service that it may have started."""
    units = [f"{UNDO}.timer", f"{UNDO}.service"]
    subprocess.run(["systemctl", "stop", *units], capture_output=True, check=False)


def undo() -> None:
    """Revert settings that an interrupted run left unproven."""
    stop_timer()
    if (BEFORE / "undo").exists():
        subprocess.run(["sh", str(BEFORE / "undo")], check=True)


def keep() -> None:
    """Keep the tried settings, unless the timer has reverted them."""
    stop_timer()
    if not BEFORE.exists():
        sys.exit("the new settings of sshd were taken back before they were proved good")
    shutil.rmtree(BEFORE)


if __name__ == "__main__":
    os.umask(0o022)
    if sys.argv[1] == "keep":
        keep()
    elif sys.argv[1] == "try":
        change(**json.loads(sys.argv[2]))
    else:
        # Without the files of former versions, which are removed.
        former = SSH.glob("sshd_config.d/[0-9z][0-9z]-gpubed*.conf")
        with copy_with(dict.fromkeys(map(str, former))) as as_it_will_be:
            say(shut_out(as_it_will_be, **json.loads(sys.argv[2])))
