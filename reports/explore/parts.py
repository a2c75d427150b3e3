"""The longer work on one round of a view, row by row, so that a page shows it as it comes and can stop it.

``layers``: the carried state read in the residual stream at each layer, or at every point of another machine that holds
one vector, by decoders fitted there; beside each how well it reads the state of episodes that it has not seen, in this
machine and in an untrained copy. ``carriers``: which places carry the difference that the edits make in this round's
prediction: each is given what it has with the edits, alone, in the run without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.decoder import Decoder
from interp.errors import InputError, require
from interp.interventions.round_patcher import RoundPatcher
from interp.interventions.sites import Site, sites, swept
from interp.machine import Machine
from interp.model.replay import replay
from interp.model.rollout import rollout
from interp.model.run import Rollout
from reports.attention import AttentionView, heads_of
from reports.explore.answer import Answer
from reports.explore.bench import Bench, score

SMALLEST = 1e-6
"""A difference of predictions below this is none to be carried."""
CHUNK = 256
"""Rounds that run at once where many are read."""


def layers(answer: Answer) -> Iterator[dict[str, Any]]:
    """A row for each place and variable: what is decoded there, the algorithm's value, R2 and an untrained copy's."""
    bench, t, view = answer.bench, answer.view.round, answer.view
    require(not bench.unreadable, f"no state is decoded: {bench.unreadable}")
    places, known = _vectors(bench), bench.algorithm.run(bench.known)
    blank = bench.model.fresh(view.seed)
    blank_runs = [rollout(blank, episodes) for episodes in (bench.known, bench.episodes)]
    own = [_at(bench.model, run, places) for run in (bench.known_run, bench.run)]
    seen = (own, [_at(blank, run, places) for run in blank_runs])
    shown = [_at(bench.model, run, places, [t], inner) for run, inner in _sides(answer)]
    for site in places:
        for key in bench.writer.shapes:
            decoders = [Decoder.fit(fit[site], known[key], ridge=bench.ridge) for fit, _ in seen]
            scores = [
                score(bench.values[key], d(held[site]).numpy()) for d, (_, held) in zip(decoders, seen, strict=True)
            ]
            first, second = (np.ravel(decoders[0](vectors[site]).numpy()) for vectors in shown)
            at = int(np.abs(second - first).argmax())
            values = [np.ravel(v[key][0, t])[at] for v in (answer.values_before, answer.values_after)]
            label = bench.algorithm.variable(key).labels(bench.values[key])[at]
            told = {"place": str(site), "number": label, "without": float(first[at]), "with": float(second[at])}
            told |= {"algorithm_without": float(values[0]), "algorithm_with": float(values[1])}
            yield {**told, "R2": scores[0], "R2_untrained": scores[1]}


def _vectors(bench: Bench) -> list[Site]:
    """The places whose one vector is read: a residual stream where the prediction is, or every such point."""
    if "resid_pre" in bench.model.points:
        label = [bench.layout.predict_label]
        return sites(bench.model, bench.layout, ("resid_pre", "resid_post"), label)
    keys = [key for key, kind in bench.model.points.items() if kind.axes in ("", "latent")]
    return sites(bench.model, bench.layout, keys, None)


def _at(model: Machine, run: Rollout, places: list[Site], rounds: Any = "all", inner: Any = ()) -> dict[Site, Tensor]:
    """What a run has at some places, ``[episode, round, row, width]``: these alone are kept of its activations."""
    kept: dict[Site, list[Tensor]] = {site: [] for site in places}

    def keep(site: Site) -> Any:
        def act(activation: Tensor, hook: object) -> None:
            kept[site].append(site.read(activation, run.layout).double().cpu())

        return act

    replay(model, run, rounds=rounds, fwd_hooks=[*inner, *((site.hook, keep(site)) for site in places)], chunk=CHUNK)
    whole = {site: torch.cat(parts) for site, parts in kept.items()}
    return {
        site: x.reshape(run.n_episodes, -1, max(1, x[0].numel() // x.shape[-1]), x.shape[-1])
        for site, x in whole.items()
    }


def _sides(answer: Answer) -> tuple[tuple[Rollout, Any], tuple[Rollout, Any]]:
    """The runs without and with the edits, each as its rounds were read, and the hooks inside the chosen round."""
    latents = answer.after.latents.clone()
    latents[:, :-1] = answer.read  # a run says what it carried, and not what an edit made of it
    hook = answer.bench.model.points["latent"].hook
    inner = [pair for pair in answer.hooks.get(answer.view.round, ()) if pair[0] != hook]
    return (answer.before, []), (replace(answer.after, latents=latents), inner)


def carriers(answer: Answer) -> Iterator[dict[str, Any]]:
    """A row for each place, in the order computed: its share of the difference in the chosen round's prediction."""
    bench, t = answer.bench, answer.view.round
    whole = answer.differences()["machine"][t]
    if not whole > SMALLEST:
        raise InputError(f"the edits move no prediction of round {t}, so nothing carries them there; choose another")
    (_, _), (source, inner) = _sides(answer)
    require(not inner, f"edits act inside round {t}; choose a later one to see what carries them on")
    cells = sites(bench.model, bench.layout, ("latent", *(k for k in swept(bench.model) if k != "latent")))
    patcher = RoundPatcher(bench.model, answer.before, t, source, update=False)
    target = answer.machine[1][t]
    for patched in patcher.cells(cells):
        told = bench.layout.distribution(patched.predictions).double().numpy(force=True)
        left = np.abs(told - target).sum(-1) / (2 if answer.classes else 1)
        for i, missed in zip(patched.cells, left, strict=True):
            yield {"place": str(cells[i]), "share": float(1 - missed / whole)}


def attention(answer: Answer) -> list[AttentionView]:
    """The attention of the chosen round without the edits, and with them where there are any."""
    bench, t = answer.bench, answer.view.round
    names = heads_of(bench.model)
    hooks = [bench.model.points["pattern"].hook.format(layer=i) for i in range(len(names))]
    views = []
    for name, (run, inner) in zip(("without the edits", "with the edits"), _sides(answer), strict=True):
        if name.startswith("with ") and not answer.view.edits:
            break
        _, _, cache = replay(bench.model, run, rounds=t, names_filter=hooks, fwd_hooks=inner)
        drawn = zip(hooks, names, strict=True)
        patterns = [cache[hook][:, :, : len(named)].double().numpy(force=True) for hook, named in drawn]
        at: dict[str, Any] = {"episodes": (answer.view.episode,), "rounds": (t,)}
        views.append(AttentionView(patterns, bench.layout.labels, [list(n) for n in names], f"Round {t}, {name}", **at))
    return views
