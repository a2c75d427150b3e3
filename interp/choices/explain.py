"""Which algorithm explains what a player chooses, where choices are all that is seen of it.

:func:`explain_choices` is :func:`~circuits.compare.algorithm.explain` with another link: the player, a person or a
language model, announces an outcome each round and no probabilities (:mod:`interp.choices.link`). :func:`behaviour`
asks it of runs of language models, for each model, condition and regime. The method, and what it is no evidence of:
``docs/method/choices.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp import tasks
from interp.choices.fitting import Array, Distributions, checked_distributions, predictor, search
from interp.choices.link import Link, fitted_link, lapse_interval, own_players, profile_ends
from interp.choices.offers import among_offered, even_guess, offers_of, slots_of
from interp.core.algorithm import Algorithm, Family, Searched, in_words
from interp.core.machine import Machine
from interp.llm.runs import LLMRun, episodes_of, grouped
from interp.results.measure import AS_WELL, NOT_RUN, Measure, Result, decisive
from interp.stats.intervals import NO_NUMBER, Interval, ratio_interval
from interp.support.checks import array_of, checked, unique
from interp.support.errors import InputError, require
from interp.tasks.experts.players import player_families

_OTHERWISE = 0.1
"""Most by which agreement in telling rounds may differ from that of own players (why: docs/method/choices.md)."""
_UNLIKE, _SURELY_UNLIKE = 0.15, 0.05
"""Most by which what a player saves beside any family may differ from what own players save, and may surely do so."""
_LAPSE = 0.3  # most of the rounds in which a player may guess
_CHANCE = 3.0  # standard deviations over a simpler family's own players beyond which what a larger one saves is no luck
_WORTH = (
    0.01  # share of the memory's worth that further parameters must save, by the whole interval
)
_UNKNOWN = 0.025  # share of that worth that another family of the group might save, beyond which the name is undecided
_LEFT = 0.02  # nats a round that a family might save beyond a machine
_REFINED = 2  # how many families are refined between the points of their grids, with those that they extend
_SWITCH_SAVES = (
    0.004  # nats a round that a switch must save, fitted to all choices, to be asked at all
)
_SWITCHES = "switches"
_FEWEST_CHOICES, _STRETCHES = 32, 8
"""Choices that a fit needs; how many episodes count as units, or else into how many stretches each of them is cut."""
_BAND = 1.96  # standard deviations on both sides that hold 95 % of own players
_PROFILED = {
    1: 41,
    2: 13,
    3: 7,
}  # number of parameters -> values of each on either side of what was found
_ANYTHING = 1e-9  # nats a round from which on something is saved: less is rounding


@dataclass(frozen=True)
class _ChoiceScore:
    """One family, fitted to choices.

    Attributes:
        group: key of the family that it extends, or its own; ``size``: how many parameters were searched.
        searched: parameters by name, fitted on all episodes; ``link``: with this link.
        q: held out, the probability of each choice ``[episode, round, outcome]``, and ``own``: by which its own players
            choose; ``losses``: what the player's lose by q, nats ``[episode, round]``, 0 where there is no choice.
        prefers: the outcome that it holds likeliest, held out, ``[episode, round]``; -1 where several are.
    """

    key: str
    name: str
    group: str
    memoryless: bool
    size: int
    searched: Mapping[str, float]
    link: Link
    q: Array = field(repr=False)
    own: Array = field(repr=False)
    losses: Array = field(repr=False)
    prefers: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class _Own:
    """A player beside simulated players of what it was fitted with, in the rounds that were recorded.

    Attributes:
        telling: the agreement of own players in telling rounds, with the interval that 95 % of them are in.
        otherwise: by how much the player's differs from it; ``unlike``: by how much what it saves beside ``family``,
            where it differs most, as a share of what a memory is worth. Intervals as wide as that of own players.
        lapse: share of rounds in which they guess.
    """

    telling: Interval
    otherwise: Interval
    unlike: Interval
    family: str
    lapse: Interval

    def parts(self, saved: Mapping[str, Interval], key: str) -> list[Measure]:
        """What any claim about choices needs: nats that are saved beside other guesses, and doing as own players do."""
        own = Measure(
            key, "", self.otherwise, _OTHERWISE, "below", about="agreement beside its own players"
        )
        own = replace(own, unit="share of telling rounds", needs_control=False)
        rest = {
            f"saved beside {self.family} and by its own players": (
                self.unlike,
                _UNLIKE,
                "share of memory",
            )
        }
        rest |= {"lapse": (self.lapse, _LAPSE, "share of rounds")}
        save = replace(own, threshold=_ANYTHING, side="above", unit="nats a round", is_share=False)
        saves = [
            replace(save, number=nats, about=f"saved beside {name}") for name, nats in saved.items()
        ]
        others = [
            replace(own, number=n, threshold=at, unit=u, about=about)
            for about, (n, at, u) in rest.items()
        ]
        surely = replace(
            others[0],
            number=Interval(*[self.unlike.low] * 3),
            threshold=_SURELY_UNLIKE,
            no_threshold=_UNLIKE,
        )
        return [*saves, own, surely, *others]


@dataclass(frozen=True)
class _Beside:
    """Whether a player chooses as a machine does.

    Attributes:
        telling: share of the rounds where the machine and the best guess without a memory prefer different outcomes in
            which the player does what the machine prefers.
        over_floor: nats a round that the machine's predictions lose less than that guess, held out; ``over_untrained``:
            than those of an untrained copy, NaN without one; ``left``: nats a round that the best family saves.
        own: the player beside simulated ones of the machine.
    """

    telling: Interval
    over_floor: Interval
    over_untrained: Interval
    left: Interval
    own: _Own

    @property
    def measure(self) -> Measure:
        """That the player chooses as the machine does: by what it needs, the first that fails."""
        saved = {
            "the best guess without a memory": self.over_floor,
            "an untrained copy": self.over_untrained,
        }
        parts = self.own.parts(saved, "beside")
        if isnan(self.over_untrained.low):
            parts[1] = replace(
                parts[1], unless={"undecided": f"{NOT_RUN}: give an untrained copy's predictions"}
            )
        last = replace(
            parts[0],
            number=self.left,
            threshold=_LEFT,
            side="below",
            about="saved by the best family",
        )
        said = {"yes": "chooses as the machine does", "no": "chooses differently than the machine"}
        return decisive([*parts, last], claim="The player chooses as the machine does", **said)


@dataclass(frozen=True, repr=False)
class ChoicePart(Result):
    """Which algorithm explains a player's choices.

    Attributes:
        closest: the family that loses least, whether or not it explains; ``parameters``: what was found of it;
            ``alone``: whether no other family of its group could be meant as well.
        intervals: 95 % profile likelihood intervals of its real parameters.
        nats: its held-out loss a round; ``floor_nats``: that of ``floor``, the best guess without a memory.
        agreement: share of rounds in which the player does what it prefers; ``telling``: of those in which ``floor``
            prefers another outcome.
        lead: nats a round that it loses less than ``runner_up``, the best family of another group that has a memory;
            ``over_floor``: than ``floor``.
        own: the player beside simulated ones of the closest family.
        scores: every family by key, the best first.
        algorithm: the closest family at the parameters found, for probes, audits and comparisons; None of a guess or a
            switch.
        beside: of each machine that it was held against, whether the player chooses as it does.
    """

    closest: str
    alone: bool
    parameters: Mapping[str, float]
    intervals: Mapping[str, Interval]
    nats: Interval
    floor: str
    floor_nats: Interval
    agreement: Interval
    telling: Interval
    lead: Interval
    over_floor: Interval
    runner_up: str
    own: _Own
    scores: Mapping[str, _ChoiceScore] = field(repr=False)
    algorithm: Algorithm | None = field(default=None, repr=False)
    beside: Mapping[str, _Beside] = field(default_factory=dict)

    @property
    def measure(self) -> Measure:
        """That the closest family explains the choices: by what that needs, the first that fails."""
        name, floor = self.scores[self.closest].name, "the best guess without a memory"
        saved = {floor: self.over_floor, self.scores[self.runner_up].name: self.lead}
        unless = {} if self.alone else {"yes": f"another family of its group {AS_WELL}"}
        said = {"yes": f"chooses by {name}", "no": "chooses by no known algorithm"}
        parts = self.own.parts(saved, "algorithm")
        return decisive(parts, claim=f"{name} explains the choices", unless=unless, **said)

    @property
    def sentence(self) -> str:
        """Whether the closest family explains the choices, and at which parameters."""
        made = ", ".join(
            f"{key.replace('_', ' ')} {value:.2g}" for key, value in self.parameters.items()
        )
        name = self.scores[self.closest].name + (f" ({made})" if made else "")
        by_word = {
            "yes": f"These choices are made by {name}.",
            "no": f"No known algorithm explains these choices; the closest is {name}.",
            "undecided": f"It is undecided whether {name} explains these choices.",
        }
        return by_word[self.measure.verdict]

    @property
    def family(self) -> str | None:
        """The key of the family that explains the choices; None where none does for sure."""
        return self.closest if self.measure.verdict == "yes" else None

    @property
    def answer(self) -> str:
        """Which algorithm it is, in a few words."""
        if self.family:
            return self.scores[self.closest].name
        if self.scores[self.closest].memoryless:
            return f"none with a memory; closest {self.scores[self.floor].name}"
        return f"{'none' if self.measure.verdict == 'no' else 'undecided'}; closest {self.scores[self.closest].name}"

    def _draw(self, figures: Any) -> Any:
        """What every family loses; those without a memory in grey."""
        drawn = self.to_frame().rename(columns={"nats": "estimate", "memoryless": "control"})
        return figures.intervals(drawn, xlabel="nats a round, held out")

    def to_frame(self) -> pd.DataFrame:
        """One row for each family, the best first."""
        closest = self.scores[self.closest]
        n_rounds = float(closest.losses.sum() / self.nats.estimate) if self.nats.estimate else 1.0
        rows = [
            {
                "family": one.key,
                "name": one.name,
                "nats": one.losses.sum() / n_rounds,
                "memoryless": one.memoryless,
                "lapse": one.link.lapse,
                "temperature": one.link.temperature,
                "parameters": in_words(one.searched),
            }
            for one in self.scores.values()
        ]
        return pd.DataFrame(rows)


@checked
def explain_choices(
    episodes: Any,
    choices: Any,
    *,
    families: Sequence[Family] | None = None,
    beside: Mapping[str, tuple[Any, Any]] | None = None,
    seed: int = 0,
) -> ChoicePart:
    """Which family of algorithms chooses what a player chose.

    Args:
        episodes: what the player saw.
        choices: the outcome chosen ``[episode, round]``, counted from 0; NaN where there is none; at least 32.
        families: those that are asked; all of the task's when None.
        beside: by name, a machine's predictions ``[episode, round, outcome]`` on the same episodes, and those of an
            untrained copy, or None.
        seed: of the bootstrap over units.

    Raises:
        InputError: choices of another shape, that are no outcomes, or fewer than 32.
    """
    task = tasks.of(episodes)
    chosen = array_of("choices", choices).astype(np.float64)
    wanted = (len(episodes), episodes.n_rounds)
    require(
        chosen.shape == wanted,
        f"choices must be [episode, round] = {wanted}, got shape {chosen.shape}",
    )
    require(task.kind == "classes", f"{task.name} predicts real numbers; choices are of outcomes")
    chosen = np.where(episodes.scored, chosen, np.nan)
    known = chosen[~np.isnan(chosen)]
    require(
        known.size > 0 and bool((known == known.astype(int)).all() and (known >= 0).all()),
        "choices must be outcomes 0, 1, ..., or NaN, and not all of them NaN",
    )
    require(
        known.size >= _FEWEST_CHOICES,
        f"a fit needs at least {_FEWEST_CHOICES} choices, got {known.size}; play more",
    )
    rows = np.flatnonzero(~np.isnan(chosen).all(1))
    asked = task.rivals() if families is None else unique(families, "family")
    require(bool(asked), "no family of algorithms to ask; give families=None for all of the task's")
    game = _Game(episodes.select(rows), chosen[rows], task.data.first_asked, seed)
    grids = {family.key: _best_of_grid(game, family, game.known) for family in asked.values()}
    ranked = sorted(asked.values(), key=lambda family: grids[family.key][0])
    refined = {family.extends or family.key for family in ranked[:_REFINED]} | {
        one.key for one in ranked[:_REFINED]
    }
    # Those far behind keep, in both halves, what fits all choices best: it can only flatter them.
    kept = {key: point for key, (_, point) in grids.items() if key not in refined}
    scores = [_scored(game, family, kept.get(family.key)) for family in asked.values()]
    alike = even_guess(scores[0].q, game.offers)
    scores += [_unfitted(game, "constant", "a guess, the same in every round", alike, True)]
    scores += _switched(game, scores[:-1], asked, grids[ranked[0].key][0])
    part = _decided(game, scores, asked)
    machines = {}
    for name, given in (beside or {}).items():
        trained, blank = (
            None
            if p is None
            else among_offered(checked_distributions(p, episodes)[rows], game.offers)
            for p in given
        )
        if trained is None:
            raise InputError(
                f"{name!r} has no predictions; only those of its untrained copy may be None"
            )
        machines[name] = _beside(game, part, trained, blank)
    return replace(part, beside=machines)


class _Game:
    """Choices, the episodes that they were made in, and what families predict there, each computed once."""

    def __init__(self, episodes: Any, choices: Array, first_asked: int, seed: int = 0) -> None:
        self.episodes, self.first_asked, self.seed = episodes, first_asked, seed
        asked = choices[:, first_asked:]
        self.known = ~np.isnan(asked)
        arms = np.where(self.known, asked, 0).astype(np.int64)
        self.offers = offers_of(episodes, first_asked)
        self.choices = slots_of(arms, self.offers)
        self._members: dict[str, Distributions] = {}
        self._kept: dict[tuple[Any, ...], Array] = {}
        self._units = _units(episodes, self.known)
        self.folds = (self._units % 2 == 0, self._units % 2 == 1)
        self.n_rounds = int(self.known.sum())
        self.rounds = np.ones_like(self.known)

    def mean(self, values: NDArray[Any], among: NDArray[np.bool_] | None = None) -> Interval:
        """The mean of ``values [episode, round]`` over the known choices ``among`` some; units are drawn whole."""
        use = self.known if among is None else self.known & among
        sums = (
            np.bincount(self._units[self.known], (x * use)[self.known])
            for x in (values, self.rounds)
        )
        return ratio_interval(*sums, seed=self.seed)

    def agreement(self, prefers: NDArray[np.int64], rounds: NDArray[np.bool_]) -> Interval:
        """The share of some rounds in which the player does what is preferred there."""
        return self.mean(prefers == self.choices, rounds & (prefers >= 0))

    def predicted(
        self, family: Family, parameters: Mapping[str, float], keep: bool = True
    ) -> Array:
        """``[episode, asked round, outcome]``; without ``keep`` of parameters that are asked for once."""
        key = (family.key, *(parameters[s.name] for s in family.searched))
        if key in self._kept:
            return self._kept[key]
        member = self._members.setdefault(family.key, Distributions(family, [self.episodes]))
        predicted = np.clip(member(family.make(**parameters), parameters), 0.0, 1.0)
        found = among_offered(predicted, self.offers)
        n, most = found.shape[-1], self.choices.max()
        require(most < n, f"choices must be outcomes 0 to {n - 1}, got {most}")
        if keep:
            self._kept[key] = found
        return found

    def loss(
        self, family: Family, use: NDArray[np.bool_]
    ) -> Callable[[Mapping[str, float]], float]:
        """The least loss of a member over links, nats a round where ``use [episode, round]``."""
        return lambda parameters: self.linked(
            self.predicted(family, parameters), use, family.tempered
        )[0]

    def linked(
        self, p: Array, use: NDArray[np.bool_], tempered: bool = False
    ) -> tuple[float, Link]:
        """The least loss over links, nats a round where ``use [episode, round]``, and the link that has it."""
        return fitted_link(p, self.choices, use, tempered)

    def lost(self, q: Array) -> Array:
        """Nats of every known choice ``[episode, round]``, 0 where there is none."""
        return -np.log(np.take_along_axis(q, self.choices[..., None], -1)[..., 0]) * self.known


def _units(episodes: Any, known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What is drawn whole, and fitted or scored whole: participants, else episodes, else stretches of few episodes."""
    (n, rounds), names = known.shape, episodes.participants
    if names is not None and len(np.unique(names)) > 1:
        return np.broadcast_to(np.unique(names, return_inverse=True)[1][:, None], known.shape)
    stretch = np.arange(rounds) * _STRETCHES // rounds if n < _STRETCHES else np.zeros(rounds, int)
    return np.arange(n)[:, None] + n * stretch


