"""On own hosts role monitoring takes no Prometheus and no page over that it did not set up.

The role's own tasks and scripts run; programs of the host are STAND-INS.
"""

import os

import pytest

from support import machines
from support.role_tasks import play

pytestmark = pytest.mark.process

ROLE = machines.ROOT / "roles/monitoring"


class Host:
    def __init__(self, root):
        self.root = root
        self.units, self.data, self.jupyter = root / "units", root / "data", root / "jupyter"
        self.page = self.jupyter / "jupyter_config.py"
        self.folder = root / "monitoring"
        self.jupyter.mkdir()

    def play(self, entry, *running, page=True, head="node-0"):
        systemctl = (
            f'case "$1 {" ".join(running)} " in\n'
            'is-active*" $2 "*) echo active ;; is-enabled*" $2 "*) echo enabled ;;\n'
            "show*) for one; do case $one in *.*)"
            f' echo LoadState=loaded; case " {" ".join(running)} " in'
            ' *" $one "*) echo ActiveState=active ;; *) echo ActiveState=inactive ;; esac; echo ;;'
            " esac; done ;;\n"
            "daemon-reload* | stop* | disable*) ;; *) exit 3 ;;\n"
            "esac"
        )
        return play(
            self.root,
            "monitoring",
            entry,
            programs={"systemctl": systemctl, "dpkg-query": "", "apt-get": ""},
            inventory_hostname="node-0",
            gpubed_head=head,
            gpubed_cluster="lab",
            gpubed_uuid="0f0e",
            gpubed_fingerprints={},
            monitoring_page=page,
            ansible_managed="managed",
            __monitoring_units_folder=str(self.units),
            __monitoring_data=str(self.data),
            __monitoring_folder=str(self.folder),
            __monitoring_program=str(self.root / "gpubed-metrics"),
            __monitoring_metrics=str(self.root / "metrics"),
            __monitoring_jupyter=str(self.jupyter),
            __monitoring_page_folder=str(self.root / "status"),
        )

    def refused(self, *words, running=()):
        done = self.play("owners", *running)
        said = " ".join(done.said.split())
        assert done.code != 0
        assert [word for word in (*words, "Nothing was touched") if word not in said] == []

    def ours(self, *units):
        for unit in units:
            (self.units / f"{unit}.service.d").mkdir(parents=True)
            (self.units / f"{unit}.service.d/gpubed.conf").touch()


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_prometheus_of_the_owners_is_refused(host):
    """Else its figures would be cut to the role's limits, and go when it is switched off."""
    (host.data / "metrics2/01ABC").mkdir(parents=True)
    host.refused("prometheus.service", f"{host.data}/metrics2", running=["prometheus.service"])
    host.refused("prometheus-node-exporter.service", running=["prometheus-node-exporter.service"])


def test_what_the_role_set_up_is_its_own(host):
    host.ours("prometheus", "prometheus-node-exporter", "prometheus-alertmanager")
    (host.data / "metrics2/01ABC").mkdir(parents=True)
    host.page.write_text(f'sys.path.append("{host.root}/status")\n')
    running = ["prometheus.service", "prometheus-node-exporter.service"]
    assert host.play("owners", *running).code == 0


def test_settings_of_the_owners_jupyterlab_are_refused(host):
    host.page.write_text("c.ServerApp.port = 80\n")
    host.refused(str(host.page))
    assert host.play("owners", page=False).code == 0


def test_without_a_page_settings_of_the_owners_stay(host):
    host.page.write_text("c.ServerApp.port = 80\n")
    (host.root / "status").mkdir()
    host.play("page_absent")
    assert host.page.exists()
    assert not (host.root / "status").exists()
    (host.root / "status").mkdir()
    host.page.write_text(f'sys.path.append("{host.root}/status")\n')
    assert "handler Restart JupyterLab if it runs" in host.play("page_absent").calls
    assert not host.jupyter.exists()
    assert host.play("page_absent").calls == []


def test_who_is_the_head_no_more_only_has_exporters(host):
    """Two would ask all nodes and tell of alerts; figures stay, where no Prometheus reads them."""
    host.ours("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")
    (host.data / "metrics2/01ABC").mkdir(parents=True)
    host.folder.mkdir()
    (host.root / "metrics").mkdir()
    for name in ("prometheus.yml", "alertmanager.yml", "nodes.crt", "rules.yml", "web.yml"):
        (host.folder / name).touch()
    for name in ("gpubed.prom", "declared.prom"):
        (host.root / "metrics" / name).touch()
    (host.root / "status").mkdir()
    host.page.write_text(f'sys.path.append("{host.root}/status")\n')
    done = host.play("former_head", *(f"{unit}.service" for unit in UNITS))
    assert done.code == 0, done.said
    stopped = {call.split()[-1] for call in done.calls if " stop " in call or "disable" in call}
    assert stopped == {"prometheus.service", "prometheus-alertmanager.service"}
    assert [path.name for path in host.folder.iterdir()] == ["web.yml"]
    assert [path.name for path in (host.root / "metrics").iterdir()] == ["declared.prom"]
    assert [path.name for path in host.units.iterdir()] == ["prometheus-node-exporter.service.d"]
    assert (host.data / "metrics2.gpubed/01ABC").is_dir()
    assert not (host.data / "metrics2").exists()
    assert not host.page.exists()
    assert f"{host.data}/metrics2.gpubed" in done.said
    # It can be the head again, and nothing of the role's is taken for the owner's.
    assert host.play("owners").code == 0
    again = host.play("former_head")
    assert "changed" not in again.tasks.values()


UNITS = ["prometheus-node-exporter", "prometheus", "prometheus-alertmanager"]


@pytest.mark.skipif(os.geteuid() != 0, reason="systemd is asked to read its units again")
def test_it_goes_and_what_is_the_owners_stays(host):
    """The packages were his, stopped; figures that a cluster before left, and an addition."""
    host.ours(*UNITS)
    ours = [host.data / "metrics2/01ABC", host.root / "metrics/declared.prom"]
    ours += [host.root / "gpubed-metrics", host.units / "gpubed-metrics.timer"]
    ours += [host.folder / "packages", host.root / "status/settings.json"]
    owners = [host.data / "metrics2.gpubed/01ABC", host.units / "prometheus.service.d/own.conf"]
    for path in ours + owners:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    host.page.write_text(f'sys.path.append("{host.root}/status")\n')
    done = host.play("absent")
    assert done.code == 0, done.said
    assert "firewall.close monitoring" in done.calls
    assert [path for path in (*ours, host.folder, host.jupyter) if path.exists()] == []
    assert [path for path in owners if not path.exists()] == []
    assert [path.name for path in host.units.iterdir()] == ["prometheus.service.d"]
    order = list(done.tasks)
    assert order.index("base : Remove the files") < order.index("base : Remove the mark")
    again = host.play("absent")
    assert (set(again.tasks.values()), again.calls) == ({"ok"}, [])
