"""What a node finds wrong with itself.

Rows of figures, `[GPU is lost]` and NVLinks are what the real nvidia-smi (535.261 and
550.163) printed on a stand-in for NVML; other words are those in its binary. Lines of the
kernel's log have the forms of drivers 535 to 595.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = Path(__file__).parents[2] / "roles/health/files"
EXPECTED = {"gpus": 2, "experiment_address": None, "shared_path": "", "min_free_gib": 0,
            "units": [], "patience": 2}  # fmt: skip
GOOD = "Enabled, 0, No, Not Active, Not Active, Not Active"
A100 = "NVIDIA A100-SXM4-40GB"
ROW = "{index}, 00000000:0{index}:00.0, {model}, {figures}"
LINKS = "".join(f"\t Link {number}: 25.781 GB/s\n" for number in range(12))
ERRORS = "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: {}\n\t Link 0: CRC Errors: 0\n\n"
# What drivers before 570 say.
NO_RECOVERY = (2, 'Field "gpu_recovery_action" is not a valid field to query.')
BOOT = "1795320000.000001 node-0 kernel: Linux version 6.1.0-41-amd64\n"


def gpus(*figures, model=A100):
    """Rows of `--query-gpu`; a GPU of which nothing is said is well."""
    rows = [ROW.format(index=i, model=model, figures=said) for i, said in enumerate(figures)]
    return "\n".join(rows)


def remapped(*figures, model=A100):
    return "\n".join(f"00000000:0{i}:00.0, {model}, {said}" for i, said in enumerate(figures))


def nvlinks(*lines):
    return "".join(
        f"GPU {i}: {A100} (UUID: GPU-0000000{i})\n{said}" for i, said in enumerate(lines)
    )


def logged(*lines):
    """The kernel's log, an hour after boot."""
    return BOOT + "\n".join(f"1795323600.{i:06} node-0 kernel: {x}" for i, x in enumerate(lines))


@pytest.fixture
def health(monkeypatch, tmp_path):
    """The program's modules, on a node whose programs give scripted answers."""
    monkeypatch.syspath_prepend(str(FILES))
    from gpubed_health import command, program
    from gpubed_health import gpus as looks

    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia/version").write_text("580.95.05\n")
    expected = tmp_path / "expected.json"
    expected.write_text(json.dumps(EXPECTED))
    monkeypatch.setattr(program, "EXPECTED", expected)
    monkeypatch.setattr(program, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(program, "SPARE", tmp_path / "run/state.json", raising=False)
    program.SPARE.parent.mkdir()
    monkeypatch.setattr(program, "HOOKS", tmp_path / "hooks")
    monkeypatch.setattr(program, "METRICS", tmp_path / "metrics/gpubed-health.prom")
    monkeypatch.setattr(looks, "MODULE", tmp_path / "nvidia")
    monkeypatch.setattr(looks, "MODULES", tmp_path)
    answers = {
        "--query-gpu=index,pci": (0, gpus(GOOD, GOOD)),
        "--query-gpu=index,gpu_recovery_action": (0, "0, None\n1, None"),
        "--query-gpu=index,mig": (0, "0, Disabled\n1, Disabled"),
        "--query-remapped-rows": (0, remapped("0, 0", "0, 0")),
        "nvlink --status": (0, nvlinks(LINKS, LINKS)),
        "nvlink --errorcounters": (0, nvlinks(ERRORS.format(0), ERRORS.format(0))),
        "journalctl --dmesg": (0, logged()),
        "--lines=1 --until": (0, "Linux version 6.1.0"),
        "journalctl --boot": (0, "systemd[1]: Started something"),
        "modinfo": (0, "580.95.05"),
    }

    def run(*words):
        line = " ".join(words)
        return next(answer for question, answer in answers.items() if question in line)

    monkeypatch.setattr(command, "run", run)
    program.answers = answers
    return program


def found(health, memory=None, **changed):
    names = {
        "gpus": "--query-gpu=index,pci",
        "recovery": "--query-gpu=index,gpu_recovery_action",
        "mig": "--query-gpu=index,mig",
        "rows": "--query-remapped-rows",
        "links": "nvlink --status",
        "errors": "nvlink --errorcounters",
        "journal": "journalctl --dmesg",
        "early": "--lines=1 --until",
        "any": "journalctl --boot",
    }
    health.answers |= {
        names[key]: (0, answer) if isinstance(answer, str) else answer
        for key, answer in changed.items()
    }
    return health.problems(EXPECTED, {} if memory is None else memory)


def test_good_gpus_are_no_problem(health):
    assert found(health) == []


def test_remapped_rows_are_asked_for_where_nvidia_smi_has_them(health):
    """`remapped_rows.*` are no fields of --query-gpu: nvidia-smi would refuse all of them."""
    from gpubed_health import gpus as looks

    assert not any(field.startswith("remapped_rows") for field in looks.FIELDS)


def test_a_gpu_that_is_missing_is_counted(health):
    assert found(health, gpus=gpus(GOOD)) == ["1 GPUs answer, 2 are expected"]


def test_more_gpus_than_asked_for_are_no_problem(health):
    assert found(health, gpus=gpus(GOOD, GOOD, GOOD)) == []


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "No devices were found",
        "Unable to determine the device handle for GPU0: 0000:01:00.0: Unknown Error",
    ],
)
def test_a_driver_that_does_not_answer_is_told_in_its_words(health, said):
    assert found(health, gpus=(9, said)) == [f"nvidia-smi fails: {said}"]


