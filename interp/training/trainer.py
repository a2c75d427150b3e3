"""The training loop: curriculum, checkpoints that survive kill -9, and metrics, on any device.

``train(config, folder)`` resumes the run in ``folder`` if there is one. Every ``checkpoint_every``
batches, weights, optimizer moments and progress are written to one file, the training checkpoint,
by an atomic rename. Data are a function of the seed and the index of the batch, so a run that was
killed and resumed gives the same losses as one without a break.
accelerate handles devices and several processes (torchrun).

The precision "auto" is chosen once per run from what the hardware reports, without timing, so that
one seed on one machine always gives the same model. On a CPU without bfloat16 units, a step in
bfloat16 took 4 to 7 times as long as in float32; with such units, .6 to .9 times. The choice is
recorded in ``training.json``, and a resumed run keeps it. ``precision = "float32"`` avoids
differences between machines that choose differently.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from interp.core.machine import Machine
from interp.model.checkpoints import save_checkpoint
from interp.model.library import load, models
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked, folder_name, integer
from interp.support.errors import InputError, require, unknown_name
from interp.support.files import convert_write_errors, file_to_write, lock_folder, write_json
from interp.support.provenance import provenance
from interp.support.workers import display, interruptible, threads_for
from interp.training import runs
from interp.training.batches import Batch, EpisodeSource, RoundsLoss, measure_progress
from interp.training.config import TrainingConfig
from interp.training.goal import TrainingGoal
from interp.training.hardware import choose_precision, this_machine
from interp.training.muon import Muon, split_parameters

_FIELDS_BESIDE_WEIGHTS = ("name", "origin", "latent_update")
"""Fields in which two models may differ if one takes the weights of the other.

