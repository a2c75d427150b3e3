"""Algorithms for choosing among arms, as causal models of one round, and the families to be fitted.

Rescorla-Wagner is Q-learning without a next state. V are the values of the arms, 0 at first. The
parameters are a learning rate ``rate`` and the inverse temperature ``beta``::

    P = softmax(beta V)
    error = payoff - V_chosen
    V_chosen <- V_chosen + rate error

The softmax is over the arms on offer in the round. Extensions use one rate for positive errors and
another for negative ones, forget the arms that were not chosen, or repeat the last choice. Rivals
are the choice kernel (a habit that ignores rewards), win-stay lose-shift, Bayesians with a prior
Beta(1, 1), and a fixed bias. The Bayesians add a bonus for uncertainty (UCB) or sample from the
posterior (Thompson).

A payoff above 0 is a win. If a family's parameters include an inverse temperature, or are
probabilities, a fit adds no further temperature. Every parameter of an algorithm here is a number,
or an array of numbers to run many players at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from interp.core.algorithm import (
    CARRIED,
    Algorithm,
    AlgorithmRecord,
    Equation,
    Family,
    Searched,
    Values,
    algorithm_builder,
    variable_table,
)
from interp.support.checks import array_of, check_number, checked
from interp.support.errors import require

_Array = NDArray[np.float64]
_Parameter = float | _Array
"""A number; or an array with an axis for each leading axis of the variables, to run many players at
once.
"""

_ZERO_TO_ONE = (0.0, 1.0)
_INSIDE_ZERO_TO_ONE = (1e-6, 1 - 1e-6)  # of probabilities, whose logarithms must be finite
_UNBOUNDED = (None, None)
_BOUNDS: Mapping[str, tuple[float | None, float | None]] = {
    "rate": _ZERO_TO_ONE,
    "gain": _ZERO_TO_ONE,
    "loss": _ZERO_TO_ONE,
    "forgets": _ZERO_TO_ONE,
    "keeps": (1e-3, 1.0),
    "inverse_temperature": (0.0, None),
    "shifts": _INSIDE_ZERO_TO_ONE,
    "first": _INSIDE_ZERO_TO_ONE,
}
"""Parameter -> its smallest and largest value; parameters without bounds are absent."""


def _mark_choices(episodes: Any) -> _Array:
    """Return the chosen arm as a one-hot vector, ``[episode, round, arm]``."""
    one_hot: _Array = np.eye(episodes.n_arms)[episodes.choices]
    return one_hot


def _zeros(episodes: Any, key: str) -> _Array:
    """Return zeros as the initial values of a state variable: ``[episode]`` for "last_paid",
    ``[episode, arm]`` for all others.

    Args:
        episodes: the episodes.
        key: key of the state variable.
    """
    shape = (len(episodes),) if key == "last_paid" else (len(episodes), episodes.n_arms)
    return np.zeros(shape)


_VARIABLES = variable_table(Path(__file__).with_name("variables.csv"))
_INPUTS: Mapping[str, Callable[[Any], _Array]] = {
    "pulled": _mark_choices,
    "payoff": lambda episodes: episodes.rewards,
    "offered": lambda episodes: episodes.offered.astype(float),
}
_build_algorithm = algorithm_builder(
    "bandit", _VARIABLES, _INPUTS, zeros=_zeros, distribution=lambda v: v["arm_probabilities"]
)


def _make_softmax_algorithm(
    key: str,
    name: str,
    parameters: Mapping[str, _Parameter],
    memory: str,
    equations: Mapping[str, Equation | None],
) -> Algorithm:
    """Make an algorithm of this task that chooses by a softmax of its variable "logits".

    Args:
        key: key of the algorithm.
        name: name of the algorithm.
        parameters: the algorithm's parameters by name, which are checked against their bounds.
        memory: key of the variable that summarises earlier rounds.
        equations: equation of every variable except inputs, by key; None for state variables.
            The equation of the choice, the softmax of "logits", is added.
    """
    for parameter, value in parameters.items():
        _check_bounds(parameter, value, _BOUNDS.get(parameter, _UNBOUNDED))
    with_choice = {**equations, "arm_probabilities": _choose_among_offers}
    return _build_algorithm(key, name, with_choice, memory=memory, **parameters)


def _for_each_arm(parameter: _Parameter) -> _Array:
    """Return ``parameter``, a number or an array ``[...]``, as an array ``[..., 1]``, which
    broadcasts over arms.
    """
    return np.asarray(parameter)[..., None]


def _choose_among_offers(v: Values) -> _Array:
    """Return the softmax of the logits over the arms on offer, ``[..., arm]``; other arms have
    probability 0.

    Args:
        v: values of the round's variables, by key.
    """
    logits = np.where(v["offered"] > 0, v["logits"], -np.inf)
    # Arms are few: a loop over them is twice as fast as a reduction of the last axis.
    highest = reduce(np.maximum, np.moveaxis(logits, -1, 0))
    exponentials = np.exp(logits - highest[..., None])
    total = reduce(np.add, np.moveaxis(exponentials, -1, 0))
    probabilities: _Array = exponentials / total[..., None]
    return probabilities


def _check_bounds(name: str, value: _Parameter, bounds: tuple[float | None, float | None]) -> None:
    """Raise InputError if a value of a parameter lies outside of the parameter's bounds.

    Args:
        name: name of the parameter.
        value: one value, or an array of values.
        bounds: smallest and largest allowed value; None for no bound.
    """
    numbers = array_of(name, value)
    require(numbers.size > 0, f"{name} is empty; give a number")
    for extreme in (numbers.min(), numbers.max()):
        check_number(name, extreme, *bounds)


def _compute_payoff_error(v: Values) -> _Array:
    """Return the reward minus the value of the chosen arm (the prediction error), ``[...]``.

    Args:
        v: values of the round's variables, by key.
    """
    expected = np.vecdot(v["arm_values"], v["pulled"])  # "pulled" is 1 for the chosen arm
    return v["payoff"] - expected


def _make_learner(
    key: str,
    name: str,
    parameters: Mapping[str, _Parameter],
    positive_rate: _Parameter,
    negative_rate: _Parameter,
    forgets: _Parameter | None = None,
    stays: _Parameter | None = None,
) -> Algorithm:
    """Make Rescorla-Wagner, which learns the arms' values from prediction errors, possibly with
    extensions.

    Args:
        key: key of the algorithm.
        name: name of the algorithm.
        parameters: parameters for the algorithm's field ``parameters``, by name;
            "inverse_temperature" is among them.
        positive_rate: learning rate for positive prediction errors (reward minus value).
        negative_rate: learning rate for negative prediction errors.
        forgets: share by which the values of arms that were not chosen decay in a round; None for no
            decay.
        stays: log-odds that are added to the arm that was chosen last; None for no memory of the
            last choice.
    """
    beta = _for_each_arm(parameters["inverse_temperature"])

    def update(v: Values) -> _Array:
        """Return the arms' values after the round, ``[..., arm]``."""
        error, pulled = v["payoff_error"], v["pulled"]  # [...] and one-hot [..., arm]
        rate = np.where(error > 0, positive_rate, negative_rate)
        rates = pulled * rate[..., None]  # [..., arm], 0 for arms that were not chosen
        values: _Array = v["arm_values"]
        if forgets is not None:
            values = values * (1 - _for_each_arm(forgets) * (1 - pulled))
        return values + rates * error[..., None]

    def choose(v: Values) -> _Array:
        """Return the logits of the choice, ``[..., arm]``."""
        logits = beta * v["arm_values"]
        return logits if stays is None else logits + _for_each_arm(stays) * v["last_pulled"]

    equations: dict[str, Equation | None] = {"arm_values": CARRIED}
    if stays is not None:
        equations |= {"last_pulled": CARRIED, "next_last_pulled": lambda v: v["pulled"]}
    equations |= {
        "logits": choose,
        "payoff_error": _compute_payoff_error,
        "next_arm_values": update,
    }
    return _make_softmax_algorithm(key, name, parameters, memory="arm_values", equations=equations)


