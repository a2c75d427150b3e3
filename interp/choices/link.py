"""The link from a predicted distribution to choices: a temperature and a lapse rate.

A player's algorithm predicts the distribution p over K outcomes. The player chooses an outcome with
probability q, where T is the temperature. The lapse rate is the share of choices that are uniform
guesses::

    q(choice) = lapse / K + (1 - lapse) p(choice)^(1/T) / sum_k p(k)^(1/T)            T = 0 takes the likeliest outcome

If rounds offer different options, K is the number of options that the round offered.
``docs/method/choices.md`` says when data can separate a temperature from a lapse rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from interp.choices.fitting import Array
from interp.choices.offers import guess_uniformly
from interp.support.checks import checked_result

HALF_CHI2 = 3.841 / 2
"""Half the 95 % point of chi-squared with one degree of freedom, in nats of all choices.

A profile likelihood interval ends at this rise of the loss; a lapse rate must lower the loss by it.
"""
_LIMIT_AT_ZERO = 3.676
"""Replaces :data:`HALF_CHI2` at temperature 0: the solution c of (1 - exp(-c))^2 = .95."""
_TEMPERATURES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Temperatures of the grid on which a lapse rate is searched."""
_LOG_TEMPERATURES = (float(np.log(0.25)), float(np.log(100.0)))
"""Bounds of the logarithm of a temperature that is not 0."""
_LEAST_LAPSE_AT_ZERO = 0.01
"""Least lapse rate at temperature 0, where a slightly wrong parameter misses a held-out choice."""
_LEAST_PROBABILITY = 1e-12
"""Smaller probabilities are raised to this, so that logs and powers are finite."""
TIE_TOLERANCE = 1e-12
"""Probabilities that differ by less are equally likely: the difference is rounding."""
_LAPSE_STEP = 2.0**-14
"""Width of the intervals whose middles are the fitted lapse rates, which are so exact to 2^-15."""


@dataclass(frozen=True)
@checked_result
class Link:
    """A map from a predicted distribution to the probability of each choice, with a temperature and
    a lapse rate.

    Attributes:
        lapse: lapse rate, the share of the choices that are uniform guesses.
        temperature: 0 chooses the likeliest outcome, 1 samples from the distribution.
        tied: probability of choosing each outcome in rounds where the predicted distribution is
            uniform, ``[outcome]``. If rounds offer different options, it is ``[slot]``: the
            probability of each position in the list of offered options.
    """

    lapse: float
    temperature: float
    tied: Array

    def probabilities(self, p: Array, offers: NDArray[np.int64] | None = None) -> Array:
        """Apply the temperature and the lapse rate to predicted distributions. Return the
        probability of choosing each outcome, in the shape of ``p``.

        Args:
            p: predicted distributions, ``[..., outcome]``. If rounds offer different options, the
                last axis has a probability for each offered option instead, ``[..., slot]``.
            offers: index of the option in each slot (position in the list of offered options),
                ``[..., slot]``; negative in empty slots. None if all options are offered.
        """
        guess = guess_uniformly(p.shape, offers)  # 0 in empty slots
        if self.temperature == 0:
            without_lapse = take_likeliest(p)
        else:
            # Ratios to the largest probability keep the power from underflowing.
            ratios = np.maximum(p, _LEAST_PROBABILITY) / p.max(-1, keepdims=True)
            is_offered = guess > 0
            weights = np.power(ratios, 1 / self.temperature) * is_offered
            without_lapse = weights / weights.sum(-1, keepdims=True)
        q = self.lapse * guess + (1 - self.lapse) * without_lapse
        # Temperature and lapse leave a uniform prediction uniform. There, `tied` is used, the player's
        # distribution in such ties, [outcome] or [slot]. A round with an empty slot is no tie, since
        # p is 0 in this slot.
        return np.where(_is_tied(p)[..., None], self.tied, q)

    def raise_lapse(self, n_choices: int) -> Link:
        """Return a copy with a lapse rate (share of uniform guesses) above 0, so that no choice has
        probability 0.

        The lapse rate of the copy is at least 1 / (n + 2): Laplace's estimate for an event that was
        never seen in n trials. At temperature 0, it is also at least .01. So the copy has a finite
        loss on choices that the link was not fitted to.

        Args:
            n_choices: n, the number of choices that the link was fitted to.
        """
        lowest = 1 / (n_choices + 2)
        if self.temperature == 0:
            lowest = max(lowest, _LEAST_LAPSE_AT_ZERO)
        return replace(self, lapse=max(self.lapse, lowest))

    def find_likeliest(self, p: Array) -> NDArray[np.int64]:
        """Return the index of the outcome that is chosen with the highest probability; -1 if
        several outcomes are equally likely.

        Args:
            p: predicted distributions, ``[..., outcome]``.

        Returns:
            The indices, in the shape of ``p`` without the last axis.
        """
        shares = take_likeliest(np.where(_is_tied(p)[..., None], self.tied, p))
        is_single = shares.max(-1) == 1  # several likeliest outcomes have less than 1 each
        return np.where(is_single, shares.argmax(-1), -1)


