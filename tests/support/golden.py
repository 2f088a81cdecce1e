"""What users see, in a form that is the same on each machine and day."""

import contextlib
import difflib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import yaml

from gpubed import cli
from support.am import AmServer, Ghosts, Site
from support.cluster import BIN, ROOT, Cluster, unique
from support.gpulab.site import Site as GpulabSite
from support.wall import backend, document

GOLDEN = ROOT / "tests" / "golden"
# Each placeholder and its pattern; the first ones first.
NORMAL = (
    (r"\x1b\[[0-9;]*m", ""),  # colours
    (r"/tmp/golden-\w+", "<folder>"),  # the project's folder
    (re.escape(str(ROOT)), "<gpubed>"),  # the checkout
    (r"\bgolden-[0-9a-f]{6}\b", "<cluster>"),  # drawn for each recording
    (r"-----BEGIN[^-]+-----[^-]+-----END[^-]+-----", "<pem>"),  # keys, certificates
    (r"(ssh-ed25519|ecdsa-sha2-\S+|ssh-rsa) [A-Za-z0-9+/=]{20,}", r"\1 <key>"),  # drawn keys
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),  # drawn
    (
        r"\b20\d{6}[-T]?\d{6}Z?(\d{3})?(-[0-9a-f]{4,})?\b",
        "<run>",
    ),  # runs are named after their start
    (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d| UTC)?", "<time>"),  # clock
    (r"(?<![\d.])-?\d+\.\d+(e-?\d+)?(?![.\d])", "<number>"),  # measured
    (r"\b\d+ images/s", "<n> images/s"),  # measured
    (r"\b[0-9a-f]{12,64}\b", "<id>"),  # ids of containers, hashes
    (r"\b\d{1,3}(\.\d{1,3}){3}\b", "<address>"),  # drawn by the cluster's name
    (r"\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b", "<mac>"),  # drawn
    (r"(127\.0\.0\.1|<address>|localhost):\d+", r"\1:<port>"),  # free ports of this machine
    (r"(<number>|\b\d+) ?(h|min|ms|µs|s|d)\b( \d+ (h|min|s)\b)*", "<duration>"),  # measured
    (r"(<number>|\b\d+) (k|M|G)?bit/s", "<rate>"),  # measured
    (r"(<number>|\b\d+) ([KMGT]i?)?B\b", "<size>"),  # of this machine
    (r'("\w*(_s|_at|_bps|_bytes|port|pid|loss|accuracy|duration|remaining)": )[-\d.e]+', r"\1<n>"),
    (r" +$", ""),  # the table's width follows what is in it
)


def normal(text):
    """Replace what differs between two recordings."""
    for pattern, placeholder in NORMAL:
        text = re.sub(pattern, placeholder, text, flags=re.MULTILINE)
    return text


def told(rc, out, err):
    """Return one file's text."""
    return normal(f"exit code {rc}\n--- stdout\n{out}\n--- stderr\n{err}").rstrip() + "\n"


