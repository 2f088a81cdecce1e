"""Every reader of files and replies: what it reads, and documents that are right.

The unit tests and `tests.fuzz` give each of them what `mutations` makes of its samples.
What stands for a node or a service only hands the bytes over.
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
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from openstack.compute.v2.flavor import Flavor
from openstack.compute.v2.limits import AbsoluteLimits
from openstack.compute.v2.server import Server
from openstack.network.v2.quota import QuotaDetails

from gpubed.backends.gpulab import login as gpulab_login
from gpubed.backends.gpulab import offers as gpulab_offers
from gpubed.backends.gpulab import record as gpulab_record
from gpubed.backends.gpulab.client import Answer, Client
from gpubed.backends.gpulab.definition import Resources
from gpubed.backends.gpulab.parcel import Parcel
from gpubed.backends.local import apt_sources, environment, runtime
from gpubed.backends.openstack import capacity, cloud, labels
from gpubed.backends.static import host as static
from gpubed.backends.virtualwall import (
    aggregate,
    documents,
    journal,
    manifest,
    prepare,
    reservation,
    supply,
    transport,
)
from gpubed.backends.virtualwall import faults as virtualwall_faults
from gpubed.backends.virtualwall import login as virtualwall_login
from gpubed.campaigns import drive, matrix, records, repeat
from gpubed.campaigns import file as campaign_file
from gpubed.checks import cuda, monitoring, software, throughput
from gpubed.checks.context import Context
from gpubed.cli import report
from gpubed.cli.display import Display
from gpubed.cli.ui import UI
from gpubed.cluster import audit, collected, handover, lease, watch_memory
from gpubed.configuration import applied, health, inventory, packages, roles, served_folder
from gpubed.configuration import events as ansible_events
from gpubed.core import finite, progress, reading, runlock, secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project, assets, recipes
from gpubed.engines.embedded import checkpoint
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.stack import Project as PulumiProject
from gpubed.engines.embedded.stack import Stack, salt_in
from gpubed.engines.embedded.state import State, encode
from gpubed.engines.embedded.values import Reference, Secret
from gpubed.hardware import binding, drivers
from gpubed.hardware import facts as hardware
from gpubed.jobs import job_result, jobfile
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.trials import summarize
from gpubed.nodes import allocation as allocations
from gpubed.nodes import known_hosts
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import CommandResult
from gpubed.nodes.verification import Check, Verification
from gpubed.recipes import recipe
from gpubed.report import analysis, page, summary, tables, together
from gpubed.report import read as report_read
from gpubed.report import write as report_write
from gpubed.spec import backend_config
from gpubed.testbeds import left_out, specification
from support import measurements, node_readers
from support.mutations import json_line, json_text, yaml_text
from support.samples import sample_allocation, sample_plan

PLAN = sample_plan()
ALLOCATION = sample_allocation(PLAN)
NODE = ALLOCATION.nodes[0]
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti"

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
SERVED = {"version": 1, "node": "node-0", "id": "c0", "path": "/shared", "backend": "local"}

HASHED = "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg="


@dataclass(frozen=True)
class Reader:
    """One way by which bytes come in.

    Attributes:
        name: Of the target.
        read: Reads the bytes, in a folder of its own, as far as its callers would.
        sample: Bytes that are right.
        dump: Writes changed values of the sample; None for what is neither JSON nor YAML.
    """

    name: str
    read: Callable[[bytes, Path], object]
    sample: bytes
    dump: Callable[[object], bytes] | None = json_text


def check(reader, data, folder):
    """Read a document; what is raised is an error that a user can act on.

    Returns:
        The error, or None.
    """
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
        outputs={"backend": "local", "kind": "node", "r": Reference(STACK, "7"), "f": 1.5},
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


def _stack_config(data, folder):
    salt_in(_file(folder / "Pulumi.dev.yaml", data))


def _pulumi_yaml(data, folder):
    _file(folder / "Pulumi.yaml", data)
    PulumiProject.load(folder)


def _engine_lock(data, folder):
    file = StackFile(folder, "p", "dev")
    _file(file.locks / "a.json", data)
    file.require_free()


# A cluster's own files.


def _allocation(data, folder):
    cluster = _cluster(folder)
    granted = allocations.load(_file(cluster.allocation, data))
    if granted.nodes:
        inventory.ssh_config(granted, cluster)
        inventory.known_hosts(granted)
        inventory.text(granted)


def _verification(data, folder):
    verification = Verification.last(_file(_cluster(folder).verification, data))
    json.dumps(verification.summary())
    report.verification(_Quiet(), verification.summary(), whole=True)
    handover.metrics_text(ALLOCATION, verification)


class _Quiet:
    """STAND-IN for the terminal."""

    def say(self, text):
        pass

    def table(self, titles, rows):
        [list(map(str, row)) for row in rows]


def _lease(data, folder):
    cluster = _cluster(folder)
    _file(cluster.lease, data)
    known = lease.last(cluster)
    known.state(60)
    known.document()
    if known.granted_until:
        lease.local(known.granted_until)
    lease.check_not_expired(cluster)


def _watch(data, folder):
    cluster = _cluster(folder)
    _file(cluster.watch, data)
    watch_memory.load(cluster).recent(lease.now())


def _collected(data, folder):
    cluster = _cluster(folder)
    _file(cluster.collected, data)
    plan = sample_plan()
    collected.load(Cluster(cluster, plan, sample_allocation(plan)))


def _known(data, folder):
    cluster = _cluster(folder)
    _file(cluster.record, data)
    left_out.read(cluster, sample_plan(nodes=[{"name": "node", "count": 3, "min": 2}]))
    served_folder.left_behind(cluster, PLAN, ())


def _former(name):
    def read(data, folder):
        cluster = _cluster(folder)
        _file(cluster.state / name, data)
        served_folder.left_behind(cluster, PLAN, ())

    return read


def _facts(data, folder):
    found = hardware.load(_file(_cluster(folder).facts / "id.json", data))
    if found:
        json.dumps(found.summary())
        report.hardware(found.summary())
        binding.bind(found, 4)
        with contextlib.suppress(drivers.NoDriver):
            drivers.choose({"node-0": found}, {"debian": [drivers.Offer(535), drivers.Offer(570)]})


def _applied(data, folder):
    cluster = _cluster(folder)
    _file(cluster.applied / f"{NODE.id}.json", data)
    applied.missing(cluster, ALLOCATION, {node.name: {"base": "1"} for node in ALLOCATION.nodes})


def _run_lock(data, folder):
    runlock._refusal(_file(folder / "lab" / "lock", data))


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


MEASURED = measurements.document(factors={"nodes": [1, 2], "rate": ["1G"]}, repeat=2)
MEASURED_POINTS = list(measurements.measured(MEASURED))
REPEATED = {
    "schema": "gpubed/report/1",
    "campaign": {
        "name": "smoke",
        "cluster": "lab",
        "campaign": {
            "schema": "gpubed/campaign-file/1",
            "job": "digits",
            "factors": {"nodes": [1, 2], "batch": [16]},
            "repeat": 2,
        },
    },
    "groups": [
        {
            "id": "nodes-1.batch-16",
            "settings": {"nodes": 1, "batch": 16},
            "metrics": {"images_per_s": {"mean": 9.0, "sd": 1.0, "n": 2}},
        }
    ],
}
MEASURED_POINT = MEASURED_POINTS[-1]


def _report_campaign(data, folder):
    cluster = _cluster(folder)
    _file(cluster.campaigns / "smoke" / "campaign.json", data)
    for one in MEASURED_POINTS:
        _file(cluster.campaigns / "smoke/points" / f"{one['id']}.{one['repetition']}.json", b"{}")
    _reported(cluster, folder)


def _report_together(data, folder):
    """As the second campaign of a report of two."""
    first, cluster = Project(folder).cluster("other"), _cluster(folder)
    measurements.write(first, MEASURED, MEASURED_POINTS)
    at = measurements.write(cluster, MEASURED, MEASURED_POINTS)
    _file(at / "campaign.json", data)
    each = [report_read.load(paths, "smoke") for paths in (first, cluster)]
    _told(together.put(each))


def _report_point(data, folder):
    cluster = _cluster(folder)
    at = measurements.write(cluster, MEASURED, MEASURED_POINTS)
    _file(at / "points" / f"{MEASURED_POINT['id']}.{MEASURED_POINT['repetition']}.json", data)
    _told(report_read.load(cluster, report_read.chosen(cluster, None)))


def _report_before(data, folder):
    cluster = _cluster(folder)
    measurements.write(cluster, MEASURED, MEASURED_POINTS[:1])
    _file(folder / "out" / "report.json", data)
    _reported(cluster, folder)


def _report_repeated(data, folder):
    before = repeat.load(_file(folder / "report.json", data))
    points = matrix.expand(before.source, jobfile.load(before.source.campaign.job))
    repeat.compare(before, drive.Series(before.source.campaign, points), "images_per_s")


def _told(measured):
    """Make what a report says, without its plots, which take a second."""
    analysed = analysis.analyse(measured)
    json_text(finite.plain(analysed.document()))
    tables.points_csv(measured)
    summary.told(analysed)
    page.html(analysed, {})


def _reported(cluster, folder):
    """Write the whole report, which every figure of the files reaches."""
    measured = report_read.load(cluster, report_read.chosen(cluster, None))
    report_write.write(analysis.analyse(measured), folder / "out")


def _slice(data, folder):
    cluster = _cluster(folder)
    _file(cluster.state / journal.FILE, data)
    journal.load(cluster)


def _acquaintance(data, folder):
    cluster = _cluster(folder)
    _file(cluster.state / "nodes" / "node-0.json", data)
    journal.load_node(cluster, "node-0")


def _key(data, folder):
    secret.public_key(_file(folder / "id_ed25519", data))


def _key_sample():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    made = Ed25519PrivateKey.from_private_bytes(bytes(32))
    return made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


# What a person or a package writes.


def _specification(data, folder):
    _, errors = specification.planned(_file(folder / "lab" / "cluster.yml", data))
    for error in errors:
        assert error.line > 0
        str(error)


def _recipe(data, folder):
    reading.file(_file(folder / "recipe.yml", data)).yaml(recipe.Recipe)


def _job(data, folder):
    reading.file(_file(folder / "job.yml", data)).yaml(jobfile.Job)


def _campaign(data, folder):
    source = campaign_file.load(str(_file(folder / "mine.yml", data)), Project(folder))
    points = matrix.expand(source, jobfile.load(source.campaign.job))
    matrix.require_room(source, ALLOCATION, ALLOCATION)
    return source, points


def _campaign_sample():
    with tempfile.TemporaryDirectory() as folder:
        source, points = _campaign(CAMPAIGN, Path(folder))
    return {
        "schema": "gpubed/campaign/1",
        "digest": records.digest(source, points),
        "campaign": source.campaign.content(),
        "uuid": ALLOCATION.uuid,
        "nodes": [{"name": "node-0", "slots": 1}],
    }


def _campaign_begun(data, folder):
    source, points = _campaign(CAMPAIGN, folder)
    _file(folder / "mine" / "campaign.json", data)
    begun = records.Folder(folder / "mine").begun()
    if begun is None:  # an empty file, as a power cut leaves it, and no point
        assert not data
        return
    assert isinstance(begun.with_ranks, list)
    records.require_same(begun, source, points, ALLOCATION.uuid, {})


def _campaign_point(data, folder):
    source, points = _campaign(CAMPAIGN, folder)
    _file(folder / "mine" / "points" / f"{POINT['id']}.0.json", data)
    ended = records.Folder(folder / "mine").ended(points)
    series = drive.Series(source.campaign, points, ended)
    series.progress()
    series.failed()
    records.Folder(folder / "mine").keep(next(iter(ended.values())))


def _role(data, folder):
    reading.file(_file(folder / "gpubed.yml", data)).yaml(roles.RoleMeta)


def _pins(data, folder):
    _file(folder / "cpu" / "requirements.txt", data)
    cpu = recipe.load("cpu")
    with mock.patch("gpubed.core.paths.recipes", return_value=folder):
        cpu.locked()


def _architectures(data, folder):
    recipe.read_record(_file(folder / "architectures.json", data))


def _known_hosts(data, folder):
    path = _file(folder / "known_hosts", data)
    known_hosts.keys(path, "10.0.0.1")
    known_hosts.keys(path, "gate", 2222)


def _apt(data, folder):
    _file(folder / "sources.list", data)
    _file(folder / "sources.list.d" / "debian.sources", data)
    apt_sources.sources("bookworm", folder)


def _resolvers(data, folder):
    environment.nameservers([_file(folder / "resolv.conf", data)])


# What nodes answer.


def _health(data, folder):
    with mock.patch.object(health, "SSH", return_value=Session(data)):
        for found in health.look(_cluster(folder), [NODE]):
            str((found.state, found.reason))


def _nccl(data, _folder):
    list(cuda.on_node(recipe.load("cuda12"), NODE, data.decode(errors="replace")))


def _installed(data, _folder):
    said = reading.reply(data, "it").json(software._Installed)
    software.drift(recipe.load("cpu"), said.packages, said.environment)


def _fio(data, _folder):
    for shape in (throughput._Written, throughput._Read, throughput._Waited):
        throughput._fio(Session(data), "/f", "read", "1M", shape)


def _prometheus(data, folder):
    cluster = Cluster(_cluster(folder), PLAN, ALLOCATION)
    context = Context(cluster, {ALLOCATION.head.name: Session(data)})
    monitoring._rules(context)
    with mock.patch.object(monitoring, "_PATIENCE_S", -1.0):
        list(monitoring._targets(context))


def _host(data, _folder):
    static.told(reading.reply(data, "what it says"), "node-0")


def _packages(data, _folder):
    looked = reading.reply(data, "what it tells").json(packages.Looked)
    list(packages._findings(looked, PLAN, PLAN.nodes[0]))


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
    endpoint = SimpleNamespace(what="the aggregate", call=lambda *_, **__: value, url="https://a")
    there = aggregate.Aggregate(endpoint)
    for ask in (
        there.version,
        lambda: there.describe("urn", []),
        lambda: there.advertisement([]),
    ):
        with contextlib.suppress(GpubedError):
            ask()


def _refusal(data, _folder):
    """Whatever an aggregate says with a code, its reason is looked for in all of it."""
    output = data.decode(errors="replace")
    reply = {"code": {"geni_code": 2, "am_code": 26}, "value": 0, "output": output}
    endpoint = SimpleNamespace(what="the aggregate", call=lambda *_, **__: reply)
    try:
        aggregate.Aggregate(endpoint).update("urn", [], "")
    except virtualwall_faults.Answered as error:
        refused = error
    reservation.unmappable(refused)
    assert len(refused.message) < 2000


def _manifest(data, _folder):
    granted, reasons = manifest.read(data.decode(errors="replace"), ["node-0", "node-1"], "alice")
    for node in granted.values():
        assert 0 < node.port < 65536
        assert all(c.isalnum() or c in ".:-" for c in node.ipv4 + node.host)
    assert set(granted) | set(reasons) == {"node-0", "node-1"}


def _advertisement(data, _folder):
    machines = supply.machines(data.decode(errors="replace"))
    supply.counted(machines, {"dgx": 8})


def _inflated(data, _folder):
    documents.inflate(data.decode(errors="replace"), "the advertisement")


def _login(load, changes):
    def read(data, folder):
        path = _file(folder / "login.pem", data)
        load(SimpleNamespace(login=str(path), certificate=str(path), **changes))

    return read


def _client(data):
    """Return a client whose service answers everything with these bytes (STAND-IN)."""
    client = Client.__new__(Client)
    client.login = SimpleNamespace(urn="urn:publicid:IDN+a+user+b")
    client._again = lambda *_, **__: Answer(200, data, cut=False)
    return client


def _gpulab_jobs(data, _folder):
    for job in _client(data).jobs():
        str((job.ended, job.explanation))


def _gpulab_job(data, _folder):
    str(_client(data).job("id").status)


def _gpulab_record(data, folder):
    (folder / "run").mkdir(exist_ok=True)
    _file(folder / "run" / gpulab_record.NAME, data)
    list(gpulab_record.left(folder))


def _gpulab_events(data, _folder):
    _client(data).events("id")


def _gpulab_version(data, _folder):
    _client(data).version()


def _gpulab_clusters(data, _folder):
    gpulab_offers.offers(_client(data).clusters(), [])


def _gpulab_workers(data, _folder):
    workers = _client(data).workers()
    wanted = Resources(cpus=4, gpus=2, cpu_memory_gb=16, gpu_model=("v100",))
    gpulab_offers.never(wanted, "/p", [], workers)
    gpulab_offers.now(wanted, 2, [], workers)


def _parcel(data, folder):
    parcel = Parcel("gpubed-0")
    for line in data.decode(errors="replace").splitlines():
        parcel.takes(line)
    inside = folder / "run"
    inside.mkdir(exist_ok=True)
    parcel.unpack(inside)
    assert set(folder.iterdir()) == {inside}


def _parcel_archive(data, folder):
    """Changes reach the archive itself, behind checksum and compression."""
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
MAPPER = "*** WARNING: eth0 is not used\n" * 60 + "*** Fixed node: Could not map node-1 to pc1\n"
WORKER = {
    "name": "w",
    "clusterId": 6,
    "gpuModel": [{"name": "Tesla V100", "memoryMb": 32000}],
    "gpu": {"systemTotal": 8, "acquired": 8, "used": 1, "available": 7},
    "cpu": {"systemTotal": 48, "available": 40},
    "cpuMemoryMb": {"systemTotal": 256000, "available": 200000},
}
JOB = {"uuid": "0" * 36, "name": "j", "state": {"status": "QUEUED", "scheduling": {}}}
PROMETHEUS = {
    "status": "success",
    "data": {
        "activeTargets": [
            {"labels": {"node": "node-0", "job": "node"}, "health": "up", "lastError": ""}
        ],
        "groups": [{"rules": [{"name": "a", "health": "ok"}]}],
    },
}
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
POINT = {
    "schema": "gpubed/point/1",
    "id": "nodes-1.batch-8.rate-100M",
    "repetition": 0,
    "status": "ok",
    "reason": "",
    "settings": {"nodes": 1, "batch": 8, "rate": "100M"},
    "run_id": "1-digits",
    "run_dir": "/runs/1-digits",
    "started": "2026-01-01T00:00:00+00:00",
    "seconds": 3.5,
    "metrics": {"loss": 0.5, "ranks": [{"rank": 0}]},
}
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
CHECKS = (
    Check(id="gpu.driver", node="node-0", result="pass", value=1.5, unit="s", limit="≤ 2"),
    Check(id="link.rate", node="node-0>node-1", result="fail", reason="slow"),
)


def _pem(folder):
    """A login as the portals make them."""
    from support.gpulab.pki import Authority

    return Authority(folder).user(urn="urn:publicid:IDN+ilabt.imec.be+user+alice").read_bytes()


def _readers():
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pem = _pem(Path(folder))
    verification = Verification(
        cluster="lab", at="2026-11-22T10:00:00Z", node_ids=("id-node-0",), checks=CHECKS
    )
    record = lease.Record(granted_until="2126-11-22T10:00:00Z", since="2026-11-21T10:00:00Z")
    came = collected.Memory(
        of="id-node-0", place="20261122-100000", looked={"runs/1-digits": "0" * 64}
    )
    remembered = watch_memory.Memory(
        amiss={"node-1": "2026-11-21T10:00:00Z"}, repairs=["2026-11-21T09:00:00Z"], failures=1
    )
    holder = {
        "pid": 1,
        "verb": "up",
        "user": "me",
        "username": "me",
        "hostname": "h",
        "since": "now",
    }
    slice_ = {
        "uuid": "u",
        "slice_urn": "urn:s",
        "testbed": {
            "type": "virtualwall",
            "aggregate": {"url": "https://a", "urn": "urn:publicid:IDN+a+authority+cm"},
            "authority": {"slices": "https://b", "members": "https://c"},
            "project": "p",
            "login": "/login.pem",
        },
        "slivers": [{"urn": "u", "client_id": "n", "allocation": "a", "operational": "o"}],
        "granted_until": "2026-11-22T10:00:00Z",
    }
    known = {
        "id": "i",
        "control_address": "10.0.0.1",
        "experiment_address": None,
        "port": 22,
        "user": "me",
        "host_keys": [f"ssh-ed25519 {KEY}"],
        "via": [],
    }
    fio = {
        "jobs": [
            {
                "read": {"bw_bytes": 1, "clat_ns": {"percentile": {"99.000000": 5}}},
                "write": {"bw_bytes": 1},
            }
        ]
    }
    nccl = {"version": 23007, "memlock": -1, "adapters": ["mlx5_0"]}
    config = (
        f"encryptionsalt: {CIPHER.salt}\n"
        f'config:\n  p:pw: {{secure: "{CIPHER.encrypt("y")}"}}\n  a: [1, x]\n'
    ).encode()
    return (
        Reader("state", _state, json_text(_state_sample())),
        Reader("stack-config", _stack_config, config, yaml_text),
        Reader("pulumi-yaml", _pulumi_yaml, (assets() / "Pulumi.yaml").read_bytes(), yaml_text),
        Reader("engine-lock", _engine_lock, json_text({**holder, "timestamp": "now"})),
        Reader("allocation", _allocation, ALLOCATION.model_dump_json().encode()),
        Reader("verification", _verification, verification.model_dump_json().encode()),
        Reader("lease", _lease, record.model_dump_json().encode()),
        Reader("watch", _watch, remembered.model_dump_json().encode()),
        Reader("collected", _collected, came.model_dump_json().encode()),
        Reader("record", _known, json_text({"left_out": {"node-2": "broken"}, "served": SERVED})),
        Reader("former-left-out", _former("left_out.json"), json_text({"node-2": "broken"})),
        Reader("former-served-folder", _former("served.json"), json_text(SERVED)),
        Reader("former-testbed", _former("testbeds/local.json"), json_text({"id": "a"})),
        Reader("facts", _facts, json_text(FACTS)),
        Reader("packages", _packages, json_text(PACKAGES)),
        Reader("applied", _applied, json_text({"base": "1"})),
        Reader("run-lock", _run_lock, json_text(holder)),
        Reader("events", _events, json_text(EVENT) + b"\n", json_line),
        Reader("ansible-events", _ansible_events, json_text(ANSIBLE_EVENT), json_line),
        Reader("metrics", _metrics, json_text({"accuracy": 0.9, "world_size": 2})),
        Reader("report-campaign", _report_campaign, json_text(measurements.document(nodes=[]))),
        Reader("report-together", _report_together, json_text(MEASURED)),
        Reader("report-point", _report_point, json_text(MEASURED_POINT)),
        Reader(
            "report-before",
            _report_before,
            json_text({"schema": "gpubed/report/1", "campaign": MEASURED}),
        ),
        Reader("report-repeated", _report_repeated, json_text(REPEATED)),
        Reader("slice", _slice, json_text(slice_)),
        Reader("acquaintance", _acquaintance, json_text(known)),
        Reader("private-key", _key, _key_sample(), None),
        Reader(
            "specification",
            _specification,
            backend_config.template("local").read_bytes(),
            yaml_text,
        ),
        Reader("recipe", _recipe, (recipes() / "cuda12/recipe.yml").read_bytes(), yaml_text),
        Reader("job", _job, (assets() / "jobs/digits/job.yml").read_bytes(), yaml_text),
        Reader("campaign", _campaign, CAMPAIGN, yaml_text),
        Reader("campaign-begun", _campaign_begun, json_text(_campaign_sample())),
        Reader("campaign-point", _campaign_point, json_text(POINT)),
        Reader("role", _role, (assets() / "roles/base/meta/gpubed.yml").read_bytes(), yaml_text),
        Reader(
            "pins",
            _pins,
            b"a==1 ; python_version < '4' \\\n    --hash=sha256:" + b"0" * 64 + b"\nb==2\n",
            None,
        ),
        Reader(
            "architectures",
            _architectures,
            json_text({"torch==2": {"lib.so": {"cubin": ["8.0"], "ptx": []}}}),
        ),
        Reader(
            "known-hosts",
            _known_hosts,
            f"10.0.0.1,[gate]:2222 ssh-ed25519 {KEY}\n{HASHED} ssh-ed25519 {KEY}\n".encode(),
            None,
        ),
        Reader(
            "apt-sources",
            _apt,
            b"deb http://mirror.example/debian bookworm main\n\nTypes: deb\nURIs: http://x\n"
            b"Suites: bookworm\nComponents: main\n",
            None,
        ),
        Reader("resolv-conf", _resolvers, b"nameserver 10.0.0.1\n", None),
        Reader(
            "health",
            _health,
            json_text({"problems": ["x"], "quarantine": {"reason": "x", "since": "now"}}),
        ),
        Reader("nccl", _nccl, json_text(nccl)),
        Reader(
            "installed", _installed, json_text({"packages": {"a": "1"}, "environment": {"b": "c"}})
        ),
        Reader("fio", _fio, json_text(fio)),
        Reader("prometheus", _prometheus, json_text(PROMETHEUS)),
        Reader("host", _host, HOST.encode(), None),
        Reader("container-file", _container, _tar({"file": b"content"}), None),
        Reader("proof", _proof, b"ssh-ed25519 AAAA root\n--\n0123 *x\n", None),
        Reader("xml-rpc", _xmlrpc, REPLY.encode(), None),
        Reader("refusal", _refusal, MAPPER.encode(), None),
        Reader("manifest", _manifest, MANIFEST.encode(), None),
        Reader("advertisement", _advertisement, ADVERTISEMENT.encode(), None),
        Reader(
            "compressed", _inflated, base64.b64encode(zlib.compress(ADVERTISEMENT.encode())), None
        ),
        Reader(
            "virtualwall-login",
            _login(virtualwall_login.load, {"passphrase_file": None}),
            pem,
            None,
        ),
        Reader("gpulab-login", _login(gpulab_login.read, {}), pem, None),
        Reader("gpulab-jobs", _gpulab_jobs, json_text({"items": [JOB]})),
        Reader("gpulab-job", _gpulab_job, json_text(JOB)),
        Reader("gpulab-record", _gpulab_record, json_text([{"name": "n", "id": "", "open": True}])),
        Reader("gpulab-events", _gpulab_events, json_text([{"type": "x", "msg": "m"}])),
        Reader("gpulab-version", _gpulab_version, json_text({"latest_client_version": "1"})),
        Reader(
            "gpulab-clusters",
            _gpulab_clusters,
            json_text([{"clusterId": 6, "gpuModel": [], "gpu": {"systemTotal": 1}}]),
        ),
        Reader("gpulab-workers", _gpulab_workers, json_text([WORKER])),
        Reader(
            "parcel",
            _parcel,
            "\n".join(_parcel_lines(gzip.compress(_tar({"metrics.json": b"{}"}), 1))).encode(),
            None,
        ),
        Reader("parcel-archive", _parcel_archive, _tar({"metrics.json": b"{}", "d/f": b"x"}), None),
        Reader("openstack", _openstack, json_text(OPENSTACK)),
        Reader("clouds", _clouds, CLOUDS, yaml_text),
        *(
            Reader(name, read, sample, json_text if sample[:1] in (b"{", b"[") else None)
            for name, read, sample in node_readers.READERS
        ),
    )


READERS = _readers()
