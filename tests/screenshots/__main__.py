"""Makes docs/images: what a person sees on the first day, on a cluster of its own.

`python -m tests.screenshots` brings the cluster of inventories/lab up, with monitoring, in a
terminal, runs both example jobs, and photographs what `gpubed` prints (as text, in SVG) and what
Chromium shows. It needs what `make up` needs, and Chromium.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from rich.console import Console
from rich.text import Text

from support import browser, terminal
from support.cluster import BIN, ROOT, Cluster

IMAGES = ROOT / "docs" / "images"
NAME, COLUMNS = "lab", 100
TERMINAL = {"up.svg": ["up"], "digits.svg": ["run", "digits"], "gpubed-status.svg": ["status"]}
BROWSER = {"launcher.png": 1000, "jupyterlab.png": 1000, "status.png": 1400}


def main() -> int:
    """Make all images anew."""
    if browser.program() is None:
        print("there is no Chromium on this machine: apt-get install chromium", file=sys.stderr)
        return 3
    root = Path(tempfile.mkdtemp(prefix="gpubed-screenshots-"))
    cluster = Cluster(root, NAME)
    cluster.edit(lambda spec: spec["services"].update(monitoring={}))
    try:
        photograph(cluster)
    finally:
        cluster.call("down", "-y", rc=None)
    return 0


def photograph(cluster: Cluster) -> None:
    """Bring the cluster up and use it, with a picture of each step."""
    printed = {name: typed(cluster, *words) for name, words in TERMINAL.items()}
    cluster.call("run", "allreduce")
    for name, text in printed.items():
        (IMAGES / name).write_text(text)
        print(f"wrote {name}", flush=True)
    lab = cluster.call("open", "--print").stdout
    status = cluster.call("open", "--status", "--print").stdout.strip()
    with browser.started() as chromium:
        shoot(chromium, "launcher.png", lambda page: browser.open_launcher(page, lab))
        shoot(chromium, "jupyterlab.png", lambda page: notebook(page, lab))
        shoot(chromium, "status.png", lambda page: runs(page, status))


def typed(cluster: Cluster, *words: str) -> str:
    """Return a picture of a command and of what is on the screen when it has ended."""
    verb, *rest = words
    command = [str(BIN / "gpubed"), verb, cluster.name, *rest]
    said = terminal.run(command, columns=COLUMNS, cwd=cluster.root, env=cluster.environment)
    if said.code:
        raise SystemExit(f"{' '.join(command)} failed:\n{said.text}")
    shown = " ".join(["gpubed", *command[1:]])
    return picture(shown, "\n".join(said.lines).replace(str(cluster.root), "~/gpubed"))


def picture(command: str, printed: str) -> str:
    """Draw a command and its output, in SVG."""
    screen = Console(
        record=True,
        width=COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        file=io.StringIO(),
    )
    screen.print(Text(f"$ {command}", style="bold"))
    screen.print(Text.from_ansi(printed.rstrip()))
    drawn = screen.export_svg(title="gpubed", unique_id="gpubed")
    # The reader's own font will do; nothing is to be fetched for a picture.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def shoot(chromium: Any, name: str, go: Any) -> None:
    """Photograph a page once it shows what it is there for."""
    # Tall at first, since JupyterLab keeps only those cells in the page that are in view.
    tall, size = ({"width": 1100, "height": height} for height in (2800, BROWSER[name]))
    context = chromium.new_context(ignore_https_errors=True, viewport=tall)
    page = context.new_page()
    go(page)
    page.set_viewport_size(size)
    page.wait_for_timeout(1000)  # what fades in has done so
    page.screenshot(path=str(IMAGES / name))
    context.close()
    print(f"wrote {name}", flush=True)


def notebook(page: Any, url: str) -> None:
    browser.open_notebook(page, url)
    browser.run_all_cells(page)


def runs(page: Any, url: str) -> None:
    """Open the status page, and wait until it knows both jobs."""
    page.goto(url)
    for job in ("digits", "allreduce"):
        page.get_by_role("row", name=job).first.wait_for(timeout=120_000)


if __name__ == "__main__":
    sys.exit(main())
