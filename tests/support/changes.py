"""The matrix of changes: what each means for a running cluster, by backend."""

from pathlib import Path

import yaml

PATH = Path(__file__).parents[1] / "contract" / "changes.yaml"


def of(backend):
    """Returns what becomes of the nodes, by change."""
    return yaml.safe_load(PATH.read_text())[backend]
