"""Every command that gpubed prints as a way out is one that can be typed as it stands."""

import ast
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gpubed import cli
from gpubed.checks import registry, verify
from gpubed.checks.context import Context
from gpubed.cluster import setup
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.verification import Check
from support.samples import granted_cluster, sample_allocation, sample_plan

ROOT = Path(__file__).parents[2]
# In what becomes text: the name of a cluster, whatever it will be.
NAME = "CLUSTER"
NAMES = {NAME, "lab", "vw"}
COMMAND = re.compile(r"\bgpubed ([a-z]+)((?: [~\w.=/-]*[\w=/-])*)")
# `gpubed plan` in a sentence names a verb; it is nothing to type.
MENTION = re.compile(r"`gpubed [a-z]+`|'gpubed [a-z]+'")
JINJA = re.compile(r"\{\{.*?\}\}")


def printed(source):
    """Yield the strings of a program, those that explain it aside."""
    tree = ast.parse(source)
    bodies = (node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list))
    explained = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)} | {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if id(node) in explained | parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(p.value if isinstance(p, ast.Constant) else NAME for p in node.values)


def told(source):
    """Yield what a role tells: its lines without comments."""
    for line in source.splitlines():
        if not line.lstrip().startswith(("#", "//", '"""')):
            yield JINJA.sub(NAME, line)


def commands():
    """Yield each command line with the file that it is in."""
    places = [(path, printed) for path in (ROOT / "src/gpubed").rglob("*.py")]
    places += [
        (path, printed if path.suffix == ".py" else told)
        for kind in ("tasks", "handlers", "files", "templates")
        for path in (ROOT / "roles").glob(f"*/{kind}/**/*")
        if path.is_file()
    ]
    for path, strings in places:
        for text in strings(path.read_text(encoding="utf-8").replace("{}", NAME)):
            # What may be added to a name is no part of it: `{name}{' --status' if …}`.
            text = MENTION.sub("", text).replace(NAME * 2, NAME)
            for verb, words in COMMAND.findall(text):
                if verb in cli.verbs():
                    yield path.relative_to(ROOT), f"gpubed {verb}{words}"


@pytest.fixture(scope="module")
def verbs():
    return typer.main.get_command(cli.build()).commands


def can_be_typed(verbs, line):
    """Say whether a command line, or what stands before the rest of a sentence, is one."""
    _, verb, *words = line.split()
    command = verbs[verb]
    cluster = next((p for p in command.params if p.metavar == "CLUSTER"), None)
    if cluster is not None and cluster.required and not {*words[:1]} & NAMES:
        return False
    return any(parses(command, words[:end]) for end in range(len(words), -1, -1))


def parses(command, words):
    try:
        command.make_context("gpubed", [*words], resilient_parsing=False)
    except Exception as error:
        if not hasattr(error, "show"):  # how a usage error is told from a bug, as in `cli.main`
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("gpubed up CLUSTER", True),
        ("gpubed up CLUSTER goes on with it", True),
        ("gpubed configure CLUSTER --tags hardware", True),
        ("gpubed doctor --fix", True),
        ("gpubed configure", False),
        ("gpubed configure --tags hardware", False),
        ("gpubed down the cluster", False),
    ],
)
def test_what_can_be_typed(verbs, line, right):
    assert can_be_typed(verbs, line) is right


def test_every_command_that_is_printed_can_be_typed(verbs):
    found = list(commands())
    assert len(found) > 100
    wrong = {f"{path}: {line}" for path, line in found if not can_be_typed(verbs, line)}
    assert not wrong, "\n".join(sorted(wrong))


def test_a_verification_that_failed_leads_on(tmp_path, monkeypatch):
    """By `up` to what applies the roles again, and by `verify` to the same, not to itself alone."""
    cluster = granted_cluster(tmp_path)
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    said = Check(id="ssh.mesh", node="node-0", result="fail", reason="does not reach node-1")
    monkeypatch.setattr(registry, "functions", lambda: [lambda _: iter([said])])
    monkeypatch.setattr(Context, "simulated", frozenset())
    plan = sample_plan()
    with pytest.raises(verify.VerificationFailed) as failed:
        setup.verify_cluster(Cluster(cluster, plan, sample_allocation(plan)))
    way_on = "gpubed configure lab applies all roles again, then: gpubed verify lab"
    assert failed.value.hint == way_on
    done = CliRunner().invoke(cli.build(), ["verify", "lab"], standalone_mode=False)
    assert done.return_value == 1
    assert way_on in done.stderr
