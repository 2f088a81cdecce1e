"""Scripts that make a host a node of a cluster, change its node's account, and release it."""

from __future__ import annotations

import json
import shlex

from gpubed.core import progress
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.nodes.ssh import SSH, CommandFailed, CommandTimedOut

MARK = "/etc/gpubed/owner.json"
_UNIT_FILES = (".service", ".timer", ".socket", ".path", ".mount", ".target")
_PATIENCE = 30  # seconds
# MariaDB's unit may take 15 min to stop, others 90 s. Slurm waits up to 40 s for its jobs.
_RELEASE_S = 20 * 60.0
_REFUSED = {
    77: (
        f"was made a node of another cluster meanwhile, see {MARK}; nothing was changed",
        "the same command again leaves it alone",
    ),
    78: (
        f"is busy: another process has held its lock on /etc/gpubed for {_PATIENCE} s",
        "the same command again, once that has ended",
    ),
}
# Sets `keys` to the file of keys that sshd reads for `user` (by default this account) with the home
# `HOME`, and `as` to the prefix of commands that may write to it. Links to the file stay.
_KEYS = r"""
user=${user:-$(id -un)}
whom="user=$user,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22,rdomain="
keys=$(sudo -n /usr/sbin/sshd -T -C "$whom" 2> /dev/null |
  sed -n 's/^authorizedkeysfile \([^ ]*\).*/\1/p' |
  sed "s#%h#$HOME#g; s#%u#$user#g; s#^[^/]#$HOME/&#")
[ -n "$keys" ] || keys=~/.ssh/authorized_keys
as=
[ -w "$(dirname "$(readlink -f "$keys")")" ] || as="sudo -n"
"""
# The folder is the lock of a host, which every account can open. Under the lock, the owner is read
# again: the host may have joined another cluster meanwhile.
_LOCKED = r"""
exec 9< /etc/gpubed
flock -w "$patience" 9 || exit 78
case $(sudo -n cat /etc/gpubed/owner.json 2> /dev/null || true) in
  "" | *"$uuid"*) ;;
  *) exit 77 ;;
esac
"""
# Writes the mark and the program `release` before the key: every host that lets in a cluster names
# it and can be released.
_ADMIT = rf"""
set -eu
sudo -n install -d -m 755 /etc/gpubed
{_LOCKED}
[ -z "$open" ] || echo "$open" | sudo -n tee /etc/gpubed/owner.ports > /dev/null
echo "$mark" | sudo -n tee /etc/gpubed/owner.json > /dev/null
# The program finds the key in the home of this account, not in root's.
{{ printf "#!/bin/sh\nHOME='%s' user='%s'\n" ~ "$(id -un)"; printf %s "$program"; }} |
  sudo -n tee /etc/gpubed/release > /dev/null
sudo -n chmod 755 /etc/gpubed/release
[ -d ~/.ssh ] || install -d -m 700 ~/.ssh
{_KEYS}
[ -e "$keys" ] || (umask 077; $as touch "$keys"; [ -z "$as" ] || $as chmod 644 "$keys")
# sshd ignores a file that others may write.
$as chmod go-w "$keys"
# Ends an incomplete last line.
[ -z "$(tail -c 1 "$keys")" ] || echo | $as tee -a "$keys" > /dev/null
$as sed -i --follow-symlinks "/ gpubed:$uuid\$/d" "$keys"
echo "$key gpubed:$uuid" | $as tee -a "$keys" > /dev/null
"""
_EXPEL = rf"""
HOME=$(getent passwd "$user" | cut -d : -f 6)
{_KEYS}
! sudo -n test -f "$keys" ||
  sudo -n sed -i --follow-symlinks "/ gpubed\(-role\)\?:$uuid\$/d" "$keys"
"""
# Stops the services of roles; packages stay. Removes the mark last, so that another call finds a
# host that was released only partly.
_RELEASE = rf"""
set -eu
{_LOCKED}
cd /etc/systemd/system
ours=
for unit in $units; do
  [ -e "$unit" ] || continue
  # Others may use this name, too; the unit of the role reads a file in /etc/gpubed.
  case $unit in gpubed-*) ;; *) sudo -n grep -q /etc/gpubed/ "$unit" || continue ;; esac
  ours="$ours $unit"
done
# In one call, so that no timer starts a stopped service again.
[ -z "$ours" ] || sudo -n systemctl disable --now $ours
! command -v nft > /dev/null || sudo -n nft delete table inet gpubed 2> /dev/null || true
# The clean-up of roles.
for hook in /etc/gpubed/leave.d/*; do
  [ -e "$hook" ] || continue
  sudo -n sh "$hook" "$how" || {{ echo "$hook failed" >&2; exit 1; }}
done
# Restores files and packages of the host (role base).
ledger=/var/lib/gpubed/ledger/ledger.py
[ -n "$how" ] || ! sudo -n test -e $ledger || sudo -n python3 $ledger give-back || {{
  echo "not all could be given back; the same command again goes on" >&2
  exit 1
}}
{_KEYS}
[ ! -f "$keys" ] || $as sed -i --follow-symlinks "/ gpubed\(-role\)\?:$uuid\$/d" "$keys"
rm -f ~/.ssh/id_gpubed ~/.ssh/id_gpubed.pub
if [ -z "$how" ] && sudo -n test -e $ledger; then
  sudo -n rm -rf /var/lib/gpubed /etc/gpubed
else
  sudo -n rm -f /etc/gpubed/owner.json /etc/gpubed/release
  [ -n "$how" ] || sudo -n rm -f /etc/gpubed/owner.ports
fi
"""
_BY_HAND = r"""# release UUID: removes the gpubed cluster of that id from this host, as `down` does.
uuid=${1:?the id of the cluster is missing}
if ! sudo -n grep -qF "\"$uuid\"" /etc/gpubed/owner.json; then
  echo "this host is no node of cluster $uuid" >&2
  exit 1
fi
"""


