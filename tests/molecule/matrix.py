"""Runs molecule for every role and prints what came of it: `make test-roles`."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def main() -> int:
    """Test each role that has a scenario; the exit code says whether all passed."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    failed = 0
    for scenario in sorted(ROOT.glob("roles/*/molecule/default")):
        role = scenario.parents[1]
        started = time.monotonic()
        done = subprocess.run(["molecule", "test"], cwd=role, env=environment, check=False)
        failed += done.returncode != 0
        result = "failed" if done.returncode else "passed"
        sys.stdout.write(f"{role.name}: {result} in {time.monotonic() - started:.0f} s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
