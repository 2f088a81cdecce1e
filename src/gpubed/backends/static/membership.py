"""What a host runs when it joins a cluster, changes the account of its node, or leaves."""

from __future__ import annotations

import json
import shlex

from gpubed.core import progress
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.nodes.ssh import SSH, CommandFailed, CommandTimedOut
from gpubed.testbeds.driver import NodeFailed

MARK = "/etc/gpubed/owner.json"
# Gives the host back as it was: role base.
_LEDGER = "/var/lib/gpubed/ledger/ledger.py"
# Lets a host go without the controller, which may be unable to log in: what `down` runs.
PROGRAM = "/etc/gpubed/release"
_UNIT_FILES = (".service", ".timer", ".socket", ".path", ".mount", ".target")
# What a role's hook says to who lets the host go begins so.
_NOTE = "note: "
# Exit codes of the scripts, besides those of what they run.
_TAKEN, _BUSY = 77, 78
# What helps who wanted to let it go.
_AGAIN = {
    _TAKEN: "the same command again leaves it alone",
    _BUSY: "wait until it has been let go, or what else works on it there has ended, then the "
    "same command again",
}
_PATIENCE = 30  # seconds
# Services end one after another: MariaDB's unit may take 15 min for that, and any other 90 s, of
# which hardly any needs a second. Slurm waits up to 40 s for its jobs.
_LETTING_GO_S = 20 * 60.0
# The file of keys that sshd reads for `user`, whose home is `HOME`; both are this account's where
# `user` is not set. A link to it stays, and where only root may write, root does.
_KEYS = r"""
user=${user:-$(id -un)}
whom="user=$user,host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22,rdomain="
keys=$(sudo -n /usr/sbin/sshd -T -C "$whom" 2> /dev/null |
  sed -n 's/^authorizedkeysfile \([^ ]*\).*/\1/p' |
  sed "s#%%h#$HOME#g; s#%%u#$user#g; s#^[^/]#$HOME/&#")
[ -n "$keys" ] || keys=~/.ssh/authorized_keys
as=
[ -w "$(dirname "$(readlink -f "$keys")")" ] || as="sudo -n"
"""
# One at a time works on a host, whoever logs in: the folder is the lock, which every account can
# open. Who stopped waiting for a host that is let go finds it locked until that is done.
_LOCK = r"""
exec 9< "$(dirname %(mark)s)"
flock -w %(patience)s 9 || {
  echo "somebody has held the lock on /etc/gpubed for %(patience)s s" >&2
  exit %(busy)s
}
"""
# Whose the host is, is asked under the lock: it may have joined another since it was looked at.
_NOT_ANOTHERS = r"""
owner=$(sudo -n cat %(mark)s 2> /dev/null || true)
case $owner in
  "" | *%(uuid)s*) ;;
  *)
    echo "this host is a node of another cluster by now" >&2
    exit %(taken)s
    ;;
esac
"""
# The mark comes first, so that no key lets in a cluster that the host does not name; and how to
# be rid of the cluster is there before its key.
_ADMIT = (
    r"""
set -eu
sudo -n install -d -m 755 "$(dirname %(mark)s)"
"""
    + _LOCK
    + _NOT_ANOTHERS
    + r"""
echo %(owner)s | sudo -n tee %(mark)s > /dev/null
# Whoever runs it: the key is in the home of the account that the cluster logs in to.
{ printf "#!/bin/sh\nHOME='%%s' user='%%s'\n" ~ "$(id -un)"; printf %%s %(program)s; } |
  sudo -n tee %(release)s > /dev/null
sudo -n chmod 755 %(release)s
[ -d ~/.ssh ] || install -d -m 700 ~/.ssh
"""
    + _KEYS
    + r"""
[ -e "$keys" ] || (umask 077; $as touch "$keys"; [ -z "$as" ] || $as chmod 644 "$keys")
# sshd believes no file that others may write.
$as chmod go-w "$keys"
# A file whose last line has no end would swallow ours, which must be a line of its own.
[ -z "$(tail -c 1 "$keys")" ] || echo | $as tee -a "$keys" > /dev/null
$as sed -i --follow-symlinks %(pattern)s "$keys"
echo %(line)s | $as tee -a "$keys" > /dev/null
"""
)
# Who logs in as somebody else by now leaves no way in for the cluster behind.
_EXPEL = (
    r"""
user=%(user)s HOME=$(getent passwd %(user)s | cut -d : -f 6)
"""
    + _KEYS
    + r"""
! sudo -n test -f "$keys" || sudo -n sed -i --follow-symlinks %(pattern)s "$keys"
"""
)
# Services of roles are stopped, so that nothing of the cluster goes on running; packages stay.
# The mark goes last: a host that is let go by half still says whose it was.
_RELEASE = (
    r"""
set -eu
"""
    + _LOCK
    + _NOT_ANOTHERS
    + r"""
cd /etc/systemd/system
ours=
for unit in %(units)s; do
  [ -e "$unit" ] || continue
  # A name that others give to theirs, too: ours reads what the role wrote.
  case $unit in gpubed-*) ;; *) sudo -n grep -q /etc/gpubed/ "$unit" || continue ;; esac
  ours="$ours $unit"
done
# In one call, so that no timer starts again what has just been stopped.
[ -z "$ours" ] || sudo -n systemctl disable --now $ours
! command -v nft > /dev/null || sudo -n nft delete table inet gpubed 2> /dev/null || true
# What a role has to undo, so that the owner can go on with what stays.
for hook in /etc/gpubed/leave.d/*; do
  [ -e "$hook" ] || continue
  sudo -n sh "$hook" %(how)s || { echo "$hook failed" >&2; exit 1; }
done
[ -n %(how)s ] || ! sudo -n test -e %(ledger)s || sudo -n python3 %(ledger)s give-back || {
  echo "not all could be given back; the same command again goes on" >&2
  exit 1
}
"""
    + _KEYS
    + r"""
[ ! -f "$keys" ] || $as sed -i --follow-symlinks %(pattern)s "$keys"
rm -f ~/.ssh/id_gpubed ~/.ssh/id_gpubed.pub
if [ -z %(how)s ] && sudo -n test -e %(ledger)s; then
  sudo -n rm -rf /var/lib/gpubed "$(dirname %(mark)s)"
else
  sudo -n rm -f %(mark)s %(release)s
fi
"""
)
_BY_HAND = r"""# release UUID: ends all that the gpubed cluster of that id has here, as `down` does.
uuid=${1:?the id of the cluster is missing}
if [ "$uuid" != %(uuid)s ] || ! sudo -n grep -qF "$uuid" %(mark)s; then
  echo "this host is no node of cluster $uuid" >&2
  exit 1
fi
"""