def test_a_driver_of_another_version_than_its_library_is_told_with_the_remedy(health):
    said = (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 590.48"
    )
    assert found(health, gpus=(18, said)) == [
        "nvidia-smi fails: Failed to initialize NVML: Driver/library version mismatch NVML"
        " library version: 590.48 (the module that is loaded is 580.95.05: restart the machine)"
    ]


def test_a_module_that_is_missing_is_told_with_the_remedy(health, tmp_path):
    (tmp_path / "nvidia/version").unlink()
    (tmp_path / "nvidia").rmdir()
    problems = found(health, gpus=(9, "NVIDIA-SMI has failed"))
    assert len(problems) == 1
    assert "kernel module is not loaded" in problems[0]
    assert "dkms status" in problems[0]


def test_a_module_that_is_gone_is_told_before_the_restart(health):
    health.answers["modinfo"] = (1, "modinfo: ERROR: Module nvidia not found.")
    problems = found(health)
    assert len(problems) == 1
    assert "after a restart the node would have no GPU" in problems[0]


@pytest.mark.parametrize(
    "cell", ["[GPU is lost]", "[GPU requires reset]", "[Unknown Error]", "ERR!", "[N/A]"]
)
def test_what_is_no_figure_is_a_problem(health, cell):
    answer = gpus(GOOD, f"Enabled, {cell}, No, Not Active, Not Active, Not Active")
    assert found(health, gpus=answer) == [
        f"GPU 1 (00000000:01:00.0) answers {cell} instead of figures"
    ]


def test_a_gpu_that_tells_nothing_is_told_once(health):
    answer = gpus(GOOD, ", ".join(["[GPU requires reset]"] * 6))
    assert found(health, gpus=answer) == [
        "GPU 1 (00000000:01:00.0) answers [GPU requires reset] instead of figures"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: infoROM is corrupted at gpu 0000:01:00.0",
        "Unable to determine the device handle for GPU1: 0000:01:00.0: GPU is lost.  "
        "Reboot the system to recover this GPU",
    ],
)
def test_a_line_that_is_no_row_is_told(health, line):
    assert found(health, gpus=f"{gpus(GOOD, GOOD)}\n{line}") == [f"nvidia-smi says: {line}"]


@pytest.mark.parametrize(
    ("model", "lacks"),
    [
        ("NVIDIA GeForce RTX 4090", True),
        ("Quadro P400", True),
        ("NVIDIA A100-SXM4-40GB", False),
        ("Tesla V100-SXM2-16GB", False),
        ("NVIDIA H200", False),
        ("NVIDIA L40S", False),
    ],
)
def test_a_counter_may_be_absent_only_where_the_model_has_none(health, model, lacks):
    absent = "[N/A], [N/A], [N/A], Not Active, Not Active, Not Active"
    answer = gpus(absent, absent, model=model)
    rows = remapped("[N/A], [N/A]", "[N/A], [N/A]", model="NVIDIA GeForce RTX 4090")
    assert (found(health, gpus=answer, rows=rows) == []) == lacks


def test_ecc_that_is_switched_off_counts_nothing(health):
    off = "Disabled, [N/A], No, Not Active, Not Active, Not Active"
    assert found(health, gpus=gpus(off, off)) == []


