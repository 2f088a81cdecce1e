"""What a change lets `up` apply: the roles whose inputs changed, on the nodes concerned."""

import json
import re
import shutil

import pytest

from gpubed.backends.static import access
from gpubed.cli import report
from gpubed.cli.display import Display
from gpubed.cli.ui import UI
from gpubed.configuration import due, roles
from gpubed.core import paths
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Allocation, Failure, Hop
from gpubed.nodes.cluster import Cluster
from gpubed.recipes import recipe
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


def test_what_nodes_may_use_concerns_who_counts_it(change):
    """Processors that a rank may not use are threads that wait for each other."""
    found = change(nodes=[{"count": 3, "machine": {"cpus": 2, "memory": "4 GiB"}}])
    assert found == {"hardware": NODES, "horovod": NODES, "slurm": NODES}


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


def test_another_lock_concerns_whoever_uses_the_environment(change, monkeypatch):
    """The same recipe with other packages: a new environment, in which Horovod is not yet."""
    before = sample_plan(services=SERVICES)
    there = recipe.content

    def locked(name):
        made = there(name)
        return {**made, "lock": {**made["lock"], "sha256": "0" * 64}}

    assert change() == {}
    monkeypatch.setattr(recipe, "content", locked)
    found = due.now(Cluster(change.cluster, before, sample_allocation(before)))
    assert found == dict.fromkeys(["cuda", "python_env", "horovod", "jupyterlab"], NODES)
    assert list(found) == ["cuda", "python_env", "horovod", "jupyterlab"], "in this order"


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (NFS, {"shared": {"provider": "nfs", "server": "node-2"}}),
        (NFS, {"shared": {"provider": "volume"}}),
        ({"shared": {"provider": "volume"}}, NFS),
    ],
    ids=["another server", "a volume instead", "a server instead"],
)
def test_storage_elsewhere_is_filled_anew(change, before, after):
    found = change({"storage": before}, storage=after)
    assert found.keys() >= FILLS
    assert {role: found[role] for role in FILLS} == dict.fromkeys(FILLS, NODES)
    assert not found.keys() & {"base", "scratch", "hardware", "firewall"}


def test_what_the_server_is_told_concerns_the_storage(cluster):
    """Its folder may be another one."""
    plan = sample_plan(services=SERVICES, storage=NFS)
    apply(cluster, plan)
    (cluster.inventory / "host_vars").mkdir(parents=True)
    (cluster.inventory / "host_vars" / "node-1.yml").write_text("nfs_root: /data\n")
    found = due.now(Cluster(cluster, plan, sample_allocation(plan)))
    assert {role: found[role] for role in FILLS} == dict.fromkeys(FILLS, NODES)


def test_a_server_that_the_testbed_could_not_give_is_for_its_role_to_name(cluster):
    plan = sample_plan(storage=NFS)
    granted = sample_allocation(plan)
    left = granted.model_copy(update={"nodes": (granted.nodes[0], granted.nodes[2])})
    assert due.now(Cluster(cluster, plan, left))["nfs"] == ["node-0", "node-2"]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_firewall_that_comes_back_gets_the_openings_of_the_services(change, enabled):
    """They went with it, and each belongs to its service."""
    rdma = {"experiment": {"rate": "200 Mbit/s", "rdma": {}}}
    before = {"firewall": {"enabled": not enabled}, "networks": rdma}
    found = change(before, firewall={"enabled": enabled})
    assert set(found) == {"firewall", "rdma", "jupyterlab", "monitoring", "slurm"}
    assert found == dict.fromkeys(found, NODES)
    without = {**before, "services": {"jupyterlab": None}, "networks": {}}
    assert change(without, firewall={"enabled": enabled}) == {"firewall": NODES}


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


def test_a_head_that_was_made_again_concerns_those_that_read_it(cluster):
    plan = sample_plan()
    granted = sample_allocation(plan)
    apply(cluster, plan, granted)
    head = granted.head.model_copy(update={"id": "another"})
    found = due.now(
        Cluster(cluster, plan, granted.model_copy(update={"nodes": (head, *granted.nodes[1:])}))
    )
    assert found["shared_storage"] == found["python_env"] == NODES
    assert found["hardware"] == ["node-0"]


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


