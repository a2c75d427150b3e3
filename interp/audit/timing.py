"""When is the answer there? After each round, against the round at which it can be known; and after more rounds.

The question of the last round is asked of the states of all earlier rounds: the model's own, and those of the algorithm
that it is held against, which can know nothing before it can be known. A model that is right earlier has another source
than that algorithm; one that is right later, or forgets, computes something else.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.algorithm import NEXT, Algorithm, Values
from interp.audit.subject import Array, Subject, rounds_for
from interp.audit.verdicts import NOT_APPLICABLE, THRESHOLDS, UNDECIDED, Verdict, placed
from interp.model.rollout import run_round
from interp.statistics import Interval, mean_interval, ratio_interval

_SPAN = 0.05
"""A gain over the rounds that is a smaller share of the loss at first is none that could be early, late or lost."""
_REST = 1e-9
INNER = ("cycle", "slow")
"""Components that run several times in a round, each time on what it left."""


def readouts(subject: Subject) -> Float[np.ndarray, "state episode"]:
    """The loss of the last round's question, asked of what each round reads."""
    run, n_rounds = subject.run, subject.shape[1]
    fed = run.fed.at(n_rounds - 1)
    with torch.no_grad():
        said = [run_round(subject.model, fed, run.latents[:, s], run.layout, run.commit, ()) for s in range(n_rounds)]
    return _last_loss(subject, torch.stack([step.prediction for step in said]))


def of_algorithm(subject: Subject, algorithm: Algorithm) -> Float[np.ndarray, "state episode"]:
    """The same of an algorithm: its states of every round, and the last round's question."""
    values, rounds = algorithm.run(subject.episodes), range(subject.shape[1])
    state, _ = algorithm.at(values, list(rounds))
    _, inputs = algorithm.at(values, [rounds[-1]] * len(rounds))
    _, asked = algorithm.step(state, inputs)
    told = torch.from_numpy(np.asarray(algorithm.distribution(asked), np.float64)).transpose(0, 1)
    return _last_loss(subject, subject.run.layout.prediction(told))


def cycles(subject: Subject) -> pd.DataFrame:
    """Prediction read out after each inner cycle of a round, for machines that have them; empty for the others.

    A round is left after so many cycles: what the last one gives is put back to what that one gave. ``loss`` is of the
    round's own question, and ``next`` of that of the following round, which reads what was left; where a machine
    answers before its cycles, only ``next`` can change. "0" is a round that left what it had read.
    """
    component = next(
        (found for key, found in subject.model.points.items() if key in INNER and found.n_layers > 1), None
    )
    if component is None:
        return pd.DataFrame()
    run, n_cycles = subject.run, component.n_layers
    rounds = [t for t in subject.writes if t + 1 < subject.shape[1]]
    rows = []
    for cycle in range(n_cycles + 1):
        own, then = [], []
        for t in rounds:
            held: list[Tensor] = []
            hooks = [
                (component.hook.format(layer=cycle - 1), lambda given, hook, held=held: held.append(given.clone())),
                (component.hook.format(layer=n_cycles - 1), lambda given, hook, held=held: held[0]),
            ]
            hooks = hooks if 0 < cycle < n_cycles else []
            with torch.no_grad():
                left = run_round(subject.model, run.fed.at(t), run.latents[:, t], run.layout, run.commit, hooks)
                carried = left.latents if cycle else run.latents[:, t]
                after = run_round(subject.model, run.fed.at(t + 1), carried, run.layout, run.commit, ())
            own.append(_loss_in(subject, left.prediction, t) if cycle else np.full(len(carried), np.nan))
            then.append(_loss_in(subject, after.prediction, t + 1))
        numbers = {"loss": np.mean(own, 0), "next": np.mean(then, 0)}
        told = {name: mean_interval(of).columns(name) for name, of in numbers.items() if np.isfinite(of).all()}
        rows.append({"cycles": cycle, "of": n_cycles, **{k: v for part in told.values() for k, v in part.items()}})
    return pd.DataFrame(rows)


def _loss_in(subject: Subject, prediction: Tensor, t: int) -> Array:
    return subject.losses(prediction.unsqueeze(1), slice(t, t + 1))[:, 0]


