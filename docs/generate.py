"""Writes docs/reference and Horovod's settings from the code: they cannot drift. `make docs`."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main
import yaml
from typer.testing import CliRunner

from gpubed import cli
from gpubed.campaigns import file
from gpubed.campaigns import matrix as campaign_matrix
from gpubed.checks import registry
from gpubed.configuration import roles
from gpubed.core import errors, paths
from gpubed.jobs import jobfile, launchers
from gpubed.spec.schema import json_schema

REFERENCE = Path(__file__).parent / "reference"
KEYS: dict[str, Any] = runpy.run_path(str(REFERENCE.parent / "keys.py"))
CHECKS: dict[str, Any] = runpy.run_path(str(REFERENCE.parent / "checks.py"))
PREDICTION: dict[str, Any] = runpy.run_path(str(REFERENCE.parent / "prediction.py"))
MARK = "<!-- Written by `make docs` from the code. -->\n\n"


def pages() -> dict[str, str]:
    """Return every generated page by file name."""
    return {
        "../tutorial/from-data-to-answers/from-data-to-answers.ipynb": notebook(
            "from-data-to-answers.md"
        ),
        "cluster.schema.json": json.dumps(json_schema(), indent=2) + "\n",
        "cluster-yml.md": MARK + "\n".join(cluster_yml()),
        "cli.md": MARK + "\n".join(command_line()) + "\n",
        "roles.md": MARK + "\n".join(role_inputs()) + "\n",
        "jobs.md": MARK + "\n".join([*job_pages(), *launcher_list(), *job_yml()]) + "\n",
        "campaigns.md": MARK + "\n".join(campaign_yml()) + "\n",
        "../../campaigns/README.md": MARK + "\n".join(campaigns()) + "\n",
        "checks.md": MARK + "\n".join(check_ids()) + "\n",
        "role-tests.md": MARK + role_tests() + "\n",
        "gpu.md": MARK + gpus(),
        "gpu-rates.md": MARK + measured("gpu_rates"),
        "../concepts/horovod-settings.md": MARK + horovod_settings(),
        "changes.md": MARK + "\n".join(changes()) + "\n",
        "performance.md": MARK + performance(),
        "experiment.md": MARK + measured("experiment"),
        "endurance.md": MARK + measured("endurance"),
        "prediction.md": MARK + PREDICTION["page"](),
        **{f"../images/{name}": picture for name, picture in pictures().items()},
        **{f"../images/{name}": picture for name, picture in PREDICTION["pictures"]().items()},
    }


def notebook(page: str) -> str:
    """Return a tutorial page as a notebook that runs its commands, one folder further down."""
    text = (REFERENCE.parent / "tutorial" / page).read_text()
    text = re.sub(r"\]\((?=[\w.])", "](../", text)
    cells = []
    for index, part in enumerate(re.split(r"```console\n(.*?)```\n", text, flags=re.DOTALL)):
        kind, lines = "markdown", part.strip().splitlines(keepends=True)
        if index % 2:
            kind = "code"
            lines = [f"!{line[2:]}" for line in lines if re.match(r"\$ (?!cd )", line)]
        cell = {"cell_type": kind, "id": f"part-{index}", "metadata": {}, "source": lines}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    document = {"cells": cells, "metadata": {"kernelspec": kernel}}
    return json.dumps(document | {"nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def pictures() -> dict[str, str]:
    """Return the pictures of the architecture."""
    drawn: dict[str, str] = runpy.run_path(str(REFERENCE.parent / "house.py"))["pictures"]()
    return drawn


def role_tests() -> str:
    """Say which scenario of which role has passed, and whether it was changed since."""
    matrix = runpy.run_path(str(REFERENCE.parents[1] / "tests" / "molecule" / "matrix.py"))
    table: str = matrix["Outcomes"](matrix["RESULTS"]).table()
    return table


def performance() -> str:
    """Say how long clusters of different sizes took, where it went, and how verbs grow."""
    sections = [measured(part, "section") for part in ("sizes", "time_of_up", "growth")]
    return "# How long it takes\n\n" + "\n".join(sections)


def measured(name: str, what: str = "page") -> str:
    """Say what a long test found."""
    tests = REFERENCE.parents[1] / "tests"
    sys.path.insert(0, str(tests))  # as pytest does
    found: str = runpy.run_path(str(tests / "support" / f"{name}.py"))[what]()
    return found


def changes() -> Iterator[str]:
    """Say what each change of a running cluster means, as the tests of the backends have it."""
    words = {
        "kept": "the same nodes, and what is on their disks, stay",
        "restarted": "the same nodes go on after a new start; what is on their disks stays",
        "fewer": "the last ones go, with what is on their own disks (own hosts keep it); the "
        "others stay",
        "anew": "other nodes; what is on their own disks is lost",
        "one": "that host takes the place of another one, which keeps what is on its disks",
        "again": "hosts leave the cluster and come again, as other nodes; what is on their disks "
        "stays",
        "refused": "refused before anything goes",
        "none": "there are no nodes; jobs and runs are found as before",
    }
    engines = {
        "both": "With the embedded engine, and with Pulumi's CLI where it is on PATH.",
        "cli": "With Pulumi's CLI, on a real OpenStack: `make test-live`. Where its hypervisor is "
        "Nova's fake one, containers stand in for the servers.",
    }
    path = REFERENCE.parents[1] / "tests" / "contract" / "changes.yaml"
    yield "# Changes of a running cluster\n"
    yield "Made one after the other by tests: planned first, done as planned, and then there is"
    yield "nothing left to change. Where nodes go, `plan` and `up` name them and what is lost with"
    yield "them, and `up` asks. Storage that the testbed keeps outlives every change.\n"
    for backend, matrix in yaml.safe_load(path.read_text()).items():
        yield f"## {backend}\n\n{engines[matrix['engines']]}\n"
        yield "| change | what becomes of the nodes |\n| --- | --- |"
        unseen = matrix.get("unseen", {})
        for change, nodes in matrix["changes"].items():
            yet = f"; **untested** {unseen[change]}" if change in unseen else ""
            yield f"| {change} | {words[nodes]}{yet} |"
        yield ""


def gpus() -> str:
    """Say which driver each GPU gets, and how far that was tested."""
    page: str = runpy.run_path(str(REFERENCE.parent / "gpu.py"))["page"]()
    return page


def horovod_settings() -> str:
    """Say what Horovod is told on a node, and why."""
    page: str = runpy.run_path(str(REFERENCE.parent / "horovod_settings.py"))["page"]()
    return page


def cluster_yml() -> Iterator[str]:
    """Describe the keys of the specification."""
    yield "# cluster.yml\n"
    yield "Unknown keys are errors; `gpubed check` names the line and the nearest key."
    yield "Only `version`, `backend` and `nodes` have to be there.\n"
    yield from KEYS["sections"](json_schema())
    yield KEYS["UNITS"]


def command_line() -> Iterator[str]:
    """Describe every verb, its options and the exit codes."""
    yield "# Command line\n"
    runner = CliRunner(env={"COLUMNS": "90", "TERMINAL_WIDTH": "90"})
    root = typer.main.get_group(cli.build())
    for words in _verbs(root):
        shown = runner.invoke(cli.build(), [*words, "--help"], prog_name="gpubed").output
        text = re.sub(r"[ \t]+$", "", shown.strip(), flags=re.M)
        yield f"## gpubed {' '.join(words)}\n\n```text\n{text}\n```\n"
    yield "## Exit codes\n\n| code | meaning |\n| --- | --- |\n| 0 | done |"
    for kind in (errors.GpubedError, *errors.GpubedError.__subclasses__()):
        if kind.__module__ == "gpubed.core.errors":
            first = (kind.__doc__ or "").splitlines()[0]
            yield f"| {kind.exit_code} | {first} |"
    yield "| 77 | Nothing was proved: there are only skips and simulated GPUs. |"
    yield "| 130 | Interrupted; 143 by SIGTERM, 129 by a terminal that was closed. |"
    yield (
        "\nWith `--json`, what is refused before a verb has a document of its own is one, too: "
        '`{"schema": "gpubed/error/1", "message": …, "hint": …, "exit_code": …}`.'
    )


def _verbs(group: Any) -> Iterator[list[str]]:
    for name in sorted(group.commands):
        yield [name]
        inner = group.commands[name]
        if hasattr(inner, "commands"):
            yield from ([name, *words] for words in _verbs(inner))


def role_inputs() -> Iterator[str]:
    """Describe every role's inputs, from its argument specification."""
    yield "# Roles\n"
    yield "What each role takes. A role's own `meta/gpubed.yml` is at the end.\n"
    for name in roles.names():
        folder = paths.assets() / "roles" / name
        main = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text())[
            "argument_specs"
        ]["main"]
        yield f"## {name} (phase {roles.meta(name).phase})\n\n{main['short_description']}\n"
        yield "| input | type | default | |\n| --- | --- | --- | --- |"
        defaults = yaml.safe_load((folder / "defaults" / "main.yml").read_text()) or {}
        for key, option in main.get("options", {}).items():
            text = option.get("description", "")
            text = " ".join(text) if isinstance(text, list) else text
            default = json.dumps(defaults.get(key))
            default = "" if key not in defaults or "{{" in default else f"`{default}`"
            yield f"| `{key}` | {option['type']} | {default} | {' '.join(text.split())} |"
        yield ""
    yield from _role_keys()


