"""What a change lets `up` apply: the roles whose inputs changed, on the nodes concerned."""

import json
import shutil

import pytest

from gpubed.backends.static import access
from gpubed.cli.display import Display
from gpubed.cli.ui import UI
from gpubed.configuration import due, roles
from gpubed.core import paths
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Allocation, Cluster
from support.samples import sample_allocation, sample_plan
from support.specs import ALL_SERVICES

NODES = ["node-0", "node-1", "node-2"]
SERVICES = {key: ALL_SERVICES[key] for key in ("jupyterlab", "monitoring", "slurm")}


@pytest.fixture
def cluster(tmp_path):
    made = Project(tmp_path).cluster("lab")
    made.applied.mkdir(parents=True)
    return made


def apply(cluster, plan, granted=None, only=None):
    """Record that all roles were applied, or those of `only`, as the playbook does."""
    granted = granted or sample_allocation(plan)
    for node, versions in roles.fingerprints(plan, granted, cluster.inventory).items():
        done = {role: digest for role, digest in versions.items() if only in (None, role)}
        path = cluster.applied / f"{granted.node(node).id}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **done}))


@pytest.fixture
def change(cluster):
    """Return what is due on a cluster, all of whose roles were applied, once something changes."""

    def change(before=(), **after):
        before = {"services": SERVICES, **dict(before)}
        apply(cluster, sample_plan(**before))
        plan = sample_plan(**{**before, **after})
        return due.now(Cluster(cluster, plan, sample_allocation(plan)))

    change.cluster = cluster
    return change


def test_nothing_is_due_where_nothing_changed(change):
    assert change() == {}


def test_a_rate_concerns_the_roles_that_know_links(change):
    rate = {"experiment": {"rate": "300 Mbit/s"}}
    assert change(networks=rate) == {"horovod": NODES, "monitoring": NODES}
    assert change({"services": {"monitoring": None}}, networks=rate) == {"horovod": NODES}


def test_a_port_of_jupyterlab_concerns_jupyterlab(change):
    services = {**SERVICES, "jupyterlab": {"port": 9000}}
    assert change(services=services) == {"jupyterlab": NODES}


def test_an_opening_concerns_the_firewall(change):
    assert change(firewall={"open": [{"port": 6006}]}) == {"firewall": NODES}


@pytest.mark.parametrize("services", [{"jupyterlab": None}, SERVICES])
def test_one_node_more_concerns_others_by_what_depends_on_membership(change, services):
    plan = sample_plan(services=services)
    found = change({"nodes": [{"count": 2}], "services": services}, nodes=[{"count": 3}])
    assert list(found) == roles.active(plan), "all roles, in their order"
    members = {role for role, nodes in found.items() if nodes == NODES}
    assert members == {"base", "ssh_mesh", "firewall", *(SERVICES if services == SERVICES else ())}
    assert all(found[role] == ["node-2"] for role in set(found) - members)


def test_one_node_less_concerns_what_depends_on_membership(change):
    found = change(nodes=[{"count": 2}])
    assert set(found) == {"base", "ssh_mesh", "firewall", *SERVICES}
    assert set(map(tuple, found.values())) == {("node-0", "node-1")}


def test_another_recipe_concerns_the_roles_that_take_something_of_it(change):
    found = change(recipe="cuda12")
    changed = {
        role
        for role in roles.active(sample_plan())
        if roles.inputs(sample_plan(), role) != roles.inputs(sample_plan(recipe="cuda12"), role)
    }
    assert found == dict.fromkeys(found, NODES)
    assert set(found) == changed | {"jupyterlab"}, "it runs in the environment that is published"
    assert {"python_env", "horovod"} < changed
    assert not changed & {"ssh_mesh", "firewall", "scratch", "slurm"}


NFS = {"shared": {"provider": "nfs", "server": "node-1"}}
# What of all nodes is on the shared path, the head's work for all.
FILLS = {"shared_storage", "python_env", "horovod", "jupyterlab", "slurm"}


def test_storage_whose_server_was_made_again_is_filled_by_the_head(cluster):
    plan = sample_plan(services=SERVICES, storage=NFS)
    granted = sample_allocation(plan)
    apply(cluster, plan, granted)
    again = granted.nodes[1].model_copy(update={"id": "another"})
    nodes = (granted.nodes[0], again, granted.nodes[2])
    found = due.now(Cluster(cluster, plan, granted.model_copy(update={"nodes": nodes})))
    assert {role: found[role] for role in FILLS} == dict.fromkeys(FILLS, NODES)
    assert found["scratch"] == found["hardware"] == ["node-1"]


def test_a_node_with_another_address_concerns_itself_and_those_that_read_all_nodes(cluster):
    plan = sample_plan()
    granted = sample_allocation(plan)
    apply(cluster, plan, granted)
    moved = granted.nodes[1].model_copy(update={"control_address": "192.0.2.77"})
    nodes = (granted.nodes[0], moved, granted.nodes[2])
    found = due.now(Cluster(cluster, plan, granted.model_copy(update={"nodes": nodes})))
    assert {role for role, names in found.items() if names == NODES} == {
        role for role in found if "nodes" in roles.reads(plan, role)
    }
    assert found["scratch"] == ["node-1"]
    assert found["python_env"] == ["node-1"], "it reads the head"


