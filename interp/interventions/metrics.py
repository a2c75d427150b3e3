"""What a patched run is measured by: one number per episode, from predictions or from the state.

All metrics are oriented so that a higher number is nearer to the clean run, or are differences that patching papers
report (logit difference). ``Metric.measure`` maps a :class:`Readout` with any leading cell axes to ``[cell, episode]``.

Models whose output is "probability" have no logits: theirs are log P, with P clipped to ``[1e-6, 1]`` (a unanimous
vote makes a handwired P exactly 0 or 1, whose logit does not exist), so a logit difference lies within +-13.8.

A prediction of a real number (``RoundLayout.kind``) has no logits at all: it is read by "prediction" and
"squared_error", which the others refuse to be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.algorithm import Predicted
from interp.checks import unique
from interp.errors import InputError, require_known
from interp.interventions.pairs import Pair, Readout
from interp.model.layout import RoundLayout

CLIP = 1e-6
"""Smallest probability whose logarithm is taken."""


@dataclass(frozen=True)
class Metric:
    """How runs are measured, ``(readout, pair) -> [*cell, episode]``, and whether that needs the round's update.

    ``kinds`` are the kinds of prediction that it can read.
    """

    key: str
    name: str
    unit: str
    measure: Callable[[Readout, Pair], Tensor]
    needs_update: bool = False
    kinds: tuple[Predicted, ...] = get_args(Predicted)


def _probabilities(readout: Readout, pair: Pair) -> Float[Tensor, "*batch outcome"]:
    """The distribution over outcomes at the round that is read."""
    return pair.layout.distribution(readout.predictions.select(-1 - pair.layout.prediction_axes, -1))


def _logs(readout: Readout, pair: Pair) -> Float[Tensor, "*batch outcome"]:
    """Log-probabilities of outcomes at the round that is read, clipped at log 1e-6."""
    return _probabilities(readout, pair).clamp_min(CLIP).log()


def _risen_and_fallen(pair: Pair) -> tuple[Tensor, Tensor]:
    """Per episode, the outcomes whose log-probability rises most and falls most from corrupted to clean."""
    change = _logs(pair.clean_readout, pair) - _logs(pair.corrupted_readout, pair)
    return change.argmax(-1), change.argmin(-1)


def _pick(values: Float[Tensor, "*batch outcome"], outcome: Tensor) -> Tensor:
    return values.gather(-1, outcome.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _logit_diff(readout: Readout, pair: Pair) -> Tensor:
    risen, fallen = _risen_and_fallen(pair)
    logs = _logs(readout, pair)
    return torch.where(risen == fallen, torch.zeros((), dtype=logs.dtype), _pick(logs, risen) - _pick(logs, fallen))


def _mean(readout: Readout, pair: Pair) -> Float[Tensor, "*batch"]:
    """The mean of the real number that is predicted at the round that is read."""
    return pair.layout.choose(readout.predictions.select(-1 - pair.layout.prediction_axes, -1))


def state_difference(decode: Callable[[Tensor], Tensor] | None = None) -> Metric:
    """The state after the read round, along the line from corrupted to clean, in units of the state.

    ``<s - s_corrupted, d>`` with ``d`` the unit vector from the corrupted to the clean state: 0 on the corrupted run
    and the distance of the two states on the clean run.

    Args:
        decode: latents ``[..., latent, d_model]`` to state ``[..., k]``; the model's exact readout when None (and the
            raw latents for a learned model, which has none).
    """

    def measure(readout: Readout, pair: Pair) -> Tensor:
        read = decode if decode is not None else pair.read_state
        lead = readout.latents.ndim - 2
        state = read(readout.latents).flatten(lead)
        clean, corrupted = (read(run.latents).flatten(1) for run in (pair.clean_readout, pair.corrupted_readout))
        gap = clean - corrupted
        unit = gap / gap.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(gap.dtype).tiny)
        return ((state - corrupted) * unit).sum(-1)

    return Metric("state", "decoded state difference", "state", measure, needs_update=True)


_CLASSES: tuple[Predicted, ...] = ("classes",)
_REAL: tuple[Predicted, ...] = ("mean", "normal")


def _agreement(readout: Readout, pair: Pair) -> Tensor:
    choice, clean = (_probabilities(given, pair).argmax(-1) for given in (readout, pair.clean_readout))
    return (choice == clean).to(readout.predictions.dtype)


def _towards_clean(readout: Readout, pair: Pair) -> Tensor:
    corrupted = _mean(pair.corrupted_readout, pair)
    return (_mean(readout, pair) - corrupted) * (_mean(pair.clean_readout, pair) - corrupted).sign()


METRICS: dict[str, Metric] = unique(
    (
        Metric("logit_diff", "logit difference", "nats", _logit_diff, kinds=_CLASSES),
        Metric(
            key="probability",
            name="probability",
            unit="probability",
            measure=lambda readout, pair: _pick(_probabilities(readout, pair), _risen_and_fallen(pair)[0]),
            kinds=_CLASSES,
        ),
        Metric("agreement", "choice agrees with clean", "share of episodes", _agreement, kinds=_CLASSES),
        Metric(
            key="regret",
            name="expected loss",
            unit="expected mistakes",
            measure=lambda readout, pair: pair.losses(readout.predictions).sum(-1),
        ),
        state_difference(),
        Metric("prediction", "prediction, from corrupted to clean", "prediction", _towards_clean, kinds=_REAL),
        Metric(
            key="squared_error",
            name="squared error from clean",
            unit="prediction squared",
            measure=lambda readout, pair: (_mean(readout, pair) - _mean(pair.clean_readout, pair)).square(),
            kinds=_REAL,
        ),
    ),
    "metric",
)


EXITS = ("logit_diff", "state")
"""The metrics that read the two exits of a round: what is predicted, and what is remembered. What acts on one alone
does not show in the other; read through both, methods find far more of the parts that matter (``interp benchmark``)."""


def exits(layout: RoundLayout) -> tuple[str, str]:
    """:data:`EXITS` of a layout's rounds: where these predict a real number, that is read by "prediction"."""
    return EXITS if layout.kind == "classes" else ("prediction", EXITS[1])


def metric(name: str | Metric | None, layout: RoundLayout | None = None) -> Metric:
    """The metric of that key; a :class:`Metric` is returned as it is.

    With a ``layout`` the first of its :func:`exits` when None; a metric that cannot read its predictions is refused.
    """
    if name is None:
        name = EXITS[0] if layout is None else exits(layout)[0]
    if isinstance(name, str):
        require_known("metric", name, METRICS)
    found = METRICS[name] if isinstance(name, str) else name
    if layout is not None and layout.kind not in found.kinds:
        fitting = ", ".join(key for key, known in METRICS.items() if layout.kind in known.kinds)
        what = "one of several outcomes" if layout.kind == "classes" else f"a real number ({layout.kind!r})"
        raise InputError(f"metric {found.key!r} cannot read predictions of {layout.task!r}, {what}; take {fitting}")
    return found
