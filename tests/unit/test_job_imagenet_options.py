"""What job imagenet is given: arguments, a place among ranks, options of GPUs, NCCL and Horovod."""

import sys
from pathlib import Path

import pytest

from gpubed.jobs import jobfile
from gpubed.recipes import recipe
from gpubed.recipes import recipe as recipes


@pytest.mark.parametrize("recipe", recipe.names())
def test_every_recipe_brings_what_the_job_and_its_notebook_import(recipe):
    locked = {entry.name for entry in recipes.load(recipe).locked()}
    assert {"torch", "torchvision", "numpy", "pillow", "psutil", "matplotlib", "ipython"} <= locked


def test_the_program_has_the_defaults_of_its_description(job):
    described = {name: one.default for name, one in jobfile.load("imagenet").arguments.items()}
    given = vars(job("main").make_parser().parse_args([]))
    assert {name: given[name] for name in described} == described


def test_the_program_reads_what_gpubed_writes(job):
    settings = {"overlap": "false", "model": "vgg16", "learning_rate": "0.5", "epochs": "3"}
    _, _, *words = jobfile.load("imagenet").words("imagenet", settings)
    given = job("main").make_parser().parse_args(words)
    assert (given.overlap, given.channels_last, given.learning_rate) == (False, False, 0.5)
    assert (given.model, given.epochs) == ("vgg16", 3)


def test_an_unknown_model_is_answered_with_those_near_it(job):
    model = job("model")
    sys.modules["torchvision"].models.list_models.return_value = ["resnet50", "resnet101", "vgg16"]
    assert model.fault("resnet51", 224).startswith(
        "torchvision has no model 'resnet51'; near it are resnet50"
    )
    assert model.fault("zzz", 224).endswith("it has resnet50, resnet101, vgg16")


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.1 + 0.7 / 50), (24, 0.1 + 0.7 / 2), (49, 0.8), (299, 0.8), (300, 0.08), (600, 0.008),
     (800, 0.0008), (899, 0.0008)],
)  # fmt: skip
def test_the_learning_rate_is_that_of_goyal_et_al(job, step, rate):
    """8 x 256 images a step, 900 steps that stand for 90 epochs, 5 of them warm-up."""
    found = job("model").learning_rate(0.1, 2048, step, 900, 50)
    assert found == pytest.approx(rate)


@pytest.mark.parametrize("prefix", ["HOROVOD_", "OMPI_COMM_WORLD_"])
def test_a_rank_knows_its_place_from_whoever_started_it(job, monkeypatch, prefix):
    averaging = job("averaging")
    assert averaging.place() == (0, 1, 0)
    for name, value in {"RANK": "5", "SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(prefix + name, value)
    assert averaging.place() == (5, 8, 1)


def refused(job, monkeypatch, *words, device="cpu"):
    main = job("main")
    monkeypatch.setattr(main.model, "fault", lambda *_: "")
    monkeypatch.setenv("GPUBED_DEVICE", device)
    return main.fault(main.make_parser().parse_args(words))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--precision", "tf32"), "precision=tf32 is for GPUs"),
        (("--transport", "rdma"), "transport=rdma is for GPUs"),
        (("--hierarchical-allreduce", "true"), "hierarchical_allreduce is for GPUs"),
    ],
)
def test_what_only_gpus_have_is_refused_on_a_cpu_and_not_passed_over(job, monkeypatch, words, why):
    assert refused(job, monkeypatch, *words).startswith(why)
    assert refused(job, monkeypatch, *words, device="cuda:1") == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--batch-size", "30"), "batch_size=30 that does not divide into microbatches=4"),
        (("--microbatches", "2"), "batch_size=32 in microbatches=2 on 4 ranks"),
        (("--precision", "fp16"), "precision=fp16"),
        (("--overlap", "false"), "overlap=false"),
        (("--compression", "fp16"), "compression=fp16"),
        (("--backward-passes-per-step", "2"), "backward_passes_per_step"),
        (("--validation", "val"), "validation"),
    ],
)
def test_a_pipeline_says_what_it_cannot_do(job, monkeypatch, words, why):
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "4")
    given = ("--framework", "pipeline", "--microbatches", "4", *words)
    found = refused(job, monkeypatch, *given)
    assert found.startswith(f"framework=pipeline is not for {why}")
    assert refused(job, monkeypatch, *given[:4]) == ""


def test_a_batch_has_up_to_two_microbatches_for_each_rank(job):
    main = job("main")
    given = main.make_parser().parse_args(["--batch-size", "30"])
    assert [main.microbatches(given, ranks) for ranks in (1, 2, 4)] == [2, 3, 6]


def test_microbatches_are_for_pipelines_alone(job, monkeypatch):
    found = refused(job, monkeypatch, "--microbatches", "2")
    assert found == "microbatches is for framework=pipeline"


# Cores


# What autotune found. The log is Horovod 0.28.1's own, of this job on two ranks.


@pytest.fixture
def searched(job, tmp_path):
    """What a log tells, and the lines of one of a search that came to its end."""
    autotune, log = job("autotune"), tmp_path / "autotune.csv"
    lines = (Path(__file__).parents[1] / "support/horovod-autotune.csv").read_text().splitlines()

    def found(lines):
        log.write_text("".join(f"{line}\n" for line in lines))
        return autotune.found(log)

    return found, lines


def test_the_best_settings_are_in_the_metrics(searched):
    found, lines = searched
    assert found(lines) == {
        "tuned_fusion_mb": 7.4725,
        "tuned_cycle_ms": 9.96357,
        "tuned_hierarchical_allreduce": False,
        "tuned_cache": True,
        "tuned_rate_bps": pytest.approx(168.327 * 8e6),
        "tuned_tries": 21,
    }


def test_the_job_describes_what_was_tuned(job):
    assert job("autotune").NOTHING.keys() <= jobfile.load("imagenet").metrics.keys()
