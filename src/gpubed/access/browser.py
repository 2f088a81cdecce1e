"""Opens pages that only this user may see in the user's browser.

Every user of this machine can list the arguments of the browser, such as a URL with a token. So the
browser gets a file that redirects to the URL, as with `use_redirect_file` of JupyterLab.
"""

from __future__ import annotations

import html
import platform
import webbrowser
from pathlib import Path

from gpubed.core import secret


def of_windows() -> bool:
    """Say whether this Linux runs within Windows, whose browser cannot read files here."""
    return "microsoft" in platform.release().lower()


def visit(url: str, page: Path) -> bool:
    """Open a URL that contains a secret.

    Args:
        url: Where to go.
        page: The file to write the redirect to, among the cluster's secrets. It stays, since there
            is no way to know when the browser has read it.

    Returns:
        Whether a browser opened it; if not, no page is left.
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
    """Open a file in the browser; return whether a browser opened it."""
    return not of_windows() and webbrowser.open(page.as_uri())