@checked
def rescorla_wagner(rate: _Parameter = 0.3, inverse_temperature: _Parameter = 5.0) -> Algorithm:
    """Return Rescorla-Wagner: the chosen arm's value moves towards the reward by ``rate`` times
    their difference.

    Args:
        rate: learning rate, from 0 to 1.
        inverse_temperature: inverse temperature of the softmax choice.

    >>> rescorla_wagner(0.5).state, rescorla_wagner().written
    (('arm_values',), 'next_arm_values')
    """
    parameters = {"rate": rate, "inverse_temperature": inverse_temperature}
    return _make_learner(
        "rescorla_wagner", "Rescorla-Wagner", parameters, positive_rate=rate, negative_rate=rate
    )


def _two_rates(
    gain: _Parameter = 0.4, loss: _Parameter = 0.2, inverse_temperature: _Parameter = 5.0
) -> Algorithm:
    """Return Rescorla-Wagner with different learning rates for positive and negative errors.

    Args:
        gain: learning rate for positive errors.
        loss: learning rate for negative errors.
        inverse_temperature: inverse temperature of the softmax choice.
    """
    parameters = {"gain": gain, "loss": loss, "inverse_temperature": inverse_temperature}
    name = "Rescorla-Wagner with two rates"
    return _make_learner("two_rates", name, parameters, positive_rate=gain, negative_rate=loss)


