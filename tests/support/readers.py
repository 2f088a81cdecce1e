"""Readers of files and replies of others, and documents that are right.

Tests give each of them what `mutations` makes of its samples. What stands for a node or a service
only hands the bytes over.
"""

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from openstack.compute.v2.flavor import Flavor
from openstack.compute.v2.limits import AbsoluteLimits
from openstack.compute.v2.server import Server
from openstack.network.v2.quota import QuotaDetails

from gpubed.backends.gpulab.client import Answer, Client
from gpubed.backends.gpulab.parcel import Parcel
from gpubed.backends.local import runtime
from gpubed.backends.openstack import capacity, cloud, labels
from gpubed.backends.static import host as static
from gpubed.backends.virtualwall import availability, connection, documents, prepare, transport
from gpubed.backends.virtualwall import login as virtualwall_login
from gpubed.campaigns import file as campaign_file
from gpubed.campaigns import matrix
from gpubed.cli import status_view
from gpubed.cli.display import Display
from gpubed.cli.ui import UI
from gpubed.cluster import audit
from gpubed.configuration import events as ansible_events
from gpubed.configuration import health, inventory, package_changes
from gpubed.core import progress, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project, assets
from gpubed.engines.embedded import checkpoint
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.stack import Project as PulumiProject
from gpubed.engines.embedded.stack import Stack
from gpubed.engines.embedded.state import State, encode
from gpubed.engines.embedded.values import Secret
from gpubed.hardware import binding, nvidia_driver
from gpubed.hardware import facts as hardware
from gpubed.jobs import job_result, jobfile
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.trials import summarize
from gpubed.nodes import allocation as allocations
from gpubed.nodes.ssh import CommandResult
from gpubed.spec import backend_config
from gpubed.testbeds import specification
from support.mutations import json_line, json_text, yaml_text
from support.samples import sample_allocation, sample_plan

PLAN = sample_plan()
ALLOCATION = sample_allocation(PLAN)
NODE = ALLOCATION.nodes[0]

PACKAGES = {
    "schema": "gpubed/packages/1",
    "lists_age_s": 100000.0,
    "unfinished": ["man-db"],
    "roles": [
        {
            "role": "docker",
            "changes": [{"package": "runc", "says": "runc 1 would be removed", "refused": True}],
            "failed": "Unmet dependencies",
        }
    ],
}


@dataclass(frozen=True)
class Reader:
    """One way by which bytes come in."""

    name: str
    read: Callable[[bytes, Path], object]
    sample: bytes
    dump: Callable[[object], bytes] | None = json_text


def check(reader, data, folder):
    """Read a document; what is raised is an error that a user can act on."""
    try:
        reader.read(data, folder)
    except GpubedError as error:
        told = error
    else:
        return None
    assert told.message.strip(), "an error says what failed"
    assert len(told.message) < 5000, "nobody reads that"
    return told


def _cluster(folder):
    cluster = Project(folder).cluster("lab")
    cluster.state.mkdir(parents=True, exist_ok=True)
    return cluster


