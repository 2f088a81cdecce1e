"""What is looked at before the first create, on a cloud of hand-made answers.

`tests/live/test_openstack.py` asks a real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from openstack import exceptions

from gpubed.backends.openstack import capacity, cloud
from gpubed.backends.openstack.capacity import Needs
from gpubed.core import record
from gpubed.core.errors import Refused
from gpubed.core.paths import Project
from gpubed.spec import clusterspec, plan
from gpubed.testbeds import registry
from gpubed.testbeds.base import Finding
from support.known import apply

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
UUID = "aaaaaaaa-0000-4000-8000-000000000000"
TINY = SimpleNamespace(name="m1.tiny", vcpus=1, ram=512, disk=10, extra_specs={})
GPU = SimpleNamespace(
    name="g1", vcpus=8, ram=65536, disk=100, extra_specs={"pci_passthrough:alias": "a100:2"}
)
IMAGE = SimpleNamespace(
    id="i", name="debian-12", status="active", min_disk=2, min_ram=256, size=10**9
)


class Cloud:
    """A connection whose project has used half of a small quota."""

    current_project_id = "p"
    config = SimpleNamespace(region_name="")

    def __init__(self) -> None:
        self.limits = dict.fromkeys(
            ("instances", "total_cores", "total_ram", "keypairs", "server_groups"), 10
        ) | {"total_ram": 8192, "server_group_members": 10}
        self.used = {"instances_used": 5, "total_cores_used": 5, "total_ram_used": 2560}
        self.network_quota = {"ports": (20, 5), "floating_ips": (2, 0), "networks": (5, 1)}
        self.flavors = {flavor.name: flavor for flavor in (TINY, GPU)}
        self.found_images = [IMAGE]
        self.extensions: set[str] = set()
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
    found = capacity.findings(there, wanted, held)
    assert all(finding.ok == (finding.fix is None) for finding in found)
    return [finding for finding in found if not finding.ok]


def test_a_cloud_that_has_everything(there: Cloud) -> None:
    assert failed(there, needs()) == []
    there.limits = dict.fromkeys(there.limits, -1)  # no limit
    assert failed(there, needs([{"count": 7}])) == []


@pytest.mark.parametrize(
    ("nodes", "backend", "words"),
    [
        (None, {"flavor": "m2"}, "no flavor 'm2'; there are: g1, m1.tiny"),
        (None, {"external_network": "ext"}, "no external network 'ext'; there are: public"),
        (None, {"images": {"debian-12": "d"}}, "no image 'd'; there are: debian-12"),
        (None, {"availability_zone": "az9"}, "no availability zone 'az9'; there are: nova"),
        (None, {"shaping": "qos"}, "cannot hold links to a rate"),
        (None, {"data_volumes": ["1 GiB"]}, "no block storage service"),
        ([{"count": 1, "gpus": 4}], {"flavor": "g1"}, "4 GPU(s) per node are wanted, flavor g1"),
        ([{"count": 6}], {}, "6 more server(s) are wanted, and 5 of 10 are left"),
        ([{"count": 1}], {"flavor": "g1"}, "65536 more MiB of memory are wanted"),
        ([{"count": 8}], {}, "17 more port(s) are wanted, and 15 of 20 are left"),
        ([{"count": 11}], {}, "11 more server(s) in one server group"),
    ],
)
def test_the_true_reason_is_named(
    there: Cloud, nodes: list[dict[str, Any]] | None, backend: dict[str, Any], words: str
) -> None:
    found = failed(there, needs(nodes, **backend))
    assert words in "\n".join(finding.message for finding in found)


def refused(*_: Any, **__: Any) -> Any:
    raise exceptions.NotFoundException("no such endpoint")


def test_an_api_that_tells_no_limits_is_no_error(there: Cloud) -> None:
    there.compute.get_limits = there.network.get_quota = refused
    assert failed(there, needs([{"count": 400}])) == []
    *_, quota = capacity.findings(there, needs([{"count": 400}]))
    assert quota.message == "quota: 400 more server(s) may fit: this cloud names no limit for them"
    assert [offer.free for offer in capacity.offers(clusterspec.model().model_validate(DATA))] == [
        None
    ] * 2


def test_a_boot_volume_is_novas_where_no_block_storage_is_shown(there: Cloud) -> None:
    found = capacity.findings(there, needs(boot_volume="1 GiB"))
    assert all(finding.ok for finding in found)
    assert "no block storage service: whether boot_volume works" in str(found)


def test_what_exists_is_not_asked_for(there: Cloud) -> None:
    own = {"control": {"network": "lab"}, "experiment": {"network": "fabric"}, "floating_ip": False}
    wanted = needs(**own, key_pair="mine", server_group="spread")
    counted = wanted.counted({"m1.tiny": TINY})
    assert (counted["ports"], counted["instances"], wanted.members) == (6, 3, 0)
    for name in ("networks", "subnets", "routers", "floating_ips", "keypairs", "server_groups"):
        assert counted[name] == 0, name
    joined = needs(router="out", floating_ip="203.0.113.7").counted({"m1.tiny": TINY})
    assert [joined[name] for name in ("networks", "routers", "floating_ips", "ports")] == [
        *(2, 0, 0, 7)
    ]


def test_a_flavor_of_bare_metal_is_not_refused(there: Cloud) -> None:
    """By Ironic's guide: the standard resources are zero, and one custom class is the machine."""
    specs = dict.fromkeys(("resources:VCPU", "resources:MEMORY_MB", "resources:DISK_GB"), "0")
    specs |= {"resources:CUSTOM_BAREMETAL_GPU_A100": "1", "trait:CUSTOM_A100": "required"}
    bare = {"name": "bm", "vcpus": 0, "ram": 0, "disk": 0, "extra_specs": specs}
    there.flavors["bm"] = SimpleNamespace(**bare)
    own = {"flavor": "bm", "anti_affinity": "none"}
    assert failed(there, needs([{"count": 5, "gpus": 4}], **own)) == []
    offer = next(
        o for o in capacity.offers(clusterspec.model().model_validate(DATA)) if o.name == "bm"
    )
    assert (offer.free, offer.gpus) == (5, None)


