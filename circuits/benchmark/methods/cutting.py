"""Which edges matter: cutting them, one by one or one after another, and first-order estimates of every cut.

* ``zero``, ``mean``, ``resample``: the drop of a metric when an edge carries its ablated value and all else runs on.
  The ablated value is zero, the mean over episodes of the corrupted run, or the corrupted run's own value (this is path
  patching from a sender to one receiver, Wang et al., 2023). An edge's score is the size of the mean drop, as a share
  of what the corruption changes, and the largest of these over what was read. ``+`` joins ablations (the larger of the
  two). ``:absolute`` averages the size of the drop of each episode instead, so that edges which push some episodes up
  and others down do not cancel.
* ``eap``, ``eap-ig``: edge attribution patching, and the same with integrated gradients. What has no gradient, hard
  attention's choice of a key, gets no score: on machines with hard attention these methods see values only. They are
  run there all the same, because a user may.
* ``acdc``: automatic circuit discovery (Conmy et al., 2023) cuts edge after edge while faithfulness stays. It decides,
  so its circuit is scored beside its ranking, in which what it kept stands above what it cut. Joined, its circuits of
  the two exits are united.
"""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import EXITS, Case, Exit, Material
from circuits.benchmark.method import READINGS, Method, register, strongest
from circuits.benchmark.question import Answer
from interp.interventions.ablation import acdc
from interp.interventions.attribution import attribute

_ABLATIONS = {"zero": "zero cutting", "mean": "mean cutting", "resample": "resample cutting (path patching)"}
_ESTIMATES = {"eap": ("EAP", 1), "eap-ig": ("EAP-IG, 5 steps", 5)}
"""Key -> name, and steps of the integral."""
_TOLERANCE = 0.01
"""Of ACDC: how much of the metric a cut may cost, as a share."""


def _cut(ablations: tuple[str, ...], reading: str, absolute: bool, subject: KnownMachine, material: Material) -> Answer:
    """The largest drop over what is read and over ablations."""

    def effects(case: Case) -> np.ndarray:
        drops = [material.drops(case, ablation) for ablation in ablations]
        return np.max([np.abs(drop).mean(1) if absolute else np.abs(drop.mean(1)) for drop in drops], 0)

    return strongest(material, reading, material.edge_names, effects)


def _attributed(steps: int, reading: str, subject: KnownMachine, material: Material) -> Answer:
    """The largest attribution over what is read, on average over episodes."""
    rows, columns = np.array(material.candidates).T

    def effects(case: Case) -> np.ndarray:
        def make() -> np.ndarray:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of hard attention, which is the point on some subjects.
                return attribute(case.pair, case.metric, steps=steps).edges

        made = material.once(("attribution", case.corruption, case.exit, case.round, steps), make)
        return np.asarray(np.abs(made) / case.scale)[rows, columns]

    return strongest(material, reading, material.edge_names, effects)


def _discovered(ablation: str, exits: tuple[Exit, ...], subject: KnownMachine, material: Material) -> Answer:
    """The union of the circuits that ACDC finds for some exits."""
    kept: set[tuple[str, str]] = set()
    for case in filter(None, map(material.case, exits)):
        key = "acdc", case.corruption, case.exit, ablation
        kept |= material.once(key, partial(_kept, material, case, ablation))
    return Answer({edge: float(edge in kept) for edge in material.items("edges")}, frozenset(kept))


def _kept(material: Material, case: Case, ablation: str) -> frozenset[tuple[str, str]]:
    """The edges that ACDC keeps for one exit."""
    scorer = material.scorer(case, ablation)
    if abs(float((scorer.full - scorer.empty).mean())) < 1e-9:
        return frozenset()  # The empty circuit does as well: there is nothing to be faithful to.
    keep, graph = acdc(scorer, _TOLERANCE), scorer.graph
    return frozenset((graph.sources[s], graph.destinations[d]) for s, d in graph.edges if keep[s, d])


def _cutting(ablations: tuple[str, ...], reading: str, absolute: bool = False) -> Method:
    key = f"{'+'.join(ablations)}:{'absolute' if absolute else reading}"
    name = " and ".join(_ABLATIONS[ablation] for ablation in ablations)
    reads = f"{READINGS[reading]}{', sizes per episode' if absolute else ''}"
    return Method(key, f"{name}, {reads}", "edges", partial(_cut, ablations, reading, absolute))


for _ablation in ("resample", "zero"):
    for _key, _exits, _read in (("single", EXITS[:1], "the prediction"), ("joined", EXITS, "both exits, united")):
        _answer = partial(_discovered, _ablation, _exits)
        register(Method(f"acdc-{_ablation}:{_key}", f"ACDC, {_ablation}, {_read}", "edges", _answer))
for _key, (_name, _steps) in _ESTIMATES.items():
    # Not of the raw latents: their distance from the clean ones has no gradient at the clean ones.
    for _reading in ("single", "prediction", "state", "joined", "rounds", "another"):
        _answer = partial(_attributed, _steps, _reading)
        register(Method(f"{_key}:{_reading}", f"{_name}, {READINGS[_reading]}", "edges", _answer))
for _reading in ("single", "prediction", "state", "joined", "another", "everything"):
    register(*(_cutting((ablation,), _reading) for ablation in _ABLATIONS))
register(_cutting(("zero",), "rounds"), _cutting(("zero", "resample"), "joined", True))
for _joined in ("joined", "another", "everything"):
    register(_cutting(("zero", "resample"), _joined), _cutting(("zero", "mean"), _joined))
