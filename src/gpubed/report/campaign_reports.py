"""Puts reports of campaigns on the shared storage, to which role jupyterlab links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from gpubed.access import services
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH, CommandFailed, Unreachable
from gpubed.report.read import Measured

LINK = "campaign-reports"
"""Name of the link in the notebooks' folder."""
_ANSWER_S = 5.0
# Creates a draft folder. Refuses folders and links of other users, which could lead anywhere;
# removes abandoned drafts. `sudo`: only JupyterLab's account can read the notebooks' folder.
_BEGIN = """
set -eu
umask 022
reports=$1 report=$1/$2 campaign=$3 link=$4
shift 4
refuse() { echo "$*" >&2; exit 1; }
[ "$(sudo -n readlink "$link")" = "$reports" ] || refuse "$link is no link to $reports"
[ ! -L "$reports" ] || refuse "$reports is a link"
mkdir -p "$reports"
[ -O "$reports" ] || refuse "$reports is another user's"
if [ -e "$report" ] || [ -L "$report" ]; then
  [ ! -L "$report" ] && [ "$(cat "$report/.campaign" 2>/dev/null)" = "$campaign" ] ||
    refuse "$report is there, and no report of this campaign"
fi
find "$reports" -maxdepth 1 -name '.draft-*' -mmin +60 -exec rm -rf {} +
draft=$(mktemp -d "$reports/.draft-XXXXXXXX")
printf '%s\\n' "$campaign" >"$draft/.campaign"
for folder; do mkdir -p "$draft/$folder"; done
echo "$draft"
"""
# Puts the draft in its place. A new report appears as a whole; when an earlier report is replaced,
# the page comes last.
_END = """
set -eu
umask 022
draft=$1 report=$2 page=$3
chmod -R u=rwX,go=rX "$draft"
[ -e "$report" ] || { mv -T "$draft" "$report"; exit 0; }
cd "$draft"
find . -type f ! -path "./$page" | while IFS= read -r file; do
  mkdir -p "$(dirname "$report/$file")"
  mv -fT "$file" "$report/$file"
done
mv -fT "$page" "$report/$page"
cd /
rm -rf "$draft"
"""


def place(cluster: Cluster, measured: Measured, written: Sequence[Path]) -> str:
    """Copy a report to the shared storage, replacing the campaign's earlier one.

    Args:
        written: The report's files, the page first.

    Returns:
        The page's URL in JupyterLab, without a token.
    """
    campaign, page = measured.campaign, written[0]
    shared = cluster.plan.spec.storage.shared.path
    reports, link = f"{shared}/reports", f"{shared}/notebooks/{LINK}"
    # Sorted by the time when the campaign began.
    name = f"{campaign.started:%Y%m%d-%H%M%S}-{measured.folder.name}{measured.suffix}"
    identity = f"{campaign.uuid} {campaign.started.isoformat()} {campaign.name}"
    files = {path: path.relative_to(page.parent).as_posix() for path in written}
    folders = sorted({str(Path(file).parent) for file in files.values()})
    with SSH(cluster.allocation.head, cluster.paths) as head:
        if not head.answers(head.node.port, _ANSWER_S):
            raise Unreachable(f"{head.node.name} does not answer")
        draft = _run(head, _BEGIN, reports, name, identity, link, *folders).strip()
        try:
            for path, file in files.items():
                head.put(path, f"{draft}/{file}")
            _run(head, _END, draft, f"{reports}/{name}", page.name)
        except GpubedError:
            head.run("rm -rf %s", draft, check=False)
            raise
    return f"{services.urls(cluster)[0]['url']}/tree/{LINK}/{quote(name)}/{page.name}"


def _run(head: SSH, script: str, *words: str) -> str:
    try:
        return head.run(f"sh -c %s sh{' %s' * len(words)}", script, *words).stdout
    except CommandFailed as error:
        raise GpubedError(error.result.tail or error.message) from None
