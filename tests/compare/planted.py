"""Machines that are an algorithm in other coordinates, or one that is nearly the reference's, for tests of verdicts."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from circuits.benchmark.known_machine import name_edited_model
from circuits.compare import driver
from circuits.compare.question import Compared, Question
from circuits.compare.response import ResponsePart
from interp.core.algorithm import Algorithm, Variable
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts.algorithms import weighted_majority
from lab.known.unseen import Code

Array = NDArray[np.float64]


def prepared(monkeypatch, *models, **options) -> Compared:
    """What :func:`circuits.compare.machines` asks its questions about."""
    received = []

    def record(compared):
        received.append(compared)
        return ResponsePart()

    monkeypatch.setattr(driver, "QUESTIONS", [Question("algorithm", ResponsePart, record)])
    driver.machines(*models, **options)
    return received[0]


_GENERATOR = torch.Generator().manual_seed(3)
_DRAWN = torch.randn(4, 4, generator=_GENERATOR, dtype=torch.float64)
_TURN, _ = np.linalg.qr(_DRAWN.numpy())
_SCALES = np.diag([1000.0, 1.0, 1.0, 0.001])
_STRETCH = np.diag([100.0, 10.0, 2.0, 1.0])


def linear(name: str, matrix: Array) -> Code:
    """Return the code that is the state times a matrix."""
    inverse = np.linalg.inv(matrix)

    def encode(x: Array) -> Array:
        return x @ matrix

    def decode(c: Array) -> Array:
        return c @ inverse

    return Code(name, encode, decode)


def subtract_first(x: Array) -> Array:
    return x[:, 1:] - x[:, :1]


def prepend_zero(c: Array) -> Array:
    return np.concatenate([0 * c[:, :1], c], 1)


def round_to_8_bits(x: Array) -> Array:
    centred = x - x.mean(1, keepdims=True)
    return np.round(centred * 32) / 32


def permute_and_pad(x: Array) -> Array:
    padding = 0 * x + 5
    return np.concatenate([x[:, [2, 0, 3, 1]], padding], 1)


def bend(x: Array) -> Array:
    return np.tanh(x @ _TURN / 6)


def unbend(c: Array) -> Array:
    return 6 * np.arctanh(c) @ _TURN.T


def exponentiate(x: Array) -> Array:
    return np.exp(0.4 * x)


def take_log(c: Array) -> Array:
    return np.log(np.maximum(c, 1e-9)) / 0.4


_SCALED = linear("scaled", _SCALES)
_ROTATED = linear("rotated", _TURN)
_STRETCHED = linear("stretched", _STRETCH @ _TURN)
_DIFFERENCES = Code("differences", subtract_first, prepend_zero)
_ROUNDED = Code("8 bits", round_to_8_bits, lambda c: c)
_PADDED = Code("permuted and padded", permute_and_pad, lambda c: c[:, [1, 3, 0, 2]])
_BENT = Code("bent", bend, unbend)
_EXPONENTIAL = Code("exponential", exponentiate, take_log)
_ALL = (_SCALED, _ROTATED, _STRETCHED, _DIFFERENCES, _ROUNDED, _PADDED, _BENT, _EXPONENTIAL)
CODES = {code.name: code for code in _ALL}
"""Coordinates of four log-weights, and the way back, in two cases up to their sum."""


def relabelled(
    model: HookedLatentTransformer, order: tuple[int, ...], mirrored: bool
) -> HookedLatentTransformer:
    """The model, told the votes of the experts in another order, or every vote and label as its opposite."""
    changed, layout = copy.deepcopy(model), model.layout
    labels = [f"p_{i + 1}" for i in range(len(order))]
    votes = list(layout.positions(labels))
    zero = layout.token_ids["q0"]

    def exchange(module, given):
        tokens = given[0].clone()
        tokens[..., votes] = given[0][..., [votes[i] for i in order]]
        is_answer = (tokens == zero) | (tokens == zero + 1)
        opposite = 2 * zero + 1 - tokens
        return torch.where(is_answer & mirrored, opposite, tokens), *given[1:]

    changed.register_forward_pre_hook(exchange)
    changed.config = name_edited_model(
        model.config, "relabelled", f"experts {order}, mirrored {mirrored}"
    )
    return changed


def waiting() -> Algorithm:
    """Weighted Majority whose update waits for one round after each mistake of its own."""
    gain = 0.5
    base = weighted_majority(gain)

    def gained(v):
        predicts_one, is_one = v["prediction"] > 0.5, v["label"] > 0
        mistaken = predicts_one != is_one
        return gain * v["match"], mistaken[..., None]

    def waits(v):
        new, mistaken = gained(v)
        return np.where(mistaken, new, 0.0)

    def following(v):
        new, mistaken = gained(v)
        return v["log_weights"] + v["waits"] + np.where(mistaken, 0.0, new)

    read = ("prediction", "label", "match")
    place = [variable.key for variable in base.variables].index("log_weights") + 1
    variables = list(base.variables)
    variables.insert(place, Variable("waits", "w", "what waits", "nats", "state"))
    next_waits = Variable("next_waits", "w'", "what waits", "nats", parents=read, equation=waits)
    variables.append(next_waits)

    def initial(episodes):
        nothing = np.zeros((len(episodes), episodes.n_experts))
        return {**base.initial(episodes), "waits": nothing}

    return base.make_variant(
        "waiting",
        "Weighted Majority that waits",
        base.parameters,
        {"next_log_weights": (("log_weights", "waits", *read), following)},
        variables=tuple(variables),
        initial=initial,
    )
