"""One experiment in four environments, as its clusters leave it: their campaigns, and their points.

Two clusters of nodes differ in the rate of their links; GPULab has one of one job with three GPUs,
and one of ten jobs with one GPU each. The figures come from `support.measurements`.
"""

from gpubed.core.paths import Project
from gpubed.report import analysis, read, together
from support import measurements
from support.samples import granted_cluster

FACTORS = {"batch_size": [32, 64], "nodes": [1, 2, 3]}
SHAPES = {"batch_size": [32, 64]}
ALL = ["vw1", "vw10", "gl-world", "gl-trials"]
LABELS = ["vw1 (1 Gbit/s)", "vw10 (10 Gbit/s)", "gl-world", "gl-trials"]


def wall(cluster, rate, name="imagenet-scaling", factors=FACTORS, slow=1.0, **more):
    """Return a campaign of a cluster whose links have a rate, and its points."""
    campaign = _campaign(cluster, name, factors, "virtualwall", **more)
    bps = measurements.RATES[rate]
    campaign["links"] = [
        link | {"declared_bps": bps, "measured_bps": 0.946 * bps} for link in campaign["links"]
    ]
    return campaign, list(measurements.measured(campaign, _seed(cluster), slow, rate=rate))


def gpulab(cluster, gpus, **more):
    """Return a campaign on GPULab, each point of which is one job with so many GPUs."""
    more = {"nodes": [], "links": [], **more}
    campaign = _campaign(cluster, "imagenet-gpulab", SHAPES, "gpulab", **more)
    return campaign, list(measurements.measured(campaign, _seed(cluster), nodes=gpus, rate="10G"))


def trials(cluster, **more):
    """Return one on GPULab, each point of which is the mean of several jobs with one GPU each."""
    campaign, points = gpulab(cluster, 1, **more)
    for point in points:  # of texts, lists and switches there is no mean
        kept = (v for v in point["metrics"].items() if isinstance(v[1], int | float))
        point["metrics"] = {name: float(value) for name, value in kept}
    return campaign, points


def every():
    """Return the four."""
    return [
        wall("vw1", "1G"),
        wall("vw10", "10G"),
        gpulab("gl-world", 3),
        trials("gl-trials"),
    ]


def write(root, *measured):
    """Write clusters with their campaigns; the nodes are gone. Return the campaigns' folders."""
    folders = []
    for campaign, points in measured:
        paths = Project(root).cluster(campaign["cluster"])
        if not paths.spec.exists():
            granted_cluster(root, paths.name).allocation.unlink()
        folders.append(measurements.write(paths, campaign, points))
    return folders


def put(root, *measured):
    """Write campaigns; return them together, as a report reads them."""
    write(root, *measured)
    return together.put(
        [
            read.load(Project(root).cluster(campaign["cluster"]), campaign["name"])
            for campaign, _ in measured
        ]
    )


def analysed(root, *measured):
    """Write campaigns; return what a report of all of them finds."""
    return analysis.analyse(put(root, *measured))


def _campaign(cluster, name, factors, backend, **more):
    command = f"gpubed bench {cluster} {name}"
    told = {"cluster": cluster, "uuid": f"uuid of {cluster}", "backend": backend}
    return measurements.document(name, factors, **{**told, "command": command, **more})


def _seed(cluster):
    return sum(map(ord, cluster))