``latent_update`` is one of them, because an annealed run starts by adding to latents and ends by
replacing them.
"""


@checked
def train(
    config: TrainingConfig,
    folder: str | Path,
    *,
    name: str,
    machine: str | Machine | None = None,
    n_processes: int = 1,
    stop_at: int = 0,
    device: str = "auto",
    keep_every: int = 0,
) -> Path:
    """Train a model, or resume the run in ``folder``.

    Args:
        config: settings of the run; if ``folder`` holds a run already, they must be the same.
        folder: folder for the run's files.
        name: name of the trained model.
        machine: model to train instead of the configuration's transformer: a registered name
            (``interp.register_machine``), or a model that ``interp.load`` built. Its weights are
            drawn again from the run's seed, also if they are trained. To continue from them, set
            ``start`` in the configuration to their checkpoint, which
            :func:`interp.model.checkpoints.save_checkpoint` writes.
        n_processes: number of processes that train together. torchrun must have started this many;
            otherwise an error is raised.
        stop_at: number of batches, counted from the beginning of the run, after which it stops; it
            can be resumed later. 0 runs to the end.
        device: "cpu", "cuda" or "mps"; "auto" is this computer's accelerator if it has one.
        keep_every: number of batches between training checkpoints that are stored for good
            (:func:`interp.training.runs.list_kept_states` lists them); 0 stores none.

    Returns:
        The folder ``folder/model`` for the checkpoint of the trained model. The checkpoint is written
        when the curriculum is over.
    """
    folder = Path(folder)
    name = folder_name("name", name)
    integer("stop_at", stop_at, 0)
    integer("keep_every", keep_every, 0)
    if machine is not None:
        config = replace(config, machine=_make_recipe(machine))
    accelerator = _start_accelerator(device, n_processes)
    with ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(lock_folder(folder))
            # Refuse files that cannot be written now, and not after hours.
            for file in (runs.STATE_FILE, runs.METRICS_FILE, runs.RECORD_FILE):
                file_to_write(folder / file)
        run = TrainingLoop(config, folder, name, accelerator, keep_every)
        run.resume()
        try:
            run.train_until(stop_at or config.total_steps)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped at step {run.progress.step} of {config.total_steps}; the same command goes on from step "
                f"{run.saved_step}"
            ) from None
    return folder / "model"


def _start_accelerator(device: str, n_processes: int) -> Accelerator:
    """Return accelerate's Accelerator. Refuse a device that is not available, or a wrong number of
    running processes.

    Args:
        device: "cpu", "cuda" or "mps"; "auto" for any.
        n_processes: number of processes that must be running.
    """
    # Without cpu=True, accelerate ignores torchrun on a machine without an accelerator.
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    # By default, several processes wait for a gradient of every parameter. Rounds without payloads
    # (numbers that tokens carry) give the payload embedding none.
    options = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=on_cpu, kwargs_handlers=[options])
    kind = accelerator.device.type
    require(
        device in ("auto", kind),
        f"device must be 'auto', 'cpu' or what this machine has, {kind!r}; got {device!r}",
    )
    n_running = accelerator.num_processes
    require(
        n_running == n_processes,
        f"{n_processes} processes were asked for but {n_running} run; start them with "
        f"`torchrun --nproc-per-node {n_processes} -m interp.cli train ...`",
    )
    return accelerator


class TrainingLoop:
    """One training run, in one process.

    :func:`train` makes the loop, and calls :meth:`resume` and then :meth:`train_until`.

    Args:
        config: settings of the run.
        folder: folder for the run's files.
        name: name of the trained model.
        accelerator: accelerate's Accelerator, which provides device and processes.
        keep_every: number of batches between training checkpoints that are stored for good; 0
            stores none.

    Attributes:
        model: the model that is trained.
        progress: how far the run has come (stage, number of batches, time).
        saved_step: number of batches before the newest training checkpoint on disk; 0 if there is
            none.
    """

    def __init__(
        self,
        config: TrainingConfig,
        folder: Path,
        name: str,
        accelerator: Accelerator,
        keep_every: int = 0,
    ) -> None:
        """Choose the precision, and make the model with its initial weights, the loss and the
        optimizers. Raise InputError if the ``until`` of a stage of the curriculum names a number
        that evaluations do not compute. The class describes the arguments.
        """
        self.folder = folder
        self.keep_every = keep_every
        self.accelerator = accelerator
        self.is_main = accelerator.is_main_process
        precision, self.precision_because = self._choose_precision(config)
        config = replace(config, precision=precision)
        self.config = config
        torch.manual_seed(config.seed)  # the initial weights of a transformer are drawn from it
        self.model = runs.make_model(config, name)
        self.source = EpisodeSource(config, self.model.layout)
        if config.start:
            _set_weights(self.model, config.start, self.source.goal)
        loss = RoundsLoss(self.model, config.commit, config.compile)
        self.loss, *self.optimizers = accelerator.prepare(loss, *self._make_optimizers())
        self.progress = runs.Progression()
        self.saved_step = 0
        if any(stage.until for stage in config.curriculum):
            evaluation = self.evaluate()
            for stage in config.curriculum:
                stage.ends_early(evaluation)  # for its error: a number that the evaluation lacks

    def _choose_precision(self, config: TrainingConfig) -> tuple[Any, str]:
        """Return the precision of a run with the settings ``config``, "float32" or "bfloat16", and
        the reason for the choice in words. All processes get the same precision.
        """
        choice: list[Any] = [None]  # a list, since broadcast_object_list fills it in place
        if self.is_main:
            kind = self.accelerator.device.type
            choice = [choose_precision(config, self.folder, kind)]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(choice)
        precision, reason = choice[0]
        return precision, reason

    def _make_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers: AdamW, and Muon for the blocks' weight matrices if ``muon_lr`` is
        above 0.
        """
        config = self.config
        by_muon: list[nn.Parameter] = []
        by_adam = list(self.model.parameters())
        if config.muon_lr > 0 and not config.machine:
            by_muon, by_adam = split_parameters(self.model)
        beta_1, beta_2 = config.betas
        adam = torch.optim.AdamW(
            by_adam, config.lr, (beta_1, beta_2), weight_decay=config.weight_decay
        )
        if not by_muon:
            return [adam]
        return [adam, Muon(by_muon, config.muon_lr, config.weight_decay)]

    # Checkpoints.

    def resume(self) -> None:
        """Restore the weights, the optimisers and the step from the training checkpoint in the run's
        folder; if there is none, write the record of a new run. No step is trained.

        Raises:
            InputError: the run in the folder has other settings, or only its model is left.
        """
        state = runs.read_state(self.folder)
        config = self.config.to_dict()
        if state is not None:
            settings = json.loads(json.dumps(config))  # as the file has them, tuples as lists
            all_keys = settings | state.config
            changed = [key for key in all_keys if settings.get(key) != state.config.get(key)]
            if changed:
                raise InputError(
                    f"{str(self.folder)!r} holds a run with another configuration ({', '.join(changed)} differ); "
                    "train in another folder or give the same settings"
                )
            state.load_weights(self.model)
            state.load_moments(self.model, self.optimizers)
            self.progress = state.progress
            self.saved_step = self.progress.step
        elif self.is_main:
            model = self.folder / "model"
            require(
                not model.exists(),
                f"{str(model)!r} is the model of an earlier run, whose training state is gone; remove it, or train in "
                "another folder",
            )
            record = {
                "config": config,
                "machine": this_machine(),
                "precision_because": self.precision_because,
                **provenance(),
            }
            write_json(self.folder / runs.RECORD_FILE, record)
        if self.is_main:
            runs.cut_metrics(self.folder, self.progress.step)

    def save(self) -> None:
        """Write the training checkpoint (weights, optimizer moments, settings and progress) to the
        run's folder; the file is replaced by a rename.
        """
        if self.is_main:
            config = self.config.to_dict()
            runs.write_state(self.folder, self.progress, config, self.model, self.optimizers)
            if self._is_at_kept_step:
                runs.keep_state(self.folder, self.progress.step)
        self.saved_step = self.progress.step

    @property
    def _is_at_kept_step(self) -> bool:
        """Whether the training checkpoint of the current step is stored for good."""
        return self.keep_every > 0 and self.progress.step % self.keep_every == 0

    # The loop.

    def train_until(self, last_step: int) -> None:
        """Train until the run has had ``last_step`` batches in all, or the curriculum is over. When
        the curriculum is over, save the final model.
        """
        path = self.folder / runs.METRICS_FILE
        bar = display("training", self.config.total_steps, self.progress.step, self.is_main)
        with (
            threads_for(self.model),
            convert_write_errors(path),
            bar as update,
            interruptible() as interrupted,
            ExitStack() as stack,
        ):
            stream = None
            if self.is_main:
                stream = stack.enter_context(open(path, "a", buffering=1, encoding="utf-8"))
            while self.progress.step < last_step and not self._is_over:
                record = self._train_batch()
                if stream is not None:
                    stream.write(json.dumps(record) + "\n")
                is_last = self._is_over or self.progress.step >= last_step or interrupted()
                is_due = self.progress.step % self.config.checkpoint_every == 0
                if is_last or is_due or self._is_at_kept_step:
                    self.save()
                if interrupted() and not self._is_over:
                    raise KeyboardInterrupt
                text = self._describe_progress(record["loss"])
                update(completed=self.progress.step, text=text)
        final = self.folder / "model"
        if self._is_over and self.is_main and not final.exists():
            save_checkpoint(self.model, final)

    def _describe_progress(self, loss: float) -> str:
        """Return the text before the progress bar: the loss of the last batch, and the excess loss of
        the newest evaluation with the regimes on which it was measured.
        """
        text = f"loss {loss:.4f}"
        excess = self.progress.last_evaluation.get("excess")
        if excess is not None:
            text += f" excess {excess:.4f}"
            regimes = self.source.evaluated_regimes
            if regimes:
                text += f" ({', '.join(regimes)})"
        return text

    @property
    def _is_over(self) -> bool:
        """Whether every stage of the curriculum is over."""
        return self.progress.stage >= len(self.config.curriculum)

    def _train_batch(self) -> dict[str, float]:
        """Train on one batch, and return its metrics. After every ``eval_every`` batches and at the
        end of the run, evaluate the model, and end the stage if the evaluation says so.
        """
        progress = self.progress
        started = time.perf_counter()
        loss = self.step()
        progress.seconds += time.perf_counter() - started
        self._advance(loss)
        evaluation: dict[str, float] = {}
        if self._is_over or progress.step % self.config.eval_every == 0:
            evaluation = self.evaluate()
            progress.last_evaluation = evaluation
            if not self._is_over and self.config.curriculum[progress.stage].ends_early(evaluation):
                self._begin_stage(progress.stage + 1)
        return {
            "step": progress.step,
            "stage": progress.stage,
            "loss": loss,
            "seconds": progress.seconds,
            **evaluation,
        }

    def step(self) -> float:
        """Train on the next batch of episodes, and return its mean loss."""
        shard = self.accelerator.process_index
        batch = self.source.batch(
            self.progress.step, self.progress.stage, shard, self.accelerator.num_processes
        )
        batch = batch.to(self.accelerator.device)
        self._set_rates()
        self._set_recurrence()
        self.loss.train()
        # The randomness of a machine, such as dropout, is a function of the step, as the batch is.
        if self.config.machine:
            sequence = np.random.SeedSequence([self.config.seed, self.progress.step, shard])
            (seed_of_step,) = sequence.generate_state(1)
            torch.manual_seed(int(seed_of_step))
        total = self._backpropagate(batch)
        loss = float(self.accelerator.reduce(total, "mean"))
        if not math.isfinite(loss):
            raise InputError(
                f"the loss became {loss} at step {self.progress.step}; train in another folder with a lower lr (now "
                f"{self.config.lr}): a run that is resumed keeps its configuration"
            )
        return loss

    def _set_rates(self) -> None:
        """Set the learning rates for the current step.

        A stage that ended early counts with all of its planned steps, so that rates still decay to
        zero.
        """
        earlier_stages = self.config.curriculum[: self.progress.stage]
        planned_step = sum(stage.steps for stage in earlier_stages) + self.progress.stage_step
        factor = schedule(planned_step, self.config)
        rates = (self.config.lr, self.config.muon_lr)  # not strict below: there may be no Muon
        for optimizer, rate in zip(self.optimizers, rates, strict=False):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor

    def _backpropagate(self, batch: Batch) -> Tensor:
        """Backpropagate through a batch, window by window, step the optimizers, and return the
        batch's mean loss.
        """
        steps_each_window = self.config.step_each == "window"
        device = self.accelerator.device
        in_bfloat16 = self.config.precision == "bfloat16"
        carried = None
        total = torch.zeros((), device=device)
        for window in batch.windows(self.config.window):
            share = window.n_rounds / batch.n_rounds  # weight of its loss in the batch's mean loss
            # Not by accelerate: its precision would apply to all later runs of this process, too.
            with torch.autocast(device.type, torch.bfloat16, in_bfloat16):
                loss, carried = self.loss(window, carried)
            self.accelerator.backward(loss if steps_each_window else loss * share)
            if steps_each_window:
                self._apply_gradients()
            carried = (
                carried.detach()
            )  # truncated backpropagation: no gradient into earlier windows
            total += loss.detach() * share
        if not steps_each_window:
            self._apply_gradients()
        return total

    def _apply_gradients(self) -> None:
        """Clip the accumulated gradients, and make one step of every optimizer."""
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def _set_recurrence(self) -> None:
        """Set the share of a latent's old value that remains when a round of the next batch updates
        the latent (``TrainingConfig.anneal_latents``). Only transformers have this share.
        """
        runs.set_recurrence(self.model, self.config, self.progress.step)

    def evaluate(self) -> dict[str, float]:
        """Measure the progress on episodes that are not trained on, and return {name of a number:
        value}. One of them is ``excess``, the loss above the lowest that can be reached.
        """
        self._set_recurrence()
        return measure_progress(self.model, self.source.evaluation(), self.config.commit)

    def _advance(self, loss: float) -> None:
        """Count a batch that had the mean loss ``loss``. End the stage of the curriculum if it had
        all of its batches, or if its loss has stopped falling.
        """
        progress = self.progress
        config = self.config
        progress.step += 1
        progress.stage_step += 1
        progress.epoch_loss += loss / config.epoch_steps  # at the end of an epoch its mean loss
        is_done = progress.stage_step >= config.curriculum[progress.stage].steps
        if progress.stage_step % config.epoch_steps == 0:
            has_gained = progress.epoch_loss < progress.best_epoch_loss - config.min_gain
            progress.stale_epochs = 0 if has_gained else progress.stale_epochs + 1
            progress.best_epoch_loss = min(progress.best_epoch_loss, progress.epoch_loss)
            progress.epoch_loss = 0.0
            may_stop = config.patience > 0 and progress.stage >= config.patience_from_stage
            is_done = is_done or (may_stop and progress.stale_epochs >= config.patience)
        if is_done:
            self._begin_stage(progress.stage + 1)

    def _begin_stage(self, stage: int) -> None:
        progress = self.progress
        progress.stage = stage
        progress.stage_step = 0
        progress.stale_epochs = 0
        progress.epoch_loss = 0.0
        progress.best_epoch_loss = math.inf


