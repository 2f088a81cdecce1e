"""`gpubed report`, as docs/how-to/report.md has it: files of a campaign, whatever is in them."""

import base64
import csv
import errno
import hashlib
import json
import os
import re
from xml.etree import ElementTree as ET

import pytest
from lxml import html
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core import files
from gpubed.core.errors import PrerequisiteMissing, UsageError
from gpubed.nodes.ssh import SSH
from support import measurements
from support.samples import granted_cluster


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """A cluster that is up, and does not answer."""
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    monkeypatch.setattr(SSH, "answers", lambda *_: False)
    return granted_cluster(tmp_path)


def call(*words):
    return CliRunner().invoke(
        cli.build(), ["report", "lab", *words], standalone_mode=False, catch_exceptions=False
    )


SMALL = {"nodes": [1, 2]}
EVIL = "<script>alert(1)</script>\"'&]]>\x00\x1b"


def require_safe(text):
    """Return a page as a tree; fail for one that loads anything, or runs what is not its own."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)
    page = html.document_fromstring(text)
    [policy] = page.xpath("//meta[@http-equiv]/@content")
    for script in page.iter("script"):
        if script.get("type") == "application/json":
            json.loads(script.text)
        else:
            digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
            assert policy.endswith(f"script-src 'sha256-{digest}'")
    assert not page.xpath("//iframe | //object | //embed | //link | //base")
    assert not [one for one in page.xpath("//@*") if one.attrname.startswith("on")]
    assert all(one.startswith("data:image/svg+xml") for one in page.xpath("//@src"))
    assert not page.xpath("//@href | //@srcset | //@action | //@poster")
    return page


def test_a_report_is_a_page_figures_csv_and_json(paths):
    folder = measurements.write(paths) / "report"
    done = call()
    assert done.return_value == 0
    assert "The link limits scaling" in done.stdout
    assert f"report: {folder / 'report.html'}" in done.stdout
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert figures == {
        "throughput",
        "efficiency",
        "steps",
        "ratio-rate",
        "stragglers",
        "links",
    }
    page = require_safe((folder / "report.html").read_text())
    assert {one.get("id") for one in page.iter("figure")} == figures
    text = page.text_content()
    for said in (
        "Efficiency on 3 nodes against 1 node of 4 series: 9",
        "gpubed bench lab campaigns/smoke.yml",
        "git checkout 4aab6e7",
        "2 CPUs, 8 GiB",
        "94.6 Mbit/s",
        "random, seed 1",
    ):
        assert said in text


def test_the_documents_have_all_means_with_what_they_stand_on(paths):
    folder = measurements.write(paths) / "report"
    printed = json.loads(call("--json").stdout)
    found = json.loads((folder / "report.json").read_text())
    assert found["schema"] == printed["schema"] == "gpubed/report/1"
    assert printed.pop("files")[0] == str(folder / "report.html")
    assert printed.pop("jupyterlab") is None
    assert printed == found
    # What it takes to measure all of it again, and to compare.
    assert found["campaign"] == json.loads((folder.parent / "campaign.json").read_text())
    assert len(found["groups"]) == 12
    for group in found["groups"]:
        metric = group["metrics"]["images_per_s"]
        assert metric["n"] == group["n"] == 3
        assert metric["sd"] > 0
        assert metric["min"] <= metric["mean"] <= metric["max"]
    assert len(found["efficiency"]) == 12
    assert found["findings"]
    points = {p.name: json.loads(p.read_text()) for p in (folder.parent / "points").iterdir()}
    with (folder / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 36
    for row in rows:
        point = points[f"{row['id']}.{row['repetition']}.json"]
        assert float(row["images_per_s"]) == point["metrics"]["images_per_s"]
        assert row["nodes"] == str(point["settings"]["nodes"])
        assert row["simulated"] == "false"


def test_the_newest_campaign_is_meant_where_none_is_named(paths):
    measurements.write(paths, measurements.document("new", started="2026-11-23T12:00:00Z"), [])
    measurements.write(paths, measurements.document("old", started="2026-11-22T12:00:00+02:00"), [])
    assert "campaign new" in call().stdout
    assert "campaign old" in call("old").stdout
    for name in ("campaigns/old.yml", "campaigns/old", str(paths.campaigns / "old")):
        assert "campaign old" in call(name).stdout


def test_a_campaign_that_is_not_there_is_refused(paths):
    with pytest.raises(UsageError, match="no campaign was run on lab yet") as refused:
        call()
    assert refused.value.hint == "gpubed bench lab smoke"
    measurements.write(paths)
    with pytest.raises(UsageError, match="there is no campaign 'smok'") as refused:
        call("smok")
    assert "did you mean 'smoke'?" in refused.value.hint
    for elsewhere in ("../../../etc", "../../other/campaigns/smoke", "/smoke"):
        with pytest.raises(UsageError, match="there is no campaign"):
            call(elsewhere)


A_POINT = {"nodes": 2, "batch_size": 32, "rate": "1G"}
BROKEN = {
    "half": b'{"schema": "gpubed/point/1", "id": "nod',
    "empty": b"",
    "binary": b"\xff\xfe\x00",
    "list": b"[]",
    "newer": json.dumps(measurements.point({"nodes": 1}, schema="gpubed/point/2")).encode(),
    "status": json.dumps(measurements.point({"nodes": 1}, status="perhaps")).encode(),
    "settings": json.dumps(measurements.point({"nodes": {}}, id="x")).encode(),
    "another": json.dumps(measurements.point({"nodes": 2})).encode(),
    "twice": json.dumps(measurements.point(A_POINT, id="twice")).encode(),
}


def test_points_that_cannot_be_read_are_named_and_the_others_count(paths):
    folder = measurements.write(paths)
    names = {f"{kind}.0.json" for kind in BROKEN}
    for kind, content in BROKEN.items():
        (folder / "points" / f"{kind}.0.json").write_bytes(content)
    done = call()
    assert done.return_value == 0
    found = json.loads((folder / "report" / "report.json").read_text())
    assert {one["file"] for one in found["broken"]} == names
    assert len(found["groups"]) == 12
    page = (folder / "report" / "report.html").read_text()
    for name in names:
        assert f"{name} is left out: " in done.stderr
        assert name in page
    assert f"{len(names)} files could not be read: left out" in page


def evil_campaign():
    campaign = measurements.document(
        factors={"nodes": [1, 2], "rate": ["100M", EVIL], EVIL: [EVIL, "=1+1"]},
        job=EVIL,
        cluster=EVIL,
        backend=EVIL,
        command=EVIL,
        recipe=EVIL,
        gpubed=EVIL,
        digest=EVIL,
        git={"commit": EVIL, "clean": False},
    )
    campaign["nodes"] = [{"name": EVIL, "hardware": EVIL, "slots": 1, "gpus": 2}]
    campaign["links"] = [{"src": EVIL, "dst": EVIL, "declared_bps": 1e8, "measured_bps": 9e7}]
    campaign["campaign"] |= {"description": EVIL, EVIL: EVIL}
    return campaign


def evil_points(campaign):
    for number, one in enumerate(measurements.measured(campaign)):
        metrics = one["metrics"] | {EVIL: 1.5, "device": "=cmd|' /C calc'!A0"}
        metrics["versions"] = {EVIL: EVIL}
        metrics["ranks"] = [rank | {"host": EVIL} for rank in metrics["ranks"]]
        failed = {"status": "failed", "reason": EVIL} if number % 3 == 2 else {}
        yield one | {"metrics": metrics, "run_id": "@SUM(1)"} | failed


def test_what_is_in_files_is_text_in_the_page_the_figures_and_the_csv(paths):
    campaign = evil_campaign()
    folder = measurements.write(paths, campaign, evil_points(campaign)) / "report"
    done = call()
    assert "left out" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    page = require_safe((folder / "report.html").read_text())
    assert "<script>alert(1)</script>" in page.text_content()
    for path in (folder / "figures").iterdir():
        assert not [one for one in ET.parse(path).getroot().iter() if "script" in one.tag]
        assert re.fullmatch(r"[a-z0-9-]+", path.stem)
    with (folder / "points.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert len(rows) == 24
    assert "device" in header
    for row in rows:
        assert len(row) == len(header)
        for cell in row:
            assert not re.match(r"[=+@\t\r\n]|-(?!\d)", cell), cell
    assert "'=cmd|' /C calc'!A0" in rows[0]


def test_a_shell_runs_nothing_of_what_is_in_files(paths):
    named = {"cluster": "x; rm -rf ~ #\ntouch evil", "name": "smoke"}
    said = {"command": "gpubed bench lab a.yml\nrm -rf ~; $(reboot)"}
    commit = {"commit": "$(reboot)", "clean": True}
    campaign = measurements.document(**named, **said, git=commit)
    folder = measurements.write(paths, campaign) / "report"
    done = call()
    assert "\ntouch evil" not in done.stdout
    page = require_safe((folder / "report.html").read_text())
    text = page.text_content()
    lines = text[text.index("To repeat it") :].split("The campaign's file")[0].split("\n")
    assert [line for line in lines if line.strip()][1:] == [
        "git checkout '$(reboot)'",
        "gpubed up 'x; rm -rf ~ # touch evil'",
        "gpubed bench lab a.yml rm -rf '~;' '$(reboot)'",
        "gpubed report 'x; rm -rf ~ # touch evil' smoke",
    ]


def test_simulated_gpus_are_said_to_be_everywhere(paths):
    folder = measurements.write(paths, measurements.document(simulated=True)) / "report"
    assert call().stdout.startswith("The GPUs are simulated")
    page = require_safe((folder / "report.html").read_text())
    titles = [one.text_content() for one in page.iter("figcaption", "h1")]
    assert len(titles) == 7
    assert all("simulated" in title for title in titles)
    for path in (folder / "figures").iterdir():
        assert "simulated" in ET.parse(path).getroot().get("aria-label")
    assert json.loads((folder / "report.json").read_text())["simulated"] is True
    with (folder / "points.csv").open(newline="") as file:
        assert {row["simulated"] for row in csv.DictReader(file)} == {"true"}


def test_figures_of_an_earlier_report_go_and_those_of_others_stay(paths):
    folder = measurements.write(paths)
    call()
    figures = folder / "report" / "figures"
    (figures / "mine.svg").write_text("mine")
    told = json.loads((folder / "report" / "report.json").read_text())
    assert sorted(told["figures"]) == sorted(
        f"figures/{path.name}" for path in figures.iterdir() if path.name != "mine.svg"
    )
    for path in (folder / "points").glob("*.json"):
        path.write_text("{")
    call()
    left = {path.stem for path in figures.iterdir()}
    assert "throughput" not in left
    assert "mine" in left
    page = (folder / "report" / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in left - {"mine"})


def test_on_a_full_disk_the_report_before_stays_as_it_was(paths, monkeypatch):
    """The disk is a STAND-IN's, which takes so many files."""
    folder = measurements.write(paths)
    call()

    def there():
        every = sorted((folder / "report").rglob("*"))
        return {path: path.is_file() and path.read_bytes() for path in every}

    before, left, write = there(), [None] * 3, files.write

    def full(path, content, **options):
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()
        write(path, content, **options)

    # The next one has no figure of what rates make.
    for path in (folder / "points").glob("*rate-1G*.json"):
        path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(files, "write", full)
        with pytest.raises(PrerequisiteMissing, match="cannot be written: No space left"):
            call()
    assert there() == before
    call()
    after = there()
    assert {path.name for path in before.keys() - after.keys()} == {"ratio-rate.svg"}
    assert not after.keys() - before.keys()


def test_an_edited_report_removes_nothing_else(paths):
    folder = measurements.write(paths, measurements.document(factors=SMALL))
    call()
    path = folder / "report" / "report.json"
    written = json.loads(path.read_text())
    for named in ("../points.csv", "figures/../../campaign.json", "/etc/hosts"):
        path.write_text(json.dumps(written | {"figures": [named]}))
        with pytest.raises(UsageError, match="of another report than that of campaign"):
            call()
        assert (folder / "campaign.json").exists()


def test_files_of_others_are_never_written_over(paths, tmp_path):
    measurements.write(paths, measurements.document(factors=SMALL))
    measurements.write(paths, measurements.document("other", uuid="another"), [])
    out = tmp_path / "mine"
    out.mkdir()
    (out / "report.html").write_text("my thesis")
    with pytest.raises(UsageError, match="of another report than that of campaign smoke"):
        call("smoke", "--out", str(out))
    assert (out / "report.html").read_text() == "my thesis"
    (out / "report.html").unlink()
    call("smoke", "--out", str(out))
    with pytest.raises(UsageError, match="of another report than that of campaign other"):
        call("other", "--out", str(out))
