"""Methods that score edges and nodes: ablation, attribution, activation patching, and attention.

``docs/method/benchmark.md`` says what each method scores, and its source.
"""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Case, Material
from circuits.benchmark.methods import METHODS, READINGS, Method, largest_effects, register
from circuits.benchmark.question import Answer
from interp.interventions.edge_graph import attribute, split_head
from interp.interventions.patching import patch_pair
from interp.interventions.sites import Site

_ABLATIONS = {
    "zero": "zero cutting",
    "mean": "mean cutting",
    "resample": "resample cutting (path patching)",
}
_ESTIMATES = {"eap": ("EAP", 1), "eap-ig": ("EAP-IG, 5 steps", 5)}


def _score_by_cutting(
    ablations: tuple[str, ...],
    reading: str,
    subject: KnownMachine,
    material: Material,
) -> Answer:
    """Score each edge by the size of the mean change of the metric when the edge is cut.

    The score is the largest over ablations and cases. A case is a corruption, the corrupted round,
    and an output that the corruption changes.

    Args:
        ablations: what a cut edge carries: "zero", "mean" or "resample".
        reading: which cases are used, see :func:`largest_effects`.
        subject: the machine; not used.
        material: the machine's runs, which methods share.
    """

    def effects(case: Case) -> np.ndarray:
        """Return the effect of cutting each edge, ``[edge]``: the largest over ablations, as a
        share of the effect of the whole corruption in ``case``.
        """
        # [edge], averaged over episodes, for each ablation.
        drops = [material.measure_drops(case, ablation).mean(1) for ablation in ablations]
        return np.abs(drops).max(0)

    return largest_effects(material, reading, material.edge_names, effects)


def _score_by_attribution(
    steps: int, reading: str, subject: KnownMachine, material: Material
) -> Answer:
    """Score each edge by its gradient attribution (edge attribution patching), averaged over
    episodes.

    The score is the largest over cases. A case is a corruption, the corrupted round, and an exit:
    an output of the model that the corruption changes, such as "prediction" (``case.exit``).

    Args:
        steps: number of steps of integrated gradients; 1 for plain gradients.
        reading: which cases are used, see :func:`largest_effects`.
        subject: the machine; not used.
        material: the machine's runs, which methods share.
    """
    sources, destinations = np.array(material.candidates).T  # indices in the edge graph

    def effects(case: Case) -> np.ndarray:
        """Return the absolute attribution of each candidate edge, ``[edge]``, as a share of the
        effect of the whole corruption (``case.scale``).
        """

        def make() -> np.ndarray:
            """Attribute the metric to all edges, ``[source, destination]``."""
            with warnings.catch_warnings():
                # Warnings that hard attention has no gradient, which is what some subjects test.
                warnings.simplefilter("ignore")
                return attribute(case.pair, case.metric, steps=steps).edges

        key = ("attribution", case.corruption, case.exit, case.round, steps)
        attributions = material.compute_once(key, make)
        shares = np.asarray(np.abs(attributions) / case.scale)  # [source, destination]
        return shares[sources, destinations]

    return largest_effects(material, reading, material.edge_names, effects)


def _make_cutting(ablations: tuple[str, ...], reading: str) -> Method:
    """Return the method that cuts edges; the arguments are those of :func:`_score_by_cutting`."""
    key = f"{'+'.join(ablations)}:{reading}"
    name = " and ".join(_ABLATIONS[ablation] for ablation in ablations)
    answer = partial(_score_by_cutting, ablations, reading)
    return Method(key, name=f"{name}, {READINGS[reading]}", question="edges", answer=answer)


def _score_by_attention(subject: KnownMachine, material: Material) -> Answer:
    """Score each edge into a head by the norm of what the source writes, times the head's attention
    to it.

    Edges into MLPs and exits (prediction, update) are scored by the norm alone. Scores are means
    over episodes and over the positions that are read.

    Args:
        subject: the machine.
        material: the machine's runs, which methods share.
    """
    t = material.effort.round
    # Both are runs of clean episodes; that of the pair has what each source writes in round t.
    run, graph, scores = material.run(), material.graph, {}
    clean = material.pair(material.corruptions[0]).clean
    sizes = graph.contributions(clean, t).norm(dim=-1)  # [source, episode, position]
    inputs = run.tokens[:, t], run.latents[:, t], run.values[:, t]
    with torch.no_grad():
        _, cache = subject.transformer.run_with_cache(*inputs)
    exits = {"prediction": run.layout.predict_position, "update": run.layout.update_position}
    for s, d in material.candidates:
        source, destination = graph.sources[s], graph.destinations[d]
        size = sizes[s]  # [episode, position]
        if "." in destination:  # an input of a head, such as "L1H0.q"
            layer, head, _ = split_head(destination)
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, head].abs()
            weighted = pattern * size.unsqueeze(1)  # [episode, query, key]
            size = weighted.sum(-1)  # what a query reads is the sum over its keys
        elif destination in exits:
            size = size[:, exits[destination]]
        scores[source, destination] = float(size.mean())
    return Answer(scores)


