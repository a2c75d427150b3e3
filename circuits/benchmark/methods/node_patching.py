"""Activation patching of whole nodes: ``noising`` puts the corrupted run's value of a node into the clean run,
``denoising`` the reverse, at all positions of the round.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from circuits.benchmark.material import Case, Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.methods.reading import FAINT, READINGS, cases
from circuits.benchmark.subject import Subject
from interp.interventions.patching import run_cells
from interp.interventions.sites import Site


def sites_of(material: Material) -> dict[str, Site]:
    """Every node and the site that holds what it writes."""
    found = {}
    for node in material.items("nodes"):
        if node == "embed":
            found[node] = Site("embed")
        elif node.startswith("mlp "):
            found[node] = Site("mlp_out", int(node[4:]))
        else:
            layer, head = map(int, node.split("."))
            found[node] = Site("z", layer, head)
    return found


def patching(direction: str, reading: str, subject: Subject, material: Material) -> Answer:
    """The largest effect over what is read, as a share of what the corruption changes."""
    nodes = sites_of(material)
    best = dict.fromkeys(nodes, 0.0)
    for case in cases(material, reading):
        for node, effect in zip(nodes, _effects(material, case, direction, list(nodes.values())), strict=True):
            best[node] = max(best[node], effect if effect >= FAINT else 0.0)
    return Answer(best)


def _effects(material: Material, case: Case, direction: str, sites: list[Site]) -> list[float]:
    key = ("node patching", case.corruption, case.exit, case.round, direction)
    base = case.pair.clean_readout if direction == "noising" else case.pair.corrupted_readout

    def make() -> Tensor:
        return run_cells(case.pair, sites, case.metric, direction, True) - case.metric.measure(base, case.pair)

    return list((material.once(key, make).mean(-1).abs() / case.scale).tolist())


for _direction in ("noising", "denoising"):
    for _reading in ("single", "prediction", "state", "joined", "another"):
        _answer = partial(patching, _direction, _reading)
        _name = f"activation patching, {_direction}, {READINGS[_reading]}"
        register(Method(f"{_direction}:{_reading}", _name, "nodes", _answer))
