"""What is looked at before the first create, on a cloud of hand-made answers.

`tests/live/test_openstack.py` asks a real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from openstack import exceptions

from gpubed.backends.openstack import availability, cloud, flavors, limits, lookups, offers
from gpubed.backends.openstack.needs import Needs
from gpubed.core.errors import Refused
from gpubed.spec import clusterspec, plan
from gpubed.testbeds.base import Finding

DATA: dict[str, Any] = {
    "version": 1,
    "name": "cloudy",
    "backend": {
        "type": "openstack",
        "external_network": "public",
        "flavor": "m1.tiny",
        "access_from": ["198.51.100.0/24"],
        "shaping": "none",
    },
    "nodes": [{"count": 3}],
    "networks": {"experiment": {"rate": "1 Gbit/s"}},
}
TINY = SimpleNamespace(name="m1.tiny", vcpus=1, ram=512, disk=10, extra_specs={})
GPU = SimpleNamespace(
    name="g1", vcpus=8, ram=65536, disk=100, extra_specs={"pci_passthrough:alias": "a100:2"}
)
IMAGE = SimpleNamespace(
    id="i", name="debian-12", status="active", min_disk=2, min_ram=256, size=10**9
)


class Unlimited:
    """Limits of block storage that are never reached."""

    max_total_volumes = max_total_volume_gigabytes = -1
    total_volumes_used = total_gigabytes_used = 0


class Qos:
    """Neutron's QoS policies, of which an ordinary user may make some or none."""

    def __init__(self) -> None:
        self.policies: dict[str, Any] = {}
        self.forbidden = ""
        self.made: list[str] = []

    def _make(self, what: str) -> None:
        if what == self.forbidden:
            raise exceptions.ForbiddenException(f"create_{what} is disallowed by policy")
        self.made.append(what)

    def create_qos_policy(self, *, name: str, **_: Any) -> Any:
        self._make("policy")
        policy = SimpleNamespace(id=f"p{len(self.made)}", name=name)
        self.policies[policy.id] = policy
        return policy

    def create_qos_bandwidth_limit_rule(self, policy: Any, **_: Any) -> None:
        assert policy.id in self.policies
        self._make("rule")

    def qos_policies(self, *, name: str, project_id: str) -> list[Any]:
        return [policy for policy in self.policies.values() if policy.name == name]

    def delete_qos_policy(self, policy: Any) -> None:
        del self.policies[policy.id]


class Cloud:
    """A connection whose project has used half of a small quota."""

    current_project_id = "p"

    def __init__(self) -> None:
        self.limits = dict.fromkeys(
            ("instances", "total_cores", "total_ram", "keypairs", "server_groups"), 10
        ) | {"total_ram": 8192, "server_group_members": 10}
        self.used = {"instances_used": 5, "total_cores_used": 5, "total_ram_used": 2560}
        self.network_quota = {"ports": (20, 5), "floating_ips": (2, 0), "networks": (5, 1)}
        self.flavors = {flavor.name: flavor for flavor in (TINY, GPU)}
        self.found_images = [IMAGE]
        self.extensions: set[str] = set()
        self.qos = Qos()
        self.roles = ["member"]
        self.session = SimpleNamespace(
            auth=SimpleNamespace(get_access=lambda _: SimpleNamespace(role_names=self.roles))
        )
        self.servers: list[Any] = []
        self.block_storage: Any = None
        self.compute = SimpleNamespace(
            find_flavor=lambda name, **_: self.flavors.get(name),
            flavors=lambda **_: list(self.flavors.values()),
            servers=lambda **_: self.servers,
            get_limits=lambda: SimpleNamespace(
                absolute=SimpleNamespace(**self.limits, **self.used)
            ),
            availability_zones=lambda: [SimpleNamespace(name="nova", state={"available": True})],
        )
        self.image = SimpleNamespace(
            images=lambda name=None: [i for i in self.found_images if name in (None, i.name)],
            find_image=lambda id_: next((i for i in self.found_images if i.id == id_), None),
        )
        self.network = SimpleNamespace(
            networks=self._networks,
            find_extension=lambda name: name if name in self.extensions else None,
            get_quota=lambda *_, **__: self._quota(),
            qos_policies=self.qos.qos_policies,
            create_qos_policy=self.qos.create_qos_policy,
            create_qos_bandwidth_limit_rule=self.qos.create_qos_bandwidth_limit_rule,
            delete_qos_policy=self.qos.delete_qos_policy,
        )

    def has_service(self, name: str) -> bool:
        return name in self.extensions

    def _networks(self, name: str | None = None, **_: Any) -> Iterable[Any]:
        return [SimpleNamespace(id="n", name="public")] if name in (None, "public") else []

    def _quota(self) -> Any:
        names = ("ports", "networks", "subnets", "routers", "floating_ips")
        names = (*names, "security_groups", "security_group_rules")
        answer: dict[str, Any] = dict.fromkeys(names)
        for name, (limit, used) in self.network_quota.items():
            answer[name] = {"limit": limit, "used": used, "reserved": 0}
        return SimpleNamespace(**answer)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud()
    monkeypatch.setattr(cloud, "connect", lambda *_: made)
    return made