for _key, (_name, _steps) in _ESTIMATES.items():
    # Not of the raw latents: their distance from the clean ones has no gradient at the clean ones.
    for _reading in ("single", "prediction", "state", "joined", "rounds", "another"):
        _answer = partial(_score_by_attribution, _steps, _reading)
        register(
            Method(
                f"{_key}:{_reading}",
                name=f"{_name}, {READINGS[_reading]}",
                question="edges",
                answer=_answer,
            )
        )
for _reading in ("single", "prediction", "state", "joined", "another", "everything"):
    register(*(_make_cutting((ablation,), _reading) for ablation in _ABLATIONS))
register(_make_cutting(("zero",), "rounds"))
for _joined in ("joined", "another", "everything"):
    register(_make_cutting(("zero", "resample"), _joined), _make_cutting(("zero", "mean"), _joined))
register(
    Method("attention", name="attention inspection", question="edges", answer=_score_by_attention)
)

_BY_EDGES = (
    "zero:single",
    "zero:joined",
    "resample:joined",
    "zero+resample:joined",
    "zero+resample:everything",
    "eap-ig:joined",
    "attention",
)
"""Keys of edge methods that also score nodes, each by its strongest outgoing edge."""


def _list_sites(material: Material) -> dict[str, Site]:
    """Return the site of each node's output, by the name of the node, for the nodes in
    ``material``.
    """
    sites = {}
    for node in material.items("nodes"):
        # Heads and the embedding are sites as they are named; "mlp 0" is "mlp_out[0]".
        text = f"mlp_out[{node[4:]}]" if node.startswith("mlp ") else node
        sites[node] = Site.parse(text)
    return sites


def _score_by_patching(
    direction: str, reading: str, subject: KnownMachine, material: Material
) -> Answer:
    """Score each node by the effect of patching its output, divided by the effect of the
    corruption.

    The score is the largest over cases. A case is a corruption, the corrupted round, and an exit:
    an output of the model that the corruption changes, such as "prediction" (``case.exit``).

    Args:
        direction: "noising" (corrupted into clean) or "denoising" (clean into corrupted).
        reading: which cases are used, see :func:`largest_effects`.
        subject: the machine; not used.
        material: the machine's runs, which methods share.
    """
    sites = _list_sites(material)

    def effects(case: Case) -> np.ndarray:
        """Return the size of the mean effect of patching each site, ``[site]``, as a share of the
        effect of the whole corruption (``case.scale``). The mean is over episodes.
        """

        def patch() -> Tensor:
            """Return the effect of patching each site, ``[site, episode]``."""
            result = patch_pair(
                case.pair, sites=list(sites.values()), metric=case.metric, direction=direction
            )
            return result.effects

        key = "node patching", case.corruption, case.exit, case.round, direction
        sizes = material.compute_once(key, patch).mean(-1).abs()
        return np.asarray((sizes / case.scale).numpy(force=True))

    return largest_effects(material, reading, list(sites), effects)


def _list_outgoing(key: str, subject: KnownMachine, material: Material) -> Answer:
    """Score each node by the largest score of its outgoing edges; a node without any gets 0.

    Args:
        key: key of the method that scores the edges.
        subject: the machine.
        material: the machine's runs, which methods share.
    """
    answer = METHODS["edges", key].answer(subject, material)
    best: dict[str, float] = {}
    for (source, _), score in answer.scores.items():
        best[source] = max(best.get(source, score), score)
    return Answer({node: best.get(node, 0.0) for node in material.items("nodes")})


for _direction in ("noising", "denoising"):
    for _reading in ("single", "prediction", "state", "joined", "another"):
        _name = f"activation patching, {_direction}, {READINGS[_reading]}"
        _answer = partial(_score_by_patching, _direction, _reading)
        register(Method(f"{_direction}:{_reading}", name=_name, question="nodes", answer=_answer))
for _key in _BY_EDGES:
    register(
        Method(
            _key,
            name=f"strongest edge by {_key}",
            question="nodes",
            answer=partial(_list_outgoing, _key),
        )
    )