def _best_of_grid(
    game: _Game, family: Family, use: NDArray[np.bool_]
) -> tuple[float, dict[str, float]]:
    loss, order = game.loss(family, use), sorted(family.searched, key=lambda s: bool(s.enters))
    points = [
        dict(zip([s.name for s in order], point, strict=True))
        for point in product(*(s.grid for s in order))
    ]
    return min(((loss(point), point) for point in points), key=lambda one: one[0])


def _fitted(game: _Game, family: Family, use: NDArray[np.bool_]) -> dict[str, float]:
    return search(family.searched, game.loss(family, use))[1] if family.searched else {}


_Stretch = tuple[NDArray[np.bool_], Array, bool]
"""Rounds, what is predicted there, and whether that has a temperature of its own."""


def _held_out(
    game: _Game, fitted: Callable[[NDArray[np.bool_]], list[_Stretch]]
) -> tuple[Array, Array, Array, NDArray[np.int64]]:
    """What a :class:`_ChoiceScore` holds of every choice, each half by what was fitted to the other one.

    ``fitted`` gives predictions that were fitted to the choices of a mask ``[episode, round]``, by stretches of rounds.
    """
    q, own, prefers = np.empty(0), np.empty(0), np.zeros(game.choices.shape, np.int64)
    for fold in game.folds:
        for rounds, p, tempered in fitted(game.known & fold):
            use, scored = game.known & fold & rounds, ~fold & rounds
            link, n = game.linked(p, use, tempered)[1], int(use.sum())
            q, own = (q, own) if q.size else (np.zeros_like(p), np.zeros_like(p))
            q[scored], own[scored] = (
                link.spread(n, missed).probabilities(p)[scored] for missed in (True, False)
            )
            prefers[scored] = link.preferred(p)[scored]
    return q, own, game.lost(q), prefers