def needs(nodes: list[dict[str, Any]] | None = None, **backend: Any) -> Needs:
    data = {**DATA, "nodes": nodes or DATA["nodes"], "backend": {**DATA["backend"], **backend}}
    return Needs.of(plan.plan(clusterspec.model().model_validate(data)))


def failed(there: Any, wanted: Needs, held: Needs | None = None) -> list[Finding]:
    found = availability.findings(there, wanted, held)
    assert all(finding.ok == (finding.fix is None) for finding in found)
    return [finding for finding in found if not finding.ok]


def test_a_cloud_that_has_everything(there: Cloud) -> None:
    assert failed(there, needs()) == []


@pytest.mark.parametrize(
    ("nodes", "backend", "words"),
    [
        (None, {"flavor": "m2"}, "no flavor 'm2'; there are: g1, m1.tiny"),
        (None, {"external_network": "ext"}, "no external network 'ext'; there are: public"),
        (None, {"images": {"debian-12": "d"}}, "no image 'd'; there are: debian-12"),
        (None, {"availability_zone": "az9"}, "no availability zone 'az9'; there are: nova"),
        (None, {"shaping": "qos"}, "cannot hold links to a rate"),
        (None, {"data_volumes": ["1 GiB"]}, "no block storage service"),
        (None, {"boot_volume": "1 GiB"}, "no block storage service"),
        ([{"count": 1, "gpus": 4}], {"flavor": "g1"}, "4 GPU(s) per node are wanted, flavor g1"),
        ([{"count": 6}], {}, "6 more server(s) are wanted, and 5 of 10 are left"),
        ([{"count": 1}], {"flavor": "g1"}, "65536 more MiB of memory are wanted"),
    ],
)
def test_the_true_reason_is_named(
    there: Cloud, nodes: list[dict[str, Any]] | None, backend: dict[str, Any], words: str
) -> None:
    found = failed(there, needs(nodes, **backend))
    assert words in "\n".join(finding.message for finding in found)


def test_an_image_that_does_not_fit_is_named(there: Cloud) -> None:
    there.found_images = [SimpleNamespace(**{**vars(IMAGE), "min_disk": 20})]
    assert "needs 20 GiB of disk, flavor m1.tiny has 10" in failed(there, needs())[0].message
    there.found_images = [SimpleNamespace(**{**vars(IMAGE), "min_ram": 1024})]
    assert "needs 1024 MiB, flavor m1.tiny has 512" in failed(there, needs())[0].message


def test_a_flavor_without_a_disk_needs_a_volume(there: Cloud) -> None:
    """Nova lets administrators alone boot an image on such a flavor."""
    there.flavors["m1.tiny"] = SimpleNamespace(**{**vars(TINY), "disk": 0})
    there.extensions = {"block-storage"}
    (found,) = failed(there, needs())
    assert "flavor m1.tiny has no disk" in found.message
    assert "boot_volume" in str(found.fix)
    assert failed(there, needs([{"count": 4}]), needs()) == [], "such nodes run already"
    there.roles = ["admin"]
    assert failed(there, needs()) == []


def test_two_images_of_one_name_are_no_answer(there: Cloud) -> None:
    there.found_images = [IMAGE, SimpleNamespace(**{**vars(IMAGE), "id": "j"})]
    assert failed(there, needs())[0].message == "2 images are named 'debian-12': i, j"


def test_an_image_may_be_named_by_its_id(there: Cloud) -> None:
    id_ = "6f0c0000-0000-4000-8000-000000000000"
    renewed = SimpleNamespace(**{**vars(IMAGE), "id": id_})
    there.found_images = [IMAGE, renewed]
    (found,) = failed(there, needs())
    assert "its id under backend.images" in str(found.fix)
    assert failed(there, needs(images={"debian-12": id_})) == []
    inputs = {"cloud": None, "region": None, "name": id_}
    assert lookups.ImageDriver().create(inputs) == (id_, {"id": id_})
    renewed.status = "deactivated"
    assert failed(there, needs(images={"debian-12": id_}))


