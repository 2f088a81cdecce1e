"""Two nodes after role streams: a server on the head, and a client's file on each."""

import json


def test_the_server_is_on_the_head_alone(host):
    on_head = host.run("hostname").stdout.strip() == "node-0"
    assert host.service("nats-server").is_running == on_head


def test_only_the_account_reads_its_password(host):
    path = host.run("ls /home/*/.config/gpubed/streams.json").stdout.strip()
    assert host.file(path).mode == 0o600
    assert json.loads(host.file(path).content_string)["url"] == "tls://node-0:4222"
