"""How-to pages, followed to the letter."""

import re
import subprocess

from support.blocks import blocks


def follow(cluster, page, name, folder, more=None, skip=None):
    """Run a page's commands in their order on a cluster that is up; all must end with 0.

    Blocks that name another cluster, `skip`, are left out.
    """
    said = ""
    for block in blocks(f"docs/how-to/{page}"):
        lines = "\n".join(command.text for command in block.commands)
        if skip and re.search(rf"gpubed \w+ {skip}\b", lines):
            continue
        script = re.sub(rf"(?<![\w-]){name}(?![\w-])", cluster.name, lines)
        script = script.replace("gpubed init ", "gpubed init anew-")
        for option, words in (more or {}).items():
            script = script.replace(option, f"{option} {words}")
        done = subprocess.run(
            ["bash", "-exc", script],
            cwd=folder,
            # Nobody is there to say yes.
            env={**cluster.environment, "PULUMI_SKIP_CONFIRMATIONS": "true"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said += done.stdout
    return said