def test_a_gpu_that_is_cut_into_instances_is_told_as_that(health):
    """It has no count of ECC errors then, which is not what is wrong."""
    cut = "Enabled, [N/A], No, Not Active, Not Active, Not Active"
    assert found(health, gpus=gpus(GOOD, cut), mig="0, Disabled\n1, Enabled") == [
        "GPU 1 has MIG on, so that nothing can use it whole: sudo nvidia-smi -i 1 -mig 0"
    ]


def test_a_driver_that_knows_nothing_of_mig_is_well(health):
    refused = (2, 'Field "mig.mode.current" is not a valid field to query.')
    assert found(health, mig=refused) == []


def test_uncorrectable_ecc_errors_are_told(health):
    answer = gpus(GOOD.replace(" 0,", " 3,"), GOOD)
    assert found(health, gpus=answer, recovery=NO_RECOVERY) == [
        "GPU 0 (00000000:00:00.0) has 3 uncorrectable ECC errors: reset it,"
        " replace it if they come back"
    ]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ("Active, Not Active, Not Active", "slowed down by its hardware"),
        ("Not Active, Active, Not Active", "slowed down since it is too hot"),
        ("Not Active, Not Active, Active", "slowed down by its power supply's brake"),
    ],
)
def test_a_gpu_that_is_slowed_down_is_told_with_the_reason(health, figures, words):
    problems = found(health, gpus=gpus(GOOD, f"Enabled, 0, No, {figures}"))
    assert len(problems) == 1
    assert words in problems[0]


def test_an_older_driver_calls_events_throttling(health, monkeypatch):
    from gpubed_health import command

    scripted = command.run

    def run(*words):
        if "clocks_event_reasons" in " ".join(words):
            return 2, 'Field "clocks_event_reasons.hw_slowdown" is not a valid field to query.'
        return scripted(*words)

    monkeypatch.setattr(command, "run", run)
    assert found(health) == []


def test_memory_that_waits_for_a_reset_or_has_no_rows_left_is_told(health):
    assert found(health, rows=remapped("1, 0", "0, 1"), recovery=NO_RECOVERY) == [
        "GPU 00000000:00:00.0 waits for a reset to replace rows of its memory",
        "GPU 00000000:01:00.0 has no rows left to remap: replace it",
    ]
    page = GOOD.replace("No", "Yes", 1)
    answer = found(health, gpus=gpus(page, GOOD), recovery=NO_RECOVERY)
    assert "waits for a reset to retire pages" in answer[0]


@pytest.mark.parametrize(
    ("recovery", "told"),
    [("0, None\n1, None", 0), ("0, Drain and Reset\n1, None", 3), (NO_RECOVERY, 2)],
)
def test_contained_errors_take_a_gpu_out_of_use_only_if_its_driver_wants_that(
    health, recovery, told
):
    """Xid 94 ended one program; what the driver asks for then is its own word, from 570 on."""
    xid = "NVRM: Xid (PCI:0000:00:00): 94, pid=1234, name=python, Contained: SM"
    problems = found(
        health,
        gpus=gpus(GOOD.replace(" 0,", " 1,"), GOOD),
        rows=remapped("1, 0", "0, 0"),
        journal=logged(xid),
        recovery=recovery,
    )
    assert len(problems) == told, problems


def test_a_gpu_without_rows_left_is_told_whatever_its_driver_asks_for(health):
    assert found(health, rows=remapped("0, 1", "0, 0")) == [
        "GPU 00000000:00:00.0 has no rows left to remap: replace it"
    ]


def test_remapped_rows_of_a_gpu_that_is_lost_are_a_problem(health):
    assert found(health, rows=remapped("0, 0", "[GPU is lost], [GPU is lost]")) == [
        "GPU 00000000:01:00.0 answers [GPU is lost] instead of its remapped rows"
    ]


def test_what_the_driver_asks_for_is_told_where_it_has_the_field(health):
    assert found(health, recovery="0, None\n1, Reset") == [
        "GPU 1 needs: Reset (gpu_recovery_action)"
    ]
    assert found(health, recovery=NO_RECOVERY) == []