def _role_keys() -> Iterator[str]:
    """Describe `meta/gpubed.yml`: its keys are the attributes that the model's docstring names."""
    text = inspect.cleandoc(roles.RoleMeta.__doc__ or "").partition("Attributes:\n")[2]
    yield "## meta/gpubed.yml\n"
    yield "How to write a role: [a role](../contributing/role.md).\n"
    yield "| key | |\n| --- | --- |"
    for key, what in re.findall(r"(?ms)^    (\w+): (.*?)(?=^    \w+: |\Z)", text):
        yield f"| `{key}` | {' '.join(what.split())} |"
    yield ""


def job_pages() -> Iterator[str]:
    """Describe every job's arguments and metrics, and how a job is described."""
    yield "# Jobs\n"
    yield "[Write a job](../how-to/write-a-job.md) tells how to make one; `job.yml` is below.\n"
    for name in jobfile.names():
        job = jobfile.load(name)
        yield f"## {name}\n\n{job.description}\n"
        yield "| argument | type | default | |\n| --- | --- | --- | --- |"
        yield from (
            f"| `{key}` | {_allowed(a)} | {_default(a)} | {a.help} |"
            for key, a in job.arguments.items()
        )
        yield "\n| metric | unit | |\n| --- | --- | --- |"
        yield from (f"| `{key}` | {m.unit} | {m.help} |" for key, m in job.metrics.items())
        yield ""