class FittedLink(NamedTuple):
    """A fitted link, which maps predictions to choices by a temperature and a lapse rate (share of
    uniform guesses).

    Attributes:
        nats: loss in nats per choice: minus the log of the probability of the choices that the link
            was fitted to. A lapse rate above 0 adds a penalty of 1.92 nats to their sum.
        link: the link.
    """

    nats: float
    link: Link


class _Candidate(NamedTuple):
    """A temperature and a lapse rate with their loss.

    Attributes:
        nats: loss of the choices, in nats. It comes first, so that ``min`` finds the best
            candidate.
        lapse: lapse rate, the share of the choices that are uniform guesses.
        temperature: the temperature.
    """

    nats: float
    lapse: float
    temperature: float


class ChoiceLikelihood:
    """The likelihood of a player's choices, given the distributions that an algorithm predicts. Its
    methods compute it for a temperature and a lapse rate (share of uniform guesses).

    A *tie* is a choice for which the predicted distribution is uniform. No temperature changes such
    a distribution.

    Args:
        p: predicted distributions, ``[choice, outcome]``.
        choices: index of the chosen outcome, ``[choice]``.
        tempered: True if one of the algorithm's parameters is a temperature. The methods then count
            all choices. False if the temperature is fitted here. The methods then leave out ties,
            which :attr:`tied` and :attr:`tied_nats` describe.
        guess: probability of each outcome in a uniform guess, ``[choice, outcome]``; 0 for outcomes
            that were not offered.

    Attributes:
        tied: estimated probability of each outcome in ties, ``[outcome]``. It is proportional to 1
            plus the number of ties in which the outcome was chosen. Uniform if ``tempered``.
        tied_nats: loss of the choices in ties under :attr:`tied`, in nats; 0 if ``tempered``.
    """

    def __init__(self, p: Array, choices: NDArray[np.int64], tempered: bool, guess: Array) -> None:
        """Set the ties apart: no temperature changes their loss. For the other choices, compute
        what does not depend on the temperature, so that the methods are quick.
        """
        n_outcomes = p.shape[-1]
        # If the algorithm has a temperature of its own (`tempered`), the temperature here stays 1.
        # No choice is then set apart: all count with the probability that the algorithm predicts.
        is_tied = np.zeros(len(p), bool) if tempered else _is_tied(p)
        tied_counts = np.bincount(choices[is_tied], minlength=n_outcomes)
        # Laplace's rule of succession, so that no outcome gets probability 0.
        self.tied = (tied_counts + 1.0) / (is_tied.sum() + n_outcomes)
        self.tied_nats = -float(tied_counts @ np.log(self.tied))
        untied_p = p[~is_tied]
        untied_guess = guess[~is_tied]  # probabilities of a uniform guess among offered outcomes
        chosen = choices[~is_tied][:, None]
        self._guess_of_choice = np.take_along_axis(untied_guess, chosen, -1)[:, 0]
        log_p = np.log(np.maximum(untied_p, _LEAST_PROBABILITY))
        log_ratios = log_p - np.take_along_axis(log_p, chosen, -1)
        # Log of p(outcome) / p(choice), [choice, outcome]; options that are not offered never count.
        self._log_ratios = np.where(untied_guess > 0, log_ratios, -np.inf)
        # Probability of each choice at temperature 0; 0 if another outcome was the likeliest.
        self._chances_at_zero = np.take_along_axis(take_likeliest(untied_p), chosen, -1)[:, 0]
        self.always_likeliest = bool(self._chances_at_zero.all())
        largest_p = untied_p.max(-1, initial=0)
        self.is_certain = bool((largest_p >= 1 - _LEAST_PROBABILITY).all())

    def chances(self, temperature: float) -> Array:
        """Return the probability of each choice of the player without uniform guesses (lapse rate
        0), ``[choice]``.

        Ties (choices with a uniform predicted distribution) are left out, unless the temperature is
        one of the algorithm's parameters (``tempered``).

        Args:
            temperature: the temperature; 0 takes the likeliest outcome.
        """
        if temperature == 0:
            return self._chances_at_zero
        ratios = np.exp(self._log_ratios / temperature)
        chances: Array = 1 / ratios.sum(-1)
        return chances

    def nats(self, lapse: float, temperature: float) -> float:
        """Return the loss of the choices: minus the log of their probability, summed, in nats.

        Ties (choices with a uniform predicted distribution) are left out, unless the temperature is
        one of the algorithm's parameters (``tempered``).

        Args:
            lapse: the lapse rate (share of uniform guesses).
            temperature: the temperature.
        """
        mixed = lapse * self._guess_of_choice + (1 - lapse) * self.chances(temperature)
        return -float(np.log(mixed).sum())

    def best_temperature(self, may_lapse: bool) -> float:
        """Return the temperature with the least loss of the choices, searched from .25 to 100.

        Args:
            may_lapse: True to fit the lapse rate (share of uniform guesses) anew at every
                temperature; False for lapse rate 0.
        """

        def least_nats(log_temperature: float) -> float:
            temperature = float(np.exp(log_temperature))
            lapse = self.best_lapse(temperature) if may_lapse else 0.0
            return self.nats(lapse, temperature)

        fit = optimize.minimize_scalar(
            least_nats,
            bounds=_LOG_TEMPERATURES,
            method="bounded",
            options={"xatol": 2e-3},
        )
        return float(np.exp(fit.x))

    def best_lapse(self, temperature: float) -> float:
        """Return the lapse rate (share of uniform guesses) with the least loss of the choices.

        The loss is convex in the lapse rate, so its slope has one root, or none if the least or the
        largest lapse rate is best.

        Args:
            temperature: the temperature, which stays fixed.
        """
        chances = self.chances(temperature)
        slope = partial(self._likelihood_slope, chances)
        lowest = _LAPSE_STEP / 2
        highest = 1 - lowest
        if slope(lowest) <= 0:
            return lowest
        if slope(highest) > 0:
            return highest
        root = optimize.brentq(slope, lowest, highest, xtol=1e-3 * _LAPSE_STEP)
        return float(np.floor(root / _LAPSE_STEP) + 0.5) * _LAPSE_STEP

    def lapse_at_zero(self) -> float:
        """Return the lapse rate (share of uniform guesses) at temperature 0 that is expected to give as
        many choices against the likeliest outcome as there are.
        """
        share_against = (1 - self._chances_at_zero).sum()
        share_of_guesses = (1 - self._guess_of_choice).sum()  # if all choices are guesses
        return min(float(share_against / share_of_guesses), 1 - _LAPSE_STEP / 2)

    def would_lapse(self, temperature: float) -> bool:
        """Return True if the loss of the choices is lower with a small lapse rate (share of uniform
        guesses) than with lapse rate 0, both at the same temperature.

        Args:
            temperature: the temperature.
        """
        return self._likelihood_slope(self.chances(temperature), lapse=0.0) > 0

    def _likelihood_slope(self, chances: Array, lapse: float) -> float:
        """Return the derivative of the log-likelihood of all choices with respect to the lapse rate
        (share of uniform guesses).

        Args:
            chances: probability of each choice at lapse rate 0, ``[choice]``.
            lapse: the lapse rate at which the derivative is taken.
        """
        gain = self._guess_of_choice - chances
        return float((gain / (chances + lapse * gain)).sum())


