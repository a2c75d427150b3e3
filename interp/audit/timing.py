"""When is the answer there? After each round, against the round at which it can be known; and after more rounds.

What is asked of more rounds is asked of what was reached before: the share of the gain that is kept, the share of the
way that predictions go on. A model that reached nothing has nothing to keep, and none of its words is "yes".

The question of the last round is asked of the states of all earlier rounds: the model's own, and those of the algorithm
that it is compared with, which can know nothing before it can be known. A model that is right earlier has another
source, which may be the truth itself; one that is right later, or forgets, computes something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.audit.trial import THRESHOLDS, Array, Trial, claimed
from interp.audit.used import donors
from interp.core.algorithm import NEXT, Algorithm, Values
from interp.interventions.experiment import Edit, Experiment, batches, run_on
from interp.interventions.moves import flat
from interp.interventions.sites import Place, Site
from interp.results.measure import AS_WELL, UNTRAINED, Control, Measure, Verdict
from interp.stats.intervals import Interval, mean_interval, ratio_interval

_SPAN = 0.05
"""A gain over the rounds that is a smaller share of the loss at first is none that could be early, late or lost."""
_REST = 1e-9
_LEAST = 8  # fewer episodes after rest say nothing
_INNER = (
    "cycle",
    "slow",
)  # components that run several times in a round, each time on what it left


def _readouts(trial: Trial) -> Float[np.ndarray, "state episode"]:
    """The loss of the last round's question, asked of what each round reads."""
    n = trial.shape[1]
    ran = run_on(trial.model, trial.run, [n - 1] * n, 1, trial.run.latents[:, :n])
    return _loss_in(trial, ran.predictions[0, :, :, 0].transpose(0, 1), n - 1)


def of_algorithm(trial: Trial, algorithm: Algorithm) -> Float[np.ndarray, "state episode"]:
    """The same of an algorithm: its states of every round, and the last round's question."""
    values, rounds = algorithm.run(trial.episodes), range(trial.shape[1])
    state, _ = algorithm.at(values, list(rounds))
    _, inputs = algorithm.at(values, [rounds[-1]] * len(rounds))
    _, asked = algorithm.step(state, inputs)
    given = torch.from_numpy(np.asarray(algorithm.distribution(asked), np.float64)).transpose(0, 1)
    return _loss_in(trial, trial.run.layout.prediction(given), rounds[-1])


def cycles(trial: Trial) -> pd.DataFrame:
    """Prediction read out after each inner cycle of a round, for machines that have them; empty for the others.

    A round is left after so many cycles: what the last one gives is put back to what that one gave. ``loss`` is of the
    round's own question, and ``next`` of that of the following round, which reads what was left; where a machine
    answers before its cycles, only ``next`` can change. "0" is a round that left what it had read.
    """
    component = next(
        (
            found
            for key, found in trial.model.points.items()
            if key in _INNER and found.n_layers > 1
        ),
        None,
    )
    if component is None:
        return pd.DataFrame()
    run, n = trial.run, component.n_layers
    rounds = [t for t in trial.writes if t + 1 < trial.shape[1]]
    sites = [Site(component.key, cycle, kind=component) for cycle in range(n)]
    (plain,) = batches(Experiment(trial.model, run, {"plain": []}, rounds, watched=sites))
    edits = {str(i + 1): [Edit(Place(sites[-1]), plain.seen[sites[i]])] for i in range(n - 1)}
    unread = run_on(trial.model, run, [t + 1 for t in rounds], 1, run.latents[:, rounds])
    rows = []
    for cycle, ran in enumerate(
        [unread, *batches(Experiment(trial.model, run, {**edits, str(n): []}, rounds, 1))]
    ):
        numbers: dict[str, float] = {}
        for name, lag in (("loss", 0), ("next", 1)) if cycle else (("next", 0),):
            predictions, t_read = (
                ran.predictions[0, :, :, lag],
                [t + (name == "next") for t in rounds],
            )
            losses = [_loss_in(trial, predictions[:, i], t) for i, t in enumerate(t_read)]
            if np.isfinite(losses).all():
                numbers |= mean_interval(np.mean(losses, 0), participants=trial.whose).columns(name)
        rows.append({"cycles": cycle, "of": n, **numbers})
    return pd.DataFrame(rows)


def _loss_in(trial: Trial, predictions: Tensor, round: int) -> Array:
    """The losses of predictions ``[*batch, episode, ...]`` of one round."""
    at = predictions.ndim - trial.run.layout.prediction_axes
    return trial.losses(predictions.unsqueeze(at), slice(round, round + 1))[..., 0]


