"""The GENI site for tests, started by hand as its page says."""

import json
import os
import signal
import ssl
import subprocess
import sys
import xmlrpc.client
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "concepts" / "geni-test-site.md"


def test_it_serves_until_it_is_told_to_stop(tmp_path):
    command = "-m tests.support.am --port 12369 --dir /tmp/am"
    assert f".venv/bin/python {command}" in PAGE.read_text()
    arguments = command.replace("12369", "0").replace("/tmp/am", str(tmp_path)).split()
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            while process.stdout.readline().rstrip("\n") != "}":
                assert process.poll() is None
            facts = json.loads((tmp_path / "server.json").read_text())
            alice = facts["users"]["alice"]
            assert alice["passphrase"] == "open sesame"
            made = ssl.create_default_context(cafile=facts["ca_bundle"])
            made.load_cert_chain(alice["pem"], password=alice["passphrase"])
            server = xmlrpc.client.ServerProxy(facts["am_url"], context=made)
            assert server.GetVersion()["value"]["urn"] == facts["component_manager"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
