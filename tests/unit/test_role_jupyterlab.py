"""Role jupyterlab: its certificate, what the launcher shows, what is a host's owner's."""

import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from gpubed.core.paths import assets
from support import certificates, role_variables
from support.role_tasks import play

pytestmark = pytest.mark.process

ROLE = assets() / "roles/jupyterlab"
OWN = "/etc/gpubed/jupyterlab"
PAGE = (ROLE / "files/page_config.json").read_text()
# What a former version wrote, and what owners write who want no announcements.
QUIET = '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}\n'
HOSTS = ["10.1.2.3", "2001:db8::3", "node-0", "localhost", "127.0.0.1"]


def variable(name):
    return role_variables.value("jupyterlab", name, "debian-12", __jupyterlab_hosts=HOSTS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of a certificate, made as the role makes it."""
    names = variable("__jupyterlab_san"), variable("__jupyterlab_permitted")
    return certificates.make(tmp_path_factory.mktemp("jupyterlab"), *names)


def greet(made, host, trusted):
    """Shake hands with a server that shows the certificate, as somebody who trusts a file."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(f"{made}.crt", f"{made}.key")
    client = ssl.create_default_context(cafile=trusted)
    # What Python 3.13 and browsers ask for.
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=host).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("host", HOSTS)
def test_it_is_good_for_each_name_of_the_head(made, host):
    greet(made, host, f"{made}.ca.crt")


def test_it_is_good_for_nothing_else(made):
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        greet(made, "bank.example", f"{made}.ca.crt")


def test_the_authority_can_vouch_for_no_other(made):
    """Neither is its key kept, nor would a certificate for another name count."""
    left = sorted(path.name for path in made.parent.iterdir())
    assert left == ["some.ca.crt", "some.crt", "some.key"]
    said = subprocess.run(
        ["openssl", "x509", "-in", f"{made}.ca.crt", "-noout", "-ext", "nameConstraints"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "critical" in said
    assert "IP:10.1.2.3/255.255.255.255" in said
    assert "Excluded" not in said


@pytest.mark.parametrize("status", [True, False])
def test_the_launcher_leads_to_what_there_is(status):
    """Entries that jupyter-app-launcher cannot read are left out by it without a word."""
    text = (assets() / "roles/jupyterlab/templates/jp_app_launcher_gpubed.yml.j2").read_text()
    variables = {
        "ansible_managed": "managed",
        "jupyterlab_status": status,
        "jupyterlab_examples": ["digits", "mine"],
        "__jupyterlab_runs_link": "job-runs",
        "__jupyterlab_reports_link": "campaign-reports",
    }
    found = Templar(DataLoader(), variables=variables).template(trust_as_template(text))
    entries = yaml.safe_load(found)
    folders = ["Runs of jobs", "Reports of campaigns", "Example digits", "Example mine"]
    titles = [*folders, "Terminal on a node"]
    assert [entry["title"] for entry in entries] == ["Status page"] * status + titles
    assert {entry["catalog"] for entry in entries} == {"Cluster"}
    opened = [e["source"][0]["args"]["path"] for e in entries if e["type"] == "jupyterlab-commands"]
    assert opened == ["/job-runs", "/campaign-reports", "/examples/digits", "/examples/mine"]
    assert {type(entry["source"]) for entry in entries} == {str, list}


@pytest.fixture
def host(tmp_path):
    """A function that runs a script of the role on a host whose files are a test's own.

    Whatever else it calls are STAND-INS; returned are the lines that it printed, and their calls.
    """
    (tmp_path / "bin").mkdir()
    called = tmp_path / "called"
    called.write_text("")
    for name in ("pkill", "runuser", "userdel", "systemctl", "getent", "id"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\n# STAND-IN\necho "{name} $*" >>{called}\n')
        program.chmod(0o755)

    def run(text, *words, **answers):
        for name, does in answers.items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n# STAND-IN\n{does}\n")
        done = subprocess.run(
            ["sh", "-c", text.replace("/etc/", f"{tmp_path}/etc/"), "script", *words],
            env={"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
        said = done.stdout.replace(str(tmp_path), "").splitlines()
        return said, called.read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, []),
        ({"passwd,jupyter": "jupyter:x:59001:59001::/:/", "group,jupyter": "jupyter:x:59001:"}, []),
        (
            {"passwd,jupyter": "jupyter:x:1005:100::/:/"},
            ["account jupyter (number and group 1005:100)"],
        ),
        ({"group,jupyter": "jupyter:x:1005:"}, ["group jupyter (number 1005)"]),
        ({"passwd,59001": "ann:x:59001:100::/:/"}, ["account ann (number 59001)"]),
        ({"group,59001": "lab:x:59001:"}, ["group lab (number 59001)"]),
    ],
)
def test_an_account_of_the_owners_is_named(host, known, said):
    text = (ROLE / "files/foreign-jupyterlab").read_text()
    cases = "".join(f"{key}) echo {line} ;;\n" for key, line in known.items())
    found, _ = host(
        text, "jupyter", "59001", "", "", getent=f'case "$1,$2" in\n{cases}*) exit 2 ;;\nesac'
    )
    assert found == said


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("exit 1", []),
        (f"echo ExecStart=lab --config={OWN}/jupyter_server_config.py", []),
        ("echo ExecStart=/home/ann/jupyter-lab", ["jupyterlab.service"]),
    ],
)
def test_a_service_of_the_owners_is_named(host, tmp_path, unit, said):
    folder = tmp_path / OWN.lstrip("/")
    script = (ROLE / "files/foreign-jupyterlab").read_text()
    found, _ = host(script, "", "", str(folder), systemctl=unit.replace(OWN, str(folder)))
    assert found == said


