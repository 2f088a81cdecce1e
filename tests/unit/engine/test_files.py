"""What the engine keeps on disk: ciphertext, checkpoints, configuration, URNs."""

import json

import pytest

from gpubed.core.errors import GpubedError, UsageError
from gpubed.engines.embedded import backend, checkpoint, urn
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.failures import Refusal
from gpubed.engines.embedded.project import Project, StackConfig, add_salt
from gpubed.engines.embedded.state import State, decode, encode
from gpubed.engines.embedded.values import Reference, Secret

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


def test_known_values_keep_their_ciphertext_within_their_scope(cipher):
    sealed = cipher.encrypt("x", "urn:a")
    assert cipher.encrypt("x", "urn:a") == sealed
    assert cipher.encrypt("x", "urn:b") != sealed
    again = PassphraseCipher("fixture", cipher.salt)
    assert again.decrypt(sealed, "urn:a") == "x"
    assert again.encrypt("x", "urn:a") == sealed


def test_a_resource_survives_the_checkpoint(cipher):
    state = thing(
        "a",
        inputs={"pw": Secret({"inner": Secret(1)}), "n": 3, "ref": Reference("urn:x", "9")},
        outputs={"list": [None, 1.5, "t"]},
        parent=STACK,
        dependencies=[STACK],
        property_dependencies={"n": []},
        protect=True,
        extra={"hideDiff": ["n"]},
    )
    raw = json.loads(json.dumps(encode(state, cipher)))
    back = decode(raw, cipher)
    assert vars(back) == vars(state)
    assert "delete" not in raw
    assert raw["propertyDependencies"] == {"n": []}
    assert "inner" not in json.dumps(raw["inputs"]["pw"])


@pytest.mark.parametrize("option", ["deletedWith", "replaceWith", "resourceHooks"])
def test_state_with_options_left_out_is_refused(cipher, option):
    raw = encode(thing("a"), cipher) | {option: ["x"]}
    with pytest.raises(Refusal, match="does not support"):
        decode(raw, cipher)


def test_a_sound_listing_verifies():
    gone = thing("a", delete=True)
    checkpoint.verify(listing(gone, thing("a"), thing("b", dependencies=[gone.urn])))


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (listing(thing("b", dependencies=[thing("a").urn]), thing("a")), "not listed before"),
        (listing(thing("a", parent="urn:pulumi:dev::p::x:y:Z::z")), "not listed before"),
        (listing(thing("a"), thing("a")), "listed twice"),
        ([thing("a")], "unknown provider"),
        ([State(STACK, "pulumi:pulumi:Stack", False, id="1")], "has an id"),
    ],
)
def test_an_unsound_listing_is_refused(resources, reason):
    with pytest.raises(GpubedError, match=reason):
        checkpoint.verify(resources)


def test_manifest_versions_and_features_are_checked(cipher):
    good = {"manifest": checkpoint.manifest()}
    assert checkpoint.read(good, cipher).resources == []
    bad = {"manifest": {**good["manifest"], "version": "other"}}
    with pytest.raises(GpubedError, match="checksum"):
        checkpoint.read(bad, cipher)
    with pytest.raises(Refusal, match="views"):
        checkpoint.check_version(4, ["views"], "here")
    checkpoint.check_version(4, [], "here")


def test_every_write_keeps_the_content_before_it(tmp_path):
    file = StackFile(tmp_path, "p", "dev")
    assert file.read() is None
    file.write('{"version":3,"checkpoint":{"stack":"1"}}')
    file.write('{"version":3,"checkpoint":{"stack":"2"}}')
    assert file.read() == {"stack": "2"}
    assert '"1"' in file.backup.read_text()
    assert (tmp_path / ".pulumi/meta.yaml").read_text() == "version: 1\n"
    assert [p.name for p in file.path.parent.iterdir() if p.name.startswith(".")] == []


def test_state_in_other_layouts_is_refused(tmp_path):
    stacks = tmp_path / ".pulumi/stacks"
    (stacks / "p").mkdir(parents=True)
    (stacks / "p/dev.json.gz").write_text("")
    with pytest.raises(Refusal, match="compressed"):
        StackFile(tmp_path, "p", "dev").read()
    (stacks / "old.json").write_text("")
    with pytest.raises(Refusal, match="legacy"):
        StackFile(tmp_path, "p", "other").read()