def fit_link(
    p: Array,
    choices: NDArray[np.int64],
    use: NDArray[np.bool_],
    tempered: bool,
    *,
    offers: NDArray[np.int64] | None = None,
    may_lapse: bool = True,
) -> FittedLink:
    """Fit the temperature and the lapse rate (share of uniform guesses) with which an algorithm's
    predictions explain a player's choices best.

    The loss is minus the log of the probability of the choices, in nats. A lapse rate above 0 is
    taken only if it lowers the sum of the loss by more than 1.92 nats (:data:`HALF_CHI2`).

    Args:
        p: predicted distributions, ``[episode, round, outcome]``. With ``offers``, the probability
            of each offered option, ``[episode, round, slot]``.
        choices: index of the chosen outcome, or of its slot with ``offers``, ``[episode, round]``.
        use: True for the choices to fit to, ``[episode, round]``.
        tempered: True if one of the algorithm's parameters is a temperature; the fitted temperature
            is then 1.
        offers: index of the option in each slot (position in the list of offered options),
            ``[episode, round, slot]``; negative in empty slots. None if all options are offered.
        may_lapse: False sets the lapse rate to 0, except if a choice would then have probability 0;
            True fits it.

    Returns:
        The loss per choice, and a :class:`Link` with the fitted temperature and lapse rate. If the
        lapse rate is above 0, the loss of all choices together includes a penalty of 1.92 nats.
    """
    guess = guess_uniformly(p.shape, offers)
    likelihood = ChoiceLikelihood(p[use], choices[use], tempered, guess[use])
    candidates = _fit_without_lapse(likelihood, tempered)
    best = min(candidates, default=None)
    # Without a candidate, only a lapse rate gives every choice a probability above 0.
    if best is None or (may_lapse and _lapse_may_save(likelihood, best, tempered)):
        candidates.append(_fit_with_lapse(likelihood, tempered))
    nats, lapse, temperature = min(candidates)  # tuples are ordered by the loss, which is first
    n_choices = int(use.sum())
    link = Link(lapse=lapse, temperature=temperature, tied=likelihood.tied)
    return FittedLink(nats=(nats + likelihood.tied_nats) / n_choices, link=link)