def in_process(root, *words):
    """Call gpubed in this process, with a folder as its project."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"GPUBED_ROOT": str(root), "COLUMNS": "100"}),
        mock.patch.object(sys, "argv", ["gpubed", *words]),
        mock.patch.object(sys.modules["__main__"], "__package__", ""),  # the program's name
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            rc = cli.main()
        except SystemExit as end:
            rc = end.code
    return told(rc or 0, out.getvalue(), err.getvalue())


LOCAL = {"version": 1, "backend": {"type": "local"}, "nodes": [{"name": "node", "count": 1}]}
# Of a wrong specification: its changes of LOCAL, or the file's text.
WRONG_SPECIFICATIONS = {
    "key-misspelled": {"nodse": []},
    "key-of-node-misspelled": {"nodes": [{"name": "node", "cuont": 1}]},
    "testbed-missing": {"backend": {}},
    "testbed-unknown": {"backend": {"type": "locla"}},
    "recipe-unknown": {"recipe": "none"},
    "version-unknown": {"version": 2},
    "count-negative": {"nodes": [{"name": "node", "count": -1}]},
    "no-nodes": {"nodes": []},
    "group-twice": {"nodes": [{"name": "node", "count": 1}, {"name": "node", "count": 2}]},
    "memory-without-unit": {"nodes": [{"name": "node", "machine": {"memory": "lots"}}]},
    "rate-without-unit": {"networks": {"experiment": {"rate": "fast"}}},
    "subnet-wrong": {"networks": {"experiment": {"subnet": "10.0.0.0/99"}}},
    "service-unknown": {"services": {"jupiterlab": {}}},
    "port-too-high": {"services": {"jupyterlab": {"port": 70000}}},
    "storage-unknown": {"storage": {"shared": {"provider": "floppy"}}},
    "not-yaml": "nodes: [",
    "not-a-mapping": "- node\n",
    "empty": "",
}
WRONG_COMMANDS = {
    "verb-unknown": ["upp", "lab"],
    "cluster-unknown": ["check", "lba"],
    "cluster-missing": ["up"],
    "option-unknown": ["plan", "lab", "--jsno"],
    "engine-unknown": ["plan", "lab", "--engine", "none"],
    "job-unknown": ["run", "lab", "digist"],
    "run-before-up": ["run", "lab", "digits"],
    "verify-before-up": ["verify", "lab"],
    "runs-action-unknown": ["runs", "lab", "lits"],
    "report-without-campaign": ["report", "lab", "none"],
}


def errors(folder):
    """Return what each wrong specification or command is told, by its file's name."""
    path = folder / "inventories" / "lab" / "cluster.yml"
    path.parent.mkdir(parents=True)
    found = {}
    for name, wrong in WRONG_SPECIFICATIONS.items():
        text = wrong if isinstance(wrong, str) else yaml.safe_dump(LOCAL | wrong, sort_keys=False)
        path.write_text(text)
        found[f"errors/{name}.txt"] = in_process(folder, "check", "lab")
    path.write_text(yaml.safe_dump(LOCAL, sort_keys=False))
    for name, words in WRONG_COMMANDS.items():
        found[f"errors/{name}.txt"] = in_process(folder, *words)
    return {name: text.replace(str(folder), "<folder>") for name, text in found.items()}


BOTH = ("", "--json")
STATES = {
    "fresh": {"check": BOTH, "plan": BOTH, "status": BOTH, "verify": BOTH, "run": BOTH,
              "runs": BOTH, "report": BOTH, "up": ("",)},
    "unchanged": {"up": BOTH},
    "node-more": {"plan": ("--json",), "up": ("--json",), "status": ("--json",)},
    "node-killed": {"status": BOTH, "plan": ("",), "up": ("",)},
    "edited": {"plan": ("",), "up": ("",)},
    "down": {"down": BOTH, "status": ("",)},
}  # fmt: skip
WORDS = {"run": ["digits", "--set", "epochs=1"], "up": ["-y"], "down": ["-y"]}
LOOKS = {
    "etc-gpubed.txt": 'cd /etc/gpubed && for f in $(find . -type f | sort); do echo "== $f"; '
    "sed -E 's/((password|token|secret|key)\\W+)\\S+/\\1<secret>/I' $f; done",
    "nft.txt": "sudo -n env PATH=/usr/sbin:/usr/bin:/sbin:/bin nft list ruleset",
    "tc.txt": "env PATH=/usr/sbin:/usr/bin:/sbin:/bin tc -s qdisc",
    "packages.txt": "/shared/env/current/bin/python -c 'import importlib.metadata as of; "
    """print(*sorted(f"{d.name} {d.version}" for d in of.distributions()), sep="\\n")'""",
}


def _more(spec):
    spec["nodes"][0]["count"] += 1


