"""The account's connection to the cluster's streams."""

import json
import ssl
from pathlib import Path

import nats


async def connect():
    """Connect with the login that gpubed wrote for this account."""
    login = json.loads((Path.home() / ".config/gpubed/streams.json").read_text())
    return await nats.connect(
        login["servers"],
        user=login["user"],
        password=login["password"],
        tls=ssl.create_default_context(cafile=login["ca"]),
    )
