"""What a method looks at: which corruptions of the task, in which rounds, read through which exits of a round."""

from __future__ import annotations

import numpy as np

from circuits.benchmark.material import ANOTHER, EXITS, Case, Material

READINGS = {
    "single": "the prediction, one corruption",
    "prediction": "the prediction, all corruptions",
    "state": "the state, all corruptions",
    "joined": "both exits, all corruptions",
    "another": "both exits, against another episode",
    "rounds": "both exits, all corruptions, two rounds",
    "everything": "both exits and the raw latents, all corruptions and against another episode",
}
"""Key of a reading -> in words."""
FAINT = 1e-9
"""An effect smaller than this share of what a corruption changes is none: rounding must not rank edges."""


def cases(material: Material, reading: str) -> list[Case]:
    """The cases of a reading."""
    if reading in ("single", "prediction"):
        return material.cases(("prediction",))[: 1 if reading == "single" else None]
    if reading == "state":
        return material.cases(("state",))
    if reading == "another":
        return material.cases(EXITS, corruptions=(ANOTHER,))
    if reading == "everything":
        return material.cases((*EXITS, "latents"), corruptions=(*material.corruptions, ANOTHER))
    return material.cases(EXITS, (material.effort.early, material.effort.round) if reading == "rounds" else None)


def solid(effects: np.ndarray) -> np.ndarray:
    """Effects as shares of what a corruption changes, without those that are rounding."""
    return np.where(effects < FAINT, 0.0, effects)