def admit(ssh: SSH, owner: dict[str, str], public_key: str, stays_open: str = "") -> None:
    """Mark a host as a node (`uuid`, `cluster`, `node`, `id`), then add the cluster's key.

    `stays_open` are ports that role firewall leaves open; the host keeps them in a file.
    """
    program = _BY_HAND + _script(_RELEASE, how="", units=" ".join(units()))
    words = {"uuid": owner["uuid"], "mark": json.dumps(owner), "key": public_key}
    words["open"] = stays_open
    _run(ssh, _script(_ADMIT, **words, program=program))


def expel(ssh: SSH, user: str, uuid: str) -> None:
    """Remove a cluster's key from another account of a host."""
    _run(ssh, _script(_EXPEL, user=user, uuid=uuid))


def release(ssh: SSH, uuid: str, *, stays: bool = False) -> None:
    """Remove a cluster's key, mark and services from a host, and report the roles' notes.

    `stays` tells the roles' hooks that the host becomes another node of the cluster.
    """
    how = "stays" if stays else ""
    said = _run(ssh, _script(_RELEASE, uuid=uuid, how=how, units=" ".join(units())))
    for line in said.splitlines():
        if line.startswith("note: "):
            progress.emit("note", message=f"{ssh.node.name}: {line.removeprefix('note: ')}")


def by_hand(uuid: str) -> str:
    """Return the command that releases a host, to run there if gpubed cannot log in."""
    return f"sudo sh /etc/gpubed/release {shlex.quote(uuid)}"


def units() -> list[str]:
    """Return the names of the unit files that roles install in /etc/systemd/system."""
    roles = assets() / "roles"
    files = (path for kind in ("files", "templates") for path in roles.glob(f"*/{kind}/*"))
    names = {path.name.removesuffix(".j2") for path in files}
    return sorted(name for name in names if name.endswith(_UNIT_FILES))


def _script(text: str, **words: str) -> str:
    words["patience"] = str(_PATIENCE)
    return "".join(f"{name}={shlex.quote(word)}\n" for name, word in words.items()) + text


def _run(ssh: SSH, script: str) -> str:
    called = f"{ssh.node.name} ({ssh.node.control_address})"
    try:
        return ssh.run("sh -c %s", script, timeout=_RELEASE_S).stdout
    except CommandTimedOut:
        raise GpubedError(
            f"{called} is not released after {_RELEASE_S / 60:.0f} min, and continues to stop",
            "see there which unit does not stop (sudo systemctl list-jobs) and end it "
            "(sudo systemctl kill --signal=KILL UNIT), then the same command again",
        ) from None
    except CommandFailed as error:
        if refused := _REFUSED.get(error.result.exit_code):
            raise GpubedError(f"{called} {refused[0]}", refused[1]) from None
        raise
