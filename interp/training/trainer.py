"""The one training loop: curriculum, checkpoints that survive kill -9, metrics as they come, on any device.

``train(config, folder)`` resumes whatever ``folder`` holds. Every ``checkpoint_every`` steps the whole state goes to
one safetensors file by an atomic rename; data are a function of (seed, step), so a run that was killed gives the same
losses as an unbroken one. Devices, mixed precision and several processes (torchrun) are accelerate's.

The precision "auto" is settled once for a run by what the machine reports of itself, never by a stopwatch: one seed on
one machine is one model. On a CPU without bfloat16 units a step in bfloat16 took 4 to 7 times one in float32; with such
units .6 to .9 of it. What was taken is recorded in ``training.json``, and a resumed run keeps it. Say
``precision = "float32"`` to have the same numbers on every machine.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import broadcast_object_list
from jaxtyping import Float
from torch import Tensor, nn

from interp.core.machine import Machine
from interp.model.checkpoints import save_checkpoint
from interp.model.library import load, models
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked, folder_name, integer
from interp.support.errors import InputError, require, unknown_name
from interp.support.files import file_to_write, locked, read_json, reading, write_json, writing
from interp.support.provenance import provenance
from interp.support.workers import display, interruptible, threads_for
from interp.training import runs
from interp.training.batches import EpisodeSource, RoundsLoss, watched
from interp.training.config import TrainingConfig
from interp.training.goal import TrainingGoal

_SAID = ("name", "origin")  # what a configuration says of a model's history, not of its shape


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
) -> Path:
    """Train, or go on training, in ``folder``; returns the folder of the final checkpoint.

    Args:
        config: what to train; when ``folder`` holds a run already, it must be the same configuration.
        name: the trained model's name.
        machine: what to train in place of the configuration's transformer: a name that ``interp.register_machine``
            was given, or a machine that ``interp.load`` built. Its weights are drawn anew from the run's seed; to go
            on from weights that are trained, give the configuration their checkpoint (``start``).
        n_processes: the number of processes that must really be running (torchrun starts them).
        device: "cpu", "cuda" or "mps"; "auto" is the accelerator of this machine where it has one.
        stop_at: stop after this many steps, leaving a run that can be resumed; 0 runs to the end.
    """
    folder, name = Path(folder), folder_name("name", name)
    integer("stop_at", stop_at, 0)
    if machine is not None:
        config = replace(config, machine=_how(machine))
    # Without cpu=True, accelerate ignores torchrun on a machine without an accelerator.
    on_cpu = device == "cpu" or not torch.accelerator.is_available()
    # Where rounds have no payloads, the payload embedding gets no gradient.
    accelerator = Accelerator(
        cpu=on_cpu, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]
    )
    kind = accelerator.device.type
    require(
        device in ("auto", kind),
        f"device must be 'auto', 'cpu' or what this machine has, {kind!r}; got {device!r}",
    )
    running = accelerator.num_processes
    require(
        running == n_processes,
        f"{n_processes} processes were asked for but {running} run; start them with "
        f"`torchrun --nproc-per-node {n_processes} -m interp.cli train ...`",
    )
    with ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(locked(folder))
            for file in (runs.STATE_FILE, runs.METRICS_FILE, runs.RECORD_FILE):
                file_to_write(folder / file)
        run = _Run(config, folder, name, accelerator)
        run.resume()
        try:
            run.loop(stop_at or config.total_steps)
        except KeyboardInterrupt:
            at = f"stopped at step {run.at.step} of {config.total_steps}"
            raise KeyboardInterrupt(
                f"{at}; the same command goes on from step {run.saved}"
            ) from None
    return folder / "model"


class _Run:
    """One training run in one process."""

    def __init__(
        self, config: TrainingConfig, folder: Path, name: str, accelerator: Accelerator
    ) -> None:
        answer: list[Any] = (
            [taken(config, folder, accelerator.device.type)]
            if accelerator.is_main_process
            else [None]
        )
        if accelerator.num_processes > 1:
            broadcast_object_list(answer)  # one precision in every process
        precision, self.precision_because = answer[0]
        config = replace(config, precision=precision)
        self.config, self.folder, self.accelerator = config, folder, accelerator
        torch.manual_seed(config.seed)
        self.model = runs.made(config, name)
        self.source = EpisodeSource(config, self.model.layout)
        if config.start:
            _begin(self.model, config.start, self.source.goal)
        beta_1, beta_2 = config.betas
        parts: tuple[list[nn.Parameter], list[nn.Parameter]] = [], []
        for key, parameter in self.model.named_parameters():
            parts[bool(config.muon_lr and not config.machine and is_stack(key, parameter))].append(
                parameter
            )
        rest, stacks = parts
        adam = torch.optim.AdamW(
            rest, config.lr, (beta_1, beta_2), weight_decay=config.weight_decay
        )
        optimizers: list[torch.optim.Optimizer] = [adam]
        if stacks:
            optimizers.append(Muon(stacks, config.muon_lr, config.weight_decay))
        loss = RoundsLoss(self.model, config.commit, config.compile)
        self.loss, *self.optimizers = accelerator.prepare(loss, *optimizers)
        self.at, self.saved = runs.Progression(), 0
        if any(stage.until for stage in config.curriculum):
            evaluation = self.evaluate()
            for stage in config.curriculum:
                stage.mastered(evaluation)

    # Checkpoints.

    def resume(self) -> None:
        """Take up the state in the folder, or start it."""
        state = runs.read_state(self.folder)
        if state is not None:
            held, given = state.config, json.loads(json.dumps(self.config.to_dict()))
            changed = [key for key in given | held if given.get(key) != held.get(key)]
            if changed:
                raise InputError(
                    f"{str(self.folder)!r} holds a run with another configuration ({', '.join(changed)} differ); "
                    "train in another folder or give the same settings"
                )
            state.weights(self.model)
            state.moments(self.model, self.optimizers)
            self.at, self.saved = state.progress, state.progress.step
        elif self.accelerator.is_main_process:
            machine = {"machine": this_machine(), "precision_because": self.precision_because}
            write_json(
                self.folder / runs.RECORD_FILE,
                {"config": self.config.to_dict(), **machine, **provenance()},
            )
        if self.accelerator.is_main_process:
            runs.cut_metrics(self.folder, self.at.step)

    def save(self) -> None:
        """Write the whole state; the file is replaced in one rename."""
        if self.accelerator.is_main_process:
            runs.write_state(
                self.folder, self.at, self.config.to_dict(), self.model, self.optimizers
            )
        self.saved = self.at.step

    # The loop.

    def loop(self, last_step: int) -> None:
        shown, path = self.accelerator.is_main_process, self.folder / runs.METRICS_FILE
        bar = display("training", self.config.total_steps, self.at.step, shown)
        with (
            threads_for(self.model),
            writing(path),
            bar as update,
            interruptible() as interrupted,
            ExitStack() as held,
        ):
            stream = (
                held.enter_context(open(path, "a", buffering=1, encoding="utf-8"))
                if shown
                else None
            )
            while self.at.step < last_step and self.at.stage < len(self.config.curriculum):
                started = time.perf_counter()
                loss = self.step()
                self.at.seconds += time.perf_counter() - started
                self._advance(loss)
                due = self.at.step % self.config.eval_every == 0 or self._finished
                if due:
                    self.at.last_evaluation = self.evaluate()
                    if not self._finished and self.config.curriculum[self.at.stage].mastered(
                        self.at.last_evaluation
                    ):
                        self._next_stage()
                if stream is not None:
                    record = {
                        "step": self.at.step,
                        "stage": self.at.stage,
                        "loss": loss,
                        "seconds": self.at.seconds,
                    }
                    stream.write(
                        json.dumps({**record, **(self.at.last_evaluation if due else {})}) + "\n"
                    )
                ends = self._finished or self.at.step >= last_step or interrupted()
                if self.at.step % self.config.checkpoint_every == 0 or ends:
                    self.save()
                if interrupted() and not self._finished:
                    raise KeyboardInterrupt
                excess = self.at.last_evaluation.get("excess")
                beside = "" if excess is None else f" excess {excess:.4f}"
                update(completed=self.at.step, text=f"loss {loss:.4f}{beside}")
        if (
            self._finished
            and self.accelerator.is_main_process
            and not (self.folder / "model").exists()
        ):
            save_checkpoint(self.model, self.folder / "model")

    @property
    def _finished(self) -> bool:
        return self.at.stage >= len(self.config.curriculum)

    def step(self) -> float:
        """Train on one batch of episodes and return its loss; learning rates follow :func:`_schedule`."""
        shard, n_shards = self.accelerator.process_index, self.accelerator.num_processes
        batch = self.source.batch(self.at.step, self.at.stage, shard, n_shards)
        batch = batch.each(lambda tensor: tensor.to(self.accelerator.device))
        # The step of the plan: a stage that ended early counts in full, so that rates still reach their end.
        planned = (
            sum(stage.steps for stage in self.config.curriculum[: self.at.stage])
            + self.at.stage_step
        )
        for optimizer, rate in zip(
            self.optimizers, (self.config.lr, self.config.muon_lr), strict=False
        ):
            for group in optimizer.param_groups:
                group["lr"] = rate * _schedule(planned, self.config)
        self._set_recurrence()
        self.loss.train()
        if (
            self.config.machine
        ):  # its own randomness, such as dropout, is a function of the step, as the data are
            torch.manual_seed(
                int(
                    np.random.SeedSequence([self.config.seed, self.at.step, shard]).generate_state(
                        1
                    )[0]
                )
            )
        step_each_window = self.config.step_each == "window"
        latents = None
        total = torch.zeros((), device=self.accelerator.device)
        for window in batch.windows(self.config.window):
            share = window.n_rounds / batch.n_rounds
            # accelerate's own mixed precision is one for the whole process, whatever is trained in it later.
            with torch.autocast(
                self.accelerator.device.type, torch.bfloat16, self.config.precision == "bfloat16"
            ):
                loss, latents = self.loss(window, latents)
            self.accelerator.backward(loss if step_each_window else loss * share)
            if step_each_window:
                self._apply_gradients()
            latents = latents.detach()
            total += loss.detach() * share
        if not step_each_window:
            self._apply_gradients()
        value = float(self.accelerator.reduce(total, "mean"))
        if not math.isfinite(value):
            raise InputError(
                f"the loss became {value} at step {self.at.step}; train in another folder with a lower lr (now "
                f"{self.config.lr}): a run that is resumed keeps its configuration"
            )
        return value

    def _apply_gradients(self) -> None:
        """Make an optimizer step with the gradients that have come together, clipped."""
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def _set_recurrence(self) -> None:
        """Give a transformer the recurrence of the batch that comes next, see ``TrainingConfig.anneal_latents``."""
        if isinstance(self.model, HookedLatentTransformer):
            self.model.latent_kept = self.config.latent_kept(self.at.step)

    def evaluate(self) -> dict[str, float]:
        """Loss and excess over the floor on held-out episodes, with the recurrence that training has reached."""
        self._set_recurrence()
        return watched(self.model, self.source.evaluation(), self.config.commit)

    def _advance(self, loss: float) -> None:
        at, config = self.at, self.config
        at.step += 1
        at.stage_step += 1
        at.epoch_loss += loss / config.epoch_steps
        done = at.stage_step >= config.curriculum[at.stage].steps
        if at.stage_step % config.epoch_steps == 0:
            at.stale_epochs = (
                0 if (at.epoch_loss < at.best_epoch_loss - config.min_gain) else at.stale_epochs + 1
            )
            at.best_epoch_loss, at.epoch_loss = min(at.best_epoch_loss, at.epoch_loss), 0.0
            stopping = config.patience and at.stage >= config.patience_from_stage
            done = done or bool(stopping and at.stale_epochs >= config.patience)
        if done:
            self._next_stage()

    def _next_stage(self) -> None:
        at = self.at
        at.stage, at.stage_step, at.stale_epochs = at.stage + 1, 0, 0
        at.epoch_loss, at.best_epoch_loss = 0.0, math.inf


def _schedule(step: int, config: TrainingConfig) -> float:
    """Fraction of the learning rate at ``step`` of the plan: linear warm-up, then ``config.decay`` to zero.

    Neither decay is best everywhere. In runs of equal length (seed 0), linear ended nearer to the floor for the laptop
    presets of expert advice (.0006 against .0014; wide: .006 against .031), cosine for Q-learning (.020 against .024).
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay == "linear":
        return min(1.0, 2 * (1 - step / config.total_steps))
    done = (step - config.warmup_steps) / max(1, config.total_steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _how(machine: str | Machine) -> dict[str, Any]:
    """How to make a machine again: its builder and the arguments."""
    if isinstance(machine, str):
        return {"builder": machine}
    if "builder" not in machine.origin:
        raise InputError(
            f"{machine.name!r} does not say how to make it again, so no run of it could be resumed: give the function "
            "that makes it to interp.register_machine(NAME, build, ...) and train machine=NAME"
        )
    return {name: machine.origin[name] for name in ("builder", "arguments")}


def _begin(model: Any, start: str, goal: TrainingGoal) -> None:
    """Set the weights before the first step: as one of the goal's starts does, or to those of a trained model.

    ``start`` is one of the goal's starts, the name of a learned model that ships, or a checkpoint folder.
    """
    if start in goal.starts:
        require(
            isinstance(model, HookedLatentTransformer),
            f"start {start!r} sets the weights of a transformer; give a checkpoint of {model.name!r}, or none",
        )
        goal.starts[start](model)
        return
    trained = [
        record.name
        for record in models()
        if record.kind == "learned" and record.task == model.layout.task
    ]
    if start not in trained and not Path(start).is_dir():
        raise unknown_name(f"start of {model.layout.task!r}", start, [*goal.starts, *trained])
    source: Any = load(start)
    here, there = _shape(model), _shape(source)
    require(
        here.keys() == there.keys(),
        f"weights of {start!r} do not fit this run: it is another kind of model",
    )
    apart = [key for key in here if here[key] != there[key]]
    if apart:
        said = "; ".join(f"{key} is {here[key]} here and {there[key]} there" for key in apart)
        raise InputError(f"weights of {start!r} do not fit this run: {said}; give the run the same")
    model.load_state_dict(source.state_dict())


def _shape(model: Any) -> dict[str, Any]:
    """What two models must have in common for the weights of one to fit the other."""
    said: dict[str, Any] = (
        model.config.to_dict() if isinstance(model, HookedLatentTransformer) else _how(model)
    )
    return {key: value for key, value in said.items() if key not in _SAID}


# What it runs on, and in which precision.


def _units() -> list[str]:
    """The bfloat16 units of the CPU that this process runs on, by the names that torch gives them."""
    found: dict[str, Any] = getattr(
        torch.cpu, "get_capabilities", dict
    )()  # not in every version of torch
    return sorted(name for name, has in found.items() if has is True and "bf16" in name)


def this_machine() -> str:
    """What this process can use, in words: architecture, CPU, its cores and vector units, GPU."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    parts = [platform.machine(), found.get("cpu_name"), f"{os.cpu_count()} CPU cores"]
    parts.append(torch.backends.cpu.get_cpu_capability())
    if found:
        parts.append(f"bfloat16 units: {' '.join(_units()) or 'none'}")
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(part for part in parts if part)


def taken(config: TrainingConfig, folder: Path, kind: str) -> tuple[str, str]:
    """The precision that ``config`` is trained in on a ``kind`` of device ("cpu", "cuda", "mps"), and why."""
    if config.precision != "auto":
        return config.precision, "named by the settings"
    if config.machine:
        return "float32", "a machine that is no transformer is trained in its own"
    record = folder / runs.RECORD_FILE
    about = read_json(record, "config") if record.is_file() else {}
    state = runs.read_state(folder)
    begun = about.get("config") if state is None else state.config
    if begun:
        with reading(record):
            return str(begun["precision"]), str(about.get("precision_because", "as this run began"))
    if kind == "cuda":
        whole = torch.cuda.is_bf16_supported(including_emulation=False)
        return (
            "bfloat16" if whole else "float32"
        ), f"the GPU has {'' if whole else 'no '}bfloat16 units"
    if kind != "cpu":
        return "float32", f"nothing says whether {kind!r} has bfloat16 units"
    units = ", ".join(_units())
    return (
        ("bfloat16", f"the CPU has {units}")
        if units
        else ("float32", "the CPU reports no bfloat16 units")
    )


def kind_of(device: str) -> str:
    """The kind of device that a run on ``device`` computes on; "auto" is this machine's accelerator, if it has one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return (found.type if found else "cpu") if device == "auto" else device


# Muon: orthogonalised momentum for weight matrices (Jordan et al. 2024; size of a step as in Liu et al. 2025).
# torch.optim.Muon takes 2-D parameters only; attention weights here are stacks of matrices, one per head, and each
# matrix of a stack is orthogonalised on its own.

_MOMENTUM = 0.95
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration: singular values go to about 1 (.7 to 1.2) in five steps."""
_ADAM_RMS = 0.2
"""Root mean square of an entry of AdamW's usual update over the learning rate: one rate serves both optimizers."""


def is_stack(name: str, parameter: Tensor) -> bool:
    """Whether Muon trains the parameter: the weights of blocks, not their biases, embeddings or the unembedding."""
    return (
        name.startswith("blocks.")
        and name.rpartition(".")[2].startswith("W_")
        and parameter.ndim >= 2
    )


class Muon(torch.optim.Optimizer):
    """``W <- (1 - lr wd) W - .2 lr sqrt(max(rows, columns)) O(g + .95 m)`` with ``m <- .95 m + g``, ``O`` orthogonal.

    Parameters are matrices, or stacks of them; the learning rate is on AdamW's scale, weight decay decoupled as there.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                update = _orthogonalise(
                    gradient + _MOMENTUM * state["momentum"].mul_(_MOMENTUM).add_(gradient)
                )
                rate = _ADAM_RMS * group["lr"] * max(parameter.shape[-2:]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def _orthogonalise(
    matrix: Float[Tensor, "*stack rows columns"],
) -> Float[Tensor, "*stack rows columns"]:
    """About ``U V^T`` of each matrix's singular value decomposition, by Newton-Schulz iterations."""
    a, b, c = _NEWTON_SCHULZ
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