def _scored(game: _Game, family: Family, kept: Mapping[str, float] | None) -> _ChoiceScore:
    """A family's held-out losses; ``kept`` are its parameters in both halves, which are searched when None."""

    def fitted(use: NDArray[np.bool_]) -> list[_Stretch]:
        p = game.predicted(family, _fitted(game, family, use) if kept is None else kept)
        return [(game.rounds, p, family.tempered)]

    held = _held_out(game, fitted)
    searched = _fitted(game, family, game.known) if kept is None else kept
    link = game.linked(game.predicted(family, searched), game.known, family.tempered)[1]
    size = sum(len(s.grid) > 1 for s in family.searched)
    group = family.extends or family.key
    return _ChoiceScore(
        family.key, family.name, group, family.memoryless, size, searched, link, *held
    )


def _unfitted(game: _Game, key: str, name: str, p: Array, memoryless: bool) -> _ChoiceScore:
    """What predictions ``p [episode, asked round, outcome]`` lose through a link, which alone is fitted."""
    held = _held_out(game, lambda use: [(game.rounds, p, False)])
    return _ChoiceScore(key, name, key, memoryless, 0, {}, game.linked(p, game.known)[1], *held)


# One algorithm, then another.


def _switched(
    game: _Game, scores: Sequence[_ChoiceScore], families: Mapping[str, Family], least: float
) -> list[_ChoiceScore]:
    """The best switch at a round from one simple family to another; None where there are too few rounds for one.

    None, too, where a switch saves no :data:`_SWITCH_SAVES` of ``least``, what one family loses.
    """
    simple = [families[one.key] for one in scores if one.size <= 1 and one.key in families]
    if len(simple) < 2 or game.choices.shape[1] < 10:
        return []
    if _best_switch(game, simple, game.known)[0] / game.n_rounds > least - _SWITCH_SAVES:
        return []

    def switch(
        use: NDArray[np.bool_],
    ) -> tuple[int, list[tuple[Family, dict[str, float], _Stretch]]]:
        """The first round of the second family; each family, its parameters, and what it predicts before or after."""
        _, at, *two = _best_switch(game, simple, use)
        parts, late = [], game.rounds & (np.arange(use.shape[1]) >= at)
        for family, rounds in zip(two, (~late, late), strict=True):
            parameters = _fitted(game, family, use & rounds)
            parts.append(
                (family, parameters, (rounds, game.predicted(family, parameters), family.tempered))
            )
        return at, parts

    held = _held_out(game, lambda use: [stretch for _, _, stretch in switch(use)[1]])
    at, parts = switch(game.known)
    links = [
        game.linked(p, game.known & rounds, tempered)[1] for _, _, (rounds, p, tempered) in parts
    ]
    (first, before, _), (second, after, _) = parts
    searched = {"round": float(at + game.first_asked + 1)}
    searched |= {f"{name} before": value for name, value in before.items()}
    searched |= {f"{name} after": value for name, value in after.items()}
    name, size = f"{first.name}, then {second.name}", 3 + len(before) + len(after)
    link = max(links, key=lambda link: link.lapse)
    return [
        _ChoiceScore(
            _SWITCHES, name, first.extends or first.key, False, size, searched, link, *held
        )
    ]