def _fit_without_lapse(likelihood: ChoiceLikelihood, tempered: bool) -> list[_Candidate]:
    """Fit the temperature with lapse rate 0, and return up to two candidates: the best temperature
    above 0, and temperature 0.

    A candidate that gives a choice the probability 0 is left out.

    Args:
        likelihood: the likelihood of the choices.
        tempered: True if one of the algorithm's parameters is a temperature. The only candidate
            then has temperature 1, which leaves the algorithm's predictions as they are.
    """
    if tempered:
        nats = likelihood.nats(lapse=0.0, temperature=1.0)
        return [_Candidate(nats, lapse=0.0, temperature=1.0)]
    candidates = []
    if not likelihood.is_certain:  # no temperature changes certain predictions
        temperature = likelihood.best_temperature(may_lapse=False)
        nats = likelihood.nats(lapse=0.0, temperature=temperature)
        candidates.append(_Candidate(nats, lapse=0.0, temperature=temperature))
    if likelihood.always_likeliest:
        nats = likelihood.nats(lapse=0.0, temperature=0.0)
        candidates.append(_Candidate(nats, lapse=0.0, temperature=0.0))
    return candidates


def _lapse_may_save(likelihood: ChoiceLikelihood, best: _Candidate, tempered: bool) -> bool:
    """Return True if a lapse rate (share of uniform guesses) above 0 may lower the loss by more
    than its penalty. Fits call this test often, so it makes no search.

    The result is False if the loss of ``best`` is at most the penalty. Otherwise it is True if one
    of these three fits has a lower loss than ``best``:

    - the temperature of ``best`` with a small lapse rate;
    - temperature 0 with the lapse rate L, for which the expected number of choices against the
      likeliest outcome is the observed one;
    - half the temperature of ``best`` with the lapse rate L / 2.

    It is also True if the temperature of ``best`` is the lowest above 0 that a fit may choose.
    Temperature 0, which needs a lapse rate, may then be better.

    Args:
        likelihood: the likelihood of the choices.
        best: the best fit with lapse rate 0.
        tempered: True if one of the algorithm's parameters is a temperature. The temperature here
            then stays 1, and only the first of the three fits is compared.
    """
    if best.nats <= HALF_CHI2:  # the penalty is at least all that could be saved
        return False
    if likelihood.would_lapse(best.temperature):
        return True
    if tempered:  # the temperature stays, and the loss is convex in the lapse rate
        return False
    lowest_temperature = np.exp(_LOG_TEMPERATURES[0])
    if best.temperature < 1.01 * lowest_temperature:
        return True  # temperature 0 may fit better, but only with a lapse rate
    lapse = likelihood.lapse_at_zero()
    at_zero = likelihood.nats(lapse, 0.0)
    at_half = likelihood.nats(lapse / 2, best.temperature / 2)
    return min(at_zero, at_half) < best.nats


