"""What job imagenet is given: packages, arguments, a learning rate, a place among ranks."""

import pytest

from gpubed.jobs import jobfile
from gpubed.recipes import recipe
from gpubed.recipes import recipe as recipes
from support.imagenet import job

__all__ = ["job"]


@pytest.mark.parametrize("recipe", recipe.names())
def test_every_recipe_brings_what_the_job_imports(recipe):
    locked = {entry.name for entry in recipes.load(recipe).locked()}
    assert {"torch", "torchvision", "numpy", "pillow", "psutil"} <= locked


# The command line


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
    model.torchvision.models.list_models.return_value = ["resnet50", "resnet101", "vgg16"]
    assert model.fault("resnet51", 224).startswith(
        "torchvision has no model 'resnet51'; near it are resnet50"
    )
    assert model.fault("zzz", 224).endswith("it has resnet50, resnet101, vgg16")


def test_inception_has_images_of_299_pixels_unless_others_are_wanted(job):
    size = job("model").image_size
    assert [size("inception_v3", None), size("resnet50", None), size("vgg16", 32)] == [299, 224, 32]


# The learning rate


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 0.1 + 0.7 / 50), (24, 0.1 + 0.7 / 2), (49, 0.8), (299, 0.8), (300, 0.08), (600, 0.008),
     (800, 0.0008), (899, 0.0008)],
)  # fmt: skip
def test_the_learning_rate_is_that_of_goyal_et_al(job, step, rate):
    """8 x 256 images a step, 900 steps that stand for 90 epochs, 5 of them warm-up."""
    found = job("model").learning_rate(0.1, 2048, step, 900, 50)
    assert found == pytest.approx(rate)


# A place among ranks


@pytest.mark.parametrize("prefix", ["HOROVOD_", "OMPI_COMM_WORLD_"])
def test_a_rank_knows_its_place_from_whoever_started_it(job, monkeypatch, prefix):
    averaging = job("averaging")
    assert averaging.place() == (0, 1, 0)
    for name, value in {"RANK": "5", "SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(prefix + name, value)
    assert averaging.place() == (5, 8, 1)