def _best_switch(
    game: _Game, simple: Sequence[Family], use: NDArray[np.bool_]
) -> tuple[float, int, Family, Family]:
    """What two families lose, the least where ``use [episode, round]``, the first round of the second one, and the two.

    The first is fitted to the first third of the rounds, the second to the last. No part is shorter than 5 rounds.
    """
    n, lost = game.choices.shape[1], []
    for rounds in (np.arange(n) < n // 3, np.arange(n) >= n - n // 3):
        fits, by_family = use & rounds, {}
        for family in simple:
            p = game.predicted(family, _best_of_grid(game, family, fits)[1])
            link = game.linked(p, fits, family.tempered)[1].spread(int(fits.sum()), missed=True)
            by_family[family.key] = np.cumsum(
                [0.0, *(game.lost(link.probabilities(p)) * use).sum(0)]
            )
        lost.append(by_family)
    found = []
    for first, second in permutations(simple, 2):
        before, after = lost[0][first.key], lost[1][second.key]
        total = (before + after[-1] - after)[5 : n - 4]
        found.append((float(total.min()), int(total.argmin()) + 5, first, second))
    return min(found, key=lambda one: (*one[:2], one[2].key, one[3].key))


# What it comes to.


def _decided(
    game: _Game, scores: Sequence[_ChoiceScore], families: Mapping[str, Family]
) -> ChoicePart:
    ranked = sorted(scores, key=lambda one: (float(one.losses.sum()), not one.memoryless))

    def less(one: _ChoiceScore, other: _ChoiceScore) -> Interval:
        """Nats a round by which ``one`` loses less than ``other``."""
        return game.mean(other.losses - one.losses)

    def is_luck(one: _ChoiceScore, other: _ChoiceScore) -> bool:
        """Whether players of ``other`` could make ``one`` lose as much less as it does."""
        seen, own, spread = own_players(
            other.own, np.log(one.q / other.q), game.choices, game.known
        )
        return seen <= own + _CHANCE * spread

    best, floor = ranked[0], next(one for one in ranked if one.memoryless)
    group = [one for one in ranked if one.group == best.group]
    closest, alone = _simplest(group, less, is_luck, less(best, floor).estimate)
    others = [one for one in ranked if one.group != closest.group]
    rival = next((one for one in others if not one.memoryless), others[0])
    # A guess without a memory saves nothing beside itself.
    lead, over_floor = less(closest, rival), less(closest, closest if closest.memoryless else floor)

    lapse, intervals = Interval(*[closest.link.lapse] * 3), dict[str, Interval]()
    if family := families.get(closest.key):
        lapse = lapse_interval(
            game.predicted(family, closest.searched), game.choices, game.known, closest.link
        )

        def nats(parameters: Mapping[str, float]) -> float:
            p = game.predicted(family, parameters, keep=False)
            return game.linked(p, game.known, family.tempered)[0] * game.n_rounds

        intervals = _profiles(nats, family.searched, closest)

    return ChoicePart(
        closest=closest.key,
        alone=alone,
        parameters=closest.searched,
        intervals=intervals,
        nats=game.mean(closest.losses),
        floor=floor.key,
        floor_nats=game.mean(floor.losses),
        agreement=game.agreement(closest.prefers, game.rounds),
        telling=game.agreement(closest.prefers, closest.prefers != floor.prefers),
        lead=lead,
        over_floor=over_floor,
        runner_up=rival.key,
        own=_own(game, closest, lapse, ranked, floor, over_floor.estimate),
        scores={one.key: one for one in ranked},
        algorithm=families[closest.key].make(**closest.searched)
        if closest.key in families
        else None,
    )


def _own(
    game: _Game,
    player: _ChoiceScore,
    lapse: Interval,
    scores: Sequence[_ChoiceScore],
    floor: _ChoiceScore,
    memory: float,
) -> _Own:
    """The player beside its own players, who lapse so often, by what its ``q`` saves beside every other score.

    ``memory`` is what a memory is worth, nats a round.
    """

    def apart(x: Array, use: NDArray[np.bool_], worth: float = 1.0) -> tuple[Interval, Interval]:
        """What own players give, and by how much the player differs, as a share of ``worth``."""
        seen, own, spread = own_players(player.own, x, game.choices, use)
        gap, half = abs(seen - own) / worth, _BAND * spread
        return Interval(own, own - half, own + half), Interval(
            gap, max(gap - half / worth, 0.0), gap + half / worth
        )

    telling = game.known & (player.prefers >= 0) & (player.prefers != floor.prefers)
    preferred = np.arange(player.q.shape[-1]) == player.prefers[..., None]
    agreement, otherwise = apart(preferred.astype(np.float64), telling)
    logs, worth = np.log(player.q), max(memory, _ANYTHING)
    unlike = {
        one.name: apart(logs if one is player else logs - np.log(one.q), game.known, worth)[1]
        for one in scores
    }
    worst = max(unlike, key=lambda name: (unlike[name].low > _UNLIKE, unlike[name].high))
    return _Own(agreement, otherwise, unlike[worst], worst, lapse)


def _simplest(
    group: Sequence[_ChoiceScore],
    less: Callable[[_ChoiceScore, _ChoiceScore], Interval],
    is_luck: Callable[[_ChoiceScore, _ChoiceScore], bool],
    memory: float,
) -> tuple[_ChoiceScore, bool]:
    """The family that is meant of a ``group``, the best first, and whether no other one of it could be meant as well.

    ``less`` gives the nats a round by which one loses less than another, ``is_luck`` whether it does so by luck, and
    ``memory`` what a memory is worth.
    """
    best = group[0]
    alike = [one for one in group if less(best, one).low <= _WORTH * memory or is_luck(best, one)]
    closest = min(alike, key=lambda one: one.size)
    simpler = [less(closest, one).low > 0 for one in group if one.size < closest.size]
    others = [less(one, closest).high <= _UNKNOWN * memory for one in group]
    return closest, all(simpler + others)


def _beside(game: _Game, part: ChoicePart, trained: Array, blank: Array | None) -> _Beside:
    """A player beside a machine with predictions ``trained [episode, asked round, outcome]``, ``blank`` untrained."""
    floor, best = (
        part.scores[part.floor],
        min(part.scores.values(), key=lambda one: float(one.losses.sum())),
    )
    machine, over_untrained = _unfitted(game, "machine", "machine", trained, False), NO_NUMBER
    if blank is not None:
        over_untrained = game.mean(
            _unfitted(game, "blank", "blank", blank, False).losses - machine.losses
        )
    over_floor, left = (
        game.mean(nats) for nats in (floor.losses - machine.losses, machine.losses - best.losses)
    )
    lapse = lapse_interval(trained, game.choices, game.known, machine.link)
    own = _own(game, machine, lapse, list(part.scores.values()), floor, over_floor.estimate)
    telling = game.agreement(machine.prefers, machine.prefers != floor.prefers)
    return _Beside(telling, over_floor, over_untrained, left, own)


def _profiles(
    nats: Callable[[Mapping[str, float]], float], searched: Sequence[Searched], found: _ChoiceScore
) -> dict[str, Interval]:
    """95 % profile likelihood intervals of the real parameters, out to the bounds of the search.

    At each value the others are fitted anew: on a joint grid, the finer the closer to what was found.
    """
    order = sorted(searched, key=lambda s: bool(s.enters))
    free = [s.name for s in order if s.kind == "real" and len(s.grid) > 1]
    steps, grids = np.linspace(0, 1, _PROFILED.get(len(free), 3)) ** 2, {}
    for s in order:
        at, ends = found.searched[s.name], (s.grid[0], s.grid[-1]) if s.name in free else ()
        grids[s.name] = np.unique([at, *(at + (end - at) * step for end in ends for step in steps)])
    points = product(*(grid.tolist() for grid in grids.values()))
    lost = np.reshape(
        [nats(dict(zip(grids, point, strict=True))) for point in points],
        [*map(len, grids.values())],
    )
    intervals = {}
    for name in free:
        others, at = (
            tuple(i for i, other in enumerate(grids) if other != name),
            found.searched[name],
        )
        low, high = profile_ends(grids[name], lost.min(others), found.link.temperature)
        intervals[name] = Interval(at, min(low, at), max(high, at))
    return intervals


_FEWEST = 8  # instances below which no algorithm is asked for: a bootstrap over fewer says little


@dataclass(frozen=True, repr=False)
class PlayerBehaviour(Result):
    """What one group of ``n`` runs (model, condition, regime) plays like; ``found`` is None below :data:`_FEWEST` runs.

    ``repeated`` is the share of rounds in which further plays of an instance choose alike; NaN where there are none.
    """

    model: str
    condition: str
    regime: str
    n: int
    found: ChoicePart | None
    repeated: Interval = NO_NUMBER

    @property
    def sentence(self) -> str:
        """Whose play it is, and which algorithm it is like."""
        return f"{self.model}, {self.condition}, {self.regime}: {self.found.measure if self.found else self.answer}"

    def _draw(self, figures: Any) -> Any:
        """What every family loses; the row alone where none was asked."""
        return super()._draw(figures) if self.found is None else self.found._draw(figures)

    @property
    def whose(self) -> dict[str, str]:
        """Model, condition and regime, as columns of a table."""
        return {"model": self.model, "condition": self.condition, "regime": self.regime}

    @property
    def ceiling(self) -> Interval:
        """The most that any algorithm can agree, by how much repeated plays do."""
        return Interval(
            *((1 + max(0.0, 2 * share - 1) ** 0.5) / 2 for share in vars(self.repeated).values())
        )

    @property
    def answer(self) -> str:
        """Which algorithm it is, in a few words."""
        return self.found.answer if self.found else f"undecided: fewer than {_FEWEST} instances"

    def to_frame(self) -> pd.DataFrame:
        """One row."""
        row: dict[str, Any] = {
            **self.whose,
            "n": self.n,
            "verdict": "undecided",
            "plays_like": self.answer,
        }
        if self.found:
            found, link = self.found, self.found.scores[self.found.closest].link
            row |= {
                "verdict": found.measure.verdict,
                "closest": found.closest,
                "runner_up": found.runner_up,
            }
            row |= {
                "parameters": ", ".join(
                    f"{k} {found.intervals.get(k, v)}" for k, v in found.parameters.items()
                )
            }
            row |= {"lapse": link.lapse, "temperature": link.temperature}
            for name in ("nats", "floor_nats", "lead", "agreement", "telling"):
                row |= getattr(found, name).columns(name)
        if not np.isnan(self.repeated.estimate):
            row |= self.repeated.columns("repeated") | self.ceiling.columns("ceiling")
        return pd.DataFrame([row])


@checked
def behaviour(
    runs: Sequence[LLMRun], seed: int = 0, machines: Sequence[Machine] = ()
) -> list[PlayerBehaviour]:
    """One :class:`PlayerBehaviour` for each (model, condition, regime) in ``runs`` that has a prediction.

    ``machines`` are models of expert advice: does the player choose as each of them does?
    """
    require(bool(runs), "no runs to analyse")
    groups = grouped(run for run in runs if run.rounds and not run.missing.all())
    for machine in machines:
        task = machine.layout.task
        require(
            task == "experts",
            f"{machine.name!r} is a model of {task}; runs of language models are of experts",
        )
    return [_behaviour(members, seed, machines) for members in groups.values()]


def behaviour_tables(acts: Sequence[PlayerBehaviour]) -> dict[str, pd.DataFrame]:
    """What ``interp llm score`` writes of them: a row a group ("behaviour"), a family, and a machine of each."""
    if not acts:
        return {}
    families, machines = [pd.DataFrame()], []
    for act in acts:
        if act.found:
            families.append(act.found.to_frame().assign(**act.whose))
        for name, one in (act.found.beside if act.found else {}).items():
            row: dict[str, Any] = {
                **act.whose,
                "n": act.n,
                "machine": name,
                "verdict": one.measure.verdict,
            }
            for part in ("telling", "over_floor", "over_untrained", "left"):
                row |= getattr(one, part).columns(part)
            machines.append(row)
    return {
        "behaviour": pd.concat([act.to_frame() for act in acts], ignore_index=True),
        "families": pd.concat(families, ignore_index=True),
        "machines": pd.DataFrame(machines),
    }


def _behaviour(
    members: Sequence[LLMRun], seed: int, machines: Sequence[Machine]
) -> PlayerBehaviour:
    model, condition, regime = members[0].group
    episodes = episodes_of(members, regime)
    choices = np.full((len(episodes), episodes.n_rounds), np.nan)
    for row, run in enumerate(sorted(members, key=lambda run: run.index)):
        choices[row, : run.rounds] = run.predictions
    found = None
    if len(members) >= _FEWEST:
        beside = {
            one.name: (predictor(one)(episodes), predictor(one.untrained(seed))(episodes))
            for one in machines
        }
        families = player_families(episodes.n_experts)
        found = explain_choices(episodes, choices, families=families, beside=beside, seed=seed)
    return PlayerBehaviour(model, condition, regime, len(members), found, _repeated(members, seed))


def _repeated(members: Sequence[LLMRun], seed: int) -> Interval:
    """How often further plays of an instance choose as the one that is scored, over instances."""
    rounds = []
    for run in members:
        plays = [
            np.stack([run.predictions[: len(other)], other[: run.rounds]]) for other in run.again
        ]
        both = np.concatenate([*plays, np.empty((2, 0))], axis=1)
        known = ~np.isnan(both).any(0)
        rounds.append(((both[0] == both[1]).sum(), known.sum()))
    alike, counted = np.array(rounds, float).T
    return ratio_interval(alike, counted, seed=seed)
