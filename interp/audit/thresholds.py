"""Every threshold of an audit, with its reason; the rule that judges by them is that of :mod:`interp.measure`."""

from __future__ import annotations

from typing import NamedTuple


class Threshold(NamedTuple):
    """A number that a word rests on; ``why`` says where it comes from, and what was measured at it."""

    value: float
    why: str


_WHYS = {
    "worth": (0.02, "share of the loss that a state takes away: those that are not read give 0, those that are .05"),
    "effect": (0.02, "predictions that move by less than two points of probability carry no conclusion"),
    "decoded": (0.5, "half of the variation; planted machines' own memories give .78"),
    "kept": (0.9, "directions are enough where nine tenths of the whole effect, or worth, pass them"),
    "in time": (0.1, "a tenth of the loss between knowing nothing and knowing: machines that search are within .01"),
    "unseen": (0.001, "a machine that predicts before the truth moves by nothing at all, but for rounding"),
    "longer": (0.9, "nine tenths of what the rounds before gained"),
    "side": (
        0.75,
        "halfway between chance and always the algorithm's; planted heuristics give 0, handwired machines 1",
    ),
    "settled": (1e-3, "a step as small as this share of how far states lie apart counts as no step"),
    "common": (0.9, "share of a step that all episodes make alike: 1 of a drift, .2 at most of a random map's orbit"),
    "stays": (0.1, "a tenth of the way that predictions went until the algorithm rests; handwired search goes on by 0"),
}
THRESHOLDS = {name: Threshold(*of) for name, of in _WHYS.items()}
"""Name -> the threshold. They were chosen with the planted machines that ``tests/audit`` calls seen; the others were
judged once they stood."""
