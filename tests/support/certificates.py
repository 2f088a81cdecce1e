"""Certificates of JupyterLab, made as its role makes them."""

import subprocess

from gpubed.paths import assets

SCRIPT = assets() / "roles/jupyterlab/files/make-certificate"


def make(folder, names, permitted):
    """Make a certificate; return the path that `.crt`, `.key` and `.ca.crt` are added to."""
    name = folder / "some"
    words = ["make-certificate", name, "/O=gpubed lab", names, permitted]
    subprocess.run(["sh", "-c", SCRIPT.read_text(), *words], check=True)
    return name


def make_for_loopback(folder):
    """Make one for this machine."""
    name = "127.0.0.1"
    return make(folder, f"IP:{name}", f"permitted;IP:{name}/255.255.255.255")
