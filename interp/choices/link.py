"""How a distribution over outcomes becomes choices: one temperature and one lapse rate, and what follows for players.

A player who holds a distribution p over K outcomes, and announces one of them, makes a choice with::

    q(choice) = lapse / K + (1 - lapse) p(choice)^(1/T) / sum_k p(k)^(1/T)            T = 0 takes the likeliest outcome

When a temperature can be told from a lapse: ``docs/method/choices.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from interp.choices.fitting import Array
from interp.stats.intervals import Interval

_CHI2 = 3.841 / 2
"""Half the 95 % point of chi-squared with one degree of freedom: how many nats a parameter may cost in all."""
_STEPS = 3.676
""":data:`_CHI2` where the likeliest outcome is chosen (temperature 0): P(both maxima <= c) = (1 - exp(-c))^2 = .95."""
_GRID = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
_RANGE = np.log([0.25, 100.0])
"""Temperatures beside which a lapse is searched first, and logarithms of the bounds of all that are searched but 0."""
_MISSED = 0.01
"""Least lapse of who takes the likeliest outcome, held out: a parameter that is a little off misses a choice."""
_CERTAIN, _TIED, _BISECTIONS = 1e-12, 1e-12, 14


@dataclass(frozen=True)
class Link:
    """Lapse rate, temperature, and P(each outcome) where all are alike."""

    lapse: float
    temperature: float
    tied: Array

    def probabilities(self, p: Array) -> Array:
        """P(each choice) of distributions ``p [..., outcome]``."""
        if self.temperature == 0:
            power = _top(p).astype(np.float64)
        else:
            power = np.power(
                np.maximum(p, _CERTAIN) / p.max(-1, keepdims=True), 1 / self.temperature
            )
        q = self.lapse / p.shape[-1] + (1 - self.lapse) * power / power.sum(-1, keepdims=True)
        return np.where(_is_tied(p)[..., None], self.tied, q)

    def spread(self, n: int, missed: bool = False) -> Link:
        """The link with half a departure in the n choices that it was fitted to: none was seen, one may come.

        With ``missed`` it allows for a parameter that is a little off, as well.
        """
        return replace(
            self,
            lapse=max(self.lapse, 1 / (n + 2), _MISSED if missed and not self.temperature else 0.0),
        )

    def preferred(self, p: Array) -> NDArray[np.int64]:
        """The likeliest outcome, -1 where several are and the link prefers none."""
        top = _top(np.where(_is_tied(p)[..., None], self.tied, p))
        return np.where(top.sum(-1) == 1, top.argmax(-1), -1 if p.shape[-1] > 1 else 0)


def _top(p: Array) -> NDArray[np.bool_]:
    return np.asarray(p >= p.max(-1, keepdims=True) - _TIED)


def _is_tied(p: Array) -> NDArray[np.bool_]:
    return np.ptp(p, axis=-1) < _TIED


def fitted_link(
    p: Array, choices: NDArray[np.int64], use: NDArray[np.bool_], tempered: bool
) -> tuple[float, Link]:
    """The link of least loss, in nats a round where ``use [episode, round]``, and that loss, with what a lapse costs.

    ``tempered`` says that p has a temperature of its own.
    """
    given, chosen = p[use], choices[use]
    n = given.shape[-1]
    tied = _is_tied(given)
    alike = (np.bincount(chosen[tied], minlength=n) + 1.0) / (tied.sum() + n)
    asked, rows = given[~tied], chosen[~tied][:, None]
    logs, top = np.log(np.maximum(asked, _CERTAIN)), _top(asked)
    behind = logs - np.take_along_axis(logs, rows, -1)
    likeliest = np.take_along_axis(top, rows, -1)[:, 0] / top.sum(-1)

    def made(temperature: float) -> Array:
        return 1 / np.exp(behind / temperature).sum(-1) if temperature else likeliest

    def nats(lapse: float, temperature: float) -> float:
        return float(-np.log(lapse / n + (1 - lapse) * made(temperature)).sum())

    def sharpened(lapse: float) -> float:
        options = {"bounds": _RANGE, "method": "bounded", "options": {"xatol": 2e-3}}
        return float(
            np.exp(
                optimize.minimize_scalar(lambda log: nats(lapse, float(np.exp(log))), **options).x
            )
        )

    certain = bool((asked.max(-1, initial=0) >= 1 - _CERTAIN).all())
    found = []
    if tempered or not certain:
        temperature = 1.0 if tempered else sharpened(0.0)
        found.append((nats(0.0, temperature), 0.0, temperature))
    if likeliest.min(initial=1.0) > 0 and not tempered:
        found.append((nats(0.0, 0.0), 0.0, 0.0))
    least, _, temperature = min(found, default=(np.inf, 0.0, 0.0))
    sharpest = not tempered and temperature < 1.01 * np.exp(_RANGE[0])
    if least > _CHI2 and (
        not found or sharpest or ((1 / n - made(temperature)) / made(temperature)).sum() > 0
    ):
        grid = (1.0,) if tempered else (0.0,) if certain else _GRID
        several = np.stack([made(at) for at in grid])
        lapses = _lapses(several, n)
        best = int(np.log(lapses[:, None] / n + (1 - lapses[:, None]) * several).sum(1).argmax())
        lapse, temperature = float(lapses[best]), grid[best]
        if temperature and not tempered:
            temperature = sharpened(lapse)
            lapse = float(_lapses(made(temperature)[None], n)[0])
        found.append((nats(lapse, temperature) + _CHI2, lapse, temperature))
    least, lapse, temperature = min(found)
    return (least - float(np.log(alike[chosen[tied]]).sum())) / len(chosen), Link(
        lapse, temperature, alike
    )


def _lapses(made: Array, n: int) -> Array:
    """The lapse rate of greatest likelihood for each row of probabilities ``made [temperature, choice]`` among n.

    By bisection, for the log-likelihood is concave in it.
    """
    low, high = np.zeros(len(made)), np.ones(len(made))
    for _ in range(_BISECTIONS):
        middle = ((low + high) / 2)[:, None]
        slope = ((1 / n - made) / (middle / n + (1 - middle) * made)).sum(1)
        low, high = np.where(slope > 0, middle[:, 0], low), np.where(slope > 0, high, middle[:, 0])
    return np.asarray((low + high) / 2)


def lapse_interval(
    p: Array, choices: NDArray[np.int64], use: NDArray[np.bool_], link: Link
) -> Interval:
    """The lapse with its 95 % profile likelihood interval, the temperature held where it is."""
    lapses, whole = np.linspace(0, 1, 201), replace(link, lapse=0.0).probabilities(p)
    given = ~_is_tied(p) & use
    chance = np.take_along_axis(whole, choices[..., None], -1)[..., 0][given]
    with np.errstate(divide="ignore"):
        lost = np.array(
            [-np.log(at / p.shape[-1] + (1 - at) * chance).sum() for at in (link.lapse, *lapses)]
        )
    held = lapses[lost[1:] <= lost[0] + _CHI2]
    return Interval(
        link.lapse, float(held.min(initial=link.lapse)), float(held.max(initial=link.lapse))
    )


def profile_ends(grid: Array, profile: Array, temperature: float = 1.0) -> tuple[float, float]:
    """The first and the last value that cost as many nats as a 95 % interval allows, between those of the grid."""
    root, most = np.sqrt(profile - profile.min()), (_STEPS if temperature == 0 else _CHI2) ** 0.5
    within, ends = np.flatnonzero(root <= most), []
    for at, out in (
        (within[0], max(within[0] - 1, 0)),
        (within[-1], min(within[-1] + 1, len(grid) - 1)),
    ):
        share = (most - root[at]) / (root[out] - root[at]) if out != at else 0.0
        ends.append(float(grid[at] + share * (grid[out] - grid[at])))
    return ends[0], ends[1]


def own_players(
    q: Array, x: Array, choices: NDArray[np.int64], use: NDArray[np.bool_]
) -> tuple[float, float, float]:
    """The mean of ``x [episode, round, outcome]`` over the choices where ``use``, and the same of players of ``q``.

    The first is the player's; then the mean and the standard deviation over players of ``q``. NaN where there are none.
    """
    if not use.any():
        return (np.nan,) * 3
    seen, mean = (
        np.take_along_axis(x, choices[..., None], -1)[..., 0][use].mean(),
        (q * x).sum(-1)[use],
    )
    spread = (
        np.maximum((q * np.square(x)).sum(-1)[use] - np.square(mean), 0).sum() ** 0.5 / use.sum()
    )
    return float(seen), float(mean.mean()), float(spread)
