"""The parts of job imagenet that need no torch; torch, Horovod and the like are STAND-INS.

What real ranks do is in test_job_imagenet_ranks.py.
"""

import errno
import hashlib
import importlib
import io
import itertools
import json
import os
import pickle
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from gpubed.jobs import jobfile
from gpubed.recipes import recipe
from gpubed.recipes import recipe as recipes

JOB = Path(__file__).parents[2] / "jobs/imagenet"
STAND_INS = (
    *("torch", "torch.nn", "torch.optim", "torchvision", "psutil", "numpy", "PIL"),
    *("horovod", "horovod.torch", "torch.distributed", "torch.distributed.device_mesh"),
    *("torch.distributed.algorithms.ddp_comm_hooks", "torch.distributed.fsdp"),
    *("torch.distributed.tensor", "torch.nn.parallel", "torch.utils._pytree"),
)
CPU, GPU = SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")


@pytest.fixture
def job(monkeypatch):
    """A function that imports one of the job's modules."""
    for name in STAND_INS:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    # pytest asks numpy, where it is loaded, what a number is.
    sys.modules["numpy"].bool_, sys.modules["numpy"].isscalar = bool, lambda _value: True
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(JOB)
    own = {path.stem for path in JOB.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own & sys.modules.keys()}
    yield importlib.import_module
    for name in own:
        sys.modules.pop(name, None)
    sys.modules.update(others)


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


def test_fsdp_cannot_average_at_once(job):
    main = job("main")
    given = main.make_parser().parse_args(["--framework", "fsdp", "--overlap", "false"])
    assert main.fault(given).startswith("overlap=false is for horovod and ddp")


def test_what_ends_a_rank_is_one_sentence(job):
    main = job("main")
    main.torch.OutOfMemoryError = MemoryError
    main.torch.cuda.mem_get_info.return_value = (0.2e9, 16e9)
    main.torch.cuda.memory_allocated.return_value = 15.4e9
    given = main.make_parser().parse_args(["--model", "resnet152", "--batch-size", "96"])
    assert main.words(MemoryError("CUDA out of memory.\nmore"), given, GPU) == (
        "resnet152 with batch_size 96, images of 224 x 224 pixels and fp32 does not fit into "
        "memory: 15.4 GB taken and 0.2 GB free of the GPU's 16.0 GB; try --set batch_size=48 "
        "(CUDA out of memory.)"
    )
    lost = RuntimeError("[...] Connection closed by peer [10.0.0.2]:4711")
    assert main.words(lost, given, CPU).startswith("another rank has ended")
    assert main.words(RuntimeError("something else"), given, CPU) == ""


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


def test_few_images_a_step_need_no_warm_up(job):
    rates = [job("model").learning_rate(0.1, 64, step, 90, 10) for step in range(10)]
    assert rates == pytest.approx([0.025] * 10)


# Timing


