"""How-to pages, followed to the letter."""

import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def follow(cluster, page, name, folder, more=None):
    """Run a page's commands in their order on a cluster that is up; all must end with 0.

    Args:
        cluster: Stands for the page's; `init` makes a specification beside it.
        page: File name in docs/how-to.
        name: What the page calls its cluster.
        folder: Where the commands run.
        more: By option, what is added behind it.

    Returns:
        All that was printed.
    """
    said = ""
    for block in _CONSOLE.findall((FOLDER / page).read_text()):
        script = re.sub(rf"(?<![\w-]){name}(?![\w-])", cluster.name, block)
        script = script.replace("$ gpubed init ", "$ gpubed init anew-")
        for option, words in (more or {}).items():
            script = script.replace(option, f"{option} {words}")
        done = subprocess.run(
            ["bash", "-exc", re.sub(r"(?m)^\$ ", "", script)],
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