def _fit_with_lapse(likelihood: ChoiceLikelihood, tempered: bool) -> _Candidate:
    """Fit the temperature and the lapse rate together, and return both with their loss, which
    includes the penalty for a lapse rate.

    Every temperature is tried with the lapse rate that fits best at it. The loss can have several
    minima over temperatures, so the temperatures :data:`_TEMPERATURES` are tried besides the one
    that a search finds. If all predictions are certain, only temperature 0 is tried.

    Args:
        likelihood: the likelihood of the choices.
        tempered: True if one of the algorithm's parameters is a temperature. Only temperature 1 is
            then tried, which leaves the algorithm's predictions as they are.
    """
    if tempered:
        temperatures: tuple[float, ...] = (1.0,)
    elif likelihood.is_certain:
        # The algorithm gives one outcome probability 1 in every round, which no temperature changes. The
        # temperature of a player who always chooses the likeliest outcome stands for all.
        temperatures = (0.0,)
    else:
        temperatures = (*_TEMPERATURES, likelihood.best_temperature(may_lapse=True))
    candidates = []
    for temperature in temperatures:
        lapse = likelihood.best_lapse(temperature)
        nats = likelihood.nats(lapse, temperature)
        candidates.append(_Candidate(nats, lapse, temperature))
    nats, lapse, temperature = min(candidates)  # tuples are ordered by the loss, which is first
    # The penalty for one more parameter, the lapse rate: half the 95 % point of chi-squared.
    return _Candidate(nats + HALF_CHI2, lapse, temperature)


def interpolate_profile_ends(
    grid: Array, profile: Array, temperature: float = 1.0
) -> tuple[float, float]:
    """Return (low, high), the ends of a parameter's 95 % profile likelihood interval, interpolated
    between grid values.

    The interval contains the values with a loss of at most 1.92 nats above the minimum. At
    temperature 0 the limit is 3.68 nats instead of 1.92, because the log-likelihood then varies
    like a random walk.

    Args:
        grid: values of the parameter, ascending.
        profile: least loss at each value of the grid, with the other parameters refitted, in nats
            summed over all choices.
        temperature: temperature of the choices.
    """
    limit = _LIMIT_AT_ZERO if temperature == 0 else HALF_CHI2
    # Near the minimum the loss rises like a square, so the root of the rise is a straight line,
    # which can be interpolated.
    root_rise = np.sqrt(profile - profile.min())
    root_limit = np.sqrt(limit)
    inside = np.flatnonzero(root_rise <= root_limit)
    ends = []
    for last_inside, direction in ((inside[0], -1), (inside[-1], 1)):
        # The same index again if the grid ends before the interval does: its end is then the grid's.
        first_outside = np.clip(last_inside + direction, 0, len(grid) - 1)
        around_end = [last_inside, first_outside]
        ends.append(float(np.interp(root_limit, root_rise[around_end], grid[around_end])))
    low, high = ends
    return low, high


def take_likeliest(p: Array) -> Array:
    """Return the probabilities of a player at temperature 0, ``[..., outcome]``: 1 for the likeliest
    outcome and 0 for the others. Outcomes that are equally likely share the probability.

    >>> take_likeliest(np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]])).tolist()
    [[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]

    Args:
        p: predicted distributions, ``[..., outcome]``.
    """
    is_likeliest = p >= p.max(-1, keepdims=True) - TIE_TOLERANCE
    shares: Array = is_likeliest / is_likeliest.sum(-1, keepdims=True)
    return shares


def _is_tied(p: Array) -> NDArray[np.bool_]:
    """Return whether all outcomes are equally likely, in the shape of ``p`` without the last axis."""
    return np.ptp(p, axis=-1) < TIE_TOLERANCE
