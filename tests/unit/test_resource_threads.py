"""Engines ask for drivers from several threads of one process."""

import subprocess
import sys

import pytest

ASK = """
import sys, threading
from gpubed.testbeds import resources
sys.setswitchinterval(1e-6)
failed = []
def ask(kind):
    try:
        resources._driver({"backend": sys.argv[1], "kind": kind, "cluster": "lab", "name": kind})
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=ask, args=(kind,)) for kind in sys.argv[2:]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit("\\n".join(failed) or 0)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "words", ["local image network volume node", "openstack hostkey hostkey", "static node node"]
)
def test_threads_that_import_a_driver_at_once_all_get_it(words):
    for _ in range(5):
        subprocess.run([sys.executable, "-c", ASK, *words.split()], check=True)