def test_a_flavor_has_no_other_name_than_its_own(there: Cloud) -> None:
    """The plugin looks for it by its name."""
    there.flavors["42"] = TINY
    assert "no flavor '42'" in failed(there, needs(flavor="42"))[0].message


def test_a_flavor_can_be_named_by_its_uuid(there: Cloud) -> None:
    id_ = "6f0c0000-0000-4000-8000-000000000000"
    there.flavors[id_] = TINY
    assert failed(there, needs(flavor=id_)) == []


@pytest.mark.parametrize(
    ("quota", "words"),
    [({"floating_ips": (1, 1)}, "floating address"), ({"ports": (9, 5)}, "7 more port(s)")],
)
def test_networks_have_a_quota_too(there: Cloud, quota: dict[str, Any], words: str) -> None:
    there.network_quota |= quota
    assert words in failed(there, needs())[0].message


def test_what_has_no_limit_does_not_limit(there: Cloud) -> None:
    there.limits = dict.fromkeys(there.limits, -1)
    assert failed(there, needs([{"count": 7}])) == []


def test_a_server_group_takes_ten_servers_whatever_the_quota(there: Cloud) -> None:
    there.limits |= {"instances": 100, "total_cores": 100, "total_ram": 10**6}
    there.network_quota["ports"] = (1000, 0)
    (short,) = failed(there, needs([{"count": 11}]))
    assert "server group" in short.message
    assert short.fix is not None
    assert "anti_affinity: none" in short.fix
    assert failed(there, needs([{"count": 11}], anti_affinity="none")) == []


def test_only_what_comes_in_addition_counts(there: Cloud) -> None:
    there.used |= {"instances_used": 9}
    assert "3 more server(s)" in failed(there, needs())[0].message
    assert failed(there, needs([{"count": 4}]), needs()) == []
    assert "2 more server(s)" in failed(there, needs([{"count": 5}]), needs())[0].message
    assert failed(there, needs([{"count": 1}]), needs()) == []


def test_servers_of_the_cluster_that_are_there_are_not_asked_for_again(there: Cloud) -> None:
    metadata = {"gpubed.cluster": "u", "gpubed.name": "cloudy", "gpubed.group": "node"}
    other, theirs = {**metadata, "gpubed.name": "other"}, {**metadata, "gpubed.cluster": "v"}
    found = (metadata, metadata, other, theirs, {})
    there.servers = [SimpleNamespace(metadata=m) for m in found]
    held = availability.held(there, needs(), "cloudy", "u")  # type: ignore[arg-type]
    assert held is not None
    assert held.nodes == 2
    for cluster, uuid in (("nobody", "u"), ("cloudy", "w"), ("cloudy", None)):
        assert availability.held(there, needs(), cluster, uuid) is None  # type: ignore[arg-type]


def test_servers_of_another_cluster_of_the_name_make_no_room_for_ours(there: Cloud) -> None:
    metadata = {"gpubed.cluster": "v", "gpubed.name": "cloudy", "gpubed.group": "node"}
    there.servers = [SimpleNamespace(metadata=metadata) for _ in range(3)]
    there.used |= {"instances_used": 9}
    wanted = plan.plan(clusterspec.model().model_validate(DATA))
    messages = [found.message for found in offers.obstacles(wanted, "u", needs())]
    assert messages == ["quota: 3 more server(s) are wanted, and 1 of 10 are left"]


def test_volumes_that_grow_count(there: Cloud) -> None:
    """No volume more, and yet more of the quota."""
    limits_ = SimpleNamespace(**{name: getattr(Unlimited, name) for name in vars(Unlimited)})
    limits_.max_total_volume_gigabytes, limits_.total_gigabytes_used = 100, 90
    there.block_storage = SimpleNamespace(get_limits=lambda: SimpleNamespace(absolute=limits_))
    there.extensions = {"block-storage"}
    small, large = needs(data_volumes=["10 GiB"]), needs(data_volumes=["20 GiB"])
    assert failed(there, small, small) == []
    (short,) = failed(there, large, small)
    assert "30 more GiB of volumes are wanted, and 10 of 100 are left" in short.message


def test_what_servers_that_are_there_were_made_with_is_not_what_they_shall_be(there: Cloud) -> None:
    metadata = {"gpubed.cluster": "u", "gpubed.name": "cloudy", "gpubed.group": "node"}
    there.servers = [SimpleNamespace(metadata=metadata) for _ in range(3)]
    there.used |= {"total_cores_used": 9}
    larger = {**DATA, "backend": {**DATA["backend"], "flavor": "g1"}}
    wanted = plan.plan(clusterspec.model().model_validate(larger))
    messages = [found.message for found in offers.obstacles(wanted, "u", needs())]
    assert "quota: 21 more CPU(s) are wanted, and 1 of 10 are left" in messages