def _last_loss(subject: Subject, predictions: Tensor) -> Array:
    last = subject.shape[1] - 1
    return subject.losses(predictions.unsqueeze(2), slice(last, last + 1))[..., 0]


def table(subject: Subject) -> pd.DataFrame:
    """The loss of the last question by the round whose state is asked: the model's, and the algorithm's."""
    of = {"model": readouts(subject)}
    if subject.algorithm is not None:
        of[subject.algorithm.name] = of_algorithm(subject, subject.algorithm)
    return pd.DataFrame(
        {"of": name, "state_of_round": s, **mean_interval(part).columns("loss")}
        for name, losses in of.items()
        for s, part in enumerate(losses)
    )


def in_time(subject: Subject, blank: Subject | None) -> Verdict:
    """Is the answer there when it can be known? By the round in which model and algorithm differ most."""
    question, bound = "Is the answer there when it can be known?", THRESHOLDS["in time"].value
    if subject.algorithm is None:
        return Verdict("in time", question, NOT_APPLICABLE, note="The task registers no algorithm.")
    known, losses = of_algorithm(subject, subject.algorithm), readouts(subject)
    span = float(known[0].mean() - known[-1].mean())
    if span <= _SPAN * float(known[0].mean()):
        return Verdict(
            "in time", question, NOT_APPLICABLE, note="The algorithm's states gain nothing over these rounds."
        )
    early = _worst(known - losses, span)
    late = _worst(losses - known, span)
    control = None
    if blank is not None:
        control = _worst(readouts(blank) - known, span)[1].estimate
    word = UNDECIDED
    for name, (_, number) in (("early", early), ("late", late)):
        if number.low > bound:
            word = name
    if word == UNDECIDED and max(early[1].high, late[1].high) < bound and control is not None:
        word = "in time"
    s, number = max(early, late, key=lambda found: found[1].estimate) if word != "early" else early
    side = "ahead of" if number is early[1] else "behind"
    return Verdict(
        "in time",
        question,
        word,
        number=number,
        what=f"share of the gain that it is {side} {subject.algorithm.name}",
        control=control,
        control_is="an untrained copy is behind by",
        threshold=bound,
        note=f"At the state of round {s} of {len(losses) - 1}; ahead by {early[1]}, behind by {late[1]}.",
    )


def _worst(differences: Array, span: float) -> tuple[int, Interval]:
    """The state, after the first, at which a difference is largest, and the difference as a share of the gain."""
    s = 1 + int(differences[1:].mean(1).argmax())
    return s, ratio_interval(differences[s], np.full(differences.shape[1], span))


# More rounds than there is something new in.


def at_rest(algorithm: Algorithm, values: Values) -> Array:
    """From which round on an algorithm's memory stays, Int[episode]; the number of rounds where it never does."""
    memory = np.asarray(values[algorithm.memory], np.float64)
    after = np.asarray(values[NEXT + algorithm.memory], np.float64)
    moved = np.abs(after - memory).reshape(*memory.shape[:2], -1).max(-1) > _REST
    n_rounds = moved.shape[1]
    later = n_rounds - moved[:, ::-1].argmax(1)
    return np.where(moved.any(1), later, 0)


def after_rest(subject: Subject) -> pd.DataFrame | None:
    """Per episode and round after the algorithm came to rest: how far predictions moved, and lie from its own."""
    algorithm = subject.algorithm
    if algorithm is None or not algorithm.memory:
        return None
    values = algorithm.run(subject.episodes)
    rest, told = at_rest(algorithm, values), subject.told(algorithm)
    rows = []
    for e in np.flatnonzero(rest < subject.shape[1] - 1):
        first = max(int(rest[e]), subject.task.data.first_asked)
        for t in range(first, subject.shape[1]):
            moved = float(subject.distance(subject.plain[e, t], subject.plain[e, first]))
            apart = float(subject.distance(subject.plain[e, t], told[e, t]))
            before = float(subject.distance(subject.plain[e, first], subject.plain[e, subject.task.data.first_asked]))
            rows.append(
                {"episode": int(e), "rounds_since": t - first, "moved": moved, "apart": apart, "before": before}
            )
    return pd.DataFrame(rows) if rows else None