def test_unwritable_state_says_what_to_do(tmp_path):
    (tmp_path / ".pulumi").write_text("a file, not a folder")
    with pytest.raises(GpubedError, match="cannot be written") as caught:
        StackFile(tmp_path, "p", "dev").write("{}")
    assert "writable" in caught.value.hint


def test_pulumi_yaml_names_program_and_configuration(tmp_path):
    (tmp_path / "stacks/cluster").mkdir(parents=True)
    (tmp_path / "Pulumi.yaml").write_text(
        "name: p\nmain: stacks/cluster\nstackConfigDir: conf\nruntime: {name: python}\n"
    )
    project = Project.load(tmp_path)
    assert project.directory == tmp_path / "stacks/cluster"
    assert project.entry == "."
    assert project.config_file("dev") == tmp_path / "conf/Pulumi.dev.yaml"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, UsageError),
        ("name: p\nruntime: nodejs\n", UsageError),
        ("name: p\nruntime: python\nconfig: {size: 3}\n", Refusal),
        ("name: [", GpubedError),
    ],
)
def test_other_projects_are_refused(tmp_path, text, error):
    if text:
        (tmp_path / "Pulumi.yaml").write_text(text)
    with pytest.raises(error):
        Project.load(tmp_path)


def test_configuration_becomes_text_and_any_sealed_leaf_makes_a_secret(tmp_path, cipher):
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(
        f"""
encryptionsalt: {cipher.salt}
config:
  p:text: t
  number: 3
  flag: true
  other:tree: {{a: [1, {{secure: "{cipher.encrypt("x")}"}}]}}
  p:pw: {{secure: "{cipher.encrypt("y")}"}}
"""
    )
    config = StackConfig.load(path)
    assert config.salt == cipher.salt
    assert config.open("p", cipher) == {
        "p:text": "t",
        "p:number": "3",
        "p:flag": "true",
        "other:tree": Secret('{"a":[1,"x"]}'),
        "p:pw": Secret("y"),
    }


def test_other_secrets_providers_are_refused(tmp_path):
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text("secretsprovider: awskms://alias/x\n")
    with pytest.raises(Refusal, match="awskms"):
        StackConfig.load(path)


def test_the_salt_line_is_added_without_touching_the_rest(tmp_path):
    path = tmp_path / "conf/Pulumi.dev.yaml"
    add_salt(path, "v1:a:b")
    path.write_text("# mine\nconfig: {}\n")
    add_salt(path, "v1:a:b")
    assert path.read_text() == "encryptionsalt: v1:a:b\n# mine\nconfig: {}\n"


def test_urns_carry_their_parents_types():
    root = urn.build("dev", "p", "", urn.STACK_TYPE, "p-dev")
    assert root == STACK
    group = urn.build("dev", "p", root, "a:b:Group", "g")
    leaf = urn.build("dev", "p", group, "c:d:Leaf", "odd::name")
    assert leaf == "urn:pulumi:dev::p::a:b:Group$c:d:Leaf::odd::name"
    assert (urn.type_of(leaf), urn.name_of(leaf)) == ("c:d:Leaf", "odd::name")
    with pytest.raises(ValueError, match="not a Pulumi URN"):
        urn.name_of("nonsense")


def test_states_are_written_and_kept_where_files_have_one_name_only(tmp_path, monkeypatch):
    """exFAT, and some file systems of networks."""

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(backend.os, "link", refused)
    file = StackFile(tmp_path, "p", "dev")
    for text in ("1", "2"):
        file.write(text)
    file.keep()
    assert (file.path.read_text(), file.backup.read_text()) == ("2", "1")
    assert [path.read_text() for path in file.kept.iterdir()] == ["2"]


def test_the_newest_states_are_kept_also_after_a_clock_was_ahead(tmp_path, monkeypatch):
    file = StackFile(tmp_path, "p", "dev")
    now = [4_000_000_000_000_000_000]
    monkeypatch.setattr(backend.time, "time_ns", lambda: now[0])
    for text in range(20):
        file.write(str(text))
        file.keep()
        if text == 14:
            now[0] -= 10**18
    assert max(int(path.read_text()) for path in file.kept.iterdir()) == 19
    assert [path.read_text() for path in sorted(file.kept.iterdir())][-1] == "19"
