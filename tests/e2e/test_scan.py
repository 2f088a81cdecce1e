"""The scan of the exposure tests: a machine that drops silently hides no open port from it.

The machine is a STAND-IN: a namespace with a firewall like that of a node.
"""

import os
import shutil
import subprocess
import threading

import pytest

from support.namespace import linked
from support.outsider import machine, scan

pytestmark = pytest.mark.e2e
OPEN = {22, 1024, 54321, 65535}
LISTEN = """
import signal, socket, sys
doors = [socket.create_server(("", int(port)), backlog=64) for port in sys.argv[1:]]
print("there", flush=True)
signal.pause()
"""


@pytest.fixture
def walled():
    """A machine's address, and a function that changes its firewall, which drops by default."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        pytest.skip("network namespaces need root and iptables")
    with machine() as (name, there, _, _):
        inside = ["ip", "netns", "exec", name]

        def firewall(*words):
            subprocess.run([*inside, "iptables", *words], check=True)

        firewall("-P", "INPUT", "DROP")
        command = [*inside, "python3", "-c", LISTEN, *map(str, OPEN)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening:
            assert listening.stdout.readline() == "there\n"
            yield there, firewall
            listening.terminate()


def open_port(firewall, port):
    firewall("-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "ACCEPT")


def test_what_is_open_is_found_among_thousands_that_say_nothing(walled):
    address, firewall = walled
    for port in OPEN - {1024}:  # which is open, and behind the firewall
        open_port(firewall, port)
    asked = [*range(1, 2000), *range(50000, 58000), 65535]
    assert scan(None, address, asked) == OPEN - {1024}


def test_a_lost_packet_hides_no_port(walled):
    """The firewall lets the port's packets pass when the first was dropped already."""
    address, firewall = walled
    late = threading.Timer(0.7, open_port, (firewall, 54321))
    late.start()
    assert scan(None, address, [54320, 54321]) == {54321}
    late.join()


def test_what_refuses_is_closed(walled):
    address, firewall = walled
    firewall("-P", "INPUT", "ACCEPT")
    assert scan(None, address, [22, 23]) == {22}
    # Here the kernel knows at once.
    assert scan(None, "127.0.0.1", [1]) == set()


def test_a_machine_that_nobody_can_ask_is_not_closed(walled):
    """No route leads there: to say that nothing is open would be no more than hope."""
    address, _ = walled
    with linked() as (elsewhere, _), pytest.raises(subprocess.CalledProcessError):
        scan(elsewhere, address, [22])