def admit(ssh: SSH, owner: dict[str, str], public_key: str) -> None:
    """Mark a host as a node, then let its cluster in; with the mark, nothing is done twice.

    Args:
        ssh: A session of the user.
        owner: What the mark is to say: `uuid`, `cluster`, `node` and `id`.
        public_key: The cluster's.

    Raises:
        NodeFailed: Another cluster has marked the host meanwhile, or is about to.
    """
    script = _ADMIT % {
        **_quoted(
            mark=MARK,
            uuid=owner["uuid"],
            owner=json.dumps(owner),
            pattern=_line_of(owner["uuid"]),
            line=f"{public_key} gpubed:{owner['uuid']}",
            release=PROGRAM,
            program=_by_hand(owner["uuid"]),
        ),
        **_turn(),
    }
    try:
        ssh.run("sh -c %s", script)
    except CommandFailed as error:
        if why := _refusal(error.result.exit_code):
            raise NodeFailed(
                f"{_called(ssh)} {why}",
                f"look there whose it is (sudo cat {MARK}), or name another host in cluster.yml",
            ) from None
        raise


def _refusal(exit_code: int) -> str:
    return {
        _TAKEN: f"was made a node of another cluster meanwhile, see {MARK}; nothing was changed",
        _BUSY: f"is kept busy: somebody has held the lock on /etc/gpubed for {_PATIENCE} s",
    }.get(exit_code, "")


