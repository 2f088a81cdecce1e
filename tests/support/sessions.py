"""STAND-IN for an SSH session: it connects to nothing; what a node answers is the test's."""

from gpubed.nodes.ssh import CommandResult
from support.samples import sample_allocation, sample_plan


class Session:
    """Opened and closed like `gpubed.nodes.ssh.SSH`, whatever it is given."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def answering(monkeypatch, module, answers, **spec):
    """Let each node of a cluster give one answer to all that a module asks; errors are raised."""
    plan = sample_plan(nodes=[{"name": "node", "count": max(1, len(answers))}], **spec)
    granted = sample_allocation(plan)
    granted = granted.model_copy(update={"nodes": granted.nodes[: len(answers)]})
    told = dict(zip((node.name for node in granted.nodes), answers, strict=True))

    class Node(Session):
        def __init__(self, node, _):
            self.name = node.name

        def run(self, *_, **__):
            if isinstance(told[self.name], Exception):
                raise told[self.name]
            return CommandResult(told[self.name], "no such command", 127, 0.0)

    monkeypatch.setattr(module, "SSH", Node)
    return plan, granted
