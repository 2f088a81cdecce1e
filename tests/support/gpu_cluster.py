"""What tests of clusters with pretended GPUs have in common."""

from contextlib import contextmanager

MACHINE = {"cpus": 2, "memory": "6 GiB"}
SERVICES = {"docker": {}, "slurm": {"users": [{"name": "alice"}]}, "monitoring": {}}


def group(model, gpus, *, name="gpu", count=1, image="debian-12", has=None):
    """Return a node group; `has` is how many GPUs its machines really pretend."""
    simulate = {"model": model, "gpus": has} if has else model
    return {
        "name": name,
        "count": count,
        "gpus": gpus,
        "simulate": simulate,
        "image": image,
        "machine": MACHINE,
    }


@contextmanager
def standing(made):
    """Give a cluster that is up, and take it down at the end whatever happened."""
    try:
        made.first_up = made.json("up")
        yield made
    finally:
        made.call("down", "-y")


def without_gpus(name):
    """Return a group of one node without GPUs."""
    return {"name": name, "count": 1, "gpus": 0, "image": "debian-12", "machine": MACHINE}


def model_of(node_group):
    simulate = node_group["simulate"]
    return simulate if isinstance(simulate, str) else simulate["model"]


def checks(document):
    return document["verification"]["checks"]


def pin_driver(cluster, version):
    """Ask for a driver as a user does: in a file of the inventory's own."""
    own = cluster.spec_path.parent / "group_vars" / "all" / "driver.yml"
    if version is None:
        own.unlink()
    else:
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(f"nvidia_driver_version: {version}\n")
    return cluster.json("up")