def test_a_link_that_was_up_and_is_not_any_more_is_told(health):
    memory = {}
    assert found(health, memory) == []
    down = LINKS.replace("Link 3: 25.781 GB/s", "Link 3: <inactive>")
    assert found(health, memory, links=nvlinks(LINKS, down)) == ["GPU 1 has 11 of 12 NVLinks up"]


def test_links_that_never_were_up_are_not_missed(health):
    assert found(health, links=nvlinks("\t Link 0: <inactive>\n", "")) == []


def test_links_that_had_to_recover_are_told(health):
    errors = nvlinks(ERRORS.format(0), ERRORS.format(3))
    assert found(health, errors=errors) == [
        "GPU 1 had 3 NVLink errors that it recovered from: reset it"
    ]


@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        ("48, pid=1234, name=python, An uncorrectable double bit error (DBE)", True),
        ("79, GPU has fallen off the bus.", True),
        ("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", True),
        ("95, pid=9, name=python, Uncontained: LTC TAG", True),
        ("119, pid=9, name=python, Timeout after 6s of waiting for RPC response", True),
        ("140, pid='<unknown>', name=<unknown>, An uncorrectable ECC error", True),
        ("143, GPU initialization failed", True),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)", True),
        ("149, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 09 (0x025525c6 0x00000000)", False),
        ("13, pid=1234, name=python, Graphics SM Warp Exception", False),
        ("31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault", False),
        ("43, pid=1234, name=python, Ch 00000008", False),
        ("45, pid=1234, name=python, Ch 00000008", False),
        ("63, pid=1896, Row Remapper: New row marked for remapping", False),
        ("92, pid=1234, High single-bit ECC error rate", False),
        ("94, pid=1234, name=python, Contained: SM", False),
        ("999, something that no catalog names", False),
    ],
)
@pytest.mark.parametrize("device", ["PCI:0000:3b:00", "PCI:0000:3b:00 GPU-I:01", "0000:3b:00"])
def test_xids_do_what_nvidias_catalog_says(health, text, fatal, device):
    line = f"NVRM: Xid ({device}): {text}"
    problems = found(health, journal=logged(line, line))
    number = text.split(",")[0]
    assert [problem.partition(" (")[0] for problem in problems] == (
        [f"GPU {device.removeprefix('PCI:')} reported Xid {number}"] if fatal else []
    )


def test_a_problem_says_what_the_xid_means_and_what_to_do(health):
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert found(health, journal=logged(line)) == [
        "GPU 0000:3b:00 reported Xid 79 (GPU has fallen off the bus): switch the machine off and on"
    ]


@pytest.mark.parametrize("severity", ["Fatal", "Non-fatal"])
def test_an_nvswitch_is_broken_where_it_says_so(health, severity):
    """Three lines for each, as seen on HGX H100 (NVIDIA/nvtrust#124) with what was not fatal."""
    said = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, "
    line = f"{said}{severity}, Link 30 LTSSM Fault Up"
    figures = (f"{said}Severity 1 Engine instance 30", f"{said}Data {{0x0000002b}}")
    assert found(health, journal=logged(line, *figures, line)) == (
        [
            "NVSwitch 0000:04:00.0 reported SXid 20034 (Link 30 LTSSM Fault Up): restart the"
            " machine, which resets all GPUs and NVSwitches"
        ]
        if severity == "Fatal"
        else []
    )


def test_xid_154_does_what_its_text_says_last(health):
    said = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from {} to {}"
    none, reset, drain = "0x0 (None)", "0x1 (GPU Reset Required)", "0x4 (Drain and Reset)"
    needed = logged(said.format(none, drain), said.format(drain, reset))
    assert found(health, journal=needed) == [
        "GPU 0000:3b:00 reported Xid 154 (recovery action changed): GPU Reset Required"
    ]
    assert found(health, journal=logged(said.format(none, reset), said.format(reset, none))) == []


@pytest.mark.parametrize(
    "answer", [(1, "Failed to open system journal: Permission denied"), (0, ""), (124, "no answer")]
)
def test_a_kernel_log_that_cannot_be_read_is_not_well(health, answer):
    problems = found(health, journal=answer)
    assert len(problems) == 1
    assert "the kernel's log cannot be read, so Xids are not known" in problems[0]


def test_a_kernel_log_that_was_rotated_away_is_no_problem(health):
    """The kernel said nothing since, and what it said at boot is no longer kept."""
    assert found(health, journal="", early="") == []


