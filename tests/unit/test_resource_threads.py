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
    props = {"backend": "local", "kind": kind, "name": kind, "cluster": "lab"}
    if kind == "image":  # is of no cluster
        del props["cluster"]
    try:
        resources._driver(props)
    except BaseException as error:
        failed.append(repr(error))
kinds = ("network", "volume", "image", "node")
threads = [threading.Thread(target=ask, args=(kind,)) for kind in kinds]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit("\\n".join(failed) or 0)
"""


@pytest.mark.process
def test_threads_that_import_a_driver_at_once_all_get_it():
    for _ in range(10):
        subprocess.run([sys.executable, "-c", ASK], check=True)
