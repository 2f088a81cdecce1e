"""Two nodes after role ssh_mesh."""

import pytest

KEYS = "/etc/gpubed/authorized_keys.d/gpubed"
LOGIN = "runuser -u gpubed -- ssh -o BatchMode=yes -o ConnectTimeout=10"


@pytest.mark.parametrize("node", ["node-0", "node-1", "node-0.control", "node-1.control"])
def test_every_name_can_be_logged_in_to(host, node):
    login = host.run(f"{LOGIN} {node} hostname")
    assert login.stdout.strip() == node.removesuffix(".control"), login.stderr


def test_addresses_can_be_logged_in_to(host):
    address = host.check_output("getent ahostsv4 node-1 | head -n 1").split()[0]
    login = host.run(f"{LOGIN} {address} hostname")
    assert login.stdout.strip() == "node-1", login.stderr


def test_private_key_is_readable_by_its_owner_only(host):
    assert host.file("/home/gpubed/.ssh/id_gpubed").mode == 0o600


def test_private_key_belongs_to_the_user(host):
    assert host.file("/home/gpubed/.ssh/id_gpubed").user == "gpubed"


def test_each_node_has_a_key_of_its_own(host):
    keys = host.file(KEYS).content_string.splitlines()
    assert len({line.split()[2] for line in keys}) == 2


def test_keys_are_bound_to_addresses_of_the_cluster(host):
    keys = host.file(KEYS).content_string.splitlines()
    assert all(line.startswith('restrict,pty,from="') for line in keys)


def test_the_operators_key_is_untouched(host):
    assert host.file("/home/gpubed/.ssh/authorized_keys").content_string.strip()


def test_unknown_hosts_are_refused(host):
    # 255 would read as a failure of the connection to the node itself.
    login = host.run(f"{LOGIN} -o HostName=127.0.0.1 unknown true || exit 1")
    assert "Host key verification failed" in login.stderr


def test_host_file_lists_all_nodes(host):
    assert host.file("/etc/gpubed/hostfile").content_string.splitlines() == [
        "node-0 slots=1",
        "node-1 slots=1",
    ]


@pytest.mark.parametrize(
    "setting",
    ["passwordauthentication no", "kbdinteractiveauthentication no", "x11forwarding no"],
)
def test_sshd_is_hardened(host, setting):
    assert setting in host.check_output("sshd -T").splitlines()
