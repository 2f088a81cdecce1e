"""Alert rules, gpubed's own figures, and the status page made from Prometheus' answers."""

import json
import os
import sys
import textwrap
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from gpubed.core.paths import assets
from gpubed.jobs import execution
from gpubed.jobs.launchers import ssh

ROLE = assets() / "roles" / "monitoring"
RULES = [
    rule
    for group in yaml.safe_load((ROLE / "files" / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def page():
    """The modules of the page; the handler needs JupyterLab and is tested with it."""
    sys.path.insert(0, str(ROLE / "files"))
    try:
        from gpubed_status import figures, page, work

        yield figures, page, work
    finally:
        sys.path.remove(str(ROLE / "files"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_grave_where_and_what_repairs(rule):
    assert rule["labels"]["severity"] in ("critical", "warning")
    summary, repair = rule["annotations"]["summary"], rule["annotations"]["repair"]
    assert any(f"$labels.{label}" in summary for label in ("node", "where", "account"))
    assert repair.startswith("gpubed ") or ": gpubed " in repair
    assert "$externalLabels.cluster" in repair


def sample(value, **labels):
    return {"metric": labels, "value": [NOW, str(value)]}


def series(values, **labels):
    return {"metric": labels, "values": [[NOW + i, str(v)] for i, v in enumerate(values)]}


def answers(figures):
    """Two nodes, one of them down; one GPU, slowed down."""
    found = {name: [] for name in figures.QUERIES}
    gpu, link = {"node": "node-1", "gpu": "0"}, {"node": "node-0", "device": "eth1"}
    return found | {
        "up": [sample(1, node="node-0"), sample(0, node="node-1")],
        "cpu": [sample(0.256, node="node-0")],
        "gpus_declared": [sample(0, node="node-0"), sample(2, node="node-1")],
        "gpu_info": [sample(1, **gpu, model="<b>A100</b>", pci="0000:3b:00.0")],
        "gpu_utilization": [sample(0.97, **gpu)],
        "gpu_throttled": [sample(1, **gpu)],
        "link_carrier": [sample(1, **link)],
        "link_declared": [sample(200e6, **link)],
        "verified_at": [sample(NOW - 180, node="node-0")],
        "verified": [
            sample(46, result="pass"),
            sample(0, result="fail"),
            sample(9, result="simulated"),
        ],
    }


def rendered(page, alerts=(), **view):
    figures, html, _ = page
    histories = {name: [] for name in figures.HISTORIES} | {
        "cpu": [series([0.1, 0.9, 0.3], node="node-0")]
    }
    roles = {"node-0": "head", "node-1": "worker"}
    cluster = figures.view(answers(figures), histories, list(alerts), roles, NOW)
    given = {"name": "lab", "now": NOW, "nonce": "n", "problem": "", "jobs": [], "queue": None}
    return html.render(**given | {"cluster": cluster} | view)


def text_of(html):
    """Return what a reader sees, words separated by single spaces."""
    words = []
    parser = HTMLParser()
    parser.handle_data = words.append
    parser.feed(html.split("<main")[1].split("<script")[0])
    return " ".join(" ".join(words).split())


def test_the_page_shows_nodes_gpus_links_and_verification(page):
    text = text_of(rendered(page))
    assert "Nodes 1 of 2 answer" in text
    assert "node-0 head ✓ up 26 %" in text
    assert "node-1 ✕ down n/a" in text
    assert "GPUs 1 of 2 present" in text
    assert "97 %" in text
    assert "▲ slowed down" in text
    assert "node-0 eth1 ✓ up 200 Mbit/s" in text
    assert "✓ 46 passed 9 simulated, 3 min ago" in text
    assert "No alert fires." in text


def test_the_gravest_alert_comes_first_with_its_repair(page):
    def alert(name, severity, state="firing"):
        return {
            "labels": {"alertname": name, "severity": severity},
            "annotations": {"summary": f"{name} of node-1", "repair": f"repair {name}"},
            "state": state,
            "activeAt": "2027-01-15T08:00:00Z",
        }

    given = [alert("Slow", "warning"), alert("Lost", "critical"), alert("Soon", "x", "pending")]
    text = text_of(rendered(page, given))
    assert "Alerts ✕ 2 1 critical" in text
    assert text.index("Lost of node-1") < text.index("Slow of node-1") < text.index("Soon of")
    assert "Repair: repair Lost" in text
    assert "not for long enough yet to fire: Soon of node-1" in text


def test_what_comes_from_outside_cannot_become_html(page):
    html = rendered(page, queue=[dict.fromkeys(page[2]._QUEUE_COLUMNS, "<script>x()</script>")])
    assert "<b>A100" not in html
    assert html.count("<script") == 1


def a_run(folder, job="digits"):
    """Make a run's folder under the name that `gpubed run` gives it."""
    made = folder / execution.name_run(job)
    made.mkdir()
    (made / "cluster.json").write_text("{}")
    return made


def states(page, folder, queued=()):
    return [run["state"] for run in page[2].runs([folder], time.time(), queued)]


def test_a_run_with_metrics_is_done_and_one_without_has_ended(page, tmp_path):
    (a_run(tmp_path) / "metrics.json").write_text("{}")
    assert states(page, tmp_path) == ["done"]
    time.sleep(0.002)  # a run's name counts milliseconds
    a_run(tmp_path)
    assert states(page, tmp_path) == ["ended without a result", "done"]


@pytest.fixture
def told(page, tmp_path):
    """A function that returns what the page knows of a running job that said a line last."""
    made = a_run(tmp_path)

    def told(line):
        (made / ".heartbeat").write_text("9\n")
        (made / ".progress").write_bytes(line.encode() if isinstance(line, str) else line)
        [row] = page[2].runs([tmp_path], time.time())
        return row

    return told


def test_rate_and_parts_of_a_step_of_the_running_job_are_on_the_page(page, told):
    """The line as job imagenet prints it."""
    row = told(
        "[0]<stdout>:progress: 3/20 steps, 3552 images/s, data 0.4 ms, compute 220.0 ms, "
        "exposed communication 55.1 ms\n"
    )
    assert (row["progress"], row["share"]) == ("3 of 20 steps, 3552 images/s", 0.15)
    assert [(part["name"], part["seconds"]) for part in row["step"]] == [
        ("data", pytest.approx(0.0004)),
        ("compute", pytest.approx(0.22)),
        ("exposed communication", pytest.approx(0.0551)),
    ]
    assert sum(part["share"] for part in row["step"]) == pytest.approx(1)
    html = rendered(page, jobs=[row])
    assert "running 3 of 20 steps, 3552 images/s" in text_of(html)
    assert (
        "15 % a step takes 276 ms ■ data 0.4 ms, 0 % ■ compute 220 ms, 80 % "
        "■ exposed communication 55 ms, 20 %"
    ) in text_of(html)
    assert html.count('<rect class="part') == 3


def test_figures_by_step_are_curves_on_the_page(page, tmp_path):
    rows = [json.dumps({"step": s, "loss": 3 - s, "<b>": 1e308 * 10, "n": True}) for s in range(3)]
    rows += ['{"\\ud800": 1}'] * 2 + [
        "{",
        "[1]",
        "1",
        '{"loss": 1' + "0" * 400 + "}",
        '{"loss": "low"}',
        "[" * 10**4,
    ]
    (a_run(tmp_path) / "metrics.jsonl").write_text("\n".join(rows))
    [row] = page[2].runs([tmp_path], time.time())
    assert row["curves"] == {"loss": [2.0, 1.0, 0.0], "n": [0.0, 0.0, 0.0], "?": [0.0, 0.0]}
    html = rendered(page, jobs=[row])
    assert 'aria-label="loss of digits by step"' in html
    assert "1.0 48.0,12.0 96.0,23.0" in html


@pytest.mark.parametrize(
    "said",
    [
        "progress: 1/4 steps, <script>x()</script>, data 1.0 ms",
        "progress: 1/4 steps, " + ", ".join(f"part {name} 1.0 ms" for name in "abcdefghij"),
        "progress: 1/4 steps, data 99999999999999999999 ms, data 1e400 ms, data nan ms",
        "progress: 1/4 steps, " + "x" * 3000,
        b"progress: 1/4 steps, x\0\x1b[2J\xff\xfe",
        b"x" * 10_000_000,
    ],
)
def test_whatever_a_job_says_the_page_stays_whole_and_small(page, told, said):
    row = told(said)
    assert len(row["progress"]) <= page[2]._WORDS
    assert len(row["step"]) <= page[2]._PARTS
    html = rendered(page, jobs=[row])
    assert html.count("<script") == 1
    assert "<b>" not in html
    assert len(html) < len(rendered(page)) + 4000


def test_the_progress_of_a_run_of_slurm_is_in_its_output(page, tmp_path):
    made = a_run(tmp_path)
    (made / "slurm.log").write_text("progress: 1/4 sizes\nprogress: 2/4 sizes\nhello\n")
    [row] = page[2].runs([tmp_path], time.time(), [made.name])
    assert row["progress"] == "2 of 4 sizes"


def test_a_run_whose_owner_fell_silent_has_ended(page, tmp_path):
    assert page[2]._SILENCE_S == ssh.SILENCE_S
    beat = a_run(tmp_path) / ".heartbeat"
    beat.write_text("7\n")
    silent = time.time() - 2 * ssh.SILENCE_S
    os.utime(beat, (silent, silent))
    assert states(page, tmp_path) == ["ended without a result"]


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """A function that puts a STAND-IN for Slurm's squeue on PATH: jobs, and lines of its own."""
    script = """\
    #!{python}
    import os, sys
    form = next(word for word in sys.argv if word.startswith("--format=")).removeprefix("--format=")
    for name in {names}:
        line = form.encode()
        for letter, value in zip(b"iuTMDj", (b"7", b"ada", b"PENDING", b"0:00", b"2", name)):
            line = line.replace(b"%" + bytes([letter]), value)
        os.write(1, line + b"\\n")
    os.write(1, {lines})
    """

    def put(*names, lines=b""):
        program = tmp_path / "bin/squeue"
        program.parent.mkdir()
        text = textwrap.dedent(script).format(python=sys.executable, names=names, lines=lines)
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))

    return put


@pytest.mark.process
@pytest.mark.parametrize("name", ["digits", "|" * 9])
def test_the_queue_is_shown_whatever_a_job_is_called(page, squeue, name):
    squeue(name.encode())
    [job] = page[2].queue()
    assert job == {
        "id": "7",
        "user": "ada",
        "state": "PENDING",
        "time": "0:00",
        "nodes": "2",
        "name": name,
    }
    assert name in rendered(page, queue=[job])


def pipe(path, _there):
    os.mkfifo(path)


def link(path, there):
    there.write_text("progress: 1/2 secrets")
    path.symlink_to(there)


def huge(path, _there):
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no room


def no_text(path, _there):
    path.write_bytes(b"\xff\xfe\n")


@pytest.mark.parametrize("make", [pipe, link, huge, no_text])
@pytest.mark.parametrize("name", [".progress", "slurm.log", "metrics.jsonl"])
def test_no_file_of_a_run_holds_up_the_page(page, tmp_path, make, name):
    """Who may write into a folder of runs must not take the page from everybody."""
    runs = tmp_path / "runs"
    runs.mkdir()
    run = a_run(runs)
    make(run / name, tmp_path / "there")
    opened = len(list(Path("/proc/self/fd").iterdir()))
    rows = []

    def look():
        for queued in ([run.name], []):
            rows.extend(page[2].runs([runs], time.time(), queued))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(10)
    assert [row["progress"] for row in rows] == ["", ""]
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert rendered(page, jobs=rows).encode()
