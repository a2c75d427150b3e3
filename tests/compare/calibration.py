"""The verdicts on machines whose right verdict is known: ``python -m tests.compare.calibration [TASK] [--full]``.

``--from=K`` goes on with the K-th machine, counted from 0.

Prints one row a machine: what each verdict should be, and what it is. Machines marked "seen" were looked at while
thresholds were chosen; the others were not. What should be:

* the same machine in another basis, with parts that nobody reads, as another variant: the same in everything;
* another gain: another behaviour, the same state, update and circuit;
* a memory that fades (leaky) or ends (window): another state or update;
* another discount: another behaviour, and another state or update;
* untrained: nothing the same.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor

import interp
from circuits import compare
from circuits.compare.variants import noisy, rotated, with_distractors
from interp.model.transformer import HookedLatentTransformer, untrained

SAME = ("same", "same", "same", "same")
NOT_SAME = ("different|undecided",) * 4
QUESTIONS = ("behaviour", "state", "update", "circuit")


@dataclass(frozen=True)
class Machine:
    """A machine and what the verdicts against ``reference`` should be; alternatives are joined by "|"."""

    name: str
    make: Callable[[], HookedLatentTransformer]
    wanted: tuple[str, str, str, str]
    seen: bool = False


def leaky(model: HookedLatentTransformer, keep: float) -> HookedLatentTransformer:
    """A handwired model whose state fades by the factor ``keep`` every round."""

    def fade(own: HookedLatentTransformer, latents: Tensor, update: Tensor, slots: Tensor) -> Tensor:
        written = type(own).write(own, latents, update, slots)
        if not own.is_handwired:  # its untrained copy
            return written
        held = own.layout.per_latent(own.read_state(written))
        return written + (keep - 1) * held @ torch.linalg.pinv(own.state_map).T

    return _writing(model, fade, f"leaky-{keep}")


def windowed(model: HookedLatentTransformer, rounds: int) -> HookedLatentTransformer:
    """Weighted Majority of the last ``rounds`` rounds: what a round added is taken away again when it is that old."""
    n = len(model.state_map)
    first = model.config.d_model
    grown = with_distractors(model, n * rounds)

    def forget(own: HookedLatentTransformer, latents: Tensor, update: Tensor, slots: Tensor) -> Tensor:
        written = type(own).write(own, latents, update, slots)
        if not own.is_handwired:
            return written
        gained = own.read_state(written) - own.read_state(latents)
        past = latents[:, 0, first:]
        written = written - (past[:, -n:] @ torch.linalg.pinv(own.state_map).T).unsqueeze(1)
        written[:, 0, first:] = torch.cat([gained, past[:, :-n]], -1)
        return written

    made = _writing(grown, forget, f"last-{rounds}")
    with torch.no_grad():
        made.latents.table[:, first:] = 0
    return made


def _writing(model: HookedLatentTransformer, write: Any, name: str) -> HookedLatentTransformer:
    changed = copy.deepcopy(model)
    changed.write = MethodType(write, changed)  # type: ignore[method-assign]
    changed.config = replace(model.config, name=name)
    return changed


def experts() -> Iterator[Machine]:
    """Against ``wma-handwired`` with gain .5."""

    def wma(**options: Any) -> HookedLatentTransformer:
        return interp.load("wma-handwired", n_experts=4, **options).double()

    yield Machine("itself", wma, SAME, seen=True)
    yield Machine("rotated", lambda: rotated(wma(), 1), SAME)
    yield Machine("with distractors", lambda: with_distractors(wma(), 2, 1), SAME)
    yield Machine("variant P", lambda: wma(variant="P"), SAME)
    yield Machine("softmax form", lambda: wma(eta=60.0), SAME)
    yield Machine("gain 0.2", lambda: wma(log_gamma=0.2), ("different", *SAME[1:]))
    yield Machine("gain 1", lambda: wma(log_gamma=1.0), ("different", *SAME[1:]))
    yield Machine("noise .1", lambda: noisy(wma(), 0.1), ("different|undecided",) * 3 + ("same|undecided",))
    for keep in (0.98, 0.9):
        yield Machine(
            f"leaky {keep}", lambda keep=keep: leaky(wma(), keep), ("different", "different|same", "different", "same")
        )  # type: ignore[misc]
    for rounds in (10, 5):
        yield Machine(
            f"last {rounds} rounds",
            lambda rounds=rounds: windowed(wma(), rounds),
            ("different", "different", "different", "same"),
        )  # type: ignore[misc]
    yield Machine(
        "wma-learned", lambda: interp.load("wma-learned"), ("different", "same", "same", "different"), seen=True
    )
    yield Machine(
        "wma-learned-wide", lambda: interp.load("wma-learned-wide"), ("different", "same", "same", "different")
    )
    for seed in range(6):
        yield Machine(
            f"untrained {seed}", lambda seed=seed: untrained(interp.load("wma-learned"), 100 + seed), NOT_SAME
        )  # type: ignore[misc]


def qlearning() -> Iterator[Machine]:
    """Against ``qlearning-handwired`` with discount .9."""

    def q(**options: Any) -> HookedLatentTransformer:
        return interp.load("qlearning-handwired", n_states=4, n_actions=3, **options).double()

    other = ("different", "different", "different", "same|undecided")
    yield Machine("itself", q, SAME, seen=True)
    yield Machine("rotated", lambda: rotated(q(), 1), SAME)
    yield Machine("softmlp", lambda: q(variant="softmlp"), (*SAME[:3], "same|different|undecided"))
    yield Machine("lin", lambda: q(variant="lin"), (*SAME[:3], "same|different|undecided"))
    yield Machine("gamma 0", lambda: q(gamma=0.0), other)
    yield Machine("gamma .5", lambda: q(gamma=0.5), other)
    learned = ("different", "different|undecided", "different", "different")
    yield Machine("qlearning-learned", lambda: interp.load("qlearning-learned"), learned, seen=True)
    yield Machine("untrained", lambda: untrained(interp.load("qlearning-learned"), 100), NOT_SAME)


TASKS = {
    "experts": (lambda: interp.load("wma-handwired", n_experts=4).double(), experts),
    "qlearning": (lambda: interp.load("qlearning-handwired", n_states=4, n_actions=3).double(), qlearning),
}
"""The reference of each task, and its machines. By name a reference would take the model's own rates."""