def test_ids_name_images_and_flavors(there: Cloud) -> None:
    """An image may share its name; the plugin knows flavors by names and UUIDs alone."""
    id_ = "6f0c0000-0000-4000-8000-000000000000"
    there.found_images = [IMAGE, SimpleNamespace(**{**vars(IMAGE), "id": id_})]
    (found,) = failed(there, needs())
    assert found.message == f"2 images are named 'debian-12': i, {id_}"
    assert "its id under backend.images" in str(found.fix)
    assert failed(there, needs(images={"debian-12": id_})) == []
    there.flavors |= {id_: TINY, "42": TINY}
    assert failed(there, needs(flavor=id_, images={"debian-12": id_})) == []
    assert "no flavor '42'" in failed(there, needs(flavor="42"))[0].message


def test_only_what_comes_in_addition_counts(there: Cloud) -> None:
    there.used |= {"instances_used": 9}
    assert "3 more server(s)" in failed(there, needs())[0].message
    assert failed(there, needs([{"count": 4}]), needs()) == []
    assert "2 more server(s)" in failed(there, needs([{"count": 5}]), needs())[0].message
    assert failed(there, needs([{"count": 1}]), needs()) == []


class TestFits:
    """Whether a cluster fits beside the servers that the project has, some of them its own."""

    @pytest.fixture
    def lacking(self, there: Cloud, tmp_path: Path) -> Any:
        cluster = Project(tmp_path).cluster("cloudy")
        record.keep_uuid(cluster, UUID)

        def lacking(uuid: str = UUID, **backend: Any) -> list[str]:
            metadata = {"gpubed.cluster": uuid, "gpubed.name": "cloudy", "gpubed.group": "node"}
            theirs = {**metadata, "gpubed.name": "other"}
            there.servers = [SimpleNamespace(metadata=m) for m in (*[metadata] * 3, theirs)]
            data = {**DATA, "backend": {**DATA["backend"], **backend}}
            wanted = plan.plan(clusterspec.model().model_validate(data))
            testbed = registry.bound("openstack", cluster)
            return [found.message for found in testbed.fits(wanted)]

        cluster.spec.parent.mkdir(parents=True)
        cluster.spec.write_text(yaml.safe_dump({k: v for k, v in DATA.items() if k != "name"}))
        apply(cluster, "openstack")
        return lacking

    def test_its_own_servers_are_not_asked_for_again(self, there: Cloud, lacking: Any) -> None:
        there.used |= {"instances_used": 9}
        assert lacking() == []
        other = UUID.replace("a", "b")
        short = ["quota: 3 more server(s) are wanted, and 1 of 10 are left"]
        assert lacking(other) == short, "another cluster of the name makes no room"


