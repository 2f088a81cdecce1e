"""Certificates of JupyterLab, made as its role makes them."""

import subprocess

from gpubed.core.paths import assets
from support import role_variables

SCRIPT = assets() / "roles/base/files/make-certificate"


def make(folder, names, permitted, script=None):
    """Make a certificate; return the path that `.crt`, `.key` and `.ca.crt` are added to."""
    name = folder / "some"
    words = ["make-certificate", name, "/O=gpubed lab", names, permitted]
    subprocess.run(["sh", "-c", script or SCRIPT.read_text(), *words], check=True)
    return name


def make_for(folder, hosts, script=None):
    """Make one for a head with these names and addresses, by the variables of the role."""
    names, permitted = (
        role_variables.value("base", name, "debian-12", __base_certificate_hosts=hosts)
        for name in ("__base_certificate_san", "__base_certificate_permitted")
    )
    return make(folder, names, permitted, script)


def make_for_loopback(folder):
    """Make one for this machine."""
    name = "127.0.0.1"
    return make(folder, f"IP:{name}", f"permitted;IP:{name}/255.255.255.255")
