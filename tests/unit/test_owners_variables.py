"""What is no YAML in an owner's group_vars and host_vars is found before anything begins."""

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import owners_variables
from gpubed.core import record
from gpubed.core.errors import UsageError
from support.samples import granted_cluster


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return granted_cluster(tmp_path)


def put(cluster, name, text):
    path = cluster.inventory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("group_vars/all/x.yml", "one: 1\na: [\n", 3),
        ("group_vars/all.yaml", 'a: 1\nb: "open\n', 3),
        ("group_vars/workers", "a: 1\n b: 2\n", 2),
        ("host_vars/node-0/deep/x.yml", "- a\n", 1),
        ("host_vars/node-0.yml", b"a: \xff\n", 1),
    ],
)
def test_a_fault_has_its_file_and_line(cluster, name, text, line):
    path = put(cluster, name, text)
    [found] = owners_variables.faults(cluster)
    assert (found.file, found.line) == (str(path), line)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("group_vars/all/x.yml", "a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n"),
        ("group_vars/all/x.yml", "$ANSIBLE_VAULT;1.1;AES256\n6162\n"),
        ("group_vars/all/x.yml", "a: &one {b: 1}\nc: {<<: *one}\nd: '{{ a }}'\n"),
        ("group_vars/all/x.json", '{\n\t"a": 1\n}\n'),
        ("group_vars/all/x.yml", "# nothing yet\n"),
        ("group_vars/all/x.yml", f"a: {'b' * 300_000}\n"),
        ("group_vars/all/x.yml~", "a: ["),
        ("group_vars/all/.x.yml.swp", "a: ["),
        ("group_vars/all/.hidden/x.yml", "a: ["),
        ("group_vars/all/README.md", "a: ["),
    ],
)
def test_what_ansible_reads_or_leaves_alone_is_none(cluster, name, text):
    put(cluster, name, text)
    assert owners_variables.faults(cluster) == []


def checksums(cluster):
    return owners_variables.checksums(cluster.inventory, ["node-0", "node-1"])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("group_vars/all/x.yml", {"group_vars"}),
        ("group_vars/workers", {"group_vars"}),
        ("host_vars/node-0.yml", {"node-0's host_vars"}),
        ("host_vars/node-0/deep/x.yml", {"node-0's host_vars"}),
        ("host_vars/node-2.yml", set()),
        ("group_vars/all/README.md", set()),
        ("group_vars/all/x.yml~", set()),
        ("group_vars/all/gpubed.yml", set()),  # of a former version
    ],
)
def test_checksums_tell_whose_variables_have_changed(cluster, name, changes):
    """What Ansible does not read is no change."""
    before = checksums(cluster)
    assert before.keys() == {"group_vars", "node-0's host_vars", "node-1's host_vars"}
    path = put(cluster, name, "horovod_fusion_mb: 64\n")
    added = checksums(cluster)
    assert {what for what in before if before[what] != added[what]} == changes
    put(cluster, name, "horovod_fusion_mb: 32\n")
    edited = checksums(cluster)
    assert {what for what in added if added[what] != edited[what]} == changes
    path.unlink()
    assert checksums(cluster) == before


@pytest.mark.parametrize("verb", [["check"], ["plan"], ["up", "-y"], ["configure"]])
def test_verbs_refuse_it_before_they_begin(cluster, verb):
    path = put(cluster, "group_vars/all/x.yml", "a: [\n")
    done = CliRunner().invoke(cli.build(), [verb[0], "lab", *verb[1:]], standalone_mode=False)
    said = f"{path}:2: "
    if verb == ["check"]:
        assert done.return_value == 2
        assert said in "".join(done.output.splitlines()), done.output
    else:
        assert isinstance(done.exception, UsageError), done.exception
        assert said in done.exception.message
    assert not record.read(cluster).unfinished
    assert not (cluster.state / "lock").exists()