class TestCapacity:
    def test_nothing_is_made_when_something_is_missing(self, there: Cloud) -> None:
        inputs = needs(flavor="m2").model_dump(mode="json")
        with pytest.raises(Refused, match="no flavor 'm2'"):
            capacity.CapacityDriver().create(inputs)

    def test_more_nodes_are_an_update_and_another_cloud_is_a_replacement(self) -> None:
        driver, old = capacity.CapacityDriver(), needs().model_dump(mode="json")
        grown = needs([{"count": 4}]).model_dump(mode="json")
        assert driver.diff({}, old, old).update == []
        assert list(driver.diff({}, old, grown).replace) == []
        assert "groups" in driver.diff({}, old, grown).update
        assert driver.diff({}, old, {**old, "cloud": "other"}).replace == ["cloud"]

    def test_a_state_of_before_existing_networks_is_read(self, there: Cloud) -> None:
        now = needs(data_volumes=["1 GiB"])
        there.extensions.add("block-storage")
        there.block_storage = SimpleNamespace(get_limits=refused)
        old = now.model_dump(mode="json")
        for name in ("floating_ip", "router", "control", "experiment", "bastions"):
            del old[name]
        for group in old["groups"]:
            group["server"] = {"flavor": "m1.tiny", "data_volumes": [2**30]}
        assert capacity.CapacityDriver().update("capacity", old, now.model_dump(mode="json")) == {}

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
    def test_data_volumes_grow_and_change_no_places(
        self, before: list[str], after: list[str], right: bool
    ) -> None:
        old, new = needs(data_volumes=before), needs(data_volumes=after)
        assert (capacity.shrunk(old, new) == []) == right
        if not right:
            inputs = [wanted.model_dump(mode="json") for wanted in (old, new)]
            with pytest.raises(Refused, match="none can become smaller"):
                capacity.CapacityDriver().update("capacity", *inputs)


def test_an_id_is_pinned_until_another_name_is_asked_for(there: Cloud) -> None:
    driver = capacity.LookupDriver("image")
    inputs = {"cloud": None, "region": None, "name": "debian-12"}
    assert driver.create(inputs) == ("i", {"id": "i"})
    there.found_images = []
    assert driver.read("i", inputs) == {"id": "i"}
    assert driver.diff({"id": "i"}, inputs, dict(inputs)).replace == []
    assert driver.diff({"id": "i"}, inputs, {**inputs, "name": "x"}).replace == ["name"]
    with pytest.raises(Refused, match="no image"):
        driver.create(inputs)


@pytest.mark.parametrize(
    ("specs", "known"),
    [
        ({"pci_passthrough:alias": "a100:2"}, (2, "a100")),
        ({"pci_passthrough:alias": "a100:1, v100:3"}, (4, "a100, v100")),
        ({"resources:CUSTOM_GPU_H100": "8", "resources:MEMORY_MB": "1024"}, (8, "CUSTOM_GPU_H100")),
        ({"resources:CUSTOM_H100_80GB": "2", "resources:VCPU": "0"}, (2, "CUSTOM_H100_80GB")),
        ({"resources1:VGPU": "1", "resources_B:VGPU": "1"}, (2, "VGPU, VGPU")),
        ({"pci_passthrough:alias": "nvidia-t4:1"}, (1, "nvidia-t4")),
        # A name that says nothing may be anything, so that the flavor is not judged.
        ({"pci_passthrough:alias": "mlx5:1"}, None),
        ({"pci_passthrough:alias": "a100:1, accel:1"}, None),
        ({"pci_passthrough:alias": "fpga100:1"}, None),
        ({"resources:CUSTOM_BAREMETAL": "1"}, None),
        ({"hw:cpu_policy": "dedicated"}, None),
    ],
)
def test_gpus_are_read_from_extra_specs(there: Cloud, specs: dict[str, str], known: Any) -> None:
    assert capacity.gpus(specs) == known
    if known is None:
        there.flavors["m1.tiny"] = SimpleNamespace(**{**vars(TINY), "extra_specs": specs})
        assert failed(there, needs([{"count": 1, "gpus": 4}])) == []


def test_offers_are_flavors_and_what_the_quota_has_room_for(there: Cloud) -> None:
    gpu, tiny = capacity.offers(clusterspec.model().model_validate(DATA))
    assert (tiny.name, tiny.total, tiny.free) == ("m1.tiny", 10, 5)
    assert (gpu.name, gpu.free, gpu.gpus, gpu.gpu_model) == ("g1", 0, 2, "a100")
