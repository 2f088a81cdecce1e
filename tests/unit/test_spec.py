"""The specification: every error at once, each with its line and a way out."""

import json
from pathlib import Path

import pytest

from gpubed.spec import schema
from gpubed.testbeds import specification
from support.specs import BACKENDS

GOOD = """\
version: 1
backend: {type: local}
nodes:
  - {name: node, count: 3}
networks:
  experiment: {rate: 200 Mbit/s}
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="lab"):
        path = tmp_path / name / "cluster.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_right_specification_has_no_errors(write):
    found, errors = specification.check(write(GOOD))
    assert errors == []
    assert found.name == "lab"
    assert found.networks.experiment.rate_bps == 200_000_000


def test_all_errors_are_found_at_once_in_the_order_of_their_lines(write):
    text = """\
version: 2
backend: {type: local, runtmie: container}
nodes:
  - {name: Node_, count: 0}
  - {name: b, count: 2, min: 4}
netwroks: {}
networks: {experiment: {rate: fast}}
recipe: cqu
"""
    found, errors = specification.check(write(text))
    assert found is None
    assert [(error.line, error.path) for error in errors] == [
        (1, "version"),
        (2, "backend.runtmie"),
        (4, "nodes.0.count"),
        (4, "nodes.0.name"),
        (5, "nodes.1"),
        (6, "netwroks"),
        (7, "networks.experiment.rate"),
        (8, "recipe"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (GOOD.replace("count: 3", "cuont: 3"), 4, "did you mean 'count'?"),
        (GOOD.replace("type: local", "type: locla"), 2, "local"),
        (GOOD.replace("nodes:", "node:"), 1, "is missing"),
        (GOOD + "firewall:\n  open:\n    - {port: 70000}\n", 9, "65535"),
        (GOOD + "firewall:\n  open:\n    - {port: 80, source: 10.0.0.1/8}\n", 9, "host bits"),
        (GOOD + "lease: {duration: 9999999 d, on_nodes: {}}\n", 7, "must be at most 3650 d"),
        (GOOD + "name: other\n", 7, "folder is named 'lab'"),
        (GOOD.replace("3}", "3}\n  - {name: node, count: 1}"), 3, "two node groups"),
        (GOOD + "recipe: cuda\n", 7, "cuda1"),
        (GOOD.replace("3}", "3, gpus: 2}") + "recipe: cpu\n", 7, "allowed: cuda12, cuda13"),
        ("- a\n- b\n", 1, "mapping"),
        ("", 1, "mapping"),
    ],
)
def test_an_error_names_line_and_way_out(write, text, line, says):
    _, errors = specification.check(write(text))
    assert any(e.line == line and says in f"{e.message} {e.allowed}" for e in errors), errors


@pytest.mark.parametrize(
    ("raw", "line", "says"),
    [
        (b"version: 1\nnodes: [\n", 3, "opened and not closed"),
        (b"version: 1\nversion: 1\n", 2, "twice"),
        (b"a: \xff\n", 1, "UTF-8"),
        (b"version: 1\nowner: \x00\n", 2, "not allowed"),
        (
            b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + b"".join(
                b"%c: &%c [%s]\n" % (n + 1, n + 1, b",".join([b"*%c" % n] * 10))
                for n in range(ord("a"), ord("g"))
            ),
            1,
            "aliases",
        ),
        (b"a: " + b"[" * 2000 + b"]" * 2000, 1, "deep"),
        (b"<<: {a: 1}\n", 1, "plain word"),
        (b"? [a, b]\n: 1\n", 1, "plain word"),
        (b"a: 1\n---\nb: 2\n", 2, "single document"),
        (b"owner: 2026-13-45\n", 1, "not a valid value"),
        (b"owner: !!int ''\n", 1, "not a valid value: '' is no int"),
        (b"owner: !!bool me\n", 1, "not a valid value: 'me' is no bool"),
        (b"owner: !!timestamp now\n", 1, "not a valid value: 'now' is no timestamp"),
        (b"!!python/object/apply:os.system ['true']\n", 1, "tag"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(write, raw, line, says):
    _, errors = specification.check(write(raw))
    assert len(errors) == 1
    assert errors[0].line == line
    assert says in errors[0].message


def test_overlapping_subnets_are_refused(write):
    text = GOOD.replace(
        "experiment: {rate: 200 Mbit/s}",
        "experiment: {rate: 1 Gbit/s, subnet: 10.1.0.0/16}\n  control: {subnet: 10.1.2.0/24}",
    )
    _, errors = specification.check(write(text))
    assert "overlap" in errors[0].message


def test_the_published_schema_is_the_model(request):
    published = request.config.rootpath / "docs" / "reference" / "cluster.schema.json"
    assert json.loads(published.read_text()) == schema.json_schema(), "run `make docs`"


def test_every_shipped_specification_is_right(request):
    root: Path = request.config.rootpath
    for path in root.glob("inventories/*/cluster.yml"):
        assert specification.check(path)[1] == []


@pytest.mark.parametrize(
    "folder",
    [
        *("/", "/etc", "/etc/data", "/usr", "/usr/local/data", "/var", "/var/lib", "/home"),
        *("/root", "/root/data", "/boot", "/dev/shm", "/proc", "/sys/fs", "/run/data", "/bin"),
        *("/lib64", "/sbin", "/opt", "/srv/gpubed/shared", "relative", "/data//in", "/data/./in"),
        *("/data/../etc", "/with space", "/with#sign", "/with\\ttab", "/with\\nline", "/ending/"),
    ],
)
@pytest.mark.parametrize("where", ["shared.path", "scratch.path", "datasets"])
def test_what_cannot_be_a_mount_point_is_refused(write, where, folder):
    section, _, key = where.rpartition(".")
    value = f'{section}: {{{key}: "{folder}"}}' if section else f'{key}: "{folder}"'
    _, [error] = specification.check(write(f"{GOOD}storage:\n  {value}\n"))
    assert (error.line, error.path) == (8, f"storage.{where}")


@pytest.mark.parametrize(
    ("storage", "said"),
    [
        ("{datasets: /shared/datasets}", "shared.path (/shared) and datasets (/shared/datasets)"),
        ("{datasets: /shared}", "shared.path (/shared) and datasets (/shared)"),
        ("{shared: {path: /scratch/s}, scratch: {}}", "(/scratch/s) and scratch.path (/scratch)"),
        ("{shared: {path: /datasets/a}}", "shared.path (/datasets/a) and datasets (/datasets)"),
        ("{scratch: {path: /datasets/fast}}", "(/datasets) and scratch.path (/datasets/fast)"),
    ],
)
def test_what_nodes_mount_is_apart(write, storage, said):
    _, [error] = specification.check(write(f"{GOOD}storage: {storage}\n"))
    assert said in error.message
    assert error.path == "storage"


@pytest.mark.parametrize("memory", ["6", "64 MiB", "511 MiB"])
@pytest.mark.parametrize("backend", ["{type: local}", "{type: local, runtime: vm}"])
def test_a_memory_with_which_no_node_boots_is_refused(write, memory, backend):
    """Docker takes no less than 6 MB, and a node that runs takes no less than it uses."""
    text = (
        f"version: 1\nbackend: {backend}\nnodes:\n  - count: 1\n    machine: {{memory: {memory}}}"
    )
    _, [error] = specification.check(write(text))
    assert (error.line, error.path) == (5, "nodes.0.machine.memory")
    assert error.message == "must be at least 512 MiB"


@pytest.mark.parametrize(
    ("backend", "options", "says"),
    [
        ("local", {"runtim": "vm"}, "backend.runtim: unknown key (did you mean 'runtime'?)"),
        ("virtualwall", {"agregate": {}}, "unknown key (did you mean 'aggregate'?)"),
        ("openstack", {"groups": {"node": {"flavr": "x"}}}, "(did you mean 'flavor'?)"),
        ("openstack", {"access_from": ["198.51.100.7/24"]}, "write 198.51.100.0/24 for the net"),
        ("openstack", {"access_from": ["fe80::1/64"]}, "fe80::1/64 has host bits set"),
        ("openstack", {"access_from": [5]}, "backend.access_from.0: must be an IPv4 network"),
        ("openstack", {"access_from": []}, "backend.access_from: must have at least 1"),
        ("openstack", {"boot_volume": "100 MB"}, "must be at least 1 GiB"),
        ("openstack", {"data_volumes": ["6"]}, "data_volumes.0: must be at least 1 GiB"),
        ("openstack", {"dns": ["x"]}, "must be an IPv4 address, such as"),
        ("openstack", {"flavor": ""}, "must have at least 1 character"),
        ("virtualwall", {"poll": 0}, "must be at least 50 ms"),
        ("virtualwall", {"project": "a b"}, "must be letters, digits"),
        ("virtualwall", {"bastion": {"host": "a b"}}, "must be a host's name or address"),
        ("static", {"hosts": {"No de": [{"address": "a"}]}}, "hosts.No de: its name must be lower"),
        ("gpulab", {"image": "a b"}, "must be an image, such as"),
        ("gpulab", {"shm": 0}, "must be more than 0 B"),
    ],
)
def test_what_is_wrong_below_backend_is_one_error_in_words(write, backend, options, says):
    document = {"version": 1, "backend": BACKENDS[backend] | options, "nodes": [{"count": 1}]}
    _, [error] = specification.check(write(json.dumps(document)))
    assert says in str(error)


def test_a_backend_without_its_type_is_told_so(write):
    _, [error] = specification.check(write(GOOD.replace("type: local", "tpye: local")))
    assert "backend.type: is missing (there are: geni, gpulab, local" in str(error)


SYSTEMS = ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04")


@pytest.mark.parametrize("backend", ["openstack", "static", "virtualwall"])
@pytest.mark.parametrize("image", ["ubuntu-20.04", "debian-11", "rocky-9"])
def test_a_system_that_roles_refuse_is_refused_before_anything_is_made(write, backend, image):
    group = {"name": "node", "count": 2, "image": image}
    document = {"version": 1, "backend": BACKENDS[backend], "nodes": [group]}
    _, errors = specification.check(write(json.dumps(document)))
    [error] = [error for error in errors if error.path == "nodes.0.image"]
    assert error.message == f"is {image!r}, which the roles do not support"
    assert error.allowed.startswith(f"allowed: {', '.join(SYSTEMS)}")
    _, errors = specification.check(write(json.dumps({**document, "configure": False})))
    assert "nodes.0.image" not in [error.path for error in errors]
