"""Specifications of every kind: each backend, recipe and set of services."""

from gpubed.spec.clusterspec import model
from gpubed.spec.plan import plan

BACKENDS = {
    "gpulab": {
        "type": "gpulab",
        "certificate": "/login.pem",
        "project": "mine",
        "image": "gpulab.example/team/train:1",
    },
    "local": {"type": "local"},
    "openstack": {
        "type": "openstack",
        "external_network": "public",
        "access_from": ["198.51.100.0/24"],
        "flavor": "g.large",
    },
    "slices": {
        "type": "slices",
        "project": "mine",
        "infra": "be-gent1-bi-vm1",
        "flavor": "medium",
    },
    "static": {
        "type": "static",
        "user": "me",
        "hosts": {"node": [{"address": "192.0.2.1"}, {"address": "192.0.2.2"}]},
    },
    "virtualwall": {
        "type": "virtualwall",
        "aggregate": {
            "url": "https://am.example/3",
            "urn": "urn:publicid:IDN+a.example+authority+cm",
        },
        "authority": {
            "slices": "https://sa.example/geni-sa/2",
            "members": "https://ma.example/geni-ma/2",
        },
        "project": "mine",
        "login": "/login.pem",
    },
}
ALL_SERVICES = {
    "jupyterlab": {"port": 9999},
    "docker": {"data_root": "/data/docker", "user_access": False, "mirror": "https://m.example/"},
    "monitoring": {"port": 9191, "retention": "2 d"},
    "streams": {"port": 4333, "quota": "2 GiB", "retention": "2 d"},
    "slurm": {
        "users": [{"name": "ann", "ssh_keys": ["ssh-ed25519 AAAA ann"]}],
        "partitions": [{"name": "all"}],
    },
    "tracking": {"port": 5050, "memory": "1 GiB", "sources": ["192.0.2.0/24"]},
    "serving": {"port": 8444},
}
SERVICES = {
    "none": {"jupyterlab": None},
    "defaults": {},
    "all": ALL_SERVICES,
    **{name: {"jupyterlab": None, name: given} for name, given in ALL_SERVICES.items()},
}
RDMA = {"rate": "100 Gbit/s", "rdma": {"dscp": 34, "pfc": True}}
SCRATCH = {"path": "/fast", "devices": ["/dev/nvme0n1"]}


def sample(backend, recipe, services, gpus):
    """Return the plan of a cluster of that kind; with all services it has every option too."""
    document = {
        "version": 1,
        "name": "lab",
        "backend": BACKENDS[backend],
        "recipe": recipe,
        "nodes": [{"name": "node", "count": 2, "gpus": gpus}],
        "services": SERVICES[services],
    }
    if services == "all":
        document["networks"] = {"experiment": RDMA}
        document["storage"] = {"scratch": SCRATCH, "shared": {"provider": "nfs", "expect": {}}}
        document["firewall"] = {"open": [{"port": 6006, "comment": "TensorBoard"}]}
    return plan(model().model_validate(document))
