"""Calls the command `slices` (slices-cli).

Sub-commands, options and keys are those of https://doc.slices-ri.eu and of public scripts. The
command prints names as tables, machines and experiments as JSON.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from gpubed.backends.slices.config import Config
from gpubed.core import reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused
from gpubed.core.text import printable

LOOK_S = 5.0
_ANSWER_S, _REMOVE_S = 120.0, 300.0
_ROUNDED = timedelta(hours=1)  # durations are whole hours
_INSTALL = "install it: https://doc.slices-ri.eu/SupportingServices/slicescli.html"
# The command's messages about an expired token, and about a missing experiment.
_LOGGED_OUT = re.compile(r"credential|log in again|unauthor", re.IGNORECASE)
_GONE = re.compile(r"failed: .*(experiment.*(expired|not found)|no resources)", re.IGNORECASE)
_NAME = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]*")


class Login(BaseModel):
    """The address and account of an SSH login, and its bastion."""

    host: str
    port: int = 22
    username: str
    jump_proxy: Login | None = None


class Machine(BaseModel):
    """A machine; its status is imaging, booting, initializing, then up."""

    id: str
    friendly_name: str
    status: str
    expires_at: datetime | None = None
    terminated_at: datetime | None = None
    ssh_logins: tuple[Login, ...] = ()


class _Experiment(BaseModel):
    expires_at: datetime


class Tool:
    """The command, with the variables for a project, experiment and infrastructure."""

    def __init__(self, config: Config, cluster: str) -> None:
        self.experiment = config.experiment or f"gpubed-{cluster}"
        self._infra = config.infra
        self._variables = {
            "SLICES_PROJECT": config.project,
            "SLICES_EXPERIMENT": self.experiment,
            "SLICES_BI_INFRA_ID": config.infra,
            "SLICES_BI_SITE_ID": config.infra,  # in older versions
            "COLUMNS": "1000",  # tables are not cut
        }

    def run(self, *words: str) -> str:
        """Run a sub-command and return what it prints.

        Raises `PrerequisiteMissing` if it is missing or not logged in, `Refused` if it fails.
        """
        shown, env = " ".join(("slices", *words)), {**os.environ, **self._variables}
        try:
            done = subprocess.run(
                ["slices", *words],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ANSWER_S,
            )
        except FileNotFoundError:
            raise PrerequisiteMissing("there is no command `slices` here", _INSTALL) from None
        except subprocess.TimeoutExpired:
            raise GpubedError(f"{shown} does not end within {_ANSWER_S:g} s") from None
        out, err = (printable(x.decode(errors="replace")) for x in (done.stdout, done.stderr))
        err = f"{out}\n{err}" if done.returncode else err
        if _LOGGED_OUT.search(err):
            raise PrerequisiteMissing("slices is not logged in, or no longer", "slices auth login")
        if done.returncode:
            why = (err.strip() or f"exit code {done.returncode}").splitlines()[-1].strip(" │")
            raise Refused(f"{shown} failed: {why}")
        return out

    def names(self, *words: str) -> list[str]:
        """Return the names in all columns of a table."""
        rows = [line for line in self.run(*words).splitlines() if "│" in line]
        cells = {cell.strip() for row in rows for cell in row.split("│")}
        return sorted(cell for cell in cells if _NAME.fullmatch(cell))

    def hold_experiment(self, until: datetime) -> None:
        """Make the experiment, or extend it, so that it outlives its machines."""
        end, verb = ("--duration", hours(until + 2 * _ROUNDED)), "extend"
        try:
            shown = self.run("experiment", "show", self.experiment, "--format", "json")
            held = reading.reply(shown, "what slices says of the experiment").json(_Experiment)
            if held.expires_at >= until + _ROUNDED:
                return
        except Refused:  # it does not exist; for other reasons, `create` fails, too
            verb = "create"
        self.run("experiment", verb, self.experiment, *end)

    def machines(self) -> list[Machine]:
        """Return the experiment's machines that are not terminated."""
        try:
            output = self.run("bi", "list", "--experiment", self.experiment, "--format", "json")
        except Refused as error:
            if _GONE.search(error.message):
                return []
            raise
        found = reading.reply(output, "the list of SLICES' machines").json(list[Machine])
        return [machine for machine in found if machine.terminated_at is None]

    def machine(self, name: str) -> Machine | None:
        """Return the machine of a name; None if there is none."""
        return next((found for found in self.machines() if found.friendly_name == name), None)

    def request(self, name: str, flavor: str, image: str, user_data: str, until: datetime) -> None:
        """Request a machine; SLICES refuses a second one of the same name."""
        with tempfile.TemporaryDirectory() as folder:
            file, data = Path(folder) / "machine.json", Path(folder) / "user-data.yml"
            data.write_text(user_data)
            wanted = {"friendly_name": name, "infra_id": self._infra, "flavor": flavor}
            wanted |= {"disk_image": image, "userdata_file": str(data)}
            file.write_text(json.dumps({"resources": [wanted]}))
            options = ("--experiment", self.experiment, "--duration", hours(until))
            self.run("bi", "create-from-file", str(file), *options)

    def destroy(self, name: str) -> None:
        """Remove a machine, if it exists, and wait until it is gone."""
        if self.machine(name):
            # Without --force, the command asks for confirmation. Its exit code is not reliable.
            self.run("bi", "destroy", name, "--experiment", self.experiment, "--force")
        deadline = time.monotonic() + _REMOVE_S
        while self.machine(name):
            if time.monotonic() > deadline:
                why = f"{name} is still there {_REMOVE_S / 60:g} min after its removal"
                raise GpubedError(why, f"slices bi list --experiment {self.experiment}")
            time.sleep(LOOK_S)


def hours(until: datetime) -> str:
    """Return the duration from now on in whole hours, rounded up, such as `5h`."""
    return f"{max(1, math.ceil((until - datetime.now(UTC)) / _ROUNDED))}h"
