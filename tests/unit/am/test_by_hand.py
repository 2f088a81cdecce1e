"""The GENI site for tests, started by hand as its page says."""

import json
import os
import signal
import ssl
import subprocess
import sys
import xmlrpc.client
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from gpubed.core.paths import Project
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load
from support import wall

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "concepts" / "geni-test-site.md"


@contextmanager
def started(folder, *options):
    """The site in a process of its own; what it wrote for its clients."""
    command = "-m tests.support.am --port 12369 --dir /tmp/am"
    assert f".venv/bin/python {command}" in PAGE.read_text()
    arguments = command.replace("12369", "0").replace("/tmp/am", str(folder)).split()
    with subprocess.Popen(
        [sys.executable, *arguments, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        try:
            while process.stdout.readline().rstrip("\n") != "}":
                assert process.poll() is None
            yield json.loads((folder / "server.json").read_text())
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_it_serves_until_it_is_told_to_stop(tmp_path):
    with started(tmp_path) as facts:
        alice = facts["users"]["alice"]
        assert alice["passphrase"] == "open sesame"
        made = ssl.create_default_context(cafile=facts["ca_bundle"])
        made.load_cert_chain(alice["pem"], password=alice["passphrase"])
        server = xmlrpc.client.ServerProxy(facts["am_url"], context=made)
        assert server.GetVersion()["value"]["urn"] == facts["component_manager"]


@pytest.mark.parametrize("face", ["emulab", "standard", "gcf"])
def test_cluster_yml_gets_its_values_as_the_page_says(tmp_path, face):
    page = PAGE.read_text()
    for word in (f"`--face {face}`", "`--doors`", "`am_url`, `component_manager`"):
        assert word in page or face == "emulab"
    with started(tmp_path, "--face", face, "--doors") as facts:
        alice = facts["users"]["alice"]
        phrase = tmp_path / "phrase"
        phrase.write_text(alice["passphrase"])
        phrase.chmod(0o600)
        block = {
            "type": "virtualwall",
            "aggregate": {"url": facts["am_url"], "urn": facts["component_manager"]},
            "authority": {"slices": facts["sa_url"], "members": facts["ma_url"]},
            "project": facts["project"].rpartition("+")[2],
            "login": alice["pem"],
            "ca": facts["ca_bundle"],
            "passphrase_file": str(phrase),
        }
        paths = Project(tmp_path).cluster("vw")
        paths.spec.parent.mkdir(parents=True)
        paths.spec.write_text(yaml.safe_dump(wall.document(block)))
        findings = registry.bound("virtualwall", paths).doctor(load(paths.spec))
        assert not [f for f in findings if not f.ok and f.id != "virtualwall.way"]
