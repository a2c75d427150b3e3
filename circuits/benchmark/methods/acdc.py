"""Automatic circuit discovery (ACDC; Conmy et al., 2023): cut edge after edge while faithfulness stays.

It decides, so its circuit is scored beside its ranking, in which what it kept stands above what it cut. Joined, its
circuits of the two exits are united.
"""

from __future__ import annotations

from functools import partial

from circuits.benchmark.material import EXITS, Case, Exit, Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.subject import Subject
from interp.interventions.ablation import acdc

TOLERANCE = 0.01


def found(material: Material, case: Case, ablation: str) -> frozenset[tuple[str, str]]:
    """The edges that ACDC keeps for one exit."""

    def make() -> frozenset[tuple[str, str]]:
        scorer = material.scorer(case, ablation)
        if abs(float((scorer.full - scorer.empty).mean())) < 1e-9:
            return frozenset()  # The empty circuit does as well: there is nothing to be faithful to.
        keep, graph = acdc(scorer, TOLERANCE), scorer.graph
        return frozenset((graph.sources[s], graph.destinations[d]) for s, d in graph.edges if keep[s, d])

    return material.once(("acdc", case.corruption, case.exit, ablation), make)


def discovery(ablation: str, exits: tuple[Exit, ...], subject: Subject, material: Material) -> Answer:
    """The union of the circuits found for some exits."""
    read = [case for exit in exits if (case := material.case(exit)) is not None]
    kept = frozenset(edge for case in read for edge in found(material, case, ablation))
    return Answer({edge: float(edge in kept) for edge in material.items("edges")}, kept)


for _ablation in ("resample", "zero"):
    for _reading, _exits in (("single", EXITS[:1]), ("joined", EXITS)):
        _name = f"ACDC, {_ablation}, {'the prediction' if _reading == 'single' else 'both exits, united'}"
        _answer = partial(discovery, _ablation, _exits)
        register(Method(f"acdc-{_ablation}:{_reading}", _name, "edges", _answer))
