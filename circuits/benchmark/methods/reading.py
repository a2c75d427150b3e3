"""What a method looks at: which corruptions of the task, read through which exits of a round."""

from __future__ import annotations

from circuits.benchmark.material import Case, Material

READINGS = {
    "single": "the prediction, one corruption",
    "prediction": "the prediction, all corruptions",
    "state": "the state, all corruptions",
    "joined": "both exits, all corruptions",
}
"""Key of a reading -> in words."""


def cases(material: Material, reading: str) -> list[Case]:
    """The cases of a reading; of one exit alone, those that show there."""
    if reading == "joined":
        return list(material.cases)
    exit = "state" if reading == "state" else "prediction"
    found = [case for case in material.cases if case.exit == exit]
    return found[:1] if reading == "single" else found
