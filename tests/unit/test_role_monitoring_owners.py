"""On own hosts role monitoring takes no Prometheus and no page over that it did not set up.

The role's own tasks and scripts run; programs of the host are STAND-INS.
"""

import pytest

from support.role_tasks import play

pytestmark = pytest.mark.process


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


def test_figures_that_an_owner_left_are_refused(host):
    (host.data / "metrics2/01ABC").mkdir(parents=True)
    host.refused(f"{host.data}/metrics2")


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
