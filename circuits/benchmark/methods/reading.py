"""What a method looks at: which corruptions of the task, in which rounds, read through which exits of a round."""

from __future__ import annotations

from circuits.benchmark.material import EXITS, Case, Exit, Material

READINGS = {
    "single": "the prediction, one corruption",
    "prediction": "the prediction, all corruptions",
    "state": "the state, all corruptions",
    "joined": "both exits, all corruptions",
    "rounds": "both exits, all corruptions, two rounds",
    "everything": "both exits and the raw latents, all corruptions, two rounds",
}
"""Key of a reading -> in words."""


def cases(material: Material, reading: str) -> list[Case]:
    """The cases of a reading."""
    effort, exits = material.effort, EXITS
    if reading in ("single", "prediction"):
        return material.cases(("prediction",))[: 1 if reading == "single" else None]
    if reading == "state":
        return material.cases(("state",))
    if reading == "everything":
        exits = (*exits, "latents")
    both: tuple[Exit, ...] = exits
    return material.cases(both, None if reading == "joined" else (effort.early, effort.round))