@pytest.fixture
def outside(host, tmp_path):
    """A function that asks whose page and kernel are, or takes away what is the role's."""
    page, kernel = tmp_path / "labconfig/page_config.json", tmp_path / "horovod/kernel.json"
    folder = tmp_path / OWN.lstrip("/")

    def ask(verb, texts, kept=(None, None), served=False):
        for file, text, was in zip((page, kernel), texts, kept, strict=True):
            for path, content in ((file, text), (folder / "kept" / file.name, was)):
                if content is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(content)
        if served:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "jupyter_server_config.py").touch()
        words = (verb, folder, page, PAGE.strip(), kernel, KERNEL.strip())
        found, _ = host((ROLE / "files/outside-files").read_text(), *map(str, words))
        return found, page.exists(), kernel.exists()

    return ask


KERNEL = '{"argv": ["/usr/local/bin/gpubed-rank", "/shared/env/current/bin/python"]}\n'
FORMER_KERNEL = KERNEL.replace("/shared/env", "/data/env")
PAGE_FILE, KERNEL_FILE = "/labconfig/page_config.json", "/horovod/kernel.json"


@pytest.mark.parametrize(
    ("texts", "kept", "served", "said"),
    [
        ((None, None), (None, None), False, []),
        ((PAGE, KERNEL), (None, None), False, []),
        (("{}", "{}"), (None, None), True, [PAGE_FILE, KERNEL_FILE]),
        (("{}", "{}"), (PAGE, KERNEL), True, [PAGE_FILE, KERNEL_FILE]),
        ((QUIET, FORMER_KERNEL), (None, None), True, []),
        ((QUIET, FORMER_KERNEL), (None, None), False, [PAGE_FILE, KERNEL_FILE]),
        ((QUIET.replace("true", 'true, "mine": true'), None), (None, None), True, [PAGE_FILE]),
        # With another text, as an older role wrote it, or about to be written.
        (("older", "older"), ("older", "older"), True, []),
        ((PAGE, KERNEL), ("older", "older"), True, []),
    ],
)
def test_a_page_and_a_kernel_of_the_owners_are_named(outside, texts, kept, served, said):
    assert outside("foreign", texts, kept, served)[0] == said


@pytest.mark.parametrize(
    ("texts", "kept", "served", "stay"),
    [
        (("older", KERNEL), ("older", KERNEL), True, False),
        (("mine", "mine"), (PAGE, KERNEL), True, True),
        # A former version kept nothing.
        ((QUIET, FORMER_KERNEL), (None, None), True, False),
        ((PAGE, KERNEL), (None, None), True, False),
        ((QUIET, "mine"), (None, None), False, True),
    ],
)
def test_what_the_owner_did_not_change_is_taken_away(outside, texts, kept, served, stay):
    assert outside("leave", texts, kept, served) == ([], stay, stay)


def test_what_is_the_owners_is_refused_in_words(tmp_path):
    kernel = tmp_path / "kernel.json"
    kernel.write_text("{}")
    done = play(
        tmp_path,
        "jupyterlab",
        "owners",
        programs={"systemctl": "echo ExecStart=/home/ann/jupyter-lab"},
        inventory_hostname="node-0",
        gpubed_cluster="lab",
        gpubed_head="node-0",
        ansible_managed="managed",
        __jupyterlab_page=str(tmp_path / "none.json"),
        __jupyterlab_kernel=str(kernel),
    )
    said = " ".join(done.said.split())
    assert done.code != 0
    assert f"would take over: jupyterlab.service, {kernel}. Nothing was touched." in said