def _forgetting(
    rate: _Parameter = 0.3, forgets: _Parameter = 0.2, inverse_temperature: _Parameter = 5.0
) -> Algorithm:
    """Return Rescorla-Wagner in which the values of arms that were not chosen decay to 0.

    Args:
        rate: learning rate.
        forgets: share by which the values of arms that were not chosen decay in a round.
        inverse_temperature: inverse temperature of the softmax choice.
    """
    parameters = {"rate": rate, "forgets": forgets, "inverse_temperature": inverse_temperature}
    name = "Rescorla-Wagner that forgets"
    return _make_learner(
        "forgetting", name, parameters, positive_rate=rate, negative_rate=rate, forgets=forgets
    )


@checked
def perseveration(
    rate: _Parameter = 0.3, stays: _Parameter = 1.0, inverse_temperature: _Parameter = 5.0
) -> Algorithm:
    """Return Rescorla-Wagner with a tendency to repeat the last choice.

    Args:
        rate: learning rate.
        stays: log-odds, in nats, that are added to the arm that was chosen last; may be negative.
        inverse_temperature: inverse temperature of the softmax choice.
    """
    parameters = {"rate": rate, "stays": stays, "inverse_temperature": inverse_temperature}
    name = "Rescorla-Wagner that repeats"
    return _make_learner(
        "perseveration", name, parameters, positive_rate=rate, negative_rate=rate, stays=stays
    )


@checked
def choice_kernel(rate: _Parameter = 0.3, inverse_temperature: _Parameter = 3.0) -> Algorithm:
    """Return the choice kernel, a habit: arms that were chosen recently are chosen again, whatever
    their rewards.

    Args:
        rate: share of the distance by which an arm's trace moves in each round: towards 1 if the
            arm is chosen, and towards 0 otherwise. Traces begin at 0.
        inverse_temperature: inverse temperature of the softmax over the arms' traces.
    """

    def update(v: Values) -> _Array:
        """Return the arms' traces after the round, ``[..., arm]``."""
        trace = v["choice_trace"]
        is_chosen = v["pulled"]  # 1 for the chosen arm, 0 for the others
        return trace + _for_each_arm(rate) * (is_chosen - trace)

    equations: dict[str, Equation | None] = {
        "choice_trace": CARRIED,
        "logits": lambda v: _for_each_arm(inverse_temperature) * v["choice_trace"],
        "next_choice_trace": update,
    }
    parameters = {"rate": rate, "inverse_temperature": inverse_temperature}
    return _make_softmax_algorithm(
        "choice_kernel", "choice kernel", parameters, memory="choice_trace", equations=equations
    )


def _mark_wins(v: Values) -> _Array:
    """Return 1 for rounds with a reward above 0 (a win) and 0 for other rounds, ``[...]``.

    Args:
        v: values of the round's variables, by key.
    """
    return (v["payoff"] > 0).astype(float)


def _count_others(v: Values) -> _Array:
    """Return the number of arms on offer minus 1, ``[..., 1]``; but at least 1, since it is used as
    a divisor.

    Args:
        v: values of the round's variables, by key.
    """
    return np.maximum(v["offered"].sum(-1, keepdims=True) - 1, 1)


