"""The training loop, for any way to average the gradients."""

from __future__ import annotations

import copy
import math
import statistics
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import emulated
import model
import torch
from averaging import Averaging
from feed import Feed, noise
from keeping import Failed, Keeper
from pipeline import Pipeline
from schedule import Schedule
from stopping import Stop
from timing import COMPUTE, DATA, Clock, without_sharding
from torch import Tensor, nn
from usage import Usage

# Goyal et al. warm up for 5 epochs of 90; short runs for a tenth of their steps.
WARM_UP_EPOCHS, WARM_UP_SHARE = 5, 10
# Number of steps at the start and at the end whose mean loss is reported.
LOSS_STEPS = 10
# Timed and untimed steps of a rank alone; the median counts.
ALONE_STEPS, ALONE_WARM_UP = 5, 2
TELL_S = 1.0
# Number of timed steps that is proposed if too few are left.
TIMED_STEPS = 100
# Steps between checks that the loss is finite, for which ranks must meet.
LOOK_STEPS = 500
# Of tensors that can have torch's layout channels_last.
CHANNELS_LAST_DIMENSIONS = 4


class Training:
    """One rank's training.

    Args:
        settings: The job's arguments.
        averaging: This rank among the others.
        device: The device that it computes on.

    Attributes:
        schedule: Its steps.
        accuracy: Share of the held-out images that are recognised, if there are any.
        alone_s: Seconds of a step without other ranks, if ranks wait throughout; None if they do
            not, or if the whole model does not fit a rank.

    Raises:
        data.Unusable: The dataset is missing or broken.
        Failed: A checkpoint is of another model, or autotune would run in timed steps.
    """

    def __init__(self, settings: Namespace, averaging: Averaging, device: torch.device) -> None:
        self.settings, self.averaging, self.device = settings, averaging, device
        factor = settings.time_factor
        self.clock, self.usage = Clock(device, factor), Usage(device, factor)
        self.size = 1 if settings.emulate else model.image_size(settings.model, settings.image_size)
        self.feed = Feed(settings, averaging, self.size, device)
        self.keeper = Keeper(settings, averaging, device)
        self._precision = model.PRECISIONS[settings.precision]
        self._scaler = self._new_scaler()
        self._first_losses: list[Tensor] = []
        self._last_losses: deque[Tensor] = deque(maxlen=LOSS_STEPS)
        self.accuracy: float | None = None
        self.alone_s: float | None = None
        kept = self.keeper.newest(self.feed.classes)
        self.schedule = Schedule(
            self.feed.images,
            settings.batch_size * settings.backward_passes_per_step * averaging.replicas,
            settings.epochs,
            settings.steps,
            kept,
        )
        if averaging.rank == 0 and (said := self._of_steps()):
            print(said, flush=True)
        self._make(kept)

    def _of_steps(self) -> str:
        """Returns why the number of steps differs from the arguments; empty if it does not."""
        plan, given = self.schedule, self.settings
        if plan.resumed_at >= plan.total:
            return (
                f"the checkpoint has {plan.resumed_at} steps, and {plan.total} are asked for: one "
                "is repeated for the metrics, and not kept; raise epochs or steps to continue"
            )
        if given.epochs or plan.begun_with == plan.images_per_step:
            return ""
        return (
            f"a step has {plan.images_per_step} images on these ranks, and had {plan.begun_with} "
            f"when it began: {plan.total} steps instead of {given.steps}"
        )

    def _make(self, kept: dict[str, Any] | None) -> None:
        """Makes model and optimizer, equal on all ranks, from scratch or from a checkpoint."""
        given = self.settings
        torch.manual_seed(given.seed)
        if given.emulate:
            network: nn.Module = emulated.Emulated(given.model, emulated.seconds_of_step(given))
        else:
            network = model.make(given.model, self.feed.classes)
        self.parameters = model.parameters_of(network)
        self._base_rate = given.learning_rate
        if self._base_rate is None:
            self._base_rate = model.usual_learning_rate(network)
        self._untimed = self._untimed_steps()
        if kept:
            network.load_state_dict(kept["network"])
        if self.averaging.waits_throughout:
            self.alone_s = self._time_alone(network)
        elif not self.averaging.interleaves:
            network = network.to(self.device)
        self.averaging.wrap(network, self._optimizer)
        # Crops and dropout differ between the ranks.
        torch.manual_seed(given.seed + self.averaging.rank)
        if kept:
            self._restore(kept)

    def _untimed_steps(self) -> int:
        """Number of steps at the start that are not timed; at least one step is timed."""
        start = self.schedule.start
        ahead, searching = self.schedule.total - start, self.averaging.searching_steps
        untimed = min(self.settings.warmup_steps, ahead - 1)
        if untimed < searching:
            raise Failed(
                f"autotune tries out settings for {searching} steps, which must not be timed, and "
                f"this run has {ahead} steps with {untimed} untimed: --set "
                f"warmup_steps={searching} --set steps={start + searching + TIMED_STEPS}, or "
                "epochs for as many steps"
            )
        return untimed

    def _restore(self, kept: dict[str, Any]) -> None:
        """Restores the optimizer's state, but keeps the settings of this run."""
        given = self.settings
        self.averaging.restore(kept["optimizer"])
        # The state also restores settings of the run before, which may differ.
        for group in self.averaging.optimizer.param_groups:
            group |= {"momentum": given.momentum, "weight_decay": given.weight_decay}
        # It is empty after a run in another precision; a new scaler finds its scale within a few
        # steps.
        if self._scaler.is_enabled() and kept["scaler"]:
            self._scaler.load_state_dict(kept["scaler"])
        self.keeper.restore_random(kept)

    def _new_scaler(self) -> torch.amp.GradScaler:
        is_wanted = self.settings.precision == "fp16"
        return torch.amp.GradScaler(self.device.type, enabled=is_wanted)

    def _optimizer(self, weights: Any) -> torch.optim.Optimizer:
        given = self.settings
        if given.emulate:
            return emulated.Still(weights)
        return torch.optim.SGD(
            weights, self._base_rate, momentum=given.momentum, weight_decay=given.weight_decay
        )

    def _time_alone(self, network: nn.Module) -> float | None:
        """Seconds of a step without other ranks; None if the model does not fit any of the ranks.

        Args:
            network: The model, on the host, as a sharded model may not fit one GPU.
        """
        seconds: float | None = None
        with suppress(torch.OutOfMemoryError):
            seconds = self._steps_alone(copy.deepcopy(network).to(self.device))
        if self.device.type == "cuda":
            # Its memory must not count as that of the training.
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        return None if None in self.averaging.gather(seconds) else seconds

    def _steps_alone(self, network: nn.Module) -> float:
        given, clock = self.settings, Clock(self.device)
        optimizer, scaler = self._optimizer(network.parameters()), self._new_scaler()
        batches = noise(given.batch_size, self.size, self.feed.classes, self.device, given.seed)
        for number in range(ALONE_WARM_UP + ALONE_STEPS):
            if number == ALONE_WARM_UP:
                clock.start()
            for _ in range(given.backward_passes_per_step):
                scaler.scale(self._loss(network, *next(batches))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            clock.mark(COMPUTE)
            clock.step()
        clock.stop()
        return statistics.median(clock.phases[COMPUTE])

    def run(self) -> None:
        """Trains from the first to the last step of the schedule.

        Raises:
            data.Unusable: A file of the dataset is broken.
            Failed: The loss is not finite any more, or the training was asked to end.
        """
        start, total = self.schedule.start, self.schedule.total
        passes = self.settings.backward_passes_per_step
        batches = self.feed.batches(self.schedule.epochs(), passes)
        self._told_at, self._told_step = time.monotonic(), start
        # Without checkpoints, SIGTERM ends a rank at once.
        self.stop = Stop(self.averaging, start) if self.keeper.keeps else None
        self.averaging.network.train()
        for step in range(start, total):
            if step == start + self._untimed:
                self.usage.start()
                self.clock.start()
            self._step(step, batches)
            self._tell(step + 1)
            self._between(step + 1)
        self.clock.stop()
        self.use = self.usage.read()
        self._check_loss()

    def _step(self, step: int, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        averaging, passes = self.averaging, self.settings.backward_passes_per_step
        losses = []
        for number in range(passes):
            images, labels = next(batches)
            self.clock.mark(DATA)
            if averaging.interleaves:
                known = averaging.learn(
                    images, labels, self._compute, self._loss_of, self.clock.mark
                )
                losses += [] if known is None else [known.detach()]
                continue
            last = number == passes - 1
            with averaging.accumulating(last):
                loss = self._loss(averaging.network, images, labels) / passes
                averaging.backward(self._scaler.scale(loss), last, self.clock.mark)
            losses.append(loss.detach())
        for group in averaging.optimizer.param_groups:
            group["lr"] = self._rate(step)
        averaging.apply(self._scaler)
        self._scaler.update()
        averaging.optimizer.zero_grad()
        if losses:
            self._note(sum(losses[1:], losses[0]))
        self.clock.mark(COMPUTE)
        self.clock.step()

    def _rate(self, step: int) -> float:
        plan = self.schedule
        warm_up = min(WARM_UP_EPOCHS * plan.per_epoch, plan.total // WARM_UP_SHARE)
        images = plan.images_per_step
        if not self.settings.dataset:
            # Noise cannot be learned, and the learning rate of a large world would make the loss
            # overflow.
            images = min(images, model.IMAGES_OF_RATE)
        return model.learning_rate(self._base_rate, images, step, plan.total, warm_up)

    def _autocast(self) -> torch.autocast:
        is_wanted = self._precision != torch.float32
        return torch.autocast(self.device.type, self._precision, enabled=is_wanted)

    def _loss(self, network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        if self.settings.emulate:
            return network(images)
        return self._loss_of(self._compute(network, images), labels)

    def _compute(self, layers: nn.Module, given: Tensor) -> Tensor:
        # Only images have the layout, and layers follow it: Horovod does not take weights in it.
        is_wanted = self.settings.channels_last and given.dim() == CHANNELS_LAST_DIMENSIONS
        layout = torch.channels_last if is_wanted else torch.contiguous_format
        with self._autocast():
            return layers(given.contiguous(memory_format=layout))

    def _loss_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        with self._autocast():
            return model.loss_of(outputs, labels, self.settings.label_smoothing)

    def _note(self, loss: Tensor) -> None:
        if len(self._first_losses) < LOSS_STEPS:
            self._first_losses.append(loss)
        self._last_losses.append(loss)

    def _between(self, done: int) -> None:
        """Validates, checks, saves and ends the training where a step makes it due."""
        plan, feed = self.schedule, self.feed
        at_end = done == plan.total
        if feed.held_out and (at_end or plan.ends_epoch(done)):
            with self._at_length():
                self.accuracy = self._validate(feed.held_out)
        if done % LOOK_STEPS == 0:
            with self._paused():
                self._check_loss()
        asked = False
        if self.stop and self.stop.meets(done) and not at_end:
            with self._paused():
                asked = self.stop.agreed(done)
        failures = self.keeper.failures
        # A repeated step must not replace the checkpoint of an earlier run.
        if asked or (done > plan.resumed_at and self.keeper.is_due(done, at_end)):
            with self._paused():
                self._check_loss()
            with self._at_length():
                self.keeper.write(plan.place(done), feed.classes, self._scaler.state_dict())
        if asked:
            is_kept = self.keeper.failures == failures
            raise Failed(f"it was asked to end; step {done} is {'' if is_kept else 'not '}kept")

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Context that counts neither for the time of steps nor for their use of the machine."""
        with self.clock.paused(), self.usage.paused():
            yield

    @contextmanager
    def _at_length(self) -> Iterator[None]:
        """Like `_paused`, for long work; SIGTERM takes effect after it."""
        with self._paused(), self.stop.at_length() if self.stop else nullcontext():
            yield

    @torch.no_grad()
    def _validate(self, held_out: Pipeline) -> float:
        """Share of the held-out images that are recognised, each counted once."""
        network = self.averaging.network.eval()
        right = seen = 0
        reached = f"{self._told_step}/{self.schedule.total} steps"
        told_at = time.monotonic()
        for images, labels in held_out.validation():
            with self._autocast():
                right += int((network(images).argmax(1) == labels).sum())
            seen += len(labels)
            # A long silence would be taken for a stuck training.
            if self.averaging.rank == 0 and time.monotonic() - told_at > TELL_S:
                print(f"progress: {reached}, validation: {seen} images", flush=True)
                told_at = time.monotonic()
        network.train()
        everyone = self.averaging.gather((right, seen))
        return sum(mine for mine, _ in everyone) / sum(mine for _, mine in everyone)

    def losses(self) -> tuple[float, float]:
        """Mean training loss of the first and of the last steps, over all ranks, in nat."""
        shown = max(1, min(LOSS_STEPS, (self.schedule.total - self.schedule.start) // 4))
        mine = self._first_losses[:shown], list(self._last_losses)[-shown:]
        known = [torch.stack(part).mean().item() for part in mine if part]
        everyone = filter(None, self.averaging.gather(known))
        first, last = (statistics.fmean(values) for values in zip(*everyone, strict=True))
        return first, last

    def _check_loss(self) -> None:
        _, loss = self.losses()
        if not math.isfinite(loss):
            begun = all(math.isfinite(loss.item()) for loss in self._first_losses[:1])
            if (path := self.keeper.path) and not all(self.averaging.gather(begun)):
                # A step's loss is that of the weights before it, so broken weights may have been
                # kept with a finite loss.
                raise Failed(
                    f"the loss is {loss} in the first step from checkpoint {path} on: what it "
                    f"learned is lost; rename it to {path.name}.damaged, to go on from the one "
                    "before with a lower learning_rate"
                )
            raise Failed(
                f"the loss is {loss}: lower learning_rate, which is {self._base_rate:g} for 256 "
                "images a step, or choose another precision"
            )

    def _tell(self, done: int) -> None:
        """Prints the progress in the form that gpubed shows."""
        now, plan = time.monotonic(), self.schedule
        if self.averaging.rank == 0 and (now - self._told_at > TELL_S or done == plan.total):
            rate = (done - self._told_step) * plan.images_per_step / (now - self._told_at)
            rate *= self.settings.time_factor
            said = [f"progress: {done}/{plan.total} steps", f"{rate:.0f} images/s", *self._parts()]
            print(", ".join(said), flush=True)
            self._told_at, self._told_step = now, done

    def _parts(self) -> list[str]:
        """Mean times of the phases of this rank's steps since the last progress line."""
        phases = self.clock.lately()
        if phases and self.averaging.waits_throughout and self.alone_s is None:
            phases = {DATA: phases[DATA]}  # the others cannot be separated
        elif phases and self.alone_s is not None:
            step = {"step_s": sum(phases.values()), "data_s": phases[DATA]}
            alone = without_sharding(step, self.alone_s)
            phases = {phase: alone[f"{phase}_s"] for phase in phases}
        return [f"{p.replace('_', ' ')} {1000 * s:.1f} ms" for p, s in phases.items()]