def rows(
    task: str, effort: compare.Effort, chosen: Callable[[Machine], bool] = lambda m: True
) -> Iterator[dict[str, Any]]:
    """A row a machine: the verdicts, those wanted, whether all are right."""
    reference, machines = TASKS[task]
    for machine in machines():
        if not chosen(machine):
            continue
        found = compare.run(machine.make(), reference(), effort=effort)
        words = {q: found.verdicts[q].word for q in QUESTIONS}
        right = {q: w in want.split("|") for (q, w), want in zip(words.items(), machine.wanted, strict=True)}
        bounds = {f"{q} bound": str(found.verdicts[q].bound) for q in QUESTIONS}
        answer = found.algorithm.family or f"none ({found.algorithm.closest})"
        missed = " ".join(q for q, ok in right.items() if not ok)
        yield {"machine": machine.name, "seen": machine.seen, **words, "missed": missed, "algorithm": answer, **bounds,
               "cpu_seconds": found.settings["cpu_seconds"]}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = [name for name in sys.argv[1:] if name in TASKS] or list(TASKS)
    effort = compare.FULL if "--full" in sys.argv else compare.QUICK
    start = int(next((a.removeprefix("--from=") for a in sys.argv if a.startswith("--from=")), 0))
    for name in asked:
        skipped = {m.name for m in list(TASKS[name][1]())[:start]}
        for row in rows(name, effort, lambda m, skipped=skipped: m.name not in skipped):  # type: ignore[misc]
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
