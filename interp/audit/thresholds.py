"""Every threshold of an audit, with its reason; the rule that judges by them is that of :mod:`interp.measure`."""

from __future__ import annotations

from typing import NamedTuple


class Threshold(NamedTuple):
    """A number that a word rests on; ``why`` says where it comes from, and what was measured at it."""

    value: float
    why: str


THRESHOLDS = {
    "effect": Threshold(
        0.02,
        "predictions that move by less than two points of probability on average carry no conclusion; planted machines "
        "that do not read their state give 0, those that do .07 and more",
    ),
    "worth": Threshold(
        0.02,
        "the share of the loss that the own state takes away: planted machines that do not read their state give 0, "
        "untrained ones .01 at most, those that use it .05 and more",
    ),
    "decoded": Threshold(0.5, "half of the variation; planted machines' own memories give .78"),
    "kept": Threshold(0.9, "directions count as enough where nine tenths of the whole effect pass them"),
    "in time": Threshold(
        0.1, "a tenth of the loss between knowing nothing and knowing: machines that search or count are within .01"
    ),
    "unseen": Threshold(
        0.001,
        "a machine that predicts before the truth moves by nothing at all, but for rounding; what leaks must move more "
        "than a thousandth to be of use",
    ),
    "longer": Threshold(0.9, "nine tenths of what the rounds before gained"),
    "side": Threshold(
        0.75,
        "halfway between a model that takes either side by chance and one that always takes the algorithm's, where the "
        "two disagree; planted heuristics give 0, handwired machines 1",
    ),
    "settled": Threshold(1e-3, "a step as small as this share of how far states lie apart counts as no step"),
    "common": Threshold(
        0.9,
        "the share of a step's square that all episodes make alike; a drift gives 1, a random map's orbit .2 at most",
    ),
    "stays": Threshold(
        0.1, "a tenth of the way that predictions went until the algorithm came to rest; handwired search goes on by 0"
    ),
}
"""Name -> the threshold. They were chosen with the planted machines that ``tests/audit`` calls seen; the others were
judged once they stood."""
