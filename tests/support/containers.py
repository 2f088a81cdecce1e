"""Containers of the local backend, as another testbed's machines, and in nodes."""

import subprocess

from gpubed.backends.local import daemon, environment, ownership, runtime


def let_out(container):
    """Writes into a node what a site's images know: how downloads get out of here."""
    variables = environment.environment()
    text = "".join(f'{name}="{value}"\n' for name, value in variables.items())
    runtime.put(container, runtime.File("etc/environment", text.encode()))
    keep = "".join(f"Defaults env_keep += {name}\n" for name in variables)
    runtime.put(container, runtime.File("etc/sudoers.d/way-out", keep.encode(), 0o440))


def load(cluster, archive):
    with archive.open("rb") as image:
        words = ("ssh", cluster.name, "--", "docker", "load")
        assert cluster.start(*words, stdin=image, stdout=subprocess.DEVNULL).wait() == 0


def remove(uuid):
    """Removes everything that carries an id on the label `gpubed.cluster`."""
    client, mine = daemon.client(), {"label": f"{ownership.CLUSTER}={uuid}"}
    for container in client.containers.list(all=True, filters=mine):
        container.remove(force=True, v=True)
    for thing in [*client.networks.list(filters=mine), *client.volumes.list(filters=mine)]:
        thing.remove()