def test_host_vars_of_the_head_concern_those_that_read_it(cluster):
    """All nodes run what the head's interpreter made."""
    plan = sample_plan(services=SERVICES)
    apply(cluster, plan)
    (cluster.inventory / "host_vars").mkdir(parents=True)
    own = cluster.inventory / "host_vars" / "node-0.yml"
    own.write_text("python_env_interpreter: /opt/python/bin/python3\n")
    found = due.now(Cluster(cluster, plan, sample_allocation(plan)))
    assert found["python_env"] == found["shared_storage"] == found["horovod"] == NODES
    assert found["scratch"] == ["node-0"]


@pytest.mark.parametrize("name", ["node-10.yml", "node.yml"])
def test_host_vars_of_others_do_not(cluster, name):
    plan = sample_plan()
    apply(cluster, plan)
    (cluster.inventory / "host_vars").mkdir(parents=True)
    (cluster.inventory / "host_vars" / name).write_text("base_packages_extra: [htop]\n")
    assert due.now(Cluster(cluster, plan, sample_allocation(plan))) == {}


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
        ("firewall/templates/opening.nft.j2", {"firewall", "rdma", *SERVICES}),
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


DECIDE = {"nvidia_driver", "horovod"}


@pytest.mark.parametrize(
    ("file", "concerned"),
    [
        ("src/gpubed/hardware/horovod.py", DECIDE),
        ("playbooks/filter_plugins/gpubed_hardware.py", DECIDE),
        ("src/gpubed/cluster/up.py", set()),
    ],
)
def test_another_version_of_what_decides_for_a_role_concerns_it(
    change, tmp_path, monkeypatch, file, concerned
):
    later = tmp_path / "later"
    for name in ("playbooks", "src/gpubed"):
        shutil.copytree(paths.assets() / name, later / name)
    for name in ("roles", "jobs"):
        (later / name).symlink_to(paths.assets() / name)
    with (later / file).open("a") as code:
        code.write("\n# of another version\n")
    assert change() == {}
    monkeypatch.setattr(roles, "assets", lambda: later)
    monkeypatch.setattr(roles, "_PACKAGE", later / "src/gpubed")
    plan = sample_plan(services=SERVICES)
    assert set(due.now(Cluster(change.cluster, plan, sample_allocation(plan)))) == concerned


def test_roles_that_use_our_filters_say_whose_code_decides():
    filters = paths.assets() / "playbooks/filter_plugins/gpubed_hardware.py"
    ours = re.findall(r'"(gpubed_\w+)":', filters.read_text())
    [package] = set(re.findall(r"gpubed\.(\w+)\.\{module\}", filters.read_text()))
    using = {
        path.relative_to(paths.assets() / "roles").parts[0]
        for path in (paths.assets() / "roles").rglob("*")
        if path.is_file() and path.suffix in {".yml", ".j2"}
        if any(f"| {name}" in path.read_text() for name in ours)
    }
    assert using == DECIDE
    assert {role: roles.meta(role).code for role in using} == dict.fromkeys(using, (package,))


def test_what_an_earlier_version_recorded_is_applied_once(cluster):
    plan = sample_plan()
    granted = sample_allocation(plan)
    earlier = json.dumps(dict.fromkeys(roles.active(plan), "of an earlier version"))
    for node in granted.nodes:
        (cluster.applied / f"{node.id}.json").write_text(earlier)
    assert due.now(Cluster(cluster, plan, granted)) == dict.fromkeys(roles.active(plan), NODES)
    apply(cluster, plan)
    assert due.now(Cluster(cluster, plan, granted)) == {}


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


def test_of_a_cluster_that_is_not_up_everything_is_foreseen(cluster):
    plan = sample_plan()
    assert foreseen(cluster, plan, None, NODES) == dict.fromkeys(roles.active(plan), NODES)


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


def test_a_node_that_the_testbed_could_not_give_gets_none(cluster):
    plan = sample_plan(nodes=[{"count": 3, "min": 2, "on_failure": "leave_out"}])
    granted = sample_allocation(plan)
    failed = (Failure(node="node-2", reason="full"),)
    known = granted.model_copy(update={"nodes": granted.nodes[:2], "failed": failed})
    apply(cluster, plan, known)
    assert foreseen(cluster, plan, known) == {}
    assert foreseen(cluster, plan, known, ["node-2"])["hardware"] == ["node-2"]


HOSTS = [{"address": f"192.0.2.{n}", "experiment_address": f"10.9.0.{n}"} for n in (1, 2, 3)]


def own(hosts=HOSTS, **options):
    return {"type": "static", "user": "me", "hosts": {"node": hosts}, **options}


