"""Which edges and nodes matter: cutting them, estimates of every cut, patching, and looking without intervening.

What each method scores, and its source: ``docs/method/benchmark.md``.
"""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Case, Material
from circuits.benchmark.methods import METHODS, READINGS, Method, register, strongest
from circuits.benchmark.question import Answer
from interp.interventions.edge_graph import attribute, split_head
from interp.interventions.patching import of_pair
from interp.interventions.sites import Site

_ABLATIONS = {
    "zero": "zero cutting",
    "mean": "mean cutting",
    "resample": "resample cutting (path patching)",
}
_ESTIMATES = {"eap": ("EAP", 1), "eap-ig": ("EAP-IG, 5 steps", 5)}


def _cut(
    ablations: tuple[str, ...],
    reading: str,
    subject: KnownMachine,
    material: Material,
) -> Answer:
    """Score edges by the largest drop over what is read and over ablations.

    Args:
        ablations: what cut edges carry.
        reading: which cases are read.
    """

    def effects(case: Case) -> np.ndarray:
        sizes = []
        for ablation in ablations:
            drop = material.drops(case, ablation)
            sizes.append(np.abs(drop.mean(1)))
        return np.max(sizes, 0)

    return strongest(material, reading, material.edge_names, effects)


def _attributed(steps: int, reading: str, subject: KnownMachine, material: Material) -> Answer:
    """Score edges by the largest attribution over what is read, on average over episodes.

    Args:
        steps: of the integrated gradients.
        reading: which exits are read, see :func:`strongest`.
        subject: the machine.
        material: its runs.
    """
    rows, columns = np.array(material.candidates).T

    def effects(case: Case) -> np.ndarray:
        def make() -> np.ndarray:
            with warnings.catch_warnings():
                # Of hard attention, which is the point on some subjects.
                warnings.simplefilter("ignore")
                return attribute(case.pair, case.metric, steps=steps).edges

        key = ("attribution", case.corruption, case.exit, case.round, steps)
        attributions = material.once(key, make)
        return np.asarray(np.abs(attributions) / case.scale)[rows, columns]

    return strongest(material, reading, material.edge_names, effects)


def _cutting(ablations: tuple[str, ...], reading: str) -> Method:
    key = f"{'+'.join(ablations)}:{reading}"
    name = " and ".join(_ABLATIONS[ablation] for ablation in ablations)
    answer = partial(_cut, ablations, reading)
    return Method(key, f"{name}, {READINGS[reading]}", "edges", answer)


def _attention(subject: KnownMachine, material: Material) -> Answer:
    """Score edges by attention x the size of what the source writes."""
    t = material.effort.round
    run, graph, scores = material.run(), material.graph, {}
    clean = material.pair(material.corruptions[0]).clean
    sizes = graph.contributions(clean, t).norm(dim=-1)  # [source, episode, position]
    rounds = run.tokens[:, t], run.latents[:, t], run.values[:, t]
    with torch.no_grad():
        _, cache = subject.transformer.run_with_cache(*rounds)
    exits = {"prediction": run.layout.predict_position, "update": run.layout.update_position}
    for s, d in material.candidates:
        size, name = sizes[s], graph.destinations[d]
        if "." in name:
            layer, head, _ = split_head(name)
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, head]
            size = (pattern.abs() * size.unsqueeze(1)).sum(-1)
        elif name in exits:
            size = size[:, exits[name]]
        scores[graph.sources[s], name] = float(size.mean())
    return Answer(scores)


for _key, (_name, _steps) in _ESTIMATES.items():
    # Not of the raw latents: their distance from the clean ones has no gradient at the clean ones.
    for _reading in ("single", "prediction", "state", "joined", "rounds", "another"):
        _answer = partial(_attributed, _steps, _reading)
        register(Method(f"{_key}:{_reading}", f"{_name}, {READINGS[_reading]}", "edges", _answer))
for _reading in ("single", "prediction", "state", "joined", "another", "everything"):
    register(*(_cutting((ablation,), _reading) for ablation in _ABLATIONS))
register(_cutting(("zero",), "rounds"))
for _joined in ("joined", "another", "everything"):
    register(_cutting(("zero", "resample"), _joined), _cutting(("zero", "mean"), _joined))
register(Method("attention", "attention inspection", "edges", _attention))

_BY_EDGES = (
    *(
        "zero:single",
        "zero:joined",
        "resample:joined",
        "zero+resample:joined",
        "zero+resample:everything",
    ),
    *("eap-ig:joined", "attention"),
)
"""Keys of the methods of edges that score nodes, too."""


def _sites(material: Material) -> dict[str, Site]:
    """Return every node and the site that holds what it writes."""
    sites = {}
    for node in material.items("nodes"):
        text = f"mlp_out[{node[4:]}]" if node.startswith("mlp ") else node
        sites[node] = Site.parse(text)
    return sites


def _patched(direction: str, reading: str, subject: KnownMachine, material: Material) -> Answer:
    """Score nodes by the largest effect over what is read, as a share of what the corruption changes.

    Args:
        direction: "noising" or "denoising".
        reading: which cases are read.
    """
    sites = _sites(material)

    def effects(case: Case) -> np.ndarray:
        def patch() -> Tensor:
            result = of_pair(
                case.pair, sites=list(sites.values()), metric=case.metric, direction=direction
            )
            return result.effects

        key = "node patching", case.corruption, case.exit, case.round, direction
        sizes = material.once(key, patch).mean(-1).abs()
        return np.asarray((sizes / case.scale).numpy(force=True))

    return strongest(material, reading, list(sites), effects)


def _outgoing(key: str, subject: KnownMachine, material: Material) -> Answer:
    """Score nodes by their strongest outgoing edge, by a method of edges.

    Args:
        key: of the method of edges.
        subject: the machine.
        material: its runs.
    """
    answer = METHODS["edges", key].answer(subject, material)
    best: dict[str, float] = {}
    for (source, _), score in answer.scores.items():
        best[source] = max(best.get(source, score), score)
    return Answer({node: best.get(node, 0.0) for node in material.items("nodes")})


for _direction in ("noising", "denoising"):
    for _reading in ("single", "prediction", "state", "joined", "another"):
        _name = f"activation patching, {_direction}, {READINGS[_reading]}"
        register(
            Method(
                f"{_direction}:{_reading}", _name, "nodes", partial(_patched, _direction, _reading)
            )
        )
for _key in _BY_EDGES:
    register(Method(_key, f"strongest edge by {_key}", "nodes", partial(_outgoing, _key)))
