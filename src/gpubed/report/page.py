"""Writes the report's page: one HTML file that loads no other file.

Each plot is included as SVG and as a Vega-Lite specification, which the bundled Vega makes
interactive if scripts may run. The page's content security policy allows only that script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import defaultdict
from typing import Any

import vl_convert
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gpubed.core.paths import assets
from gpubed.jobs.metrics import formatted as written
from gpubed.jobs.metrics import one_line
from gpubed.jobs.runs.record import Record
from gpubed.report import summary, tables, wording
from gpubed.report.analysis import Analysis, versions
from gpubed.report.plots import Figure
from gpubed.report.read import Measured

_SHOW = """
for (const figure of document.querySelectorAll("figure")) {
  const specification = JSON.parse(figure.querySelector("script").textContent);
  const options = {mode: "vega-lite", renderer: "svg", actions: false, ast: true};
  vegaEmbed(figure.querySelector("div"), specification, options)
    .then(() => figure.querySelector("img").remove()).catch(console.error);
}
"""


def html(analysis: Analysis, drawn: dict[Figure, str]) -> str:
    """Return the page, with text from files escaped and the SVG of each plot."""
    measured = analysis.measured
    campaign = measured.campaign
    said = (part.campaign.campaign.get("description") for part in measured.each)
    alone = f"Campaign {campaign.name} on cluster {campaign.cluster}"
    labels: dict[str, list[str]] = defaultdict(list)
    for part in measured.each:
        file = yaml.safe_dump(part.campaign.campaign, sort_keys=False, allow_unicode=True)
        labels[file].append(part.label)
    return _rendered(
        drawn,
        heading=f"Job {campaign.job} on {campaign.cluster}" if measured.parts else alone,
        descriptions=list(dict.fromkeys(text for text in said if isinstance(text, str))),
        mark=measured.mark,
        summary=summary.lines(analysis),
        remarks=summary.remarks(analysis),
        tables=tables.made(analysis),
        facts=[(part.label, _facts(part)) for part in measured.each],
        commands=_commands(measured),
        campaigns=[(", ".join(filter(None, named)), file) for file, named in labels.items()],
    )


def of_run(one: Record, drawn: dict[Figure, str]) -> str:
    """Return the page of a run: its figures, its curves, and the command that repeats it."""
    emulated = bool(one.metrics.get("emulated"))
    numbers = {name: v for name, v in one.metrics.items() if isinstance(v, int | float | str)}
    return _rendered(
        drawn,
        heading=f"Run {one.run_id}",
        descriptions=[],
        mark="emulated compute" if emulated else "simulated GPUs" if one.simulated else "",
        summary={name: written(value, "") for name, value in numbers.items()},
        remarks=[one_line(why) for why in one.failures],
        tables=[],
        facts=[
            ("", {"status": one.state, "ranks": str(one.world_size), "recipe": one.origin.recipe})
        ],
        commands=[_typed("gpubed", "run", one.origin.cluster, "--again", one.run_id)],
        campaigns=[],
    )


def rendered(name: str, script: str, **content: Any) -> str:
    """Return a page by its template of `templates/report`; text is escaped, the script is not."""
    environment = Environment(
        loader=FileSystemLoader(assets() / "templates" / "report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: wording.clean(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = {"script": Markup(script), "digest": digest}  # noqa: S704
    return environment.get_template(name).render(**content, **scripts)


def as_json(value: Any) -> Markup:
    """Return JSON that cannot close the script element that it stands in."""
    return Markup(json.dumps(value).replace("<", "\\u003c"))  # noqa: S704


def _rendered(drawn: dict[Figure, str], **content: Any) -> str:
    script = vl_convert.javascript_bundle(_SHOW) if drawn else ""
    return rendered(
        "report.html.j2",
        script,  # Vega's, and the lines above
        **content,
        figures=[
            (figure, base64.b64encode(svg.encode()).decode(), as_json(figure.specification))
            for figure, svg in drawn.items()
        ],
    )


def _facts(measured: Measured) -> dict[str, str]:
    campaign, commit = measured.campaign, "not known"
    if campaign.git:
        commit = campaign.git.commit + ("" if campaign.git.clean else ", with uncommitted changes")
    gpus = sum(node.gpus or 0 for node in campaign.nodes)
    software = []
    for one in versions(measured.points):
        some = f" ({one['runs']} of {one['of']} runs)" if one["runs"] < one["of"] else ""
        software.append(f"{one['name']} {one['version']}{some}")
    return {
        "started": f"{campaign.started:%Y-%m-%d %H:%M:%S %Z}",
        "job": campaign.job,
        "cluster": f"{campaign.cluster} ({campaign.uuid or 'no UUID'})",
        "backend": campaign.backend,
        "recipe": campaign.recipe or "none",
        "gpubed": campaign.gpubed,
        "software of the job": ", ".join(software) or "not known",
        "job's files": campaign.made_with.get("the job's files") or "not known",
        "commit of the project": commit,
        "repetitions asked for": str(campaign.repeat),
        "order": f"random, seed {campaign.seed}",
        "digest of the campaign": campaign.digest,
        "GPUs": f"{gpus}{', simulated' if measured.simulated else ''}" if gpus else "none",
    }


def _commands(measured: Measured) -> list[str]:
    """Return shell lines that repeat the campaign, with all text from files quoted."""
    lines = []
    for part in measured.each:
        campaign = part.campaign
        lines += [f"# {one_line(part.label)}"] if part.label else []
        lines += [_typed("git", "checkout", campaign.git.commit)] if campaign.git else []
        lines += [_typed("gpubed", "up", campaign.cluster)] if campaign.cluster else []
        try:
            words = shlex.split(campaign.command)
        except ValueError:  # unbalanced quotes
            words = [campaign.command]
        lines += [_typed(*words)] if campaign.command else []
    first, *others = [part.campaign for part in measured.each]
    further = (word for one in others for word in ("--with", f"{one.cluster}/{one.name}"))
    return [*lines, _typed("gpubed", "report", first.cluster, first.name, *further)]


def _typed(*words: str) -> str:
    return shlex.join(map(one_line, words))
