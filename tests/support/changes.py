"""The matrix of changes: what each means for a running cluster, by backend."""

import copy
import re
import shutil
from pathlib import Path

import pytest
import yaml

PATH = Path(__file__).parents[1] / "contract" / "changes.yaml"
needs_cli = pytest.mark.skipif(not shutil.which("pulumi"), reason="the Pulumi CLI is not on PATH")
ENGINES = ["embedded", pytest.param("cli", marks=needs_cli)]
GOING = ("replace", "delete")
GONE = object()


def put(keys):
    """Return an edit of a specification: new values by key, as `nodes.0.count`; GONE removes it."""

    def edit(spec, *_):
        for path, value in keys.items():
            place, *names = spec, *(int(key) if key.isdigit() else key for key in path.split("."))
            for name in names[:-1]:
                place = place.setdefault(name, {}) if isinstance(place, dict) else place[name]
            if value is GONE:
                del place[names[-1]]
            else:
                place[names[-1]] = copy.deepcopy(value)

    return edit


def of(backend):
    """Returns what becomes of the nodes, by change."""
    return yaml.safe_load(PATH.read_text())[backend]["changes"]


def done(backend):
    """Returns the names of the changes that are done, and of those that are refused."""
    means = of(backend)
    refused = [change for change in means if means[change] == "refused"]
    return [change for change in means if change not in refused], refused


def doomed(cluster):
    """Returns the names of what the plan takes away."""
    steps = cluster.json("plan", *cluster.engine)["changes"]
    return {step["urn"].rsplit("::", 1)[-1] for step in steps if step["op"] in GOING}


def make(cluster, there, edit, becomes, loses):
    """Plans a change, does it, and holds it to the plan."""
    before = there()
    cluster.edit(edit)
    going = doomed(cluster) & before.keys()
    if going:
        said = cluster.call("up", *cluster.engine, rc=2).stderr
        for name in going:
            assert re.search(rf"(Node|Instance) {name}\b[^\n;]*: {loses}", said), said
        assert there() == before, "nobody was asked"
    document = cluster.json("up", *(["-y"] if going else []), *cluster.engine)
    after = there()
    assert {row["name"]: row["id"] for row in document["nodes"]} == _ids(after)
    assert len(after) == sum(group["count"] for group in cluster.spec["nodes"])
    _hold(before, after, going, becomes)
    assert cluster.json("plan", *cluster.engine)["changes"] == []


def refuse(cluster, there, edit):
    """Asks for a change that cannot be; returns what was said."""
    before, spec = there(), cluster.spec
    cluster.edit(edit)
    try:
        refused = cluster.call("up", "-y", *cluster.engine, rc=None)
        assert refused.returncode, refused.stdout
        assert there() == before
    finally:
        cluster.write(spec)
    planned = cluster.json("plan", *cluster.engine)["changes"]
    assert planned == [], f"not as if it had not been asked for: {planned}"
    return refused.stderr


def _hold(before, after, going, becomes):
    stays = {name: before[name] for name in before if name not in going}
    match becomes:
        case "kept":
            assert not going
            assert stays.items() <= after.items()
        case "restarted":
            assert not going
            assert _ids(stays).items() <= _ids(after).items()
            assert not stays.items() & after.items()
        case "fewer":
            assert going
            assert stays == after
        case "anew" | "again":
            assert going == before.keys()
            assert not set(_ids(before).values()) & set(_ids(after).values())
        case "one":
            assert len(going) == 1
            assert stays.items() <= after.items()
            assert not _ids(before).items() <= _ids(after).items()
        case _:
            raise AssertionError(f"nobody knows what {becomes} means")


def _ids(there):
    return {name: id_ for name, (id_, _) in there.items()}
