"""Runs molecule for roles on each distribution and keeps what came of it.

`make test-nightly PARTS=roles` runs all; with `ROLES="nfs docker" IMAGES=debian-12` a part;
with `CHANGED=1` only what has changed since it passed; with `MINUTES=10` only what ends in
that time by what it took before, and names the rest; with `GPUBED_VM=1` also what runs
virtual machines. Every result is kept at once in results.json, from which
`make docs` writes docs/reference/role-tests.md.
What is interrupted has no result.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# This file is run by itself, also by docs/generate.py.
sys.path.insert(0, str(Path(__file__).parents[1]))

from support import results
from support.results import ROOT, Outcome, Results

BIN = Path(sys.executable).parent
RESULTS = Path(__file__).with_name("results.json")
IMAGES = ("debian-12", "debian-13")
_GUESS_S = 300
HEAD = """# Tests of the roles

From what `make test-nightly PARTS=roles` kept (molecule on containers; nfs and rdma on virtual
machines):
syntax, check mode, converge, idempotence and testinfra in scenario `default`;
the others prove that broken nodes fail loudly. "Changed since" means that the role, or
what all scenarios share, is not what was tested.

"""


@dataclass(frozen=True)
class Scenario:
    """A molecule scenario of a role, on nodes of one image."""

    role: str
    name: str
    image: str

    def __str__(self) -> str:
        return f"{self.role} {self.name} on {self.image}"

    @property
    def on_machines(self) -> bool:
        """Say whether its nodes are virtual machines: slow where KVM does not work."""
        wanted = ROOT / "roles" / self.role / "molecule" / self.name / "cluster.json"
        asked = json.loads(wanted.read_text()) if wanted.exists() else {}
        return bool(asked.get("backend", {}).get("runtime") == "vm")

    @property
    def digest(self) -> str:
        """Tell the role and what all scenarios share from what they were before."""
        folders = [ROOT / "roles" / self.role, ROOT / ".config" / "molecule"]
        return results.digest(folders)


class Outcomes(Results):
    """All outcomes so far, as they are needed here."""

    def passed(self, scenario: Scenario) -> bool:
        """Say whether the scenario has passed as it is now."""
        outcome = self.of(scenario)
        return outcome is not None and outcome.passed and outcome.digest == scenario.digest

    def seconds(self, scenario: Scenario) -> int:
        """Return how long a scenario took, or a guess."""
        outcome = self.of(scenario)
        return outcome.seconds if outcome else _GUESS_S

    def table(self) -> str:
        """Return a row per scenario and a column per image."""
        lines = [f"| role | scenario | {' | '.join(IMAGES)} |", "| --- " * (len(IMAGES) + 2) + "|"]
        for role, name in names([]):
            cells = [self._cell(Scenario(role, name, image)) for image in IMAGES]
            lines.append(f"| {role} | {name} | {' | '.join(cells)} |")
        return HEAD + "\n".join(lines)

    def _cell(self, scenario: Scenario) -> str:
        outcome = self.of(scenario)
        if outcome is None:
            return "not run"
        return outcome.described(scenario.digest, f"{outcome.seconds} s")


def names(roles: list[str]) -> Iterator[tuple[str, str]]:
    for file in sorted(ROOT.glob("roles/*/molecule/*/molecule.yml")):
        role = file.parents[2].name
        if not roles or role in roles:
            yield role, file.parent.name


def run(scenario: Scenario) -> Outcome:
    """Test a scenario; the output is kept where it failed."""
    digest, started = scenario.digest, time.monotonic()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GPUBED_MOLECULE_IMAGE": scenario.image}
    with tempfile.NamedTemporaryFile(prefix="molecule-", suffix=".log", delete=False) as log:
        done = subprocess.run(
            ["molecule", "test", "--scenario-name", scenario.name],
            cwd=ROOT / "roles" / scenario.role,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    outcome = Outcome(done.returncode == 0, round(time.monotonic() - started), digest)
    words = f"passed in {outcome.seconds} s" if outcome.passed else f"FAILED: {log.name}"
    if outcome.passed:
        Path(log.name).unlink()
    say(f"{scenario}: {words}")
    return outcome


def say(words: str) -> None:
    """Tell at once, also into a file."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> int:
    """Test what was asked for; the exit code says whether all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roles", nargs="*", help="all when none is named")
    parser.add_argument("--images", nargs="*", default=list(IMAGES))
    parser.add_argument("--changed", action="store_true", help="leave out what has passed as it is")
    parser.add_argument("--minutes", type=float, help="start nothing that would end later")
    parser.add_argument("--jobs", type=int, default=1, help="how many scenarios at once")
    asked = parser.parse_args()
    kept, ended = Outcomes(RESULTS), threading.Event()
    end = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")

    def test(role: str, name: str) -> bool:
        # One after the other: the images of a scenario share its folder.
        passed = True
        for scenario in (Scenario(role, name, image) for image in asked.images or IMAGES):
            if asked.changed and kept.passed(scenario):
                continue
            if scenario.on_machines and not os.environ.get("GPUBED_VM"):
                say(f"{scenario}: skipped, it runs virtual machines: set GPUBED_VM=1")
                continue
            if time.monotonic() + kept.seconds(scenario) > end:
                say(f"{scenario}: left, there is no time for it")
                continue
            outcome = run(scenario)
            if ended.is_set():
                return False
            kept.keep(scenario, outcome)
            passed = passed and outcome.passed
        return passed

    found = list(names(asked.roles))
    with ThreadPoolExecutor(asked.jobs) as pool:
        tests = [pool.submit(test, *pair) for pair in found]
        try:
            passed = [each.result() for each in tests]
        except KeyboardInterrupt:
            # Molecule had the Ctrl-C as well: what it says now is no result.
            ended.set()
            pool.shutdown(cancel_futures=True)
            return 130
    return 0 if found and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
