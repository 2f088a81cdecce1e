"""A role's variables as Ansible itself works them out, with facts of a distribution."""

from functools import cache

from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader, init_plugin_loader
from ansible.template import Templar, trust_as_template

from gpubed.core.paths import assets

# Of nodes whose image somebody may choose; the kernels are those of their releases.
RELEASES = {
    "debian-12": ("Debian", "Debian", "12", "6.1.0-50-amd64"),
    "debian-13": ("Debian", "Debian", "13", "6.12.57+deb13-cloud-amd64"),
    "ubuntu-22.04": ("Ubuntu", "Debian", "22.04", "5.15.0-161-generic"),
    "ubuntu-24.04": ("Ubuntu", "Debian", "24.04", "6.8.0-87-generic"),
}

PYTHONS = {"12": "3.11.2", "13": "3.13.5", "22.04": "3.10.12", "24.04": "3.12.3"}


def facts(release):
    """Return what Ansible tells of a node with that image, as far as roles read it."""
    distribution, family, version, kernel = RELEASES[release]
    return {
        "distribution": distribution,
        "os_family": family,
        "distribution_version": version,
        "distribution_major_version": version.split(".")[0],
        "kernel": kernel,
        "virtualization_type": "none",
        "python_version": PYTHONS[version],
    }


def files(role, release):
    """Return the files of variables that the role reads on that image."""
    told, folder = facts(release), assets() / "roles" / role / "vars"
    names = [told["distribution"], told["os_family"]]
    own = [folder / f"{name}.yml" for name in names if (folder / f"{name}.yml").is_file()]
    return [path for path in (folder / "main.yml",) if path.is_file()] + own[:1]


def variables(role, release, **given):
    """Return all variables of a role there; expressions are not worked out yet."""
    loader, found = DataLoader(), {"ansible_facts": facts(release)}
    defaults = assets() / "roles" / role / "defaults" / "main.yml"
    for path in [defaults, *files(role, release)]:
        found |= loader.load_from_file(str(path), trusted_as_template=True) or {}
    return found | given


def value(role, name, release, **given):
    """Return one variable of a role, worked out by Ansible."""
    _load_plugins()
    there = variables(role, release, **given)
    return Templar(loader=DataLoader(), variables=there).template(there[name])


def template(role, name, release, **given):
    _load_plugins()
    there = assets() / "roles" / role
    text = trust_as_template((there / "templates" / name).read_text())
    place = {"role_path": str(there), "ansible_search_path": [str(there)]}
    known = variables(role, release, **place, **given)
    return Templar(loader=DataLoader(), variables=known).template(text)


@cache
def _load_plugins():
    init_plugin_loader()
    filter_loader.add_directory(str(assets() / "playbooks" / "filter_plugins"))
