"""`gpubed init NAME --from FILE`: what it takes over, leaves out and refuses."""

import getpass
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core.errors import GpubedError, UsageError
from support import blocks
from support.cluster import ROOT

pytestmark = pytest.mark.process  # Ansible's library asks ldconfig
WALL = "urn:publicid:IDN+wall2.ilabt.iminds.be+authority+cm"
IMAGE = "urn:publicid:IDN+wall2.ilabt.iminds.be+image+emulab-ops:UBUNTU24-04-01-CIv4"
NODE = """<node client_id="{name}" component_manager_id="{manager}">
  <sliver_type name="{sliver}"><disk_image name="{image}"/></sliver_type>
  <hardware_type name="pcgen05"/>
  <services><execute shell="sh" command="curl -u me:hunter2 example.org"/></services>
  <interface client_id="{name}:if0">
    <ip address="10.1.1.{number}" netmask="255.255.255.0"/></interface>
</node>"""
LINK = """<link client_id="lan">{ends}
  <property source_id="w0:if0" dest_id="lan" capacity="100000" latency="10" packet_loss="0.1"/>
</link>"""
PLACEHOLDER = "as `gpubed init` wrote it"


def rspec(*names, manager=WALL, sliver="raw-pc", image=IMAGE, version="3", kind="request"):
    nodes = [
        NODE.format(name=name, manager=manager, sliver=sliver, image=image, number=number)
        for number, name in enumerate(names, 1)
    ]
    ends = "".join(f'<interface_ref client_id="{name}:if0"/>' for name in names)
    body = "\n".join([*nodes, LINK.format(ends=ends)])
    space = f"http://www.geni.net/resources/rspec/{version}"
    return f'<?xml version="1.0"?>\n<rspec xmlns="{space}" type="{kind}">\n{body}\n</rspec>\n'


def job(**changed):
    resources = {"cpus": 8, "gpus": 2, "cpuMemoryGb": 32, "gpuModel": ["V100"], "clusterId": 6}
    docker = {
        "image": "me:hunter2@gitlab.example.org:4567/team/train:1",
        "command": ["python", "train.py", "--token", "hunter2"],
        "environment": {"WANDB_API_KEY": "hunter2"},
        "storage": [
            {"hostPath": "/project_ghent", "containerPath": "/data"},
            {"hostPath": "tmpfs", "containerPath": "/dev/shm", "sizeGb": 4},
        ],
    }
    asked = {"resources": resources, "docker": docker, "scheduling": {"maxDuration": "1 week"}}
    owner = {"projectUrn": "urn:publicid:IDN+ilabt.imec.be+project+mine"}
    return json.dumps({"name": "train", "owner": owner, "request": asked} | changed, indent="\t")