class TestQos:
    """Neutron's default lets administrators alone make QoS policies."""

    def wanted(self) -> Needs:
        return needs(shaping="qos")

    def test_who_may_make_policies_leaves_none(self, there: Cloud) -> None:
        there.extensions = {"qos"}
        assert failed(there, self.wanted()) == []
        assert there.qos.policies == {}
        assert there.qos.made == ["policy", "rule"]

    @pytest.mark.parametrize("forbidden", ["policy", "rule"])
    def test_who_may_not_is_told_what_helps(self, there: Cloud, forbidden: str) -> None:
        there.extensions, there.qos.forbidden = {"qos"}, forbidden
        (found,) = failed(there, self.wanted())
        assert "only its operators make QoS policies" in found.message
        assert "shaping: none" in str(found.fix)
        assert there.qos.policies == {}

    def test_what_a_killed_run_left_goes(self, there: Cloud) -> None:
        there.extensions = {"qos"}
        there.qos.create_qos_policy(name="gpubed-probe")
        assert failed(there, self.wanted()) == []
        assert there.qos.policies == {}

    def test_a_cluster_that_has_its_policy_is_not_judged_again(self, there: Cloud) -> None:
        there.extensions, there.qos.forbidden = {"qos"}, "policy"
        assert failed(there, self.wanted(), self.wanted()) == []


class TestRetiredImages:
    """A pinned image stays what nodes are made of, also once the cloud has it no more."""

    def found(self, there: Cloud, wanted: Needs, before: Needs) -> list[Finding]:
        metadata = {"gpubed.cluster": "u", "gpubed.name": "cloudy", "gpubed.group": "node"}
        image = SimpleNamespace(id="old")
        there.servers = [SimpleNamespace(metadata=metadata, image=image) for _ in range(3)]
        other = {**metadata, "gpubed.cluster": "v"}
        there.servers.append(SimpleNamespace(metadata=other, image=SimpleNamespace(id="theirs")))
        at: Any = there
        return availability.retired(at, wanted, before, "cloudy", "u")

    def test_growth_is_refused_and_says_what_the_way_out_costs(self, there: Cloud) -> None:
        (found,) = self.found(there, needs([{"count": 4}]), needs())
        assert "image debian-12 (old)" in found.message
        assert "replaces all nodes" in str(found.fix)

    @pytest.mark.parametrize("count", [3, 2])
    def test_who_wants_no_more_nodes_is_left_alone(self, there: Cloud, count: int) -> None:
        assert self.found(there, needs([{"count": count}]), needs()) == []

    def test_another_name_is_looked_up_anew(self, there: Cloud) -> None:
        other = needs([{"count": 4}], images={"debian-12": "new"})
        assert self.found(there, other, needs()) == []

    def test_one_that_is_there_is_no_obstacle(self, there: Cloud) -> None:
        there.found_images.append(SimpleNamespace(**{**vars(IMAGE), "id": "old"}))
        assert self.found(there, needs([{"count": 4}]), needs()) == []


class TestCapacity:
    def test_nothing_is_made_when_something_is_missing(self, there: Cloud) -> None:
        inputs = needs(flavor="m2").model_dump(mode="json")
        with pytest.raises(Refused, match="no flavor 'm2'"):
            lookups.CapacityDriver().create(inputs)

    def test_inputs_survive_pulumi(self, there: Cloud) -> None:
        """Pulumi knows no integers, and leaves out what is None."""

        def through(value: Any) -> Any:
            if isinstance(value, dict):
                return {k: through(v) for k, v in value.items() if v is not None}
            if isinstance(value, list | tuple):
                return [through(item) for item in value]
            return float(value) if type(value) is int else value

        wanted = needs(boot_volume="40 GiB", data_volumes=["1 TiB"])
        assert Needs.model_validate(through(wanted.model_dump(mode="json"))) == wanted

    def test_more_nodes_are_an_update_and_another_cloud_is_a_replacement(self) -> None:
        driver, old = lookups.CapacityDriver(), needs().model_dump(mode="json")
        grown = needs([{"count": 4}]).model_dump(mode="json")
        assert driver.diff({}, old, old).update == []
        assert list(driver.diff({}, old, grown).replace) == []
        assert "groups" in driver.diff({}, old, grown).update
        assert driver.diff({}, old, {**old, "cloud": "other"}).replace == ["cloud"]


