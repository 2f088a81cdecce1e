"""The account's connection to the cluster's streams."""

import json
import ssl
import sys
from pathlib import Path

LOGIN = Path.home() / ".config/gpubed/streams.json"


async def connect():
    """Connect with the login that gpubed wrote for this account."""
    if not LOGIN.exists():
        sys.exit("the cluster has no streams: add `streams: {}` to its services, then gpubed up")
    import nats  # where there are streams

    login = json.loads(LOGIN.read_text())
    return await nats.connect(
        login["servers"],
        user=login["user"],
        password=login["password"],
        tls=ssl.create_default_context(cafile=login["ca"]),
    )