FORMER = {
    "jobDefinition": {
        "name": "old",
        "dockerImage": "debian:stable",
        "clusterId": [1, 4],
        "resources": {"gpus": 1, "systemMemory": 4096, "cpuCores": 2, "minCudaVersion": 13},
        "jobDataLocations": [{"mountPoint": "/project", "sharePath": "/project_ghent"}],
    }
}
INVENTORY = """\
[gate]
gw ansible_host=gate.example.org ansible_user=jump ansible_port=22022
[train]
node[1:2].example.org
n3 ansible_host=10.0.0.3 ansible_port=2222 ansible_user=bob
[train:vars]
ansible_user=alice
ansible_password=hunter2
ansible_become_pass=hunter2
http_port=80
ansible_ssh_private_key_file=~/.ssh/train
ansible_ssh_common_args='-o ProxyJump=gw -o StrictHostKeyChecking=no'
"""
SSH_CONFIG = """\
Host gate
  HostName gate.example.org
  User jump
Host node* !node9
  User=alice
  ProxyJump gate
  IdentityFile ~/.ssh/lab
Host node1
  HostName 10.0.0.1
Host node2
  HostName 10.0.0.2
  Port 2222
  ForwardAgent yes
Host github.com
  User git
Include other
Match exec "touch owned"
  User mallory
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """A function that runs gpubed in an empty folder."""
    monkeypatch.delenv("GPUBED_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    return lambda *words, **options: CliRunner().invoke(
        cli.build(), [*words], standalone_mode=False, catch_exceptions=False, **options
    )


@pytest.fixture
def take(call, tmp_path):
    """A function that takes in a text; returns the specification, its comments, and errors."""

    def taken(text, *words):
        if text is not None:
            words = ("--from", "-", *words)
        data = text.encode() if isinstance(text, str) else text
        assert call("init", "mine", *words, input=data).return_value == 0
        written = (tmp_path / "inventories/mine/cluster.yml").read_text()
        assert "hunter2" not in written
        errors = json.loads(call("check", "mine", "--json").stdout)["errors"]
        assert all(PLACEHOLDER in error["message"] for error in errors)
        comments = [line for line in written.splitlines() if line.startswith("#   ")]
        return yaml.safe_load(written), "\n".join(comments), [error["path"] for error in errors]

    return taken


def refused(call, tmp_path, text, *, name="-"):
    """Return the error about a text; nothing may be written."""
    with pytest.raises(GpubedError) as error:
        call("init", "mine", "--from", name, input=text)
    assert not (tmp_path / "inventories").exists()
    return str(error.value)


def test_an_rspec_becomes_groups_of_alike_nodes_and_a_network(take):
    spec, left, to_fill_in = take(rspec("w0", "w1", "w2"))
    backend = spec["backend"]
    assert backend["aggregate"]["urn"] == WALL
    assert backend["hardware"] == {"w": {"type": "pcgen05"}}
    assert spec["nodes"] == [{"name": "w", "count": 3, "image": "ubuntu24-04-01-civ4"}]
    assert backend["images"] == {"ubuntu24-04-01-civ4": IMAGE}
    lan = {"rate": "100 Mbit/s", "latency": "20 ms", "loss": 0.19, "subnet": "10.1.1.0/24"}
    assert spec["networks"] == {"experiment": lan}  # twice each end's latency
    assert "line 6: execute w0" in left
    assert to_fill_in == ["backend.project"]


def test_an_unknown_testbed_has_its_url_to_be_filled_in(take):
    _, _, to_fill_in = take(rspec("a", "b", manager="urn:publicid:IDN+geni.example+authority+cm"))
    assert to_fill_in == ["backend.aggregate.url", "backend.project"]


@pytest.mark.parametrize("words", [(), ("--backend", "virtualwall")])
def test_a_testbed_with_a_preset_is_named(take, words):
    manager = "urn:publicid:IDN+utah.cloudlab.us+authority+cm"
    spec, _, to_fill_in = take(rspec("a", "b", manager=manager), *words)
    assert (spec["backend"]["type"], spec["backend"]["testbed"]) == ("geni", "cloudlab-utah")
    assert not {"aggregate", "authority"} & spec["backend"].keys()
    assert to_fill_in == ["backend.project"]


def test_an_rspec_of_the_virtual_wall_has_its_authority_whatever_the_name_of_the_backend(take):
    backend = take(rspec("a", "b"), "--backend", "geni")[0]["backend"]
    assert "testbed" not in backend
    assert "wall2" in backend["authority"]["slices"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (rspec("a", version="2"), r"input:2: is an RSpec of version 2 and type 'request'"),
        (rspec("a", kind="manifest"), r"input:2: is an RSpec of version 3 and type 'manifest'"),
        (rspec("a", sliver="docker-container"), r"input:2: asks for 0 nodes of sliver type"),
        (rspec("a", manager="nonsense"), r"input:\d+: backend.aggregate.urn: must be a URN"),
        ("<rspec>\n<node\n</rspec>", r"input:3: the file is not XML"),
        ('<!DOCTYPE r [<!ENTITY a "b">]>\n<rspec>&a;</rspec>', "declares a document type or enti"),
        ("<html/>", "has no format that can be taken in\n  hint: formats: a GPULab job"),
        ("", "has no format"),
    ],
)
def test_another_xml_file_is_refused_by_line_and_reason(call, tmp_path, text, why):
    assert re.search(why, refused(call, tmp_path, text))


def espec_files():
    document = "version: 1.0-basic\nrspec: lab/cluster.rspec\nexecute:\n- direct: echo hunter2\n"
    return {"experiment-specification.yml": document, "lab/cluster.rspec": rspec("a0", "a1")}


@pytest.mark.parametrize("kind", ["folder", "file", "zip", "tar.gz"])
def test_an_espec_is_found_in_a_folder_and_in_archives(take, tmp_path, kind):
    given = tmp_path / f"bundle.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(given, "w") as box:
            for name, text in espec_files().items():
                box.writestr(f"top/{name}", text)
    elif kind == "tar.gz":
        with tarfile.open(given, "w:gz") as tar:
            for name, text in espec_files().items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    else:
        for name, text in espec_files().items():
            (given / name).parent.mkdir(parents=True, exist_ok=True)
            (given / name).write_text(text)
        given = given / "experiment-specification.yml" if kind == "file" else given
    spec, left, _ = take(None, "--from", str(given))
    assert spec["nodes"][0] == {"name": "a", "count": 2, "image": "ubuntu24-04-01-civ4"}
    assert "experiment-specification.yml line 3: execute" in left


def test_an_espec_may_say_that_its_rspec_is_bundled(take, tmp_path):
    (tmp_path / "cluster.rspec").write_text(rspec("a0", "a1"))
    (tmp_path / "experiment-specification.yml").write_text("rspec: [{bundled: cluster.rspec}]\n")
    assert take(None, "--from", str(tmp_path))[0]["nodes"][0]["count"] == 2


@pytest.mark.parametrize("name", ["../outside.rspec", "/etc/passwd", "missing.rspec"])
def test_an_espec_reads_no_file_outside_its_folder(call, tmp_path, name):
    (tmp_path / "outside.rspec").write_text(rspec("a"))
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "experiment-specification.yml").write_text(f"version: 1\nrspec: {name}\n")
    assert "experiment-specification.yml:2: there is no RSpec" in refused(
        call, tmp_path, None, name=str(folder)
    )


@pytest.mark.parametrize("start", [b"PK\3\4", b"\x1f\x8b"])
def test_a_damaged_archive_is_refused(call, tmp_path, start):
    (tmp_path / "bundle").write_bytes(start + b"nonsense")
    said = refused(call, tmp_path, None, name="bundle")
    assert re.search(r"bundle cannot be read: (the archive is damaged|it cannot be decomp)", said)


def test_an_archive_that_grows_without_end_is_refused(call, tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as box:
        box.writestr("experiment-specification.yml", b" " * (9 * 2**20))
    assert "larger than 8 MiB" in refused(call, tmp_path, None, name="bomb.zip")


def test_a_job_becomes_one_node_without_its_secrets(take):
    spec, left, to_fill_in = take(job())
    backend = spec["backend"]
    assert (backend["project"], backend["cluster"], backend["gpu_model"]) == ("mine", 6, ["V100"])
    assert backend["image"] == "gitlab.example.org:4567/team/train:1"
    assert (backend["storage"], backend["shm"]) == ("/project_ghent", "4 GB")
    assert spec["storage"] == {"shared": {"path": "/data"}}
    node = {"name": "job", "count": 1, "gpus": 2, "machine": {"cpus": 8, "memory": "32 GB"}}
    assert (spec["nodes"], spec["lease"]) == ([node], {"duration": "7 d"})
    assert "user and password of the image's registry (a secret)" in left
    assert "request.docker.command" in left
    assert "request.docker.environment" in left
    assert to_fill_in == []


def test_a_job_of_the_former_format_is_taken_in(take):
    spec, _, to_fill_in = take(json.dumps(FORMER))
    assert spec["nodes"][0]["machine"] == {"cpus": 2, "memory": "4096 MB"}
    assert (spec["recipe"], spec["backend"]["cluster"]) == ("cuda13", 1)
    assert to_fill_in == ["backend.project"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"image": "debian@sha256:0123"}, r"input:\d+: backend.image: must be an image"),
        ({"image": "debian", "storage": "/etc"}, None),
        ({"image": ["debian"]}, "has no format"),
    ],
)
def test_a_job_with_another_image_or_mount(call, take, tmp_path, changed, why):
    text = job(request={"docker": changed, "resources": {"cpus": 1, "gpus": 0}})
    if why:
        assert re.search(why, refused(call, tmp_path, text))
    else:
        assert "mount /etc at /etc" in take(text)[1]


def test_a_job_that_asks_for_more_than_a_specification_holds_is_refused(call, tmp_path):
    models = "[" + ", ".join(["xx"] * 19_990) + "]"
    resources = f"cpus: 1\n    gpuModel: {models}"
    text = f"request:\n  docker:\n    image: debian\n  resources:\n    {resources}\n"
    assert "asks for too much" in refused(call, tmp_path, text)


def inventory_as_yaml():
    hosts = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}
    group = {"hosts": hosts, "vars": {"ansible_user": "alice", "vault_token": "hunter2"}}
    return yaml.safe_dump({"all": {"children": {"GPU nodes": group}}})


def test_an_inventory_gives_hosts_user_key_and_bastion(take):
    spec, left, to_fill_in = take(INVENTORY)
    backend = spec["backend"]
    assert (backend["user"], backend["key"]) == ("alice", "~/.ssh/train")
    gate = {"address": "gate.example.org", "port": 22022, "user": "jump"}
    assert backend["bastions"] == [gate]
    hosts = [{"address": "node1.example.org"}, {"address": "node2.example.org"}]
    assert backend["hosts"] == {"train": [*hosts, {"address": "10.0.0.3", "port": 2222}]}
    assert spec["nodes"] == [{"name": "train", "count": 3, "image": "debian-12"}]
    for words in ("line 8: ansible_password (a secret)", "ansible_become_pass (a secret)"):
        assert words in left
    assert "http_port" in left
    assert "user bob of n3: all have alice" in left
    assert "line 12: options of ssh other than the jump hosts" in left
    assert to_fill_in == ["networks.control.subnet"]


GATE = {"address": "gate.example.org", "port": 2222, "user": "me"}


@pytest.mark.parametrize(
    ("options", "bastions"),
    [
        ('-o ProxyCommand="ssh -W %h:%p -q me@gate.example.org -p 2222"', [GATE]),
        ('-oProxyCommand="ssh -p2222 -l me -i ~/.ssh/k gate.example.org -W %h:%p"', [GATE]),
        ("-o 'ProxyCommand ssh -J first -W %h:%p in'", [{"address": "first"}, {"address": "in"}]),
        ("-Jme@gate.example.org:2222 -A", [GATE]),
        ('-o ProxyCommand="nc -x proxy.example.org:1080 %h %p"', None),
        ("-J 'me@gate.example.org", None),
    ],
)  # fmt: skip
def test_a_jump_is_read_in_each_form_that_ssh_has(take, options, bastions):
    hosts = {"10.0.0.1": {"ansible_ssh_common_args": options}}
    spec, left, _ = take(yaml.safe_dump({"all": {"hosts": hosts}}))
    assert spec["backend"].get("bastions") == bastions
    ordinary = {"-A", "-i", "nc", "'me@gate.example.org"} & set(re.split(r'[ "]', options))
    assert ("options of ssh other than the jump hosts" in left) == bool(ordinary)


def test_hosts_of_a_range_have_the_line_of_the_range(take):
    _, left, _ = take("[a]\nn1 ansible_user=bob\nn2 ansible_user=bob\n[b]\nm[3:4]\n")
    assert "line 5: that m3 has no user: all have bob" in left


def test_an_inventory_in_yaml_keeps_its_groups(take):
    spec, left, _ = take(inventory_as_yaml())
    assert spec["backend"]["hosts"] == {
        "gpu-nodes": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}]
    }
    assert "vault_token (a secret)" in left


def test_an_ssh_config_applies_wildcards_and_runs_nothing(take, tmp_path):
    spec, left, _ = take(SSH_CONFIG)
    backend = spec["backend"]
    assert (backend["user"], backend["key"]) == ("alice", "~/.ssh/lab")
    assert backend["bastions"] == [{"address": "gate.example.org", "user": "jump"}]
    assert backend["hosts"]["node"] == [
        {"address": "10.0.0.1"},
        {"address": "10.0.0.2", "port": 2222},
    ]
    assert not (tmp_path / "owned").exists()
    for words in ("line 16: include", "line 17: match", "line 13: forwardagent", "github.com"):
        assert words in left


def test_jumps_of_jumps_and_proxy_commands_become_bastions(take):
    text = """\
