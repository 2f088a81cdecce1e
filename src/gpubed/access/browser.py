"""Pages that only this user may see, in this user's browser.

A token in a URL would be an argument of the browser, which every user of this machine can list.
So the browser is handed a file that leads on, as `use_redirect_file` of JupyterLab does.
"""

from __future__ import annotations

import html
import platform
import webbrowser
from pathlib import Path

from gpubed.core import secret


def of_windows() -> bool:
    """Say whether the browser is one of Windows, around this Linux: it reads no files of ours."""
    return "microsoft" in platform.release().lower()


def visit(url: str, page: Path) -> bool:
    """Open a URL that has a secret in it.

    Args:
        url: Where to go.
        page: A file among the cluster's secrets that leads there. It stays: nothing tells when
            the browser has read it.

    Returns:
        Whether a browser opened it; without one, no page is left.
    """
    if of_windows():
        return False
    there = html.escape(url)
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>gpubed</title>\n'
        f'<meta http-equiv="refresh" content="0;url={there}"></head>\n'
        f'<body><a href="{there}">Go on</a></body></html>\n'
    )
    secret.write(page, text.encode())
    if show(page):
        return True
    page.unlink(missing_ok=True)
    return False


def show(page: Path) -> bool:
    """Open a file in the browser, and say whether there was one that did."""
    return not of_windows() and webbrowser.open(page.as_uri())