@pytest.fixture
def clock(job, monkeypatch):
    """The job's module of clocks, and a function that lets time pass on the host."""
    timing = job("timing")
    now = [100.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return timing, wait


def test_the_parts_of_a_step_are_told_apart(clock):
    timing, wait = clock
    one = timing.Clock(CPU)
    wait(5)
    one.mark(timing.DATA)
    one.step()
    one.start()
    for data, compute, communication, apply in ((1, 4, 2, 1), (3, 4, 4, 1)):
        wait(data)
        one.mark(timing.DATA)
        wait(compute)
        one.mark(timing.COMPUTE)
        wait(communication)
        one.mark(timing.COMMUNICATION)
        wait(apply)
        one.mark(timing.COMPUTE)
        one.step()
    with one.paused():
        wait(1000)
    one.stop()
    found = timing.summary(one)
    assert (one.steps, found["step_s"], found["step_sd_s"]) == (2, 10, 2)
    assert (found["data_s"], found["compute_s"], found["exposed_communication_s"]) == (2, 5, 3)
    assert (found["data_sd_s"], found["compute_sd_s"]) == (1, 0)


def test_on_a_gpu_it_is_the_gpus_own_time_that_counts(clock, monkeypatch):
    """The host is ahead of the GPU: what it waits for in a call is not what that call does."""
    timing, wait = clock
    done = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = done[0]

        def synchronize(self):
            pass

        def elapsed_time(self, later):
            return 1000 * (later.at - self.at)

    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    one = timing.Clock(GPU)
    one.start()
    for _ in range(200):
        for phase, seconds in ((timing.COMPUTE, 0.3), (timing.COMMUNICATION, 0.1)):
            done[0] += seconds
            one.mark(phase)
        one.step()
    wait(80)
    one.stop()
    found = timing.summary(one)
    assert one.steps == 200
    assert found["step_s"] == pytest.approx(0.4)
    assert found["compute_s"] == pytest.approx(0.3)
    assert found["exposed_communication_s"] == pytest.approx(0.1)


def steps_of(clock, timing, wait, *seconds):
    for each in seconds:
        wait(each)
        clock.mark(timing.COMPUTE)
        clock.step()


def test_while_it_trains_the_steps_since_it_told_last_are_told(clock):
    timing, wait = clock
    one = timing.Clock(CPU)
    assert one.lately() == {}
    one.start()
    steps_of(one, timing, wait, 1, 3)
    assert one.lately() == {timing.DATA: 0, timing.COMPUTE: 2, timing.COMMUNICATION: 0}
    assert one.lately() == {}
    steps_of(one, timing, wait, 7)
    assert one.lately()[timing.COMPUTE] == 7
    one.stop()
    assert (one.steps, timing.summary(one)["compute_s"]) == (3, pytest.approx(11 / 3))


def test_what_a_gpu_has_not_done_yet_is_told_later(clock, monkeypatch):
    """To tell, nobody waits for it: `synchronize` would."""
    timing, _ = clock
    now, done = [0.0], [0.0]

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = now[0]

        def query(self):
            return self.at <= done[0]

        def synchronize(self):
            assert self.query()

        def elapsed_time(self, later):
            return 1000 * (later.at - self.at)

    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    one = timing.Clock(GPU)
    one.start()
    for _ in range(3):
        now[0] += 2
        one.mark(timing.COMPUTE)
        one.step()
    assert one.lately() == {}
    done[0] = 4
    assert one.lately()[timing.COMPUTE] == pytest.approx(2)
    assert (one.steps, one.lately()) == (2, {})


@pytest.mark.parametrize(
    ("alone_s", "told"),
    [
        (None, ["data 1.0 ms", "compute 220.0 ms", "exposed communication 30.0 ms"]),
        (0.2, ["data 1.0 ms", "compute 200.0 ms", "exposed communication 50.0 ms"]),
    ],
)
def test_the_line_of_progress_tells_the_parts_of_a_step(job, alone_s, told):
    training = job("training")
    found = {"data": 0.001, "compute": 0.22, "exposed_communication": 0.03}
    one = SimpleNamespace(clock=SimpleNamespace(lately=lambda: found), alone_s=alone_s)
    assert training.Training._parts(one) == told
    found = {}
    assert training.Training._parts(one) == []


def test_where_ranks_wait_throughout_what_exceeds_one_alone_is_communication(job):
    timing = job("timing")
    found = timing.without_sharding({"step_s": 1.0, "data_s": 0.1, "compute_s": 0.9}, 0.6)
    assert (found["compute_s"], found["exposed_communication_s"]) == pytest.approx((0.6, 0.3))
    slow = timing.without_sharding({"step_s": 1.0, "data_s": 0.1, "compute_s": 0.9}, 2.0)
    assert (slow["compute_s"], slow["exposed_communication_s"]) == pytest.approx((0.9, 0.0))


# What a rank uses

COUNTED = (
    (100.0, 10.0, 1000),  # starts
    (110.0, 15.0, 2000),  # pauses: 10 s, 5 s of processor, 1000 bytes
    (200.0, 105.0, 900_000),  # goes on after a validation that was busy
    (210.0, 110.0, 901_000),  # ends: the same again
)


@pytest.fixture
def usage(job, monkeypatch):
    """What a rank on a CPU uses; a STAND-IN counts seconds, processor time and bytes."""
    found = job("usage").Usage
    counted = iter(COUNTED)

    def now(_self):
        seconds, cpu, moved = next(counted)
        return seconds, cpu, (moved, moved)

    monkeypatch.setattr(found, "_now", now)
    return found(CPU)


def test_use_between_steps_is_not_that_of_steps(usage):
    usage.start()
    with usage.paused():
        pass
    told = usage.read()
    assert told["cpu_percent"] == pytest.approx(50)
    assert told["sent_bps"] == told["received_bps"] == pytest.approx(800)


def test_before_it_looks_there_is_nothing_to_pause(usage):
    with usage.paused():
        pass
    usage.start()
    assert usage.read()["cpu_percent"] == pytest.approx(50)


def test_validation_and_checkpoints_pause_clock_and_use(job):
    training = job("training")
    paused = MagicMock()
    parts = {"clock": paused.clock, "usage": paused.usage, "keeper": MagicMock(), "stop": None}
    kept = SimpleNamespace(
        **parts,
        total=1,
        steps_per_epoch=1,
        images_per_step=1,
        _begun_with=1,
        feed=MagicMock(),
        _scaler=MagicMock(),
        _validate=lambda _: 0.5,
        _check_loss=lambda: None,
    )
    kept._paused = lambda: training.Training._paused(kept)
    training.Training._between(kept, 1)
    for part in (paused.clock, paused.usage):
        assert part.paused.call_count == 2  # validation, and the checkpoint at the end


# Horovod's options


def environment(averaging, **options):
    rank = object.__new__(averaging.Horovod)
    rank.options = averaging.Options(**options)
    return rank._environment()


def test_options_of_horovod_are_in_its_environment_before_it_starts(job):
    averaging = job("averaging")
    given = {"fusion_mb": 32.0, "cycle_ms": 2.5, "hierarchical": True, "autotune": True}
    assert environment(averaging, **given, folder=Path("/run")) == {
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_CYCLE_TIME": "2.5",
        **averaging.AUTOTUNE,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_AUTOTUNE_LOG": "/run/autotune.csv",
    }
    assert environment(averaging) == {}
    assert environment(averaging, fusion_mb=0.0) == {"HOROVOD_FUSION_THRESHOLD": "0"}


def to_go(job, averaging, steps, warm_up, start=0):
    """A training of which so many steps are still to go."""
    module = job("training")
    settings = SimpleNamespace(warmup_steps=warm_up)
    training = object.__new__(module.Training)
    training.__dict__ |= {"settings": settings, "averaging": averaging, "total": steps}
    training.start = start
    return module, training


def test_steps_in_which_settings_are_tried_out_are_not_timed(job):
    """Measured with Horovod 0.28.1 on two ranks: after step 1224 it has found the best."""
    averaging = job("averaging")
    averaging.Horovod._environment = lambda self: {}
    hvd = sys.modules["horovod"].torch
    hvd.size.return_value = 2
    searching = averaging.Horovod(averaging.Options(autotune=True))
    module, by_default = to_go(job, searching, 100, 10)
    with pytest.raises(module.Failed, match=r"--set warmup_steps=1250 --set steps=1350"):
        by_default._untimed_steps()
    _, resumed = to_go(job, searching, 1350, 1250, start=600)
    with pytest.raises(module.Failed, match=r"750 steps with 749 untimed: .* --set steps=1950"):
        resumed._untimed_steps()
    _, enough = to_go(job, searching, 1350, 1250)
    assert enough._untimed_steps() == 1250
    _, without = to_go(job, averaging.Horovod(averaging.Options()), 100, 10)
    assert without._untimed_steps() == 10
    hvd.size.return_value = 1
    _, alone = to_go(job, averaging.Horovod(averaging.Options(autotune=True)), 8, 10)
    assert alone._untimed_steps() == 7


def test_what_a_node_sets_is_tuned_all_the_same(job, monkeypatch):
    """Horovod tunes nothing that its environment has; an argument of the job is meant to stay."""
    averaging = job("averaging")
    sys.modules["horovod"].torch.size.return_value = 2
    kept = {"HOROVOD_FUSION_THRESHOLD": "402653184", "HOROVOD_CYCLE_TIME": "1"}
    monkeypatch.setattr(os, "environ", dict(kept))
    averaging.Horovod(averaging.Options())
    assert os.environ == kept
    averaging.Horovod(averaging.Options(autotune=True, cycle_ms=2.5))
    assert "HOROVOD_FUSION_THRESHOLD" not in os.environ
    assert os.environ["HOROVOD_CYCLE_TIME"] == "2.5"


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


def test_a_search_that_did_not_end_has_found_nothing(searched, job, tmp_path):
    """Its last line is of a setting that was tried, not of the best one."""
    found, lines = searched
    nothing = job("autotune").NOTHING
    assert set(nothing.values()) == {None}
    for cut in range(len(lines)):
        assert found(lines[:cut]) == nothing, lines[:cut][-1:]
    assert found([*lines[:-1], lines[1]]) == nothing, "tried twice, and not the best"
    assert found([*lines[:-1], lines[-1][:9]]) == nothing, "cut within a line"
    assert job("autotune").found(tmp_path / "none.csv") == nothing


def test_the_job_describes_what_was_tuned(job):
    assert job("autotune").NOTHING.keys() <= jobfile.load("imagenet").metrics.keys()


def test_what_was_tuned_is_said_with_the_arguments_for_it(searched, job):
    found, lines = searched
    autotune = job("autotune")
    said = autotune.told(found(lines))
    assert said == (
        "autotune tried 21 settings; the best: --set fusion_mb=7.473 --set cycle_ms=9.964"
    )
    given = dict(word.split("=") for word in said.split() if "=" in word)
    assert (
        job("main")
        .make_parser()
        .parse_args(
            [
                word
                for name, value in given.items()
                for word in (f"--{name.replace('_', '-')}", value)
            ]
        )
    )
    assert autotune.told(autotune.NOTHING).startswith("autotune did not come to its end")


# Traffic


@pytest.mark.parametrize(
    ("framework", "options", "bytes_per_weight"),
    [
        ("DDP", {}, 4 + 4),
        ("DDP", {"compression": True}, 2 + 2),
        ("DDP", {"passes": 3}, 4 + 4),
        ("FSDP", {}, 4 + 4 + 4),
        ("FSDP", {"compression": True}, 4 + 4 + 2),
        ("FSDP", {"passes": 3}, 3 * (4 + 4) + 4),
    ],
)
def test_sharded_ranks_send_weights_as_well_and_not_compressed(
    job, framework, options, bytes_per_weight
):
    averaging = job("averaging")
    kind = getattr(job("torch_averaging"), framework)
    rank = object.__new__(kind)
    rank.options, rank.size = averaging.Options(**options), 4
    assert rank.sent_bytes_per_step(1000) == 3 / 4 * 1000 * bytes_per_weight
    assert rank.gradient_width == (2 if options.get("compression") else 4)
    rank.size = 1
    assert rank.sent_bytes_per_step(1000) == 0


# Stragglers


@pytest.mark.parametrize(
    ("seconds", "slowest", "ratio"),
    [([1.0, 3.0], "rank 1 on node-1", 3), ([4.0, 1.0, 3.0], "rank 0 on node-0", 2),
     ([1.0, 2.0, 3.0, 6.0], "rank 3 on node-3", 3), ([1.0], "rank 0 on node-0", None)],
)  # fmt: skip
def test_a_rank_is_compared_with_the_others_and_named_in_words(job, seconds, slowest, ratio):
    ranks = [
        {"rank": number, "host": f"node-{number}", "compute_s": one}
        for number, one in enumerate(seconds)
    ]
    found = job("report")._stragglers(ranks)
    assert found == {"slowest_rank": slowest, "straggler_ratio": ratio}


@pytest.mark.parametrize("prefix", ["HOROVOD_", "OMPI_COMM_WORLD_"])
def test_a_rank_knows_its_place_from_whoever_started_it(job, monkeypatch, prefix):
    averaging = job("averaging")
    assert averaging.place() == (0, 1, 0)
    for name, value in {"RANK": "5", "SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(prefix + name, value)
    assert averaging.place() == (5, 8, 1)


# Images


def shard(path, numbers):
    """A shard as job prepare writes it: the number of an image stands for what it shows."""
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            for suffix, content in (("jpg", f"image {number}"), ("cls", str(number % 3))):
                entry = tarfile.TarInfo(f"{number:09d}.{suffix}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content.encode()))


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A dataset of 40 images in 4 shards."""
    monkeypatch.setenv("GPUBED_DATASETS", str(tmp_path))
    monkeypatch.delenv("GPUBED_SCRATCH", raising=False)
    folder = tmp_path / "small"
    folder.mkdir()
    names = [f"small-000-{number:05d}.tar" for number in range(4)]
    for number, name in enumerate(names):
        shard(folder / name, range(10 * number, 10 * number + 10))
    description = {"images": 40, "classes": ["a", "b", "c"], "shards": names}
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


def shown(items):
    return [(int(read().split()[1]), label) for _, read, label in items]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("order", [None, "1 0"])
def test_the_shares_of_all_ranks_are_the_dataset(job, dataset, order, ranks):
    """Fewer shards than ranks: each rank takes some images of every shard."""
    source = job("data").load(dataset)
    parts = [shown(source.share(order, rank, ranks)) for rank in range(ranks)]
    assert sorted(itertools.chain(*parts)) == [(number, number % 3) for number in range(40)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("shards", "ranks", "whole"), [(4, 4, True), (6, 4, False), (79, 4, False), (81, 4, True)]
)
def test_a_rank_reads_shards_of_its_own_where_all_get_nearly_as_many(
    job, dataset, monkeypatch, shards, ranks, whole
):
    source, opened = job("data").load(dataset), []
    source._names = [f"{number}.tar" for number in range(shards)]
    monkeypatch.setattr(job("data"), "_in_shard", lambda path: opened.append(path.name) or iter(()))
    for rank in range(ranks):
        shown(source.share("1 0", rank, ranks))
    assert len(opened) == (shards if whole else ranks * shards)


def test_each_epoch_has_its_own_order_and_repeats_it(job, dataset):
    source = job("data").load(dataset)
    first, again, other = (shown(source.share(order, 0, 1)) for order in ("1 0", "1 0", "1 1"))
    assert first == again != other


def test_a_folder_per_class_is_a_dataset(job, tmp_path):
    for name in ("b/2.png", "a/1.JPG", "a/deep/3.jpeg", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    source = job("data").load(tmp_path)
    assert (source.classes, source.images) == (["a", "b"], 3)
    items = source.share(None, 0, 1)
    assert [(read().decode(), label) for _, read, label in items] == [
        *(("a/1.JPG", 0), ("a/deep/3.jpeg", 0), ("b/2.png", 1)),
    ]


def test_what_is_staged_is_read_from_the_scratch(job, dataset, tmp_path, monkeypatch):
    data = job("data")
    monkeypatch.setenv("GPUBED_SCRATCH", str(tmp_path / "scratch"))
    assert data.find("small") == dataset
    (tmp_path / "scratch/datasets/small").mkdir(parents=True)
    assert data.find("small") == tmp_path / "scratch/datasets/small"


def test_train_and_val_belong_together(job, dataset, tmp_path):
    data = job("data")
    assert data.splits("small", None)[1] is None
    assert data.splits("small", "small")[1].images == 40
    for name in ("both/train/a/1.png", "both/val/a/2.png", "both/val/a/3.png", "raw/z/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train, held_out = data.splits("both", None)
    assert (train.images, held_out.images) == (1, 2)
    with pytest.raises(data.Unusable, match="do not have the same classes"):
        data.splits("small", "raw")


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:3000]),
        lambda path: path.write_bytes(b"no tar file" * 1000),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "no tar", "missing"],
)
def test_a_broken_shard_is_named(job, dataset, damage):
    data = job("data")
    damage(dataset / "small-000-00002.tar")
    with pytest.raises(data.Unusable, match=r"shard .*small-000-00002.tar is broken: .*stage it"):
        shown(data.load(dataset).share(None, 0, 1))


def test_a_dataset_that_is_none_is_named(job, dataset, tmp_path):
    data = job("data")
    with pytest.raises(data.Unusable, match=f"no dataset other: looked for {tmp_path}/other"):
        data.splits("other", None)
    (dataset / "dataset.json").write_text("{}")
    with pytest.raises(data.Unusable, match="small cannot be read as a dataset"):
        data.splits("small", None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(data.Unusable, match="no image in a folder per class"):
        data.splits("empty", None)


# Checkpoints


@pytest.fixture
def files(job, tmp_path):
    """Checkpoints of a torch that writes pickles, and what they say."""
    checkpoint, said = job("checkpoint"), []
    checkpoint.torch.save = pickle.dump
    checkpoint.torch.load = lambda path, **_: pickle.loads(path.read_bytes())
    kept = checkpoint.Checkpoints(tmp_path / "kept", 2, said.append)
    return SimpleNamespace(module=checkpoint, kept=kept, said=said, folder=tmp_path / "kept")


def test_the_newest_checkpoints_stay_each_with_its_checksum(files):
    for images in (100, 200, 1000):
        files.kept.write(images, {"images": images})
    names = [path.name for path in files.kept.all()]
    assert names == ["images-000000000200.pt", "images-000000001000.pt"]
    assert {path.name for path in files.folder.iterdir()} == {
        *names,
        *(f"{name}.sha256" for name in names),
    }
    newest = files.kept.newest()
    assert newest.name == names[-1]
    assert files.module.read(newest, CPU) == {"images": 1000}
    digest = hashlib.sha256(newest.read_bytes()).hexdigest()
    assert newest.with_name(f"{newest.name}.sha256").read_text() == f"{digest}  {newest.name}\n"


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_is_told(files):
    for images in (100, 200):
        files.kept.write(images, {"images": images})
    last = files.kept.all()[-1]
    last.write_bytes(last.read_bytes()[:-1])
    assert files.kept.newest() == files.kept.all()[0]
    assert files.said == [
        f"checkpoint {last} is damaged: it does not have the SHA-256 beside it; "
        f"set aside as {last.name}.damaged",
    ]
    assert files.kept.newest() == files.kept.all()[-1]
    assert len(files.said) == 1


def test_damaged_checkpoints_take_no_place_of_those_to_keep(files):
    """Also where two of one name were: each stays for its owner, with its checksum."""
    kept = files.module.Checkpoints(files.folder, 1, files.said.append)
    for _ in range(2):
        kept.write(300, {"images": 300})
        [last] = kept.all()
        last.write_bytes(b"torn")
        assert kept.newest() is None
    kept.write(100, {"images": 100})
    assert kept.newest() == files.folder / "images-000000000100.pt"
    name = "images-000000000300.pt.damaged"
    assert {path.name for path in files.folder.glob("*damaged*")} == {
        *(name, f"{name}.sha256", f"{name}1", f"{name}1.sha256"),
    }


def test_a_damaged_checkpoint_that_cannot_be_set_aside_costs_no_new_one(files, monkeypatch):
    kept = files.module.Checkpoints(files.folder, 1, files.said.append)
    kept.write(300, {"images": 300})
    [last] = kept.all()
    last.write_bytes(b"torn")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    assert kept.newest() is None
    assert files.said[0].endswith("; it could not be set aside: [Errno 13] Permission denied")
    for images in (100, 200):
        kept.write(images, {"images": images})
        assert kept.newest() == files.folder / f"images-{images:012d}.pt"


def test_without_any_whole_checkpoint_a_training_begins(files):
    assert files.kept.newest() is None
    files.kept.write(1, {})
    files.folder.joinpath("images-000000000001.pt.sha256").unlink()
    assert files.kept.newest() is None


def test_a_full_disk_leaves_the_checkpoints_before(files):
    files.kept.write(100, {"images": 100})
    before = sorted(files.folder.iterdir())

    def full(_state, file):
        file.write(b"a part")
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("unexpected pos 64 vs 0") from error

    files.module.torch.save = full
    with pytest.raises(files.module.NotWritten) as caught:
        files.kept.write(200, {"images": 200})
    assert str(caught.value) == (
        f"checkpoint {files.folder}/images-000000000200.pt could not be written: "
        f"[Errno 28] No space left on device; the one before stays: {before[0]}"
    )
    assert sorted(files.folder.iterdir()) == before
    assert files.kept.newest() == before[0]


@pytest.mark.parametrize(
    ("images_per_step", "kept", "start", "total"),
    [
        (256, None, 0, 1000),
        (256, {"images": 204_800, "images_per_step": 256}, 800, 1000),
        # A node of four is lost: as many images are left, in more steps.
        (192, {"images": 204_800, "images_per_step": 256}, 1066, 1334),
        (512, {"images": 204_800, "images_per_step": 256}, 400, 500),
        (256, {"images": 204_800}, 800, 1000),  # as checkpoints were
        # Killed after its last checkpoint: nobody was told its figures.
        (256, {"images": 256_000, "images_per_step": 256}, 999, 1000),
        (96, {"images": 256_128, "images_per_step": 256}, 2666, 2667),
    ],
)
def test_a_training_is_as_long_on_other_ranks(job, images_per_step, kept, start, total):
    training = object.__new__(job("training").Training)
    training.settings = SimpleNamespace(steps=1000, epochs=None)
    training.images_per_step, training.steps_per_epoch = images_per_step, 10
    training.averaging = SimpleNamespace(rank=0)
    training._plan(kept)
    assert (training.start, training.total) == (start, total)


@pytest.mark.parametrize(
    ("is_fp16", "scaler", "loaded"),
    [(True, {"scale": 8.0}, True), (True, {}, False), (False, {"scale": 8.0}, False)],
)
def test_a_run_that_goes_on_does_so_by_its_own_settings(job, is_fp16, scaler, loaded):
    training = object.__new__(job("training").Training)
    training.settings = SimpleNamespace(momentum=0.5, weight_decay=0.0)
    training._scaler, training.keeper = MagicMock(), MagicMock()
    training._scaler.is_enabled.return_value = is_fp16
    groups = []
    training.averaging = MagicMock()
    training.averaging.optimizer.param_groups = groups
    training.averaging.restore = groups.append
    before = {"momentum": 0.9, "weight_decay": 1e-4, "lr": 0.1}
    kept = {"optimizer": before, "scaler": scaler}
    training._restore(kept)
    assert groups == [{"momentum": 0.5, "weight_decay": 0.0, "lr": 0.1}]
    assert training._scaler.load_state_dict.called == loaded
    training.keeper.restore_random.assert_called_once_with(kept)