@pytest.mark.parametrize("name", ["node-1", "node-1.yml", "node-1.json", "node-1/mine.yml"])
def test_host_vars_concern_their_node(cluster, change, name):
    change()
    own = cluster.inventory / "host_vars" / name
    own.parent.mkdir(parents=True)
    own.write_text("base_packages_extra: [htop]\n")
    plan = sample_plan(services=SERVICES)
    found = due.now(Cluster(cluster, plan, sample_allocation(plan)))
    assert list(found) == roles.active(plan)
    for role, nodes in found.items():
        # Others may read what the node is told.
        assert nodes == (NODES if "nodes" in roles.reads(plan, role) else ["node-1"])


def test_group_vars_concern_all_roles_on_all_nodes(cluster):
    plan = sample_plan()
    apply(cluster, plan)
    own = cluster.inventory / "group_vars" / "all" / "mine.yml"
    own.parent.mkdir(parents=True)
    own.write_text("base_packages_extra: [htop]\n")
    assert due.now(Cluster(cluster, plan, sample_allocation(plan))) == dict.fromkeys(
        roles.active(plan), NODES
    )


@pytest.mark.parametrize(
    ("path", "concerned"),
    [
        (
            "firewall/templates/opening.nft.j2",
            {"firewall", "rdma", "hub", "tracking", "serving", *SERVICES},
        ),
        ("ssh_mesh/tasks/keys.yml", {"ssh_mesh", "jupyterlab", "slurm"}),
        ("nvidia_driver/vars/Debian.yml", {"nvidia_driver", "cuda", "horovod"}),
        ("scratch/tasks/main.yml", {"scratch"}),
    ],
)
def test_another_version_of_a_role_concerns_those_that_call_it(
    change, tmp_path, monkeypatch, path, concerned
):
    """Horovod has the role cuda install a compiler, from the driver's sources of packages."""
    later = tmp_path / "later"
    shutil.copytree(paths.assets() / "roles", later / "roles")
    for name in ("playbooks", "jobs"):
        (later / name).symlink_to(paths.assets() / name)
    with (later / "roles" / path).open("a") as file:
        file.write("\n# of another version\n")
    assert change() == {}
    monkeypatch.setattr(roles, "assets", lambda: later)
    plan = sample_plan(services=SERVICES)
    found = due.now(Cluster(change.cluster, plan, sample_allocation(plan)))
    assert found == dict.fromkeys(found, NODES)
    assert set(found) == concerned


def test_a_role_that_was_interrupted_somewhere_is_due_there(cluster):
    plan = sample_plan(services={"jupyterlab": None})
    apply(cluster, plan)
    path = cluster.applied / "id-node-1.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "docker": "begun 1", "firewall": "begun-again 1"}))
    found = due.now(Cluster(cluster, plan, sample_allocation(plan)))
    assert found == {"docker": ["node-1"], "firewall": NODES}, "its rules name all nodes"


def foreseen(cluster, plan, known, anew=(), **damage):
    return due.foreseen(cluster, plan, known, anew=anew, **damage)


@pytest.mark.parametrize(
    ("after", "anew"),
    [
        ({}, ()),
        ({"networks": {"experiment": {"rate": "300 Mbit/s"}}}, ()),
        ({"firewall": {"open": [{"port": 6006}]}}, ()),
        ({"nodes": [{"count": 4}]}, ["node-3"]),
        ({"nodes": [{"count": 2}]}, ()),
        ({"recipe": "cuda12"}, ()),
    ],
)
def test_what_is_foreseen_is_what_will_be_due(cluster, change, after, anew):
    known = sample_allocation(sample_plan(services=SERVICES))
    later = change(**after)
    assert foreseen(cluster, sample_plan(services=SERVICES, **after), known, anew) == later


def test_a_node_that_is_made_again_gets_all_roles(cluster):
    plan = sample_plan()
    apply(cluster, plan)
    found = foreseen(cluster, plan, sample_allocation(plan), ["node-2"])
    assert found["hardware"] == ["node-2"]
    assert found["base"] == NODES


HOSTS = [{"address": f"192.0.2.{n}", "experiment_address": f"10.9.0.{n}"} for n in (1, 2, 3)]


def own(hosts=HOSTS, **options):
    return {"type": "static", "user": "me", "hosts": {"node": hosts}, **options}


OWN = {
    "backend": own(),
    "networks": {"experiment": {"subnet": "10.9.0.0/24", "rate": "1 Gbit/s"}},
    "services": SERVICES,
}


def own_hosts(plan):
    """Return what the static backend grants: what the specification says of the hosts."""
    config, known = plan.spec.backend, sample_allocation(plan)
    nodes = [
        node.model_dump()
        | {
            "control_address": host.address,
            "experiment_address": host.experiment_address and str(host.experiment_address),
            "port": host.port,
            "user": config.user,
            "via": access.hops(config),
        }
        for node, host in zip(known.nodes, config.hosts["node"], strict=True)
    ]
    return Allocation.model_validate(
        {**known.model_dump(), "backend": "static", "one_host": False, "nodes": nodes}
    )


def test_who_logs_in_concerns_all_roles(cluster):
    before, later = sample_plan(**OWN), sample_plan(**{**OWN, "backend": own(user="other")})
    apply(cluster, before, own_hosts(before))
    assert foreseen(cluster, later, own_hosts(before)) == dict.fromkeys(roles.active(later), NODES)


def test_up_shows_and_keeps_what_is_due(capsys):
    display = Display(UI())
    roles_due = due.document({"base": ["node-0"], "docker": ["node-1"]})
    display.handle({"what": "roles", "roles": roles_due})
    assert display.roles == roles_due
    assert "apply    docker on node-1" in capsys.readouterr().err
