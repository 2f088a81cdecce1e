"""Secrets in what is committed, and known holes in what is installed: `make audit`.

Neither needs a network of its own: the secrets are looked for here, and advisories come
from where packages do. Where no advisories can be had, that part says skipped, and why.
Secrets that are none are in `.secrets.baseline`; `make audit BASELINE=1` writes it anew, and
its diff is what is to be judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASELINE = ".secrets.baseline"
# Files of hashes, and lines that are about one: neither has a secret, both look like one.
NOT_SCANNED = r"\.lock$|requirements\.txt$|^tests/fuzz/corpus/|^tests/.*\.json$"
NOT_SECRET = r"(?i)sha(1|256)|digest|checksum|fingerprint|commit"
_LIMIT_S = 300


def program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def scan(root: Path) -> dict[str, list[dict[str, object]]]:
    """Return what looks like a secret in each file that git knows."""
    options = ["--no-verify", "--exclude-files", NOT_SCANNED, "--exclude-lines", NOT_SECRET]
    command = [program("detect-secrets"), "scan", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)["results"]
    found.pop(BASELINE, None)
    return found


def secrets(root: Path) -> list[str]:
    """Return where something looks like a secret that the baseline does not have."""
    baseline = json.loads((root / BASELINE).read_text(encoding="utf-8"))
    known = {(name, s["hashed_secret"]) for name, found in baseline.items() for s in found}
    return [
        f"{name}:{secret['line_number']}: {secret['type']}"
        for name, found in scan(root).items()
        for secret in found
        if (name, secret["hashed_secret"]) not in known
    ]


def write_baseline(root: Path) -> None:
    """Take what looks like a secret now for none."""
    # Without lines, which move.
    found = {
        name: [{key: secret[key] for key in ("type", "hashed_secret")} for secret in secrets]
        for name, secrets in scan(root).items()
    }
    (root / BASELINE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def holes(lock: Path) -> tuple[list[str], str]:
    """Look for advisories about the packages of a lock file."""
    options = ["--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [program("pip-audit"), "--requirement", str(lock), *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
        packages = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return [], f"no answer within {_LIMIT_S} s"
    except ValueError:
        return [], (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]
    return list(_known(packages)), _unknown(packages)


def _known(packages: list[dict[str, object]]) -> Iterator[str]:
    for package in packages:
        vulnerabilities = package.get("vulns", [])
        assert isinstance(vulnerabilities, list)
        for hole in vulnerabilities:
            mended = ", ".join(hole["fix_versions"]) or "none yet"
            yield f"{package['name']} {package['version']}: {hole['id']}; mended in {mended}"


def _unknown(packages: list[dict[str, object]]) -> str:
    unknown = [str(p["skip_reason"]) for p in packages if p.get("skip_reason")]
    if not unknown:
        return ""
    return f"no advisories for {len(unknown)} of {len(packages)} packages, such as: {unknown[0]}"


def main() -> int:
    """Look at everything; say what was found, and what was not looked at."""
    if os.environ.get("BASELINE"):
        write_baseline(ROOT)
    found = secrets(ROOT)
    failed = bool(found)
    print("\n".join(f"secret in {line}" for line in found) or "no secret")
    locks = [ROOT / "requirements-dev.lock"]
    locks += sorted((ROOT / "src" / "gpubed" / "recipes").glob("*/requirements.txt"))
    for lock in locks:
        name = lock.relative_to(ROOT)
        known, why = holes(lock)
        failed = failed or bool(known)
        said = [*known, f"skipped: {why}"] if why else known
        print("\n".join(f"{name}: {line}" for line in said or ["no known hole"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