@checked
def win_stay(stays: _Parameter = 0.9, shifts: _Parameter = 0.9) -> Algorithm:
    """Return win-stay lose-shift. With some probability it repeats the last choice after a win (a
    reward above 0), and with another probability it chooses another arm after a loss.

    Args:
        stays: probability of repeating the last choice after a win.
        shifts: probability of choosing another arm after a loss. The other arms on offer are
            equally likely.
    """
    # Here "stays" is a probability; in other algorithms it is a log-odds without bounds.
    _check_bounds("stays", stays, _INSIDE_ZERO_TO_ONE)

    def logits(v: Values) -> _Array:
        """Return the log-probabilities of the choices, ``[..., arm]``; 0 in the first round."""
        last = v["last_pulled"]  # 1 for the last chosen arm, 0 for the others
        p_repeat = np.where(v["last_paid"] > 0, stays, 1 - shifts)[..., None]
        # The other arms on offer share the rest of the probability. Arms that are not on offer get a
        # number, too, but the softmax leaves them out.
        chances = last * p_repeat + (1 - last) * (1 - p_repeat) / _count_others(v)
        has_last = last.sum(-1, keepdims=True) > 0  # not so in the first round: all arms are equal
        return np.where(has_last, np.log(chances), 0.0)

    equations: dict[str, Equation | None] = {
        "last_pulled": CARRIED,
        "last_paid": CARRIED,
        "paid": _mark_wins,
        "logits": logits,
        "next_last_pulled": lambda v: v["pulled"],
        "next_last_paid": lambda v: v["paid"],
    }
    parameters = {"stays": stays, "shifts": shifts}
    return _make_softmax_algorithm(
        "win_stay", "win-stay lose-shift", parameters, memory="last_pulled", equations=equations
    )


def _make_bayesian(
    key: str,
    name: str,
    parameters: Mapping[str, _Parameter],
    logits: Equation,
    keeps: _Parameter = 1.0,
) -> Algorithm:
    """Make a Bayesian learner that counts wins and losses of each arm, with a prior Beta(1, 1) for
    the arm's probability of a win.

    Args:
        key: key of the algorithm.
        name: name of the algorithm.
        parameters: parameters for the algorithm's field ``parameters``, by name.
        logits: equation of the choice's logits.
        keeps: factor by which all counts are multiplied in each round, so that old rounds count
            less; 1 for no decay.
    """

    decay = _for_each_arm(keeps)

    def count_wins(v: Values) -> _Array:
        """Return the arms' counts of wins after the round, ``[..., arm]``."""
        paid = v["paid"][..., None]  # 1 for a win, 0 for a loss
        return decay * v["arm_wins"] + v["pulled"] * paid

    def count_losses(v: Values) -> _Array:
        """Return the arms' counts of losses after the round, ``[..., arm]``."""
        unpaid = (1 - v["paid"])[..., None]
        return decay * v["arm_losses"] + v["pulled"] * unpaid

    equations: dict[str, Equation | None] = {
        "arm_wins": CARRIED,
        "arm_losses": CARRIED,
        "paid": _mark_wins,
        "logits": logits,
        "next_arm_wins": count_wins,
        "next_arm_losses": count_losses,
    }
    # An algorithm has one variable as its memory, which analyses steer and decode by default. The
    # counts of losses are carried, too, as a second state.
    return _make_softmax_algorithm(key, name, parameters, memory="arm_wins", equations=equations)


def _compute_posterior(v: Values) -> tuple[_Array, _Array]:
    """Return the posterior mean and the posterior standard deviation of each arm's probability of a
    win, each ``[..., arm]``.

    Args:
        v: values of the round's variables, by key.
    """
    wins, losses = 1 + v["arm_wins"], 1 + v["arm_losses"]  # with those of the prior Beta(1, 1)
    total = wins + losses
    mean = wins / total
    variance = mean * (1 - mean) / (total + 1)  # of the beta distribution Beta(wins, losses)
    return mean, np.sqrt(variance)


def _bayes_ucb(bonus: _Parameter = 1.0, inverse_temperature: _Parameter = 5.0) -> Algorithm:
    """Return a Bayesian learner that chooses by upper confidence bounds: each arm's posterior mean
    plus ``bonus`` standard deviations.

    Args:
        bonus: weight of the standard deviation; may be negative.
        inverse_temperature: inverse temperature of the softmax over the bounds.
    """

    def logits(v: Values) -> _Array:
        """Return the logits of the choice, ``[..., arm]``."""
        mean, deviation = _compute_posterior(v)
        optimistic = mean + _for_each_arm(bonus) * deviation
        scaled: _Array = _for_each_arm(inverse_temperature) * optimistic
        return scaled

    parameters = {"bonus": bonus, "inverse_temperature": inverse_temperature}
    return _make_bayesian("bayes_ucb", "Bayes with an upper confidence bound", parameters, logits)