def schedule(step: int, config: TrainingConfig) -> float:
    """Return the factor by which the learning rates are multiplied at a step.

    In the first ``warmup_steps`` batches the factor rises linearly to 1. What follows is set by the
    field ``decay``. With "linear", the factor stays 1 until half of all planned batches are over,
    and then falls linearly to 0. With "cosine", it falls from 1 to 0 along a cosine, from the end
    of the warm-up on.

    Neither decay is always better. In runs of equal length with seed 0, the linear decay ended with
    a lower excess loss for the presets of expert advice (laptop: .0006 against .0014; laptop-wide:
    .006 against .031). The cosine was better for Q-learning (.020 against .024).

    Args:
        step: number of earlier batches in the plan of the curriculum. If a stage (a part of the
            curriculum) ended early, the batches that it left out count as earlier batches.
        config: settings of the run.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay == "linear":
        return min(1.0, 2 * (1 - step / config.total_steps))
    n_decaying = max(1, config.total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / n_decaying)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _make_recipe(machine: str | Machine) -> dict[str, Any]:
    """Return how to make a model again, as the field ``machine`` of a run: its builder and the
    builder's arguments.

    Args:
        machine: name of a builder, or a model that a builder made.
    """
    if isinstance(machine, str):
        return {"builder": machine}
    if "builder" not in machine.origin:
        raise InputError(
            f"{machine.name!r} does not say how to make it again, so no run of it could be resumed: give the function "
            "that makes it to interp.register_machine(NAME, build, ...) and train machine=NAME"
        )
    return {name: machine.origin[name] for name in ("builder", "arguments")}


def _set_weights(model: Any, start: str, goal: TrainingGoal) -> None:
    """Set the weights of a model before the first step: by a named start of the goal, or from a
    trained model.

    Args:
        model: the model to train.
        start: one of the goal's starts, the name of a learned model that comes with the package, or
            a checkpoint folder.
        goal: the task's training goal.
    """
    if start in goal.starts:
        require(
            isinstance(model, HookedLatentTransformer),
            f"start {start!r} sets the weights of a transformer; give a checkpoint of {model.name!r}, or none",
        )
        goal.starts[start](model)
        return
    task = model.layout.task
    learned = [
        record.name for record in models() if record.kind == "learned" and record.task == task
    ]
    if start not in learned and not Path(start).is_dir():
        raise unknown_name(f"start of {task!r}", start, [*goal.starts, *learned])
    source: Any = load(start)
    architecture = _describe_architecture(model)
    source_architecture = _describe_architecture(source)
    require(
        architecture.keys() == source_architecture.keys(),
        f"weights of {start!r} do not fit this run: it is another kind of model",
    )
    differences = [
        f"{key} is {value} here and {source_architecture[key]} there"
        for key, value in architecture.items()
        if source_architecture[key] != value
    ]
    require(
        not differences,
        f"weights of {start!r} do not fit this run: {'; '.join(differences)}; give the run the same",
    )
    model.load_state_dict(source.state_dict())


def _describe_architecture(model: Any) -> dict[str, Any]:
    """Return the settings that two models must share so that the weights of one fit the other, as a
    dictionary {name: value}. For a transformer they are fields of its configuration; for any other
    model, the name and the arguments of its builder.
    """
    is_transformer = isinstance(model, HookedLatentTransformer)
    description = model.config.to_dict() if is_transformer else _make_recipe(model)
    return {key: value for key, value in description.items() if key not in _FIELDS_BESIDE_WEIGHTS}
