"""Checks Docker: the daemon answers on every node, and a container computes on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.checks.context import Context, judged
from gpubed.checks.registry import Stage, at
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH, CommandResult
from gpubed.nodes.verification import Check

# `version` has an exit code if the daemon does not answer; `info` of older releases has none.
_DAEMON = (
    "sudo -n docker version --format '{{.Server.Version}}'"
    " && sudo -n docker info --format '{{.Driver}}'"
)
# The image is empty and gets the node's own /usr, so no registry is needed. `gpubed-device` finds
# the GPU as on the node. The toolkit adds links beside the libraries of the driver; an overlay
# keeps them in the container. Where overlays fail, /usr is read-only.
_GPUS = """
folder=$(mktemp -d) && cd "$folder" && mkdir usr etc tmp layer && mkdir -p etc/gpubed &&
ln -s usr/bin usr/sbin usr/lib usr/lib64 . && tar -c . | sudo -n docker import - %s >/dev/null
layers="lowerdir=/usr,upperdir=$folder/layer/upper,workdir=$folder/layer/work"
sudo -n mount -t tmpfs none layer && sudo -n mkdir layer/upper layer/work &&
  sudo -n mount -t overlay -o "$layers" none usr && usr="$folder/usr:/usr" || usr=/usr:/usr:ro
sudo -n docker run --rm --pull never --network none $(/etc/gpubed/container.d/nvidia 0) \\
  --volume "$usr" --volume /etc/gpubed:/etc/gpubed:ro \\
  %s sh -c '. /etc/gpubed/horovod.env && export GPUBED_GPUS=1 GPUBED_SIMULATED &&
    gpubed-device 0 && ls /dev | grep -c "^nvidia[0-9]"'
code=$?
for place in usr layer; do ! mountpoint -q $place || sudo -n umount $place; done
sudo -n docker rmi %s >/dev/null; rm -r "$folder"; exit $code
"""
_IMAGE = "gpubed-verify:1"


@at(Stage.SERVICES, "docker.daemon")
def daemon(context: Context) -> Iterator[Check]:
    """Ask each node's daemon for its version; an error of the daemon is the reason of a failure."""
    if context.plan.spec.services.docker is None:
        why = "Docker is off in cluster.yml"
        yield Check(id="docker.daemon", result="skip", reason=why)
        return

    then = f"then gpubed configure {context.cluster.name}"
    for node, answer in context.on_each(lambda _, ssh: ssh.run(_DAEMON, check=False)):
        why, value = "", ", ".join(answer.stdout.split()) or None
        if answer.exit_code:
            why = f"{answer.tail}; see journalctl -u docker on {node.name}, {then}"
            value = None
        yield judged("docker.daemon", node.name, why, value, "answers")


@at(Stage.SERVICES)
def gpus(context: Context) -> Iterator[Check]:
    """Start a container with one GPU on each node: it uses this GPU, and sees no other."""
    id_ = "docker.gpus"
    off = context.plan.spec.services.docker is None
    if off or not any(node.gpus for node in context.allocation.nodes):
        why = "Docker is off in cluster.yml" if off else "the cluster asks for no GPU"
        yield Check(id=id_, result="skip", reason=why)
        return
    limit = "a container with one GPU uses it, and sees no other"

    def ask(node: Node, ssh: SSH) -> CommandResult | None:
        return (
            ssh.run(_GPUS, _IMAGE, _IMAGE, _IMAGE, check=False)
            if node.gpus and not node.mig
            else None
        )

    for node, answer in context.on_each(ask):
        if answer is None:
            why = "its GPUs are cut" if node.mig else "asks for no GPU"
            yield Check(id=id_, node=node.name, result="skip", reason=why)
            continue
        reason = _wrong(answer, node.name in context.simulated)
        value = None if answer.exit_code else answer.stdout.split("\n")[0].partition(" ")[2]
        yield judged(id_, node.name, reason, value, limit)


def _wrong(answer: CommandResult, simulated: bool) -> str:
    if answer.exit_code:
        return f"{answer.tail}; see nvidia-ctk cdi list there"
    device, _, devices = answer.stdout.strip().partition("\n")
    if not device.startswith("cuda") and not simulated:
        return f"the container computes on {device or 'nothing'}"
    if devices != "1":
        return f"the container was given one GPU, and has {devices or 'no'} device(s)"
    return ""
