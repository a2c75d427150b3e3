"""The algorithms of choosing among arms as causal models of one round, and the families that comparison fits.

Rescorla-Wagner, which is Q-learning without a next state, by its rate and inverse temperature ``beta``::

    P = softmax(beta V)      error = payoff - V_chosen      V_chosen <- V_chosen + rate error      (V = 0 at first)

The softmax runs over the arms that are on offer in the round. Its extensions have one rate for errors above 0 and
another below, forget the arms that were not chosen, or repeat the last choice. Rivals: the choice kernel, a habit
that no payoff moves; win-stay lose-shift; the counts of a Bayesian with a Beta(1, 1) prior, who adds a bonus for
what is uncertain (UCB) or draws from the posterior (Thompson); a fixed bias.

A payoff above 0 is a win. A family with an inverse temperature, or with probabilities of its own, needs no further one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import (
    Algorithm,
    AlgorithmRecord,
    Equation,
    Family,
    Searched,
    Values,
    maker,
    variable_table,
)
from interp.support.checks import checked, number

_Array = NDArray[np.float64]
_made = maker(
    "bandit",
    variable_table(Path(__file__).with_name("variables.csv")),
    {
        "pulled": lambda episodes: np.eye(episodes.n_arms)[episodes.choices],
        "payoff": lambda episodes: episodes.rewards,
        "offered": lambda episodes: episodes.offered.astype(np.float64),
    },
    # What was paid last is one number; the others are one for each arm.
    lambda episodes, key: np.zeros((len(episodes), episodes.n_arms)[: 1 + (key != "last_paid")]),
    lambda v: v["arm_probabilities"],
)


def _algorithm(
    key: str,
    name: str,
    parameters: Mapping[str, float],
    memory: str,
    equations: Mapping[str, Equation | None],
) -> Algorithm:
    """An algorithm of this task, which chooses by the softmax of its ``logits``."""
    for parameter, value in parameters.items():
        number(parameter, value)
    softmax = {"arm_probabilities": _choose_among_offered}
    return _made(key, name, {**equations, **softmax}, memory, **parameters)


def _choose_among_offered(v: Values) -> _Array:
    """The softmax of the logits over the arms that are on offer."""
    possible = np.where(v["offered"] > 0, v["logits"], -np.inf)
    return np.asarray(special.softmax(possible, axis=-1))


def _learner(
    key: str,
    name: str,
    parameters: Mapping[str, float],
    gain: float,
    loss: float,
    forgets: float = 0.0,
    stays: float | None = None,
) -> Algorithm:
    """Rescorla-Wagner with what extends it; with ``stays`` the last choice adds to its own log-odds."""
    beta = parameters["inverse_temperature"]

    def moved(v: Values) -> _Array:
        rates = v["pulled"] * np.where(v["payoff_error"] > 0, gain, loss)[..., None]
        return np.asarray(
            v["arm_values"] * (1 - forgets * (1 - v["pulled"]))
            + rates * v["payoff_error"][..., None]
        )

    last: dict[str, Equation | None] = {
        "last_pulled": None,
        "next_last_pulled": lambda v: v["pulled"],
    }
    equations: dict[str, Equation | None] = {
        "arm_values": None,
        **({} if stays is None else last),
        "logits": lambda v: (
            beta * v["arm_values"] + (0.0 if stays is None else stays * v["last_pulled"])
        ),
        "payoff_error": lambda v: v["payoff"] - (v["arm_values"] * v["pulled"]).sum(-1),
        "next_arm_values": moved,
    }
    return _algorithm(key, name, parameters, "arm_values", equations)


@checked
def rescorla_wagner(rate: float = 0.3, inverse_temperature: float = 5.0) -> Algorithm:
    """Rescorla-Wagner: the value of the chosen arm moves towards what it paid by a share ``rate`` of the error.

    >>> rescorla_wagner(0.5).state, rescorla_wagner().written
    (('arm_values',), 'next_arm_values')
    """
    known = {"rate": rate, "inverse_temperature": inverse_temperature}
    return _learner("rescorla_wagner", "Rescorla-Wagner", known, rate, rate)


def _two_rates(gain: float = 0.4, loss: float = 0.2, inverse_temperature: float = 5.0) -> Algorithm:
    """Rescorla-Wagner with a rate for errors above 0, ``gain``, and one for those below, ``loss``."""
    known = {"gain": gain, "loss": loss, "inverse_temperature": inverse_temperature}
    return _learner("two_rates", "Rescorla-Wagner with two rates", known, gain, loss)


def _forgetting(
    rate: float = 0.3, forgets: float = 0.2, inverse_temperature: float = 5.0
) -> Algorithm:
    """Rescorla-Wagner whose values of the arms that were not chosen fall to 0 by a share ``forgets`` a round."""
    known = {"rate": rate, "forgets": forgets, "inverse_temperature": inverse_temperature}
    return _learner("forgetting", "Rescorla-Wagner that forgets", known, rate, rate, forgets)


@checked
def perseveration(
    rate: float = 0.3, stays: float = 1.0, inverse_temperature: float = 5.0
) -> Algorithm:
    """Rescorla-Wagner that repeats: the last choice has ``stays`` nats more log-odds, or less where it is negative."""
    known = {"rate": rate, "stays": stays, "inverse_temperature": inverse_temperature}
    return _learner("perseveration", "Rescorla-Wagner that repeats", known, rate, rate, stays=stays)


@checked
def choice_kernel(rate: float = 0.3, inverse_temperature: float = 3.0) -> Algorithm:
    """A habit: what was chosen of late is chosen again, whatever it paid."""
    equations: dict[str, Equation | None] = {
        "choice_trace": None,
        "logits": lambda v: inverse_temperature * v["choice_trace"],
        "next_choice_trace": lambda v: v["choice_trace"] + rate * (v["pulled"] - v["choice_trace"]),
    }
    known = {"rate": rate, "inverse_temperature": inverse_temperature}
    return _algorithm("choice_kernel", "choice kernel", known, "choice_trace", equations)


@checked
def win_stay(stays: float = 0.9, shifts: float = 0.9) -> Algorithm:
    """Win-stay lose-shift: the last choice again with probability ``stays`` after a win, else 1 - ``shifts``."""
    for name, value in (("stays", stays), ("shifts", shifts)):
        number(name, value, 1e-6, 1 - 1e-6)

    def logits(v: Values) -> _Array:
        last = v["last_pulled"]
        others = np.maximum(v["offered"].sum(-1, keepdims=True) - 1, 1)
        again = np.where(v["last_paid"] > 0, stays, 1 - shifts)[..., None]
        return np.asarray(
            np.where(
                last.sum(-1, keepdims=True) > 0,
                np.log(last * again + (1 - last) * (1 - again) / others),
                0.0,
            )
        )

    equations: dict[str, Equation | None] = {
        "last_pulled": None,
        "last_paid": None,
        "paid": lambda v: (v["payoff"] > 0).astype(np.float64),
        "logits": logits,
        "next_last_pulled": lambda v: v["pulled"],
        "next_last_paid": lambda v: v["paid"],
    }
    return _algorithm(
        "win_stay",
        "win-stay lose-shift",
        {"stays": stays, "shifts": shifts},
        "last_pulled",
        equations,
    )


def _bayes(
    key: str, name: str, parameters: Mapping[str, float], logits: Equation, keeps: float = 1.0
) -> Algorithm:
    """A Bayesian with a Beta(1, 1) prior, whose counts fade: ``keeps`` of them is left after each round."""
    equations: dict[str, Equation | None] = {
        "arm_wins": None,
        "arm_losses": None,
        "paid": lambda v: (v["payoff"] > 0).astype(np.float64),
        "logits": logits,
        "next_arm_wins": lambda v: keeps * v["arm_wins"] + v["pulled"] * v["paid"][..., None],
        "next_arm_losses": lambda v: (
            keeps * v["arm_losses"] + v["pulled"] * (1 - v["paid"])[..., None]
        ),
    }
    return _algorithm(key, name, parameters, "arm_wins", equations)


def _posterior(v: Values) -> tuple[_Array, _Array]:
    """Mean and standard deviation of the chance that each arm pays."""
    wins, losses = 1 + v["arm_wins"], 1 + v["arm_losses"]
    mean = wins / (wins + losses)
    return mean, np.sqrt(mean * (1 - mean) / (wins + losses + 1))


def _bayes_ucb(bonus: float = 1.0, inverse_temperature: float = 5.0) -> Algorithm:
    """A Bayesian who adds ``bonus`` standard deviations to the mean of each arm: the upper confidence bound."""

    def logits(v: Values) -> _Array:
        mean, deviation = _posterior(v)
        return inverse_temperature * (mean + bonus * deviation)

    known = {"bonus": bonus, "inverse_temperature": inverse_temperature}
    return _bayes("bayes_ucb", "Bayes with an upper confidence bound", known, logits)


@checked
def bayes_thompson(keeps: float = 1.0) -> Algorithm:
    """A Bayesian who draws each arm's chance from a normal of the posterior's moments, and takes the largest draw.

    ``keeps`` is the share of all counts that is left after a round, in (0, 1].
    """
    number("keeps", keeps, 1e-3, 1)
    points = np.linspace(-0.5, 1.5, 201)[:, None]

    def logits(v: Values) -> _Array:
        mean, deviation = _posterior(v)
        z = (points - mean[..., None, :]) / deviation[..., None, :]
        below = special.log_ndtr(z)
        log_density = -(z**2) / 2 - np.log(deviation[..., None, :])
        return np.asarray(
            special.logsumexp(log_density + below.sum(-1, keepdims=True) - below, axis=-2)
        )

    return _bayes("bayes_thompson", "Bayes that draws (Thompson)", {"keeps": keeps}, logits, keeps)


@checked
def fixed_bias(first: float = 0.5) -> Algorithm:
    """The first arm with probability ``first``, the others evenly, whatever happened before."""
    number("first", first, 1e-6, 1 - 1e-6)

    def logits(v: Values) -> _Array:
        n = v["pulled"].shape[-1]
        return np.broadcast_to(
            np.log([first, *[(1 - first) / (n - 1)] * (n - 1)]), v["pulled"].shape
        )

    return _algorithm("fixed_bias", "a fixed bias", {"first": first}, "", {"logits": logits})


def records() -> tuple[AlgorithmRecord, ...]:
    """The algorithms of this task."""
    return (
        AlgorithmRecord("rescorla_wagner", "Rescorla-Wagner", "RW", rescorla_wagner),
        AlgorithmRecord(
            "perseveration", "Rescorla-Wagner that repeats", "RW + habit", perseveration
        ),
        AlgorithmRecord("choice_kernel", "choice kernel", "habit", choice_kernel),
        AlgorithmRecord("win_stay", "win-stay lose-shift", "WSLS", win_stay),
        AlgorithmRecord(
            "bayes_thompson", "Bayes that draws (Thompson)", "Thompson", bayes_thompson
        ),
        AlgorithmRecord("fixed_bias", "a fixed bias", "bias", fixed_bias),
    )


# Where a fit looks for each parameter, but for what a family says itself.
_RATE = Searched("rate", (0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0))
_INVERSE_TEMPERATURE = Searched(
    "inverse_temperature", (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 40.0), enters=("logits",)
)
_GAIN = Searched("gain", (0.05, 0.2, 0.5, 0.9))
_LOSS = Searched("loss", (0.0, 0.05, 0.2, 0.5, 0.9))
_FORGETS = Searched("forgets", (0.0, 0.1, 0.3, 0.7, 1.0))
_STAYS = Searched("stays", (-2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0), enters=("logits",))
_SHIFTS = Searched("shifts", (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99), enters=("logits",))
_BONUS = Searched("bonus", (-2.0, 0.0, 1.0, 2.0, 4.0), enters=("logits",))
_KEEPS = Searched("keeps", (0.5, 0.7, 0.8, 0.9, 0.95, 1.0))
_FIRST = Searched("first", (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99), enters=("logits",))


def families() -> tuple[Family, ...]:
    """What a player, or a model of one, is compared with."""
    return (
        Family(
            "rescorla_wagner",
            "Rescorla-Wagner",
            rescorla_wagner,
            searched=(_RATE, _INVERSE_TEMPERATURE),
            tempered=True,
        ),
        Family(
            "two_rates",
            "Rescorla-Wagner with two rates",
            _two_rates,
            searched=(
                _GAIN,
                _LOSS,
                Searched("inverse_temperature", (0.5, 2.0, 5.0, 15.0), enters=("logits",)),
            ),
            extends="rescorla_wagner",
            tempered=True,
        ),
        Family(
            "forgetting",
            "Rescorla-Wagner that forgets",
            _forgetting,
            searched=(
                Searched("rate", (0.05, 0.2, 0.5, 0.9)),
                _FORGETS,
                Searched("inverse_temperature", (0.5, 2.0, 5.0, 15.0), enters=("logits",)),
            ),
            extends="rescorla_wagner",
            tempered=True,
        ),
        Family(
            "perseveration",
            "Rescorla-Wagner that repeats",
            perseveration,
            searched=(
                Searched("rate", (0.05, 0.2, 0.5, 0.9)),
                _STAYS,
                Searched("inverse_temperature", (0.5, 2.0, 5.0, 15.0), enters=("logits",)),
            ),
            extends="rescorla_wagner",
            tempered=True,
        ),
        Family(
            "choice_kernel",
            "choice kernel",
            choice_kernel,
            searched=(_RATE, _INVERSE_TEMPERATURE),
            tempered=True,
        ),
        Family(
            "win_stay",
            "win-stay lose-shift",
            win_stay,
            searched=(
                Searched("stays", (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99), enters=("logits",)),
                _SHIFTS,
            ),
            tempered=True,
        ),
        Family(
            "bayes_ucb",
            "Bayes with an upper confidence bound",
            _bayes_ucb,
            searched=(_BONUS, _INVERSE_TEMPERATURE),
            tempered=True,
        ),
        Family(
            "bayes_thompson",
            "Bayes that draws (Thompson)",
            bayes_thompson,
            searched=(_KEEPS,),
            tempered=True,
        ),
        Family(
            "fixed_bias",
            "a fixed bias",
            fixed_bias,
            searched=(_FIRST,),
            memoryless=True,
            tempered=True,
        ),
    )