@pytest.mark.parametrize(
    ("journal", "why"),
    [
        ({"early": "", "any": ""}, "the journal has no message of this boot"),
        ({}, "no message of the kernel reaches it"),
    ],
)
def test_a_journal_without_the_kernels_messages_is_no_rotated_one(health, journal, why):
    [problem] = found(health, journal="", **journal)
    assert why in problem


def test_without_gpus_nobody_asks_for_them(health):
    health.answers.clear()
    assert health.problems({**EXPECTED, "gpus": 0}, {}) == []


def test_a_look_that_breaks_is_a_problem_and_ends_nothing(health, monkeypatch):
    def journal(_expected, _memory):
        raise ValueError("not enough values to unpack")
        yield

    monkeypatch.setattr(health, "LOOKS", (journal, *health.LOOKS))
    answer = gpus(GOOD)
    assert found(health, gpus=answer) == [
        "the look at journal failed: ValueError: not enough values to unpack",
        "1 GPUs answer, 2 are expected",
    ]
    for _ in range(2):
        assert health.main("watch") == 0
    assert "the look at journal failed" in health.read_state()["quarantine"]["reason"]


def test_one_failing_look_is_not_yet_a_quarantine(health, capsys):
    found(health, gpus=gpus(GOOD))
    assert health.main("watch") == 0, "it has looked"
    state = health.read_state()
    assert (state["quarantine"], state["failing_looks"]) == (None, 1)
    assert health.main("watch") == 0
    assert health.read_state()["quarantine"]["reason"] == "1 GPUs answer, 2 are expected"
    assert "1 GPUs answer" in capsys.readouterr().out


def test_a_good_look_in_between_starts_the_count_anew(health):
    for answer in (gpus(GOOD), gpus(GOOD, GOOD), gpus(GOOD)):
        found(health, gpus=answer)
        health.main("watch")
    state = health.read_state()
    assert (state["quarantine"], state["failing_looks"]) == (None, 1)


def test_before_a_job_a_moment_is_no_reason_to_refuse_it(health, monkeypatch):
    """Storage or a clock was slow just then: the next look finds nothing."""
    found(health, gpus=gpus(GOOD))
    monkeypatch.setattr(health.time, "sleep", lambda _: found(health, gpus=gpus(GOOD, GOOD)))
    assert health.main("admit") == 0
    assert health.read_state()["quarantine"] is None


def test_before_a_job_a_node_that_is_not_well_is_quarantined(health, monkeypatch, capsys):
    """Slurm drains it: gpubed must know, and one word must end both."""
    found(health, gpus=gpus(GOOD))
    waits = []
    monkeypatch.setattr(health.time, "sleep", waits.append)
    assert health.main("admit") == 1
    assert len(waits) == EXPECTED["patience"] - 1, "as many looks as a watch would need"
    reason = "before a job: 1 GPUs answer, 2 are expected"
    assert health.read_state()["quarantine"]["reason"] == reason
    assert "1 GPUs answer" in capsys.readouterr().out


def test_before_a_job_a_quarantine_keeps_its_reason(health, monkeypatch):
    health.main("quarantine", "fan", "is", "loud")
    monkeypatch.setattr(health.time, "sleep", lambda _: pytest.fail("nothing to wait for"))
    assert health.main("admit") == 1
    assert health.read_state()["quarantine"]["reason"] == "fan is loud"


@pytest.mark.parametrize(
    ("words", "own"),
    [(("quarantine", "fan is loud"), False), (("fault", "no homes"), True), (("watch",), True)],
)
def test_it_is_known_whether_a_person_took_the_node_out_of_use(health, words, own):
    found(health, gpus=gpus(GOOD))
    for _ in range(2):
        health.main(*words)
    assert health.read_state()["quarantine"]["own"] is own


def test_what_a_program_finds_leaves_a_persons_quarantine_as_it_is(health):
    health.main("quarantine", "fan is loud")
    assert health.main("fault", "no homes") == 0
    assert health.read_state()["quarantine"]["reason"] == "fan is loud"


def test_only_a_good_node_is_requalified(health):
    health.main("quarantine", "fan", "is", "loud")
    found(health, gpus=gpus(GOOD))
    assert health.main("requalify") == 1
    assert health.read_state()["quarantine"]["reason"] == "fan is loud"
    found(health, gpus=gpus(GOOD, GOOD))
    assert health.main("requalify") == 0
    assert health.read_state()["quarantine"] is None