class TestDataVolumes:
    @pytest.mark.parametrize(
        ("before", "after", "right"),
        [
            (["1 GiB"], ["2 GiB"], True),
            (["1 GiB"], ["1 GiB", "1 GiB"], True),
            (["1 GiB", "2 GiB"], ["1 GiB"], True),
            (["1 GiB", "2 GiB"], [], True),
            (["2 GiB"], ["1 GiB"], False),
            (["1 GiB", "2 GiB"], ["2 GiB"], False),
        ],
    )
    def test_they_grow_and_change_no_places(
        self, there: Cloud, before: list[str], after: list[str], right: bool
    ) -> None:
        old, new = needs(data_volumes=before), needs(data_volumes=after)
        assert (limits.shrunk(old, new) == []) == right
        there.extensions = {"block-storage"}
        there.block_storage = SimpleNamespace(
            get_limits=lambda: SimpleNamespace(absolute=Unlimited())
        )
        driver = lookups.CapacityDriver()
        inputs = [wanted.model_dump(mode="json") for wanted in (old, new)]
        if right:
            assert driver.update("capacity", *inputs) == {}
        else:
            with pytest.raises(Refused, match="none can become smaller"):
                driver.update("capacity", *inputs)


class TestLookups:
    def test_an_id_is_pinned_until_another_name_is_asked_for(self, there: Cloud) -> None:
        driver = lookups.ImageDriver()
        inputs = {"cloud": None, "region": None, "name": "debian-12"}
        assert driver.create(inputs) == ("i", {"id": "i"})
        there.found_images = []
        assert driver.read("i", inputs) == {"id": "i"}
        assert driver.diff({"id": "i"}, inputs, dict(inputs)).replace == []
        assert driver.diff({"id": "i"}, inputs, {**inputs, "name": "x"}).replace == ["name"]
        with pytest.raises(Refused, match="no image"):
            driver.create(inputs)


@pytest.mark.parametrize(
    ("specs", "count", "model"),
    [
        ({"pci_passthrough:alias": "a100:2"}, 2, "a100"),
        ({"pci_passthrough:alias": "a100:1, v100:3"}, 4, "a100, v100"),
        ({"resources:VGPU": "1"}, 1, "VGPU"),
        ({"resources:CUSTOM_GPU_H100": "8", "resources:MEMORY_MB": "1024"}, 8, "CUSTOM_GPU_H100"),
        ({"resources:CUSTOM_NVIDIA_A100": "2"}, 2, "CUSTOM_NVIDIA_A100"),
        ({"resources:CUSTOM_H100_80GB": "2", "resources:VCPU": "0"}, 2, "CUSTOM_H100_80GB"),
        ({"resources1:VGPU": "1", "resources_B:VGPU": "1"}, 2, "VGPU, VGPU"),
        ({"pci_passthrough:alias": "nvidia-t4:1"}, 1, "nvidia-t4"),
    ],
)
def test_gpus_are_read_from_extra_specs(specs: dict[str, str], count: int, model: str) -> None:
    assert flavors.gpus(specs) == flavors.Gpus(count, model)


@pytest.mark.parametrize(
    "specs",
    [
        {"pci_passthrough:alias": "mlx5:1"},
        {"pci_passthrough:alias": "a100:1, accel:1"},
        {"pci_passthrough:alias": "fpga100:1"},
        {"resources:CUSTOM_BAREMETAL": "1"},
    ],
)
def test_a_name_that_says_nothing_may_be_anything(there: Cloud, specs: dict[str, str]) -> None:
    assert flavors.gpus(specs) is None
    there.flavors["m1.tiny"] = SimpleNamespace(**{**vars(TINY), "extra_specs": specs})
    assert failed(there, needs([{"count": 1, "gpus": 4}])) == []


def test_a_flavor_that_tells_of_no_gpus_is_not_judged(there: Cloud) -> None:
    assert flavors.gpus({"hw:cpu_policy": "dedicated"}) is None
    assert failed(there, needs([{"count": 1, "gpus": 1}])) == []


def test_offers_are_flavors_and_what_the_quota_has_room_for(there: Cloud) -> None:
    wanted = clusterspec.model().model_validate(DATA)
    gpu, tiny = offers.offers(wanted)
    assert (tiny.name, tiny.total, tiny.free) == ("m1.tiny", 10, 5)
    assert (gpu.name, gpu.free, gpu.gpus, gpu.gpu_model) == ("g1", 0, 2, "a100")


def test_a_plan_says_why_it_does_not_fit(there: Cloud) -> None:
    there.used |= {"instances_used": 9}
    (found,) = offers.obstacles(plan.plan(clusterspec.model().model_validate(DATA)), None, None)
    assert found.message == "quota: 3 more server(s) are wanted, and 1 of 10 are left"