def table(trial: Trial) -> pd.DataFrame:
    """The loss of the last question by the round whose state is asked: the model's, and the algorithm's."""
    of = {"model": _readouts(trial)}
    if trial.algorithm is not None:
        of[trial.algorithm.name] = of_algorithm(trial, trial.algorithm)
    return pd.DataFrame(
        {
            "of": name,
            "state_of_round": s,
            **mean_interval(part, participants=trial.whose).columns("loss"),
        }
        for name, losses in of.items()
        for s, part in enumerate(losses)
    )


def in_time(trial: Trial, leaks: bool = False) -> Measure:
    """Is the answer there when it can be known? By the state at which the model is farthest behind the algorithm.

    Answers that are there earlier are a leak, and no "yes", of a model that ``leaks``: it sees the truth of a round.
    """
    if trial.algorithm is None:
        return claimed("in time", lacking="no algorithm of its task to say when")
    known, losses = of_algorithm(trial, trial.algorithm), _readouts(trial)
    span = float(known[0].mean() - known[-1].mean())
    if span <= _SPAN * float(known[0].mean()):
        return claimed("in time", lacking="no rounds in which the algorithm gains anything")
    (s, late), (early_at, early) = (
        _worst(of, span, trial.whose) for of in (losses - known, known - losses)
    )
    unless: dict[Verdict, str] = {}
    note = f"It is farthest behind at the state of round {s} of {len(losses) - 1}."
    if early.low > THRESHOLDS["in time"].value:
        note += f" It is ahead by {early} at round {early_at}, from another source than {trial.algorithm.name}."
        unless = (
            {"yes": f"the truth {AS_WELL}: a leak, by which it is ahead by {early}"}
            if leaks
            else {}
        )
    return claimed(
        "in time",
        late,
        unless=unless,
        unit=f"share of the gain that it is behind {trial.algorithm.name}",
        controls=trial.untrained(
            lambda copy: _worst(_readouts(copy) - known, span, trial.whose)[1], "below"
        ),
        note=note,
    )


def _worst(
    differences: Array, span: float, whose: Int[np.ndarray, " episode"]
) -> tuple[int, Interval]:
    """The state, after the first, at which a difference is largest, and the difference as a share of the gain."""
    s = 1 + int(differences[1:].mean(1).argmax())
    return s, ratio_interval(
        differences[s], np.full(differences.shape[1], span), participants=whose
    )


def unseen(trial: Trial, is_used: bool) -> Measure:
    """Does the prediction of a round stay where the truth of that round is exchanged for another episode's?

    By the round in which it moves most. The control is the same exchange in the round before, which a machine that
    carries anything notices. An untrained copy does not see the truth either: "yes" is for answers that are worth
    something without it.
    """
    moved = _exchanged(trial, range(trial.shape[1]), 0)
    before = float(_exchanged(trial, trial.writes, 1).mean(0).max())
    t = int(moved.mean(0).argmax())
    unless: dict[Verdict, str] = (
        {} if is_used else {"yes": f"{UNTRAINED} {AS_WELL}: no use of what is carried shows"}
    )
    controls = {"the truth of the round before": Control(before)}
    note = f"It moves most in round {t} of {trial.shape[1]}."
    number = mean_interval(moved[:, t], participants=trial.whose)
    return claimed("unseen", number, controls=controls, unless=unless, note=note)


def _exchanged(trial: Trial, rounds: Sequence[int], lag: int) -> Float[np.ndarray, "episode round"]:
    """How far predictions of rounds move by another episode's truth in them, or in the round ``lag`` before."""
    run, fed = trial.run, trial.run.fed
    others = torch.from_numpy(donors(trial.shape[0], trial.effort.seed))
    behind = min(run.layout.predict_position, run.layout.position(run.layout.predict_label)) + 1
    parts = {name: fed.tensors()[name][others] for name in fed.after}
    for name, own in (("tokens", fed.tokens), ("values", fed.values)):
        parts[name] = torch.cat([own[..., :behind], own[others][..., behind:]], -1)
    edits = {"truth": [Edit(None, replace(fed, **parts))]}
    (ran,) = batches(
        Experiment(trial.model, run, edits, [t - lag for t in rounds], lag, commit="target")
    )
    return trial.distance(
        trial.distribution(ran.predictions[0, :, :, lag]), trial.plain[:, list(rounds)]
    )


