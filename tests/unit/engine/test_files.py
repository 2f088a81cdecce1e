"""What the engine keeps on disk: ciphertext, checkpoints, configuration."""

import json

import pytest

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import Project as Folder
from gpubed.engines.embedded import checkpoint
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.events import Refusal
from gpubed.engines.embedded.stack import Project, salt_in
from gpubed.engines.embedded.state import State, decode, encode, urn_of
from gpubed.engines.embedded.values import Secret
from gpubed.engines.stack import Stack

# Written by Pulumi's own CLI with the passphrase "fixture".
CLI_SALT = "v1:pQg1PNXUf0A=:v1:XdHYqFXKhbMuKN3v:KudwfimDxl19rOfDIdZx7sscoJ5wvA=="
CLI_SECRET = "v1:3m35NjVweYVowZVT:VMUfbSsSQK9IAC4E+CsZkwNQWeLOCY+cT2wEPg=="

STACK = "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"
PROVIDER = "urn:pulumi:dev::p::pulumi:providers:pulumi-python::default"


@pytest.fixture(scope="module")
def cipher():
    return PassphraseCipher("fixture")


def thing(name, **fields):
    return State(
        f"urn:pulumi:dev::p::pulumi-python:dynamic:Resource::{name}",
        "pulumi-python:dynamic:Resource",
        True,
        id=f"id-{name}",
        provider=f"{PROVIDER}::7",
        **fields,
    )


def listing(*things):
    stack = State(STACK, "pulumi:pulumi:Stack", False)
    return [stack, State(PROVIDER, "pulumi:providers:pulumi-python", True, id="7"), *things]


def test_the_clis_ciphertext_opens_and_the_wrong_passphrase_is_noticed():
    assert PassphraseCipher("fixture", CLI_SALT).decrypt(CLI_SECRET) == "from the CLI"
    with pytest.raises(GpubedError, match="passphrase does not decrypt"):
        PassphraseCipher("other", CLI_SALT)


def test_a_resource_survives_the_checkpoint(cipher):
    state = thing(
        "a",
        inputs={"pw": Secret({"inner": Secret(1)}), "n": 3},
        outputs={"list": [None, 1.5, "t"]},
        parent=STACK,
        dependencies=[STACK],
        property_dependencies={"n": []},
        extra={"hideDiff": ["n"]},
    )
    raw = json.loads(json.dumps(encode(state, cipher)))
    assert vars(decode(raw, cipher)) == vars(state)
    assert "delete" not in raw
    assert raw["propertyDependencies"] == {"n": []}
    assert "inner" not in json.dumps(raw["inputs"]["pw"])
    for option in ("deletedWith", "protect", "resourceHooks", "external", "ignoreChanges"):
        with pytest.raises(Refusal, match="does not support"):
            decode({**raw, option: ["x"]}, cipher)


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (listing(thing("b", dependencies=[thing("a").urn]), thing("a")), "not listed before"),
        (listing(thing("a", parent="urn:pulumi:dev::p::x:y:Z::z")), "not listed before"),
        (listing(thing("a"), thing("a")), "listed twice"),
        ([thing("a")], "not listed before"),
    ],
)
def test_an_unsound_listing_is_refused(resources, reason):
    checkpoint.verify(listing(thing("a", delete=True), thing("a")))
    with pytest.raises(GpubedError, match=reason):
        checkpoint.verify(resources)


def test_state_in_other_layouts_is_refused(tmp_path):
    stacks = tmp_path / ".pulumi/stacks"
    (stacks / "p").mkdir(parents=True)
    (stacks / "p/dev.json.gz").write_text("")
    with pytest.raises(Refusal, match="compressed"):
        StackFile(tmp_path, "p", "dev").read()
    (stacks / "old.json").write_text("")
    with pytest.raises(Refusal, match="legacy"):
        StackFile(tmp_path, "p", "other").read()


@pytest.mark.parametrize(
    ("text", "error"),
    [(None, UsageError), ("name: p\nruntime: nodejs\n", UsageError), ("name: [", GpubedError)],
)
def test_other_projects_are_refused(tmp_path, text, error):
    if text:
        (tmp_path / "Pulumi.yaml").write_text(text)
    with pytest.raises(error):
        Project.load(tmp_path)


def test_only_a_passphrase_seals_the_secrets(tmp_path):
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text("encryptionsalt: v1:a\nconfig: {p:size: 3}\n")
    assert salt_in(path) == "v1:a"
    path.write_text("secretsprovider: awskms://alias/x\n")
    with pytest.raises(Refusal, match="awskms"):
        salt_in(path)


def test_urns_carry_their_parents_types():
    root = urn_of("dev", "p", "", "pulumi:pulumi:Stack", "p-dev")
    assert root == STACK
    group = urn_of("dev", "p", root, "a:b:Group", "g")
    leaf = urn_of("dev", "p", group, "c:d:Leaf", "odd::name")
    assert leaf == "urn:pulumi:dev::p::a:b:Group$c:d:Leaf::odd::name"


@pytest.mark.parametrize("head", [{"version": 3}, {"version": 4, "features": ["taint"]}])
def test_volumes_of_a_former_version_are_retained_and_the_rest_stays(tmp_path, head):
    project = Folder(tmp_path)
    project.prepare()
    volume = {"urn": "urn:pulumi:lab::gpubed::a:b:Volume::v", "type": "a:b:Volume", "custom": True}
    latest = {"resources": [volume], "more": 1}
    document = {**head, "checkpoint": {"stack": "organization/gpubed/lab", "latest": latest}}
    file = project.pulumi / ".pulumi/stacks/gpubed/lab.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(document))
    (project.pulumi / ".pulumi/meta.yaml").write_text("version: 1\n")
    stack = Stack(project.cluster("lab"), "embedded")
    stack.mend()
    volume["retainOnDelete"] = True
    assert json.loads(file.read_text()) == document
    written = file.stat().st_mtime_ns
    stack.mend()
    assert file.stat().st_mtime_ns == written