def rest_table(subjects: dict[str, Subject]) -> pd.DataFrame:
    """By regime and rounds since the algorithm came to rest: how far predictions moved, and lie from its own."""
    rows = []
    for regime, subject in subjects.items():
        frame = after_rest(subject)
        if frame is None:
            continue
        for since in sorted(set(frame["rounds_since"])):
            of = frame[frame["rounds_since"] == since]
            numbers = {**mean_interval(of["moved"]).columns("moved"), "apart": float(of["apart"].mean())}
            rows.append({"regime": regime, "rounds_since": since, **numbers, "n": len(of)})
    return pd.DataFrame(rows)


def stays(subjects: dict[str, Subject]) -> Verdict:
    """Does the model come to rest when the algorithm has? In the regime in which it moves most.

    Control: how far predictions moved before the algorithm came to rest, in any regime. Where they never move, that
    they stay says nothing.
    """
    question, bound = "Does it stay, once the algorithm has come to rest?", THRESHOLDS["stays"].value
    found = {}
    for regime, subject in subjects.items():
        frame = after_rest(subject)
        if frame is not None:
            last = frame.loc[frame.groupby("episode")["rounds_since"].idxmax()]
            last = last[last["rounds_since"] >= 2]
            if len(last) >= 8:
                found[regime] = (mean_interval(last["moved"]), last)
    if not found:
        return Verdict("stays", question, NOT_APPLICABLE, note="The algorithm does not come to rest on these episodes.")
    regime = max(found, key=lambda name: found[name][0].estimate)
    number, last = found[regime]
    control = max(float(of[1]["before"].mean()) for of in found.values())
    word = placed(number, bound, "goes on", "stays")
    if word == "stays" and control <= bound:
        word = UNDECIDED
    note = (
        f"Regime {regime!r}, {len(last)} episodes, {last['rounds_since'].mean():.1f} rounds later on average; "
        f"predictions then lie {last['apart'].mean():.2f} from the algorithm's."
    )
    others = "; ".join(f"{name} {of[0]}" for name, of in found.items() if name != regime)
    note = (
        f"Regime {regime!r}, {len(last)} episodes, {last['rounds_since'].mean():.1f} rounds later on average; "
        f"predictions then lie {last['apart'].mean():.2f} from the algorithm's."
    )
    return Verdict(
        "stays",
        question,
        word,
        number=number,
        what="predictions move by",
        control=control,
        control_is="before that they moved by",
        threshold=bound,
        note=note + (f" Elsewhere: {others}." if others else ""),
    )


def longer(subject: Subject, n_rounds: int) -> Verdict:
    """Are answers kept when more rounds follow than the audit otherwise runs (``n_rounds``)?"""
    question, bound = "Are answers kept over more rounds?", THRESHOLDS["in time"].value
    losses = subject.losses(subject.run.predictions)
    if losses.shape[1] <= n_rounds:
        return Verdict("longer", question, NOT_APPLICABLE, note=f"There is room for {losses.shape[1]} rounds alone.")
    first = float(losses[:, subject.task.data.first_asked].mean())
    span = first - float(losses[:, n_rounds - 1].mean())
    if span <= _SPAN * first:
        return Verdict("longer", question, NOT_APPLICABLE, note="Nothing is gained by the rounds before.")
    rise = ratio_interval(losses[:, -1] - losses[:, n_rounds - 1], np.full(len(losses), span))
    control = None
    if subject.algorithm is not None:
        told = subject.run.layout.prediction(torch.from_numpy(subject.told(subject.algorithm)))
        of_it = subject.losses(told)
        control = float((of_it[:, -1] - of_it[:, n_rounds - 1]).mean()) / span
    word = placed(rise, bound, "lost", "kept", has_control=control is not None)
    return Verdict(
        "longer",
        question,
        word,
        number=rise,
        what=f"share of the gain lost from round {n_rounds - 1} to {losses.shape[1] - 1}",
        control=control,
        control_is="the algorithm loses",
        threshold=bound,
    )


def twice(subject: Subject, regime: str, seed: int) -> Subject:
    """The model on episodes of a regime with twice as many rounds, as far as there is room."""
    return Subject.of(subject.model, subject.effort, regime, seed, rounds_for(subject.model, subject.effort, 2))