_QUADRATURE_NODES, _QUADRATURE_WEIGHTS = np.polynomial.legendre.leggauss(48)


def _log_chances_of_two(mean: _Array, deviation: _Array) -> _Array:
    """Return the log-probability, for each of two arms, that a normal draw for this arm is larger
    than one for the other arm.

    Args:
        mean: mean of each arm's draw, ``[..., 2]``.
        deviation: standard deviation of each arm's draw, ``[..., 2]``.
    """
    # The difference of the two draws is normal, and its variance is the sum of their variances.
    gap = mean[..., :1] - mean[..., 1:]
    z = gap / np.sqrt(np.square(deviation).sum(-1, keepdims=True))
    log_chances: _Array = special.log_ndtr(np.concatenate([z, -z], -1))
    return log_chances


def _log_chances_of_largest(mean: _Array, deviation: _Array, offered: _Array) -> _Array:
    """Return the log-probability that a normal draw for an arm is the largest of all arms on offer,
    ``[..., arm]``, plus a number that is the same for all arms; a softmax cancels it. Values of arms
    that are not on offer have no meaning.

    For arm i it is the log of the integral of ``p_i(x) prod_{j != i} P_j(x)`` over x, where p_i is
    the density of the arm's draw and P_j the probability that the draw of arm j is below x. The
    integral is computed by Gauss-Legendre quadrature, from the largest of ``mean - 6 deviation`` to
    the largest of ``mean + 6 deviation``.

    Args:
        mean: mean of each arm's draw, ``[..., arm]``.
        deviation: standard deviation of each arm's draw, ``[..., arm]``.
        offered: 1 for arms on offer and 0 for others, ``[..., arm]``.
    """
    is_rival = offered > 0
    # The largest draw is at least as large as each arm's: below `low` it has hardly any mass.
    low = np.where(is_rival, mean - 6 * deviation, -np.inf).max(-1, keepdims=True)
    high = np.where(is_rival, mean + 6 * deviation, -np.inf).max(-1, keepdims=True)
    # Values of the largest draw, [..., point], from nodes in [-1, 1]; the arrays below are
    # [..., point, arm].
    points = low + (high - low) * (1 + _QUADRATURE_NODES) / 2
    z = (points[..., None] - mean[..., None, :]) / deviation[..., None, :]
    # Probability that an arm's draw is below the point; not 0, since it is a divisor.
    p_below = np.where(is_rival[..., None, :], np.maximum(special.ndtr(z), 1e-100), 1.0)
    p_all_below = p_below.prod(-1, keepdims=True)
    # p_all_below / p_below is the product over the other arms. Factors that all arms share are left
    # out: the softmax over arms cancels them.
    density = np.exp(-np.square(z) / 2) / deviation[..., None, :]
    integral = (_QUADRATURE_WEIGHTS[:, None] * density * p_all_below / p_below).sum(-2)
    log_chances: _Array = np.log(integral + 1e-100)
    return log_chances


@checked
def bayes_thompson(keeps: _Parameter = 1.0) -> Algorithm:
    """Return Thompson sampling: draw the win probability of each arm on offer from its posterior,
    and choose the arm with the largest draw.

    The posterior is approximated by a normal distribution with the same mean and variance.

    Args:
        keeps: factor by which all counts of wins and losses are multiplied in each round, from .001
            to 1. With 1 all rounds count equally.
    """

    def logits(v: Values) -> _Array:
        """Return the log-probabilities of the choices, ``[..., arm]``."""
        mean, deviation = _compute_posterior(v)
        if mean.shape[-1] == 2:
            return _log_chances_of_two(mean, deviation)
        return _log_chances_of_largest(mean, deviation, v["offered"])

    name = "Bayes that draws (Thompson)"
    return _make_bayesian("bayes_thompson", name, {"keeps": keeps}, logits, keeps=keeps)


@checked
def fixed_bias(first: _Parameter = 0.5) -> Algorithm:
    """Return an algorithm without memory: in every round the first arm is chosen with probability
    ``first``, and the other arms on offer are equally likely.
    """

    def logits(v: Values) -> _Array:
        """Return the log-probabilities of the choices, ``[..., arm]``."""
        is_first = np.arange(v["offered"].shape[-1]) == 0
        p_first = _for_each_arm(first)
        # Arms that are not on offer get a number, too, but the softmax leaves them out.
        chances: _Array = np.where(is_first, p_first, (1 - p_first) / _count_others(v))
        return np.log(chances)

    equations = {"logits": logits}
    return _make_softmax_algorithm(
        "fixed_bias", "a fixed bias", {"first": first}, memory="", equations=equations
    )


