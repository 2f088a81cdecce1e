"""Runs molecule for roles on each distribution and tells what came of it.

`make test-roles` runs all; `make test-roles ROLES="nfs docker" IMAGES=debian-12` a part.
With `--write` the table goes to docs/reference/role-tests.md.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TABLE = ROOT / "docs" / "reference" / "role-tests.md"
IMAGES = ("debian-12", "debian-13")
HEAD = """# Tests of the roles

Written by `make test-roles` (molecule on containers; nfs and rdma on virtual machines):
syntax, check mode, converge, idempotence and testinfra in scenario `default`;
the others prove that broken nodes fail loudly.

"""


@dataclass(frozen=True)
class Outcome:
    """What came of one scenario of a role on one image."""

    role: str
    scenario: str
    image: str
    passed: bool
    seconds: float

    def __str__(self) -> str:
        result = "passed" if self.passed else "FAILED"
        return f"{self.role} {self.scenario} on {self.image}: {result} in {self.seconds:.0f} s"


def run(role: str, scenario: str, image: str) -> Outcome:
    """Test one scenario on nodes of one image."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GPUBED_MOLECULE_IMAGE": image}
    command = ["molecule", "test", "--scenario-name", scenario]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT / "roles" / role, env=environment, check=False)
    return Outcome(role, scenario, image, done.returncode == 0, time.monotonic() - started)


def scenarios(roles: list[str]) -> Iterator[tuple[str, str]]:
    """Yield role and scenario, of some roles or of all."""
    for file in sorted(ROOT.glob("roles/*/molecule/*/molecule.yml")):
        role = file.parents[2].name
        if not roles or role in roles:
            yield role, file.parent.name


def table(outcomes: list[Outcome]) -> str:
    """Return the outcomes as a table, a row per scenario and a column per image."""
    images = sorted({outcome.image for outcome in outcomes})
    cells = {(o.role, o.scenario, o.image): o for o in outcomes}
    lines = [f"| role | scenario | {' | '.join(images)} |", "| --- " * (len(images) + 2) + "|"]
    for role, scenario in sorted({(o.role, o.scenario) for o in outcomes}):
        found = (cells.get((role, scenario, image)) for image in images)
        words = [
            f"{'passed' if o.passed else 'failed'}, {o.seconds:.0f} s" if o else "" for o in found
        ]
        lines.append(f"| {role} | {scenario} | {' | '.join(words)} |")
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Test what was asked for; the exit code says whether all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roles", nargs="*", help="all when none is named")
    parser.add_argument("--images", nargs="*", default=list(IMAGES))
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    asked = parser.parse_args()
    outcomes = []
    for image in asked.images or IMAGES:
        for role, scenario in scenarios(asked.roles):
            outcomes.append(run(role, scenario, image))
            sys.stdout.write(f"{outcomes[-1]}\n")
    sys.stdout.write("\n".join(map(str, outcomes)) + "\n")
    if asked.write:
        TABLE.write_text(table(outcomes))
    return 0 if outcomes and all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