Host gate
  User jump
Host inner
  HostName 10.5.0.1
  ProxyCommand ssh -q -W %h:%p gate
Host node
  HostName 10.5.0.2
  ProxyJump inner
Host odd
  HostName 10.5.0.3
  ProxyJump inner
  ProxyCommand corkscrew proxy 80 %h %p
"""
    spec, left, _ = take(text)
    gates = [{"address": "gate", "user": "jump"}, {"address": "10.5.0.1"}]
    assert spec["backend"]["bastions"] == gates
    assert spec["backend"]["hosts"]["node"] == [{"address": "10.5.0.2"}, {"address": "10.5.0.3"}]
    assert left.endswith("line 12: proxycommand")


def test_a_list_of_hosts_is_taken_in(take):
    text = "# mine\nalice@10.0.0.1:2222\nalice@[2001:db8::1]:2222\n10.0.0.3 slots=4   # third\n"
    spec, left, _ = take(text)
    assert spec["backend"]["hosts"]["node"] == [
        {"address": "10.0.0.1", "port": 2222},
        {"address": "2001:db8::1", "port": 2222},
        {"address": "10.0.0.3"},
    ]
    assert "line 4: slots" in left


def test_hosts_without_a_user_have_the_one_that_ssh_would_take(take):
    spec, _, to_fill_in = take("10.0.0.1\n")
    assert spec["backend"]["user"] == getpass.getuser()
    assert to_fill_in == []  # one host needs no network


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("all:\n  hosts:\n    a: !!python/object:os.system {}\n", "input:3: the tag"),
        ("all:\n  hosts: {\n", r"input:\d: a \[ or { is opened"),
        (BOMB, "input:1: more than 20000 values"),
        ("[a]\nx[1:999999999]\n", "input:2: may name more than 1000 hosts"),
        ("[a]\nx[a:z][a:z][a:z]\n", "input:2: may name more than 1000 hosts"),
        ("[a]\nx y\n", "input:2: .*Expected key=value"),
        ("[a]\n", "names no host"),
        ("[a]\nx ansible_connection=local\n", "names no host"),
        ("a:99999\n", "input:1: backend.hosts.node.0.port: must be at most"),
        ('[a]\nb ansible_host="-oProxyCommand=x"\n', "input:2: backend.hosts.a.0.address: must be"),
        ("Host a\n  Port nine\n", "input:1: backend.hosts.node.0.port"),
        ("x\n" * 2**18, "more than 262144 bytes"),
        ("Host a b*\n" * 200, "more than 300 hosts"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * (9 * 2**20), "larger than 8 MiB"),
    ],
)
def test_a_hostile_or_malformed_list_is_refused(call, tmp_path, text, why):
    assert re.search(why, refused(call, tmp_path, text))


def test_names_with_control_characters_move_no_cursor_and_add_no_line(take, tmp_path):
    take('all:\n  hosts:\n    "a\\e]0;x\\nversion: 9":\n      ansible_host: 10.0.0.1\n')
    written = (tmp_path / "inventories/mine/cluster.yml").read_text()
    assert "\x1b" not in written
    assert written.count("\nversion:") == 1


def test_an_executable_inventory_is_not_run(call, tmp_path):
    script = tmp_path / "hosts"
    script.write_text("#!/bin/sh\ntouch owned\n")
    script.chmod(0o755)
    refused(call, tmp_path, None, name="hosts")
    assert not (tmp_path / "owned").exists()


def test_a_backend_takes_its_own_formats_only(call):
    with pytest.raises(UsageError, match="no format that can be taken in"):
        call("init", "mine", "--backend", "gpulab", "--from", "-", input="10.0.0.1\n")


def test_the_page_about_it_does_what_it_says(tmp_path):
    page = "docs/how-to/from-what-you-have.md"
    (name, text) = re.search(r"```ini\n# (\S+)\n(.*?)```", (ROOT / page).read_text(), re.S).groups()
    (tmp_path / name).write_text(f"# {name}\n{text}")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text(SSH_CONFIG)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": path, "GPUBED_ROOT": str(tmp_path)}
    for command in (command for block in blocks.blocks(page) for command in block.commands):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.text],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == (2 if "check" in command.words else 0), done.stderr
        assert command.missing(done.stdout + done.stderr) == []
    written = (tmp_path / "inventories/own/cluster.yml").read_text()
    shown = re.search(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1]
    assert [line for line in shown.splitlines() if f"{line}\n" not in written] == []