def test_an_xid_of_before_the_requalification_does_not_count_again(health):
    found(health, journal=logged("NVRM: Xid (PCI:0000:3b:00): 95, Uncontained"))
    health.time.time, real = lambda: 1795327200.0, health.time.time
    try:
        assert health.main("check") == 1
        assert health.main("requalify") == 0
    finally:
        health.time.time = real
    assert health.main("check") == 0
    later = "1795330000.000001 node-0 kernel: NVRM: Xid (PCI:0000:3b:00): 95, Uncontained"
    found(health, journal=logged() + later)
    assert health.main("check") == 1


def test_monitoring_is_told_of_problems_and_quarantine(health):
    health.METRICS.parent.mkdir()
    found(health, gpus=gpus(GOOD))
    told = []
    for verb in ("watch", "watch"):
        health.main(verb)
        told.append(health.METRICS.read_text().splitlines())
    assert told == [
        ['gpubed_node_quarantined{reason=""} 0', "gpubed_node_problems 1"],
        [
            'gpubed_node_quarantined{reason="1 GPUs answer, 2 are expected"} 1',
            "gpubed_node_problems 1",
        ],
    ]


def test_links_are_compared_with_what_an_earlier_look_saw(health):
    assert health.main("check") == 0
    found(health, links=nvlinks(LINKS, LINKS.replace("Link 3: 25.781 GB/s", "Link 3: <inactive>")))
    assert health.main("requalify") == 1
    for _ in range(2):
        health.main("watch")
    assert health.read_state()["quarantine"]["reason"] == "GPU 1 has 11 of 12 NVLinks up"


def test_a_state_that_cannot_be_read_keeps_jobs_away(health):
    health.STATE.write_text("{")
    assert health.main("check") == 1
    assert "cannot be read" in health.read_state()["quarantine"]["reason"]
    assert health.main("requalify") == 0


@pytest.fixture
def full(health):
    """The files that cannot be written, since the disk is full; removed, it has room again."""
    drafts = health.STATE.with_suffix(".new"), health.METRICS.with_suffix(".new")
    health.METRICS.parent.mkdir()
    for draft in drafts:
        draft.symlink_to("/dev/full")
    return drafts


def test_a_node_whose_disk_is_full_goes_into_quarantine_all_the_same(health, full, monkeypatch):
    told = []
    monkeypatch.setattr(health, "tell", lambda *words: told.append(words))
    found(health, gpus=gpus(GOOD))
    for _ in range(3):
        assert health.main("watch") == 0
    assert told == [("quarantine", "1 GPUs answer, 2 are expected")]
    assert health.main("status") == 1


def test_a_quarantine_outlasts_the_full_disk(health, full, capsys):
    health.STATE.write_text('{"failing_looks": 1}')
    assert health.main("quarantine", "fan is loud") == 0
    assert "No space left on device" in capsys.readouterr().err
    for draft in full:
        draft.unlink()
    assert health.main("watch") == 0
    assert json.loads(health.STATE.read_text())["quarantine"]["reason"] == "fan is loud"
    assert health.main("requalify") == 0
    assert health.main("status") == 0


def test_a_disk_that_is_full_at_the_requalification_brings_no_quarantine_back(health, full):
    health.STATE.write_text('{"quarantine": {"reason": "fan is loud", "since": "today"}}')
    assert health.main("requalify") == 0
    assert health.main("status") == 0


def test_a_program_that_hangs_ends_a_look_in_time(monkeypatch):
    monkeypatch.syspath_prepend(str(FILES))
    from gpubed_health import command

    monkeypatch.setattr(command, "TIMEOUT_S", 0.2)
    assert command.run("sleep", "60") == (124, "no answer in 0.2 s")
    assert command.run("no-such-program") == (127, "no-such-program is not installed")


def test_the_program_says_how_it_is_used(tmp_path):
    (tmp_path / "expected.json").write_text(json.dumps({**EXPECTED, "gpus": 0}))
    text = (FILES / "gpubed-health").read_text().replace("/usr/local/lib/gpubed", str(FILES))
    environment = {
        "GPUBED_HEALTH_EXPECTED": str(tmp_path / "expected.json"),
        "GPUBED_HEALTH_STATE": str(tmp_path / "state.json"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "requalify" in done.stderr) == (2, True)
