"""A forced replacement: resources marked in the state the way `pulumi state taint` does."""

import json


def taint(cluster, *names):
    """Mark resources, by name or as `Kind::name`; nobody's run may have the cluster."""
    (path,) = (cluster.root / ".gpubed").rglob(f"stacks/*/{cluster.name}.json")
    document = json.loads(path.read_text())
    resources = document["checkpoint"]["latest"]["resources"]
    ends = tuple(f"::{name}" if "::" not in name else f":{name}" for name in names)
    marked = [r for r in resources if r["custom"] and r["urn"].endswith(ends)]
    assert len(marked) == len(names), [r["urn"] for r in resources]
    for resource in marked:
        resource["taint"] = True
    path.write_text(json.dumps({**document, "version": 4, "features": ["taint"]}))