def _at_rest(algorithm: Algorithm, values: Values) -> Array:
    """From which round on an algorithm's memory stays, Int[episode]; the number of rounds where it never does."""
    memory, after = (flat(values[key]) for key in (algorithm.memory, NEXT + algorithm.memory))
    moved = np.abs(after - memory).max(-1) > _REST
    return np.where(moved.any(1), moved.shape[1] - moved[:, ::-1].argmax(1), 0)


def _after_rest(trial: Trial) -> pd.DataFrame | None:
    """Per episode and round after the algorithm came to rest: how far predictions moved, and lie from its own."""
    algorithm = trial.algorithm
    if algorithm is None or not algorithm.memory:
        return None
    rest, given = _at_rest(algorithm, algorithm.run(trial.episodes)), trial.predicted_by(algorithm)
    parts, asked = [], trial.task.data.first_asked
    for e in np.flatnonzero(rest < trial.shape[1] - 1):
        first, plain = max(int(rest[e]), asked), trial.plain[e]
        moved, apart = (
            trial.distance(plain[first:], other) for other in (plain[first], given[e, first:])
        )
        before = float(trial.distance(plain[first], plain[asked]))
        rounds = {"episode": int(e), "whose": trial.whose[e], "rounds_since": np.arange(len(moved))}
        parts.append(pd.DataFrame({**rounds, "moved": moved, "apart": apart, "before": before}))
    return pd.concat(parts, ignore_index=True) if parts else None


def rest_table(trials: Mapping[str, Trial]) -> pd.DataFrame:
    """By regime and rounds since the algorithm came to rest: how far predictions moved, and lie from its own."""
    rows = []
    for regime, trial in trials.items():
        if (frame := _after_rest(trial)) is not None:
            for since, of in frame.groupby("rounds_since"):
                moved = mean_interval(of["moved"], participants=of["whose"]).columns("moved")
                row = {"regime": regime, "rounds_since": since, **moved}
                rows.append({**row, "apart": float(of["apart"].mean()), "n": len(of)})
    return pd.DataFrame(rows)


def stays(trials: Mapping[str, Trial]) -> Measure:
    """Does the model come to rest when the algorithm has? In the regime in which it goes on most."""
    found = {
        regime: number
        for regime, trial in trials.items()
        if (number := _goes_on(trial)) is not None
    }
    if not found:
        return claimed(
            "stays", lacking="no predictions that move until the algorithm comes to rest"
        )
    regime = max(found, key=lambda name: found[name].estimate)
    others = "; ".join(f"{name} {of}" for name, of in found.items() if name != regime)
    note = f"Regime {regime!r}." + (f" Elsewhere: {others}." if others else "")
    return claimed(
        "stays", found[regime], controls=trials[regime].untrained(_goes_on, "below"), note=note
    )


def _goes_on(trial: Trial) -> Interval | None:
    """How far predictions move after rest, as a share of the way before it; None where there is no way or no rest.

    By the last round of every episode that is two rounds or more after rest.
    """
    frame = _after_rest(trial)
    if frame is None:
        return None
    last = frame.loc[frame.groupby("episode")["rounds_since"].idxmax()].query("rounds_since >= 2")
    if len(last) < _LEAST or last["before"].mean() <= THRESHOLDS["stays"].value:
        return None
    return ratio_interval(
        last["moved"], np.full(len(last), last["before"].mean()), participants=last["whose"]
    )


def longer(trial: Trial, n_rounds: int) -> Measure:
    """Are answers kept when more rounds follow than the audit otherwise runs (``n_rounds``)?"""
    if trial.shape[1] <= n_rounds:
        return claimed("longer", lacking=f"no room for more than {trial.shape[1]} rounds")
    kept = _kept(trial, n_rounds)
    if kept is None:
        return claimed("longer", lacking="no gain in the rounds before that is clear of 0")
    unit = f"share of the gain by round {n_rounds - 1} that is there in round {trial.shape[1] - 1}"
    return claimed(
        "longer", kept, unit=unit, controls=trial.untrained(lambda copy: _kept(copy, n_rounds))
    )


def _kept(trial: Trial, n_rounds: int) -> Interval | None:
    """The share of what the loss fell by in ``n_rounds`` that is left at the end; None where it may not have fallen."""
    losses = trial.losses(trial.run.predictions)
    first = losses[:, trial.task.data.first_asked]
    fell = mean_interval(first - losses[:, n_rounds - 1], participants=trial.whose)
    if fell.low <= _SPAN * first.mean():
        return None
    lost, way = losses[:, -1] - losses[:, n_rounds - 1], np.full(len(losses), fell.estimate)
    return ratio_interval(lost, way, participants=trial.whose).complement
