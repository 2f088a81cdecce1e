"""Logins by SSH, in a folder that is as /proc (STAND-IN for the kernel, which counts)."""

import shutil
from contextlib import contextmanager

SERVER, SESSION = "/system.slice/ssh.service", "/user.slice/user-1000.slice/session-3.scope"
A_TERMINAL = 34816
# Bytes each second by which both ends of a connection know that the other is there.
SIGNS_OF_LIFE = 8.0


class Proc:
    """Such a folder, in which there is an SSH server.

    A login's number is that of its command; those of its server's processes are below.
    """

    def __init__(self, folder):
        self.folder = folder
        self._add(1, "systemd", 0, "/init.scope")
        self._add(600, "sshd", 1, SERVER)

    def login(self, number, command, terminal=False):
        """Let somebody log in for a command; without one, to forward ports."""
        self._add(number - 2, "sshd", 600, SERVER)
        self._add(number - 1, "sshd", number - 2, SESSION)
        if command:
            tty = A_TERMINAL if terminal else 0
            self._add(number, command, number - 1, SESSION, tty)
            (self.folder / str(number) / "cmdline").write_text(f"{command}\0")
        self.carry(number, 0)

    def start(self, number, of, command):
        """Let a login have another command."""
        self._add(number, command, of - 1, SESSION)

    def carry(self, number, so_far):
        """Say what a login has carried so far, in bytes; None where that may not be read."""
        counts = self.folder / str(number - 1) / "io"
        if so_far is None:
            counts.unlink(missing_ok=True)
        else:
            counts.write_text(f"rchar: 7\nwchar: {so_far:.0f}\nsyscr: 1\nsyscw: 1\nread_bytes: 0\n")

    def logout(self, number):
        """Let a login end."""
        for gone in (number, number - 1, number - 2):
            self.end(gone)

    def end(self, number):
        shutil.rmtree(self.folder / str(number), ignore_errors=True)

    def _add(self, number, name, parent, group, terminal=0):
        place = self.folder / str(number)
        place.mkdir(parents=True)
        figures = [parent, number, number, terminal, *[0] * 14, number]
        (place / "stat").write_text(f"{number} ({name}) S {' '.join(map(str, figures))} 0\n")
        (place / "cgroup").write_text(f"0::{group}\n")


@contextmanager
def in_place(processes, folder):
    """Let the reader of processes take such a folder for /proc."""
    real, processes.PROC = processes.PROC, folder
    try:
        yield
    finally:
        processes.PROC = real


def read(use, folder, asks=0):
    """Return what the node's own reader finds of logins."""
    with in_place(use.processes, folder):
        every = use.processes.every()
        return use.machine.carried(every, use.processes.people(every, asks))


class Uploads:
    """The logins of a node: one for each upload, and two forgotten ones, by sftp and a shell."""

    WITH = ("sftp-server", "rsync", "scp")

    def __init__(self, use, folder):
        self._use, self._proc = use, Proc(folder)
        self._proc.login(700, "sftp-server")
        self._proc.login(800, "bash", terminal=True)
        self._now, self._found = None, {}

    def see(self, second, upload):
        """Look."""
        # It is read where something has changed but signs of life, and they are of no interest.
        if upload or self._now or not self._found:
            place, rate, lasts = upload or (0, 0.0, 0.0)
            number = 1000 + 10 * place if upload else None
            if self._now not in (None, number):
                self._proc.logout(self._now)
            if number not in (None, self._now):
                self._proc.login(number, self.WITH[place % len(self.WITH)])
            if upload:
                self._proc.carry(number, rate * lasts)
            for forgotten in (700, 800):
                self._proc.carry(forgotten, SIGNS_OF_LIFE * second)
            self._now, self._found = number, read(self._use, self._proc.folder)
        return self._found