OWN = {
    "backend": own(),
    "networks": {"experiment": {"subnet": "10.9.0.0/24", "rate": "1 Gbit/s"}},
    "services": SERVICES,
}
GATE = [{"address": "gate.example"}]


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


@pytest.mark.parametrize(
    "after",
    [
        {"backend": own(user="other")},
        {"backend": own([HOSTS[0], {**HOSTS[1], "port": 23}, HOSTS[2]])},
        {"backend": own(bastions=GATE)},
        {"backend": own([{"address": host["address"]} for host in HOSTS]), "networks": {}},
        {"networks": {}},
        {"backend": own(key="~/.ssh/other")},
    ],
    ids=["user", "port", "bastion", "no experiment network", "addresses of no use", "key"],
)
@pytest.mark.parametrize("back", [False, True], ids=["there", "and back"])
def test_what_changes_on_a_host_in_place_is_foreseen(cluster, monkeypatch, after, back):
    hop = Hop(address="gate.example", user="me", host_keys=("ssh-ed25519 GATE",))
    monkeypatch.setattr(access, "hops", lambda config: (hop,) if config.bastions else ())
    before, later = sample_plan(**OWN), sample_plan(**{**OWN, **after})
    before, later = (later, before) if back else (before, later)
    apply(cluster, before, own_hosts(before))
    found = foreseen(cluster, later, own_hosts(before))
    assert found == due.now(Cluster(cluster, later, own_hosts(later)))


def test_who_logs_in_concerns_all_roles(cluster):
    before, later = sample_plan(**OWN), sample_plan(**{**OWN, "backend": own(user="other")})
    apply(cluster, before, own_hosts(before))
    assert foreseen(cluster, later, own_hosts(before)) == dict.fromkeys(roles.active(later), NODES)


def test_a_bastion_whose_key_is_not_known_yet_is_for_those_who_go_through_it(cluster):
    plan = sample_plan(**OWN)
    apply(cluster, plan, own_hosts(plan))
    unknown = own(bastions=GATE, known_hosts=str(cluster.state / "none"))
    later = sample_plan(**{**OWN, "backend": unknown})
    assert foreseen(cluster, later, own_hosts(plan)) == {}


@pytest.mark.parametrize("back", [False, True])
def test_a_cluster_without_its_experiment_network_is_foreseen(cluster, back):
    plans = [sample_plan(), sample_plan(networks={})]
    before, later = reversed(plans) if back else plans
    apply(cluster, before)
    found = foreseen(cluster, later, sample_allocation(before))
    assert found == due.now(Cluster(cluster, later, sample_allocation(later)))
    assert found == dict.fromkeys(roles.active(later), NODES)


@pytest.mark.parametrize("name", NODES)
def test_another_host_key_is_foreseen(cluster, name):
    plan = sample_plan(services=SERVICES)
    known = sample_allocation(plan)
    apply(cluster, plan)
    nodes = tuple(
        node.model_copy(update={"host_keys": ("ssh-ed25519 OTHER",)}) if node.name == name else node
        for node in known.nodes
    )
    later = due.now(Cluster(cluster, plan, known.model_copy(update={"nodes": nodes})))
    assert foreseen(cluster, plan, known, strange=[name]) == later


def test_damage_is_foreseen(cluster):
    plan = sample_plan()
    apply(cluster, plan)
    known = sample_allocation(plan)
    found = foreseen(cluster, plan, known, cut=["node-1"], broken={"jupyterlab": NODES})
    assert found["scratch"] == ["node-1"]
    assert found["jupyterlab"] == NODES
    assert found["base"] == NODES, "it reads all nodes"
    assert foreseen(cluster, plan, known, broken={"docker": ["node-2"]}) == {"docker": ["node-2"]}


def test_roles_of_the_same_nodes_are_told_together():
    found = due.document(
        {"base": ["node-0", "node-1"], "docker": ["node-1"], "scratch": ["node-1"]}
    )
    assert found[0] == {"name": "base", "nodes": ["node-0", "node-1"]}
    assert report.due(found) == [
        "apply    base on node-0, node-1",
        "apply    docker, scratch on node-1",
    ]


def test_up_shows_and_keeps_what_is_due(capsys):
    display = Display(UI())
    roles_due = due.document({"base": ["node-0"], "docker": ["node-1"]})
    display.handle({"what": "roles", "roles": roles_due})
    assert display.roles == roles_due
    assert "apply    docker on node-1" in capsys.readouterr().err