def _edit(spec):
    spec["lease" if spec["backend"]["type"] != "local" else "firewall"] = (
        {"duration": "2 h"}
        if spec["backend"]["type"] != "local"
        else {"open": [{"port": 6006, "comment": "TensorBoard"}]}
    )


def _kill(cluster):
    allocation = json.loads((cluster.state / "allocation.json").read_text())
    last = allocation["nodes"][-1]["id"]
    subprocess.run(["docker", "kill", last], check=True, capture_output=True)


@contextlib.contextmanager
def _local(folder, **changes):
    machine = {"cpus": 1, "memory": "3 GiB"}
    count = changes.pop("count")
    base = {"nodes": [{"name": "node", "count": count, "machine": machine}]}
    made = Cluster(folder, unique("golden"), **(base | changes))
    yield made


@contextlib.contextmanager
def _geni(folder):
    site = Site()
    ghosts = Ghosts("wall2.ilabt.example", boot_seconds=0.1)
    with AmServer(folder / "am", site=site, nodes=ghosts) as server:
        made = Cluster(folder / "project", unique("golden"))
        made.write(document(backend(server, server.user("alice")), nodes=[{"count": 2}]))
        yield made


@contextlib.contextmanager
def _gpulab(folder):
    with GpulabSite(folder) as site:
        made = Cluster(site.project, unique("golden"))
        made.write(site.spec())
        made.command = site.command
        yield made


SPECS = {
    "gpulab": _gpulab,
    "geni": _geni,
    "one": lambda folder: _local(folder, count=1, networks={}, services={"jupyterlab": None}),
    "two": lambda folder: _local(
        folder, count=2, networks={"experiment": {"rate": "1 Gbit/s"}}
    ),
    "three": lambda folder: _local(
        folder,
        count=3,
        storage={"shared": {"provider": "nfs"}},
        services={"docker": {}, "monitoring": {}},
    ),
}  # fmt: skip


def recorded(spec, folder):
    """Yield each file's name and text, as a cluster goes through its states."""
    with SPECS[spec](folder) as cluster:
        try:
            for state in STATES:
                yield from _state(spec, state, cluster)
        finally:
            cluster.call("down", "-y", rc=None)


def _state(spec, state, cluster):
    local = cluster.spec["backend"]["type"] == "local"
    if state == "node-killed":
        if not local:
            return
        _kill(cluster)
    if change := {"node-more": _more, "edited": _edit}.get(state):
        cluster.edit(change)
    for verb, forms in STATES[state].items():
        for form in forms:
            words = [verb, cluster.name, *WORDS.get(verb, []), *([form] if form else [])]
            command = getattr(cluster, "command", lambda words: [str(BIN / "gpubed"), *words])
            done = subprocess.run(
                command(words),
                env=cluster.environment | {"COLUMNS": "100"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            name = f"{spec}/{state}/{verb}.{'json' if form else 'txt'}"
            yield name, told(done.returncode, done.stdout, done.stderr)
    if local and state == "unchanged":
        yield from _looks(spec, cluster)


def _looks(spec, cluster):
    yield f"{spec}/files/hosts.yml", normal((cluster.spec_path.parent / "hosts.yml").read_text())
    yield f"{spec}/files/ssh_config", normal((cluster.state / "ssh_config").read_text())
    for name, command in LOOKS.items():
        text = normal(cluster.node("node-0", command))
        if name in ("tc.txt", "nft.txt"):
            text = re.sub(r"\b\d+(?=b| |$)", "<n>", text, flags=re.MULTILINE)  # counters
        yield f"{spec}/files/{name}", text


def differences(name, text):
    """Return the lines in which a file differs from what is kept."""
    path = GOLDEN / name
    kept = path.read_text() if path.exists() else ""
    return list(
        difflib.unified_diff(
            kept.splitlines(), text.splitlines(), f"kept/{name}", name, "", "", 3, ""
        )
    )


def write(name, text):
    """Keep a file."""
    path = Path(GOLDEN / name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
