"""Every machine that methods are graded on, by name: handwired ones in their variants, and trained ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from circuits.benchmark import trained
from circuits.benchmark.subject import Subject, build, variants
from circuits.calibration import FORMS


def builders(quick: bool = True, seed: int = 0) -> dict[str, Callable[[], Subject]]:
    """Every subject by name, and what builds it: cheap, and the same each time; the trained ones last.

    >>> len(builders()), list(builders())[:2]
    (57, ['wma-handwired R, plain', 'wma-handwired R, rotated'])
    """
    handmade: dict[str, Callable[[], Subject]] = {
        f"{machine} {form}, {variant}": partial(build, machine, form, variant, quick=quick, seed=seed)
        for form, (machine, _) in FORMS.items()
        for variant in variants(machine, form)
    }
    return handmade | trained.builders()


QUICK_SUBJECTS = tuple(
    f"{FORMS[form][0]} {form}, {variant}"
    for form in ("R", "mean, softmax", "mlp")
    for variant in ("plain", "distractors")
)
"""What the quick run grades methods on: one form of each machine, plain and among distractors."""
