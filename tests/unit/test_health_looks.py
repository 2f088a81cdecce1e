"""What a node finds wrong with itself.

Rows of figures, `[GPU is lost]` and NVLinks are what the real nvidia-smi (535.261 and
550.163) printed on a stand-in for NVML; other words are those in its binary. Lines of the
kernel's log have the forms of drivers 535 to 595.
"""

import pytest

from support.node_looks import GOOD, LINKS, NO_RECOVERY, found, gpus, logged, nvlinks, remapped


def test_a_gpu_that_is_missing_is_counted(health):
    assert found(health, gpus=gpus(GOOD)) == ["1 GPUs answer, 2 are expected"]


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


@pytest.mark.parametrize(
    "cell", ["[GPU is lost]", "[GPU requires reset]", "[Unknown Error]", "ERR!", "[N/A]"]
)
def test_what_is_no_figure_is_a_problem(health, cell):
    answer = gpus(GOOD, f"Enabled, {cell}, No, Not Active, Not Active, Not Active")
    assert found(health, gpus=answer) == [
        f"GPU 1 (00000000:01:00.0) answers {cell} instead of figures"
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


def test_memory_that_waits_for_a_reset_or_has_no_rows_left_is_told(health):
    assert found(health, rows=remapped("1, 0", "0, 1"), recovery=NO_RECOVERY) == [
        "GPU 00000000:00:00.0 waits for a reset to replace rows of its memory",
        "GPU 00000000:01:00.0 has no rows left to remap: replace it",
    ]
    page = GOOD.replace("No", "Yes", 1)
    answer = found(health, gpus=gpus(page, GOOD), recovery=NO_RECOVERY)
    assert "waits for a reset to retire pages" in answer[0]


@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        ("48, pid=1234, name=python, An uncorrectable double bit error (DBE)", True),
        ("79, GPU has fallen off the bus.", True),
        ("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", True),
        ("95, pid=9, name=python, Uncontained: LTC TAG", True),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)", True),
        ("149, NETIR_LINK_EVT  Nonfatal XC0 i0 Link 09 (0x025525c6 0x00000000)", False),
        ("13, pid=1234, name=python, Graphics SM Warp Exception", False),
        ("31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault", False),
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


@pytest.mark.parametrize(
    "answer", [(1, "Failed to open system journal: Permission denied"), (0, ""), (124, "no answer")]
)
def test_a_kernel_log_that_cannot_be_read_is_not_well(health, answer):
    problems = found(health, journal=answer)
    assert len(problems) == 1
    assert "the kernel's log cannot be read, so Xids are not known" in problems[0]


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


def test_a_link_that_was_up_and_is_not_any_more_is_told(health):
    memory = {}
    assert found(health, memory) == []
    down = LINKS.replace("Link 3: 25.781 GB/s", "Link 3: <inactive>")
    assert found(health, memory, links=nvlinks(LINKS, down)) == ["GPU 1 has 11 of 12 NVLinks up"]


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
