"""What `gpubed open --trust` lets people install: root of the head may have handed it over."""

import pytest

from gpubed.access import certificate
from gpubed.core.errors import GpubedError
from support import certificates
from support.samples import sample_allocation, sample_plan

pytestmark = pytest.mark.process

HEAD = sample_allocation(sample_plan()).head
HOSTS = [HEAD.control_address, HEAD.experiment_address, HEAD.name, "localhost", "127.0.0.1"]
LIMITS = "nameConstraints = critical, $4"
FULL = "255.255.255.255"


def authority_of(folder, hosts=HOSTS, script=None, head=HEAD):
    return certificate.authority(
        certificates.make_for(folder, hosts, script).with_suffix(".ca.crt"), head
    )


def altered(old, new):
    """Return the role's script as somebody on the head may have changed it."""
    text = certificates.SCRIPT.read_text()
    assert old in text
    return text.replace(old, new)


def refused(folder, why, hosts=HOSTS, script=None):
    with pytest.raises(GpubedError, match=f"not to be trusted: .*{why}") as error:
        authority_of(folder, hosts, script)
    assert "--tags jupyterlab" in error.value.hint


def test_what_the_role_makes_is_trusted(tmp_path):
    assert set(authority_of(tmp_path).names) == set(HOSTS)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (", pathlen:0", "", "can sign other authorities"),
        ("pathlen:0", "pathlen:1", "can sign other authorities"),
        (LIMITS, "", "no NameConstraints"),
        (LIMITS, "nameConstraints = $4", "not limited"),
        (LIMITS, f"{LIMITS},permitted;URI:bank.example", "not limited"),
        (LIMITS, "nameConstraints = critical, permitted;DNS:localhost", "not limited"),
        (LIMITS, f"nameConstraints = critical, permitted;IP:127.0.0.1/{FULL}", "not limited"),
        (LIMITS, "nameConstraints = critical, excluded;DNS:bank.example", "not limited"),
        (LIMITS, f"{LIMITS},permitted;IP:10.0.0.0/255.0.0.0", "all addresses of 10.0.0.0/8"),
        (LIMITS, f"{LIMITS}\nsubjectAltName = DNS:bank.example", "as its own certificate"),
        (
            "critical, keyCertSign",
            "critical, keyCertSign, digitalSignature",
            "as its own certificate",
        ),
        ("keyUsage = critical, keyCertSign", "", "no KeyUsage"),
    ],
)
def test_an_authority_without_the_roles_limits_is_refused(tmp_path, old, new, why):
    refused(tmp_path, why, script=altered(old, new))


@pytest.mark.parametrize("foreign", ["bank.example", "198.51.100.7"])
def test_an_authority_for_another_host_is_refused(tmp_path, foreign):
    refused(tmp_path, f"may vouch for {foreign}", [*HOSTS, foreign])


@pytest.mark.parametrize("kind", ["CERTIFICATE", "TRUSTED CERTIFICATE"])
def test_a_second_certificate_in_the_file_is_refused(tmp_path, kind):
    """Systems that take a file take all that is in it."""
    made = certificates.make_for(tmp_path, HOSTS).with_suffix(".ca.crt")
    text = made.read_text()
    made.write_text(text + text.replace("CERTIFICATE", kind))
    with pytest.raises(GpubedError, match="more than one certificate"):
        certificate.authority(made, HEAD)


@pytest.mark.parametrize("content", ["", "no certificate", "-----BEGIN CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_refused(tmp_path, content):
    path = tmp_path / "jupyterlab.crt"
    path.write_text(content)
    with pytest.raises(GpubedError, match="not to be trusted"):
        certificate.authority(path, HEAD)