# STAND-IN for systemd, which knows a unit that is about to go.
UNIT = "printf 'LoadState=loaded\\nActiveState=inactive\\n'"


def places(folder):
    """Where the role writes, in a folder of a test."""
    return {
        "__jupyterlab_folder": str(folder / "jupyterlab"),
        "__jupyterlab_unit_file": str(folder / "units/jupyterlab.service"),
        "__jupyterlab_page": str(folder / "etc/labconfig/page_config.json"),
        "__jupyterlab_kernel": str(folder / "share/kernels/horovod/kernel.json"),
        "__jupyterlab_mark": str(folder / "leave.d/jupyterlab"),
        "__jupyterlab_keys": str(folder / "keys/jupyter"),
        "__jupyterlab_let_in": str(folder / "sshd/jupyter.conf"),
    }


def take_away(folder, programs, **variables):
    """The role, on a head where no JupyterLab is wanted any more."""
    given = {"inventory_hostname": "node-0", "gpubed_head": "node-0", "gpubed_fingerprints": {}}
    given |= {"gpubed_uuid": "0f0e", "ansible_managed": "managed", **places(folder), **variables}
    (folder / "play").mkdir(exist_ok=True)
    done = play(
        folder / "play",
        "jupyterlab",
        "main",
        programs=programs,
        jupyterlab_enabled=False,
        **given,
    )
    assert done.code == 0, done.said
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="tasks give files to root")
@pytest.mark.parametrize("ours", [True, False])
def test_the_server_goes_and_what_is_the_owners_stays(tmp_path, ours):
    """The owner has a service of that name, a page that he changed, a kernel of his own."""
    node = tmp_path / "node"
    at = {name: Path(path) for name, path in places(node).items()}
    words = at["__jupyterlab_folder"] if ours else "/home/ann"
    written = {
        at["__jupyterlab_unit_file"]: f"ExecStart=jupyter-lab --config={words}/config.py\n",
        at["__jupyterlab_folder"] / "kept/page_config.json": PAGE,
        at["__jupyterlab_folder"] / "kept/kernel.json": KERNEL,
        at["__jupyterlab_page"]: PAGE if ours else "{}",
        at["__jupyterlab_kernel"]: KERNEL,
    }
    written |= {} if ours else {at["__jupyterlab_kernel"].parents[1] / "own/kernel.json": ""}
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = take_away(node, {"systemctl": UNIT})
    stopped = [call for call in done.calls if call.startswith("systemctl stop")]
    assert stopped == []
    assert "firewall.close jupyterlab" in done.calls
    assert ("base : Stop the units" in done.tasks) is ours
    left = [path.relative_to(node) for path in written if path.exists()]
    own = ["units/jupyterlab.service", "etc/labconfig/page_config.json"]
    assert [str(path) for path in left] == ([] if ours else [*own, "share/kernels/own/kernel.json"])
    assert (node / "etc").exists() is not ours
    assert (node / "share").exists() is not ours
    assert not at["__jupyterlab_kernel"].parent.exists()
    again = take_away(node, {"systemctl": UNIT})
    assert set(again.tasks.values()) == {"ok"}


@pytest.mark.skipif(os.geteuid() != 0, reason="tasks give files to root")
@pytest.mark.parametrize(("number", "ours"), [("59001", True), ("59001", False), ("1005", True)])
def test_where_no_jupyterlab_is_wanted_an_account_of_the_owners_stays(tmp_path, number, ours):
    """The way out that a refusal names; one with another number stays though the role had one."""
    at = {name: Path(path) for name, path in places(tmp_path).items()}
    for name in ("keys", "let_in", "mark") if ours else ():
        path = at[f"__jupyterlab_{name}"]
        path.parent.mkdir()
        path.write_text("exit 1\n")
    programs = {"getent": f"echo jupyter:x:{number}:{number}::/:/"}
    programs |= dict.fromkeys(("pkill", "runuser", "userdel", "groupdel"), "")
    programs["systemctl"] = UNIT
    done = take_away(tmp_path, programs)
    goes = ours and number == "59001"
    ended = [call for call in done.calls if call.startswith(("pkill", "runuser", "userdel"))]
    words = "rm -f ~jupyter/.ssh/id_gpubed ~jupyter/.ssh/id_gpubed.pub"
    assert ended[:2] == ["pkill -KILL -u 59001", f"runuser -u jupyter -- sh -c {words}"] * goes
    assert ("base : Remove each user, but no home" in done.tasks) is goes
    assert ("Let sshd forget it" in done.tasks) is ours
    assert not [path for path in (tmp_path / "keys", tmp_path / "leave.d") if list(path.glob("*"))]