def _file(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


class Session:
    """STAND-IN for a session to a node: answers every command with the same bytes."""

    def __init__(self, data=b"", node=NODE, exit_code=0):
        self.node = node
        text = data.decode(errors="replace")
        self._result = CommandResult(text, "", exit_code, 0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, *_, **__):
        return self._result


# The engine's files.

STACK = "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"
PROVIDER = "urn:pulumi:dev::p::pulumi:providers:pulumi-python::default"
PASSPHRASE = "fixture"
with mock.patch("gpubed.engines.embedded.cipher._ITERATIONS", 1):
    CIPHER = PassphraseCipher(PASSPHRASE)


def _state_sample():
    node = State(
        "urn:pulumi:dev::p::gpubed:index:Cluster$pulumi-python:dynamic/gpubed:Node::node-0",
        "pulumi-python:dynamic/gpubed:Node",
        True,
        id="id-0",
        inputs={"backend": "local", "kind": "node", "n": 3, "pw": Secret({"a": Secret([1, "x"])})},
        outputs={"backend": "local", "kind": "node", "f": 1.5},
        parent=STACK,
        provider=f"{PROVIDER}::7",
        dependencies=[STACK],
        property_dependencies={"n": [STACK]},
    )
    listed = [
        State(STACK, "pulumi:pulumi:Stack", False, outputs={"url": Secret("https://x")}),
        State(PROVIDER, "pulumi:providers:pulumi-python", True, id="7", parent=STACK),
        node,
    ]
    latest = {
        "manifest": checkpoint.manifest(),
        "secrets_providers": {"type": "passphrase", "state": {"salt": CIPHER.salt}},
        "resources": [encode(state, CIPHER) for state in listed],
        "pending_operations": [{"resource": encode(node, CIPHER), "type": "creating"}],
    }
    return {"version": 3, "checkpoint": {"stack": "organization/p/dev", "latest": latest}}


def _state(data, folder):
    file = StackFile(folder, "p", "dev")
    _file(file.path, data)
    passphrase = _file(folder / "passphrase", PASSPHRASE.encode())
    project = PulumiProject("p", folder, folder, ".", folder)
    with mock.patch("gpubed.engines.embedded.cipher._ITERATIONS", 1):
        stack = Stack(project, "dev", file, passphrase)
        deployment = stack.latest()
        driven = SimpleNamespace(export=lambda: {"deployment": deployment}, paths=_cluster(folder))
        audit.uuid_of(driven)
        audit.testbeds(driven)
        list(audit._recorded(deployment.get("resources") or []))
        stack.outputs()
        stack.open(save_salt=False)


# A cluster's own files.


def _allocation(data, folder):
    cluster = _cluster(folder)
    granted = allocations.load(_file(cluster.allocation, data))
    if granted.nodes:
        inventory.ssh_config(granted, cluster)
        inventory.known_hosts(granted)
        inventory.text(granted)


def _facts(data, folder):
    found = hardware.load(_file(_cluster(folder).facts / "id.json", data))
    if found:
        json.dumps(found.summary())
        status_view.hardware(found.summary())
        binding.bind(found, 4)
        with contextlib.suppress(nvidia_driver.NoDriver):
            nvidia_driver.choose(
                {"node-0": found}, {"debian": [nvidia_driver.Offer(535), nvidia_driver.Offer(570)]}
            )


def _events(data, folder):
    with contextlib.redirect_stderr(io.StringIO()):
        progress.Follower(folder / "events", Display(UI()).handle)._deliver(data + b"\n")


def _ansible_events(data, folder):
    with contextlib.redirect_stderr(io.StringIO()):
        watcher = ansible_events.Watcher()
        follower = progress.Follower(folder / "events", watcher.handle, ansible_events.Event)
        follower._deliver(data + b"\n")
        watcher.finish()


def _metrics(data, folder):
    job = jobfile.load("digits")
    result = JobResult("digits", str(folder), 2)
    _file(folder / "metrics.json", data)
    job_result.judge(result, job, job.values("digits", {}))
    summarize([result.metrics, result.metrics])
    json.dumps(result.document())


# What a person or a package writes.


def _specification(data, folder):
    _, errors = specification.planned(_file(folder / "lab" / "cluster.yml", data))
    for error in errors:
        assert error.line > 0
        str(error)


def _job(data, folder):
    reading.file(_file(folder / "job.yml", data)).yaml(jobfile.Job)


def _campaign(data, folder):
    source = campaign_file.load(str(_file(folder / "mine.yml", data)), Project(folder))
    points = matrix.expand(source, jobfile.load(source.campaign.job))
    matrix.require_room(source, ALLOCATION, ALLOCATION)
    return source, points


# What nodes answer.


def _health(data, folder):
    with mock.patch.object(health, "SSH", return_value=Session(data)):
        for found in health.look(_cluster(folder), [NODE]):
            str((found.state, found.reason))


def _host(data, _folder):
    static.parsed(reading.reply(data, "what it says"), "node-0")


def _packages(data, _folder):
    looked = reading.reply(data, "what it tells").json(package_changes.Looked)
    list(package_changes._findings(looked, PLAN, PLAN.nodes[0]))


def _container(data, _folder):
    container = SimpleNamespace(name="c", get_archive=lambda _path: ([data], {}))
    runtime.get(container, "/etc/file")


def _tar(files):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _proof(data, _folder):
    prepare.proved(data.decode(errors="replace"), "token")


# What testbeds answer.


def _xmlrpc(data, _folder):
    value = transport._decode("the aggregate", data)
    there = _connection(value)
    for ask in (
        lambda: connection.version(there.aggregate),
        lambda: there.describe("urn"),
        there.advertisement,
        there.of_project,
    ):
        with contextlib.suppress(GpubedError):
            ask()


def _connection(reply):
    there = transport.Endpoint("https://a", None, "the aggregate")
    there.call = lambda *_, **__: reply
    login = SimpleNamespace(user=documents.Urn("a", "user", "alice"))
    config, signed = SimpleNamespace(project="p"), {"": [], "urn": []}
    return connection.Connection(config, login, there, there, there, signed=signed)


def _manifest(data, _folder):
    granted, reasons = documents.manifest(
        data.decode(errors="replace"), ["node-0", "node-1"], "alice"
    )
    for node in granted.values():
        assert 0 < node.port < 65536
        assert all(c.isalnum() or c in ".:-" for c in node.ipv4 + node.host)
    assert set(granted) | set(reasons) == {"node-0", "node-1"}


def _advertisement(data, _folder):
    machines = availability.machines(data.decode(errors="replace"))
    availability.counted(machines, {"dgx": 8})


def _login(load, changes):
    def read(data, folder):
        path = _file(folder / "login.pem", data)
        load(SimpleNamespace(login=str(path), certificate=str(path), **changes))

    return read


def _client(data):
    client = Client.__new__(Client)
    client.login = SimpleNamespace(urn="urn:publicid:IDN+a+user+b")
    client._again = lambda *_, **__: Answer(200, data, cut=False)
    return client


def _gpulab_jobs(data, _folder):
    for job in _client(data).jobs():
        str((job.ended, job.explanation))


def _parcel(data, folder):
    parcel = Parcel("gpubed-0")
    for line in data.decode(errors="replace").splitlines():
        parcel.takes(line)
    inside = folder / "run"
    inside.mkdir(exist_ok=True)
    parcel.unpack(inside)
    assert set(folder.iterdir()) == {inside}


def _parcel_archive(data, folder):
    content = gzip.compress(data, 1)
    _parcel("\n".join(_parcel_lines(content)).encode(), folder)


def _parcel_lines(content):
    facts = {"exit_code": 0, "left": ["big"], "sha256": hashlib.sha256(content).hexdigest()}
    parts = [base64.b64encode(content), base64.b64encode(json.dumps(facts).encode())]
    text = parts[0].decode()
    cut = [text[i : i + 3000] for i in range(0, len(text), 3000)] + [parts[1].decode()]
    return [f"gpubed-0:{n}/{len(cut)}:{part}" for n, part in enumerate(cut, start=1)]


def _openstack(data, _folder):
    """The client's own resources, as its calls make them of what a cloud answers."""
    with cloud.errors("look at what the cloud has"):
        told = json.loads(data)
        [capacity._offer(Flavor.existing(**one), {"cores": (10, 8)}) for one in told["flavors"]]
        for one in told["servers"]:
            server = Server.existing(**one)
            labels.uuid_of(server, "lab")
            (server.fault or {}).get("message", "no reason given")
        found = SimpleNamespace(
            current_project_id="p",
            compute=SimpleNamespace(get_limits=lambda: SimpleNamespace(absolute=AbsoluteLimits())),
            network=SimpleNamespace(get_quota=lambda *_, **__: QuotaDetails(**told["quota"])),
        )
        capacity._quotas(found)


def _clouds(data, folder):
    path = _file(folder / "clouds.yaml", data)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    variables["OS_CLIENT_CONFIG_FILE"] = str(path)
    with mock.patch.dict(os.environ, variables, clear=True):
        cloud.connect.__wrapped__("mycloud", None)


CLOUDS = b"""\
clouds:
  mycloud:
    auth_type: password
    auth:
      auth_url: https://c.example/v3
      username: u
      password: p
      project_name: mine
      user_domain_name: Default
      project_domain_name: Default
    region_name: one
    regions: [one, {name: two, values: {interface: internal}}]
    interface: [public]
    verify: true
    api_timeout: 5
    networks: [{name: n, routes_externally: true}]
cache: {expiration_time: 3}
client: {force_ipv4: true}
metrics: {statsd: {host: h, port: 1}}
"""

FACTS = {
    "schema": "gpubed/facts/2",
    "host": "node-0",
    "kernel": "6.1",
    "cpus": 8,
    "memory_kib": 32_000_000,
    "numa": [{"node": 0, "cpus": "0-7"}],
    "gpus": [
        {
            "pci": "0000:1b:00.0",
            "device_id": "2330",
            "generation": "Hopper",
            "numa_node": 0,
            "cpus": "0-3",
            "index": 0,
            "memory_mib": 81559,
            "links": {"GPU1": "NV18"},
        }
    ],
    "interfaces": [{"name": "ens3", "mtu": 1500, "state": "up", "addresses": ["10.0.0.1"]}],
    "hcas": [{"name": "mlx5_0", "ports": [{"port": 1, "state": "ACTIVE", "rate_gbps": 100}]}],
    "disks": [{"name": "nvme0n1", "bytes": 10**12}],
}
HOST = f"""system=Debian
image=debian-12
user=me
sudo=yes
systemd=yes
python=3.11.2
driver=570.124.06
clock=1764300000
number=1000
slurm_number=64030
failed=backup.service
unfinished=
free_gib=80
addresses=10.0.0.1 fd00::1
own_address=10.0.0.1
gpu_ids=20b2
owner={json.dumps({"uuid": "u", "cluster": "lab", "node": "node-0", "id": "i"})}
"""
MANIFEST = """<rspec xmlns="http://www.geni.net/resources/rspec/3" type="manifest">
<node client_id="node-0" sliver_id="urn:publicid:IDN+w+sliver+1" component_id="a+node+n1">
<services><login authentication="ssh-keys" hostname="n1.example" port="22" username="alice"/>
</services><host name="x" ipv4="10.2.33.12"/>
<interface client_id="node-0:experiment" mac_address="0030487D1A2B">
<ip address="10.0.0.10" netmask="255.255.240.0" type="ipv4"/></interface></node></rspec>"""
ADVERTISEMENT = """<rspec type="advertisement"><node component_id="a"><sliver_type name="raw-pc"/>
<hardware_type name="pcgen07-gpu1080"/><hardware_type name="pc"/><available now="true"/></node>
</rspec>"""
REPLY = """<?xml version="1.0"?><methodResponse><params><param><value><struct>
<member><name>code</name><value><struct><member><name>geni_code</name><value><int>0</int></value>
</member></struct></value></member><member><name>value</name><value><struct>
<member><name>geni_rspec</name><value><string>&lt;rspec/&gt;</string></value></member>
<member><name>geni_slivers</name><value><array><data><value><struct>
<member><name>geni_sliver_urn</name><value><string>urn:a</string></value></member>
<member><name>geni_expires</name><value><string>2026-11-22T10:00:00Z</string></value></member>
</struct></value></data></array></value></member></struct></value></member></struct></value>
</param></params></methodResponse>"""
JOB = {"uuid": "0" * 36, "name": "j", "state": {"status": "QUEUED", "scheduling": {}}}
OPENSTACK = {
    "flavors": [
        {
            "name": "g1",
            "vcpus": 4,
            "ram": 8192,
            "disk": 20,
            "extra_specs": {"pci_passthrough:alias": "a100:2", "resources:VGPU": "1"},
        }
    ],
    "servers": [{"id": "s", "name": "n", "metadata": {"gpubed.name": "lab"}, "fault": {}}],
    "quota": {"ports": {"limit": 10, "used": 1, "reserved": 0}},
}
CAMPAIGN = b"""schema: gpubed/campaign-file/1
job: digits
factors: {nodes: [1, 2], batch: [8], rate: [100M]}
settings: {epochs: 2}
exclude: [{nodes: 2, rate: 100M}]
repeat: 3
stop: {metric: loss, relative_width: 0.5, at_least: 2}
"""
ANSIBLE_EVENT = {
    "event": "failed",
    "role": "base",
    "task": "Install packages",
    "host": "node-0",
    "seconds": 1.5,
    "changed": False,
    "reason": "no space left on device",
}
EVENT = {
    "at": 1.5,
    "what": "resource",
    "op": "create",
    "status": "done",
    "urn": "urn:x",
    "type": "gpubed:Node",
    "name": "node-0",
    "seconds": 1.5,
}


def _pem(folder):
    from support.gpulab.pki import Authority

    return Authority(folder).user(urn="urn:publicid:IDN+ilabt.imec.be+user+alice").read_bytes()


def _readers():
    with tempfile.TemporaryDirectory() as folder:
        pem = _pem(Path(folder))
    return (
        Reader("state", _state, json_text(_state_sample())),
        Reader("allocation", _allocation, ALLOCATION.model_dump_json().encode()),
        Reader("facts", _facts, json_text(FACTS)),
        Reader("packages", _packages, json_text(PACKAGES)),
        Reader("events", _events, json_text(EVENT) + b"\n", json_line),
        Reader("ansible-events", _ansible_events, json_text(ANSIBLE_EVENT), json_line),
        Reader("metrics", _metrics, json_text({"accuracy": 0.9, "world_size": 2})),
        Reader(
            "specification",
            _specification,
            backend_config.template("local").read_bytes(),
            yaml_text,
        ),
        Reader("job", _job, (assets() / "jobs/digits/job.yml").read_bytes(), yaml_text),
        Reader("campaign", _campaign, CAMPAIGN, yaml_text),
        Reader(
            "health",
            _health,
            json_text({"problems": ["x"], "quarantine": {"reason": "x", "since": "now"}}),
        ),
        Reader("host", _host, HOST.encode(), None),
        Reader("container-file", _container, _tar({"file": b"content"}), None),
        Reader("proof", _proof, b"ssh-ed25519 AAAA root\n--\n0123 *x\n", None),
        Reader("xml-rpc", _xmlrpc, REPLY.encode(), None),
        Reader("manifest", _manifest, MANIFEST.encode(), None),
        Reader("advertisement", _advertisement, ADVERTISEMENT.encode(), None),
        Reader(
            "virtualwall-login",
            _login(virtualwall_login.load, {"passphrase_file": None}),
            pem,
            None,
        ),
        Reader("gpulab-jobs", _gpulab_jobs, json_text({"items": [JOB]})),
        Reader(
            "parcel",
            _parcel,
            "\n".join(_parcel_lines(gzip.compress(_tar({"metrics.json": b"{}"}), 1))).encode(),
            None,
        ),
        Reader("parcel-archive", _parcel_archive, _tar({"metrics.json": b"{}", "d/f": b"x"}), None),
        Reader("openstack", _openstack, json_text(OPENSTACK)),
        Reader("clouds", _clouds, CLOUDS, yaml_text),
    )


READERS = _readers()