def records() -> tuple[AlgorithmRecord, ...]:
    """Return the task's algorithms, each as an :class:`AlgorithmRecord` (its names, and a function
    that makes it).

    The algorithms are in order of preference: if several have a variable of the same name, the first
    one defines it.
    """
    # Key, name in sentences, name in legends, and function.
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


# The grid of each parameter in a fit. A family and its extension have the same bounds, so that the
# extension contains the family.
_RATE = Searched("rate", (0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0))
_INVERSE_TEMPERATURE = Searched(
    "inverse_temperature",
    (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 40.0),
    used_by=("logits",),
    unit="rewards",
)
_GAIN = Searched("gain", (0.01, 0.05, 0.2, 0.5, 1.0))
_LOSS = Searched("loss", (0.0, 0.05, 0.2, 0.5, 1.0))
_FORGETS = Searched("forgets", (0.0, 0.1, 0.3, 0.7, 1.0))
_STAYS = Searched("stays", (-2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0), used_by=("logits",))
_SHIFTS = Searched("shifts", (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99), used_by=("logits",))
_BONUS = Searched("bonus", (-2.0, 0.0, 1.0, 2.0, 4.0), used_by=("logits",))
_KEEPS = Searched("keeps", (0.5, 0.7, 0.8, 0.9, 0.95, 1.0))
_FIRST = Searched("first", (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99), used_by=("logits",))


_FEW_RATES = Searched("rate", (0.01, 0.05, 0.2, 0.5, 1.0))
_FEW_TEMPERATURES = Searched(
    "inverse_temperature", (0.1, 2.0, 5.0, 15.0, 40.0), used_by=("logits",), unit="rewards"
)
_UNITLESS_TEMPERATURE = Searched(
    "inverse_temperature", (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 40.0), used_by=("logits",)
)
_STAYS_AFTER_WIN = Searched("stays", _SHIFTS.grid, used_by=("logits",))


def families() -> tuple[Family, ...]:
    """Return the families of algorithms that are fitted to a player's choices, or to a model's
    predictions. The algorithms of a family differ only in their parameters.
    """
    rw = "Rescorla-Wagner"
    rate_and_temperature = (_RATE, _INVERSE_TEMPERATURE)
    # With three parameters, fewer values of each are tried.
    rates = (_GAIN, _LOSS, _FEW_TEMPERATURES)
    forgets = (_FEW_RATES, _FORGETS, _FEW_TEMPERATURES)
    repeats = (_FEW_RATES, _STAYS, _FEW_TEMPERATURES)
    ucb = (_BONUS, _UNITLESS_TEMPERATURE)
    # Key, name, function, parameters that a fit searches, and key of the family that it extends.
    learners = (
        ("rescorla_wagner", rw, rescorla_wagner, rate_and_temperature, ""),
        ("two_rates", f"{rw} with two rates", _two_rates, rates, "rescorla_wagner"),
        ("forgetting", f"{rw} that forgets", _forgetting, forgets, "rescorla_wagner"),
        ("perseveration", f"{rw} that repeats", perseveration, repeats, "rescorla_wagner"),
        ("choice_kernel", "choice kernel", choice_kernel, (_RATE, _UNITLESS_TEMPERATURE), ""),
        ("win_stay", "win-stay lose-shift", win_stay, (_STAYS_AFTER_WIN, _SHIFTS), ""),
        ("bayes_ucb", "Bayes with an upper confidence bound", _bayes_ucb, ucb, ""),
        ("bayes_thompson", "Bayes that draws (Thompson)", bayes_thompson, (_KEEPS,), ""),
    )
    listed = []
    for key, name, make, searched, extends in learners:
        # tempered: a parameter sets how sharply it chooses. vectorised: parameters may be arrays.
        family = Family(key, name, make, searched, extends=extends, tempered=True, vectorised=True)
        listed.append(family)
    bias = Family(
        "fixed_bias",
        "a fixed bias",
        fixed_bias,
        (_FIRST,),
        memoryless=True,
        tempered=True,
        vectorised=True,
    )
    return (*listed, bias)