def expel(ssh: SSH, user: str, uuid: str) -> None:
    """Take a cluster's key from another account of a host."""
    ssh.run("sh -c %s", _EXPEL % _quoted(user=user, pattern=_lines_of(uuid)))


def release(ssh: SSH, uuid: str, *, stays: bool = False) -> None:
    """Take a cluster's key, mark and services from a host; tell what roles say of what stays.

    Args:
        ssh: A session on it.
        uuid: The cluster's.
        stays: Whether it becomes another node of the cluster, which roles' hooks are told.

    Raises:
        GpubedError: Something there does not end, somebody else works on the host, or it has
            become a node of another cluster.
    """
    script = _release(uuid, "stays" if stays else "")
    try:
        said = ssh.run("sh -c %s", script, timeout=_LETTING_GO_S).stdout
    except CommandTimedOut:
        raise GpubedError(
            f"{_called(ssh)} is not let go after {_LETTING_GO_S / 60:.0f} min, and goes on at it",
            "see there what does not stop (sudo systemctl list-jobs) and end it "
            "(sudo systemctl kill --signal=KILL UNIT), then the same command again",
        ) from None
    except CommandFailed as error:
        if why := _refusal(error.result.exit_code):
            raise GpubedError(f"{_called(ssh)} {why}", _AGAIN[error.result.exit_code]) from None
        raise
    for line in said.splitlines():
        if line.startswith(_NOTE):
            progress.emit("note", message=f"{ssh.node.name}: {line.removeprefix(_NOTE)}")


def stays(uuid: str) -> str:
    """Say what is left on a host that nobody could log in to, and what takes it away."""
    return (
        f"its mark ({MARK}), the cluster's key and its services stay there; once it is back, on "
        f"it: {by_hand(uuid)}"
    )


def by_hand(uuid: str) -> str:
    """Return the command that does the same on a host that nobody could log in to."""
    return f"sudo sh {PROGRAM} {shlex.quote(uuid)}"


def _release(uuid: str, how: str = "") -> str:
    words = _quoted(
        mark=MARK, release=PROGRAM, uuid=uuid, pattern=_lines_of(uuid), ledger=_LEDGER, how=how
    )
    return _RELEASE % {**words, **_turn(), "units": " ".join(units())}


def units() -> list[str]:
    """Return what roles install under /etc/systemd/system; what else is there is the owner's."""
    roles = assets() / "roles"
    files = (path for kind in ("files", "templates") for path in roles.glob(f"*/{kind}/*"))
    names = {path.name.removesuffix(".j2") for path in files}
    return sorted(name for name in names if name.endswith(_UNIT_FILES))


def _by_hand(uuid: str) -> str:
    """Return the program that `by_hand` runs; the host puts its home before it."""
    return _BY_HAND % _quoted(uuid=uuid, mark=MARK) + _release(uuid)


def _turn() -> dict[str, int]:
    """Return how long a script waits for the host's lock, and how it ends where it may not work."""
    return {"patience": _PATIENCE, "busy": _BUSY, "taken": _TAKEN}


def _called(ssh: SSH) -> str:
    return f"{ssh.node.name} ({ssh.node.control_address})"


def _line_of(uuid: str) -> str:
    """Return sed's words for taking away a cluster's key, whichever it was."""
    return f"/ gpubed:{uuid}$/d"


def _lines_of(uuid: str) -> str:
    """Return sed's words for taking away the keys of the cluster's nodes (role ssh_mesh), too."""
    return rf"/ gpubed\(-role\)\?:{uuid}$/d"


def _quoted(**words: str) -> dict[str, str]:
    return {key: shlex.quote(word) for key, word in words.items()}
