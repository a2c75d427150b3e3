"""Distributed alignment search (Geiger et al., 2024): a basis is trained so that interchanging it moves predictions as
the algorithm says.

The score of a variable at a site is the accuracy of the learned basis on informative pairs that did not train it; of
directions the basis itself is the answer. It reads predictions alone. Where it refuses (a site behind the prediction, a
variable that hardly changes choices, hard attention without gradients), the site has no score; where it refuses all of
them, so does the method.

Its price is that of training three bases for every site: of the smallest Weighted Majority 23 CPU seconds for
directions and 65 for sites at the quick effort, whose quick run leaves it out.
"""

from __future__ import annotations

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.subject import Subject
from interp.errors import InputError
from interp.interventions.alignment import AlignmentError, AlignmentResult, align
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer


def where(subject: Subject, material: Material) -> Answer:
    """The accuracy of every variable at every site that is asked for."""
    found = _every(subject, material, "where")
    return Answer({item: one.accuracy() for item, one in found.items()})


def subspace(subject: Subject, material: Material) -> Answer:
    """The learned bases."""
    found = _every(subject, material, "subspace")
    return Answer({}, subspaces={item: one.basis for item, one in found.items()})


def _every(subject: Subject, material: Material, question: str) -> dict[tuple[str, str], AlignmentResult]:
    """What was learned of each item, without those that were refused.

    Raises:
        InputError: all of them were; the last refusal.
    """
    found: dict[tuple[str, str], AlignmentResult] = {}
    refused = None
    for item in material.items(question):
        learned = material.once(("das", *item), lambda item=item: _aligned(subject, material, *item))  # type: ignore[misc]
        if isinstance(learned, AlignmentResult):
            found[item] = learned
        else:
            refused = learned
    if not found and refused is not None:
        raise InputError(f"no site could be aligned; of the last: {refused}")
    return found


def _aligned(subject: Subject, material: Material, key: str, site: str) -> AlignmentResult | AlignmentError:
    effort = material.effort
    base, source = (material.episodes(batch, effort.fits) for batch in (4, 5))

    def runs(model: HookedLatentTransformer) -> tuple[Rollout, Rollout]:
        if model is subject.model:
            return material.run(4, effort.fits), material.run(5, effort.fits)
        key = "das", model.config.name, model.digest()
        return material.once(key, lambda: (rollout(model, base), rollout(model, source)))

    try:
        return align(
            *(subject.model, base, source, subject.algorithm, key, site),
            steps=effort.steps,
            restarts=1,
            seed=material.seed,
            runs=runs,
        )
    except AlignmentError as error:
        return error


register(
    Method("das", "distributed alignment search", "where", where, needs="gradient", quick=False),
    Method("das", "distributed alignment search", "subspace", subspace, needs="gradient", quick=False),
)