def job_yml() -> Iterator[str]:
    """Describe the keys of a job's description, from its JSON Schema."""
    schema = jobfile.Job.model_json_schema()
    yield "# job.yml\n"
    yield "Unknown keys are errors; `gpubed run` names the line of each and the nearest key.\n"
    yield from KEYS["sections"](schema)


def launcher_list() -> Iterator[str]:
    """Name every launcher, with the first sentence of its module."""
    yield "# Launchers\n"
    yield "Values of `--launcher`, and of `launcher` in `job.yml`.\n"
    yield "| launcher | |\n| --- | --- |"
    for name in launchers.names():
        made = type(launchers.named(name))
        yield f"| `{name}` | {_sentence(import_module(made.__module__))} |"
    yield ""


def check_ids() -> Iterator[str]:
    """Name what every verification looks at, in its order, with the ids of its results."""
    yield "# Checks\n"
    yield "The checks of `gpubed verify`, in their order: an early failure explains later ones."
    yield "`verification.json` of a cluster has a result for each id.\n"
    for stage in registry.Stage:
        yield f"## {stage.name.capitalize()}\n\n| ids | |\n| --- | --- |"
        for function in registry.functions():
            if registry.stage(function) is stage:
                ids = ", ".join(f"`{id_}`" for id_ in CHECKS["ids"](function))
                yield f"| {ids} | {_sentence(function)} |"
        yield ""


def _sentence(what: Any) -> str:
    """Return the first sentence of what a module or function says of itself."""
    text = " ".join((inspect.getdoc(what) or "").split("\n\n")[0].split())
    return re.split(r"\.(?: |$)", text)[0].replace("|", "\\|")


def campaigns() -> Iterator[str]:
    """List the campaigns that gpubed brings, by what each says of itself."""
    yield "# Campaigns\n"
    yield "A matrix of experiments per file: a job, what varies, how often each point is repeated."
    yield "`gpubed bench CLUSTER NAME` runs one; [how](../docs/how-to/benchmark.md).\n"
    yield "| name | job | what | points |\n| --- | --- | --- | --- |"
    for path in sorted((paths.assets() / "campaigns").glob("*.yml")):
        source = file.load(str(path), paths.Project(paths.assets()))
        campaign, job = source.campaign, jobfile.load(source.campaign.job)
        points = f"{len(campaign_matrix.expand(source, job))}"
        points += f", {campaign.repeat} times each" if campaign.repeat > 1 else ""
        yield f"| `{path.stem}` | {campaign.job} | {campaign.description} | {points} |"
    yield "\nOne that names more nodes than there are with ranks is refused, with the line: copy"
    yield "the file to `campaigns/` of your project and shorten `nodes`. A project's own file wins"
    yield "over one of the same name here."
    rates = "[what one GPU trains per second](../docs/reference/gpu-rates.md)"
    yield f"What `imagenet-gpu` gave so far: {rates}."
    yield "`imagenet-scaling` on nodes (one cluster with links of 1 Gbit/s, one of 10) and"
    yield "`imagenet-gpulab` on GPULab (1 job x 10 GPUs, 10 jobs x 1 GPU) are one experiment in"
    yield "four environments; `gpubed report CLUSTER --with OTHER` puts them in one report:"
    yield "[how](../docs/how-to/benchmark.md#one-experiment-on-several-clusters)."
    yield "How to add one: [a campaign](../docs/contributing/campaign.md)."


def campaign_yml() -> Iterator[str]:
    """Describe the keys of a campaign file, from its JSON Schema."""
    schema = file.Campaign.model_json_schema()
    yield "# Campaign files\n"
    yield "Unknown keys are errors; `gpubed bench` names the line of each and the nearest key.\n"
    yield from KEYS["sections"](schema)


def _allowed(argument: jobfile.Argument) -> str:
    """Say what an argument may be."""
    if argument.choices:
        return " or ".join(f"`{choice}`" for choice in argument.choices)
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in (("≥", argument.at_least), ("≤", argument.at_most))
        if bound is not None
    ]
    return ", ".join([argument.kind, *bounds])


def _default(argument: jobfile.Argument) -> str:
    if argument.default is None:
        return "required" if argument.required else ""
    return f"`{argument.default}`"


def main() -> int:
    """Write the pages; say which changed."""
    for name, text in pages().items():
        target = REFERENCE / name
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
            sys.stdout.write(f"wrote {target.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
