"""Machines that are an algorithm in other coordinates, or one that is nearly the reference's, for tests of verdicts."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.known_machine import name_edited_model
from circuits.compare import driver
from circuits.compare.question import Compared, Question
from circuits.compare.response import ResponsePart
from interp.core.algorithm import Algorithm, Variable
from interp.core.machine import Channel, Machine
from interp.model.adapted import adapt
from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts.algorithms import weighted_majority
from lab.known.by_algorithm import STATE, Computed

Code = Callable[[Tensor], Tensor]


def prepared(monkeypatch, *models, **options) -> Compared:
    """What :func:`circuits.compare.machines` asks its questions about."""
    received = []

    def record(compared):
        received.append(compared)
        return ResponsePart()

    monkeypatch.setattr(driver, "QUESTIONS", [Question("algorithm", ResponsePart, record)])
    driver.machines(*models, **options)
    return received[0]


class _Coded(Computed):
    def __init__(self, algorithm: Algorithm, layout: RoundLayout, code: Code, back: Code) -> None:
        super().__init__(algorithm, layout)
        self.code, self.back = code, back
        self.register_buffer("first", code(self.first.unsqueeze(0))[0])
        self.n_carried = len(self.first)

    def parts(self, state):
        return super().parts(self.back(state))

    def flattened(self, state, like):
        return self.code(super().flattened(state, like))


def coded(algorithm: Algorithm, layout: RoundLayout, code: Code, back: Code, name: str) -> Machine:
    """The algorithm, carried as ``code(state)``; ``back`` is the inverse."""
    machine = _Coded(algorithm, layout, code, back)
    channels, initial = [Channel(STATE, (machine.n_carried,))], lambda own: {STATE: own.first}
    options = {"initial": initial, "reset": Computed.forget, "output": "probability", "name": name}
    return adapt(machine, layout, step=Computed.step, channels=channels, **options)


_GENERATOR = torch.Generator().manual_seed(3)
_TURN, _ = torch.linalg.qr(torch.randn(4, 4, generator=_GENERATOR, dtype=torch.float64))
_SCALES = torch.tensor([1000.0, 1.0, 1.0, 0.001], dtype=torch.float64)
_STRETCH = torch.tensor([100.0, 10.0, 2.0, 1.0], dtype=torch.float64)


def linear(matrix: Tensor) -> tuple[Code, Code]:
    """Return the code that is the state times a matrix, and the way back."""
    inverse = matrix.inverse()
    return lambda x: x @ matrix, lambda x: x @ inverse


def subtract_first(x: Tensor) -> Tensor:
    return x[:, 1:] - x[:, :1]


def prepend_zero(x: Tensor) -> Tensor:
    return torch.cat([0 * x[:, :1], x], 1)


def round_to_8_bits(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return torch.round(centred * 32) / 32


def leave(x: Tensor) -> Tensor:
    return x


def permute_and_pad(x: Tensor) -> Tensor:
    padding = 0 * x + 5
    return torch.cat([x[:, [2, 0, 3, 1]], padding], 1)


def unpad(x: Tensor) -> Tensor:
    return x[:, [1, 3, 0, 2]]


def bend(x: Tensor) -> Tensor:
    return torch.tanh(x @ _TURN / 6)


def unbend(x: Tensor) -> Tensor:
    return 6 * torch.atanh(x) @ _TURN.T


def exponentiate(x: Tensor) -> Tensor:
    return torch.exp(0.4 * x)


def take_log(x: Tensor) -> Tensor:
    return torch.log(x) / 0.4


CODES: dict[str, tuple[Code, Code]] = {
    "scaled": linear(_SCALES.diag()),
    "rotated": linear(_TURN),
    "stretched": linear(_STRETCH.diag() @ _TURN),
    "differences": (subtract_first, prepend_zero),
    "8 bits": (round_to_8_bits, leave),
    "permuted and padded": (permute_and_pad, unpad),
    "bent": (bend, unbend),
    "exponential": (exponentiate, take_log),
}
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


def waiting(gain: float = 0.5) -> Algorithm:
    """Weighted Majority whose update waits for one round after each mistake of its own."""
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
