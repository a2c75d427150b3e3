"""A view as Python: the toolkit's own calls that give what the page shows."""

from __future__ import annotations

from interp.checks import checked
from reports.explore.bench import Bench
from reports.explore.view import View


@checked
def script(bench: Bench, view: View) -> str:
    """Python that runs the edits of a view: ``predictions`` are ``[round, outcome]``, ``before`` is the plain run."""
    kinds = {edit.kind for edit in view.edits}
    sampled = f"seed={view.seed}" + (f", regime={view.regime!r}" if view.regime else "")
    places, moves = kinds & {"zero", "mean", "patch"}, "move" in kinds
    lines = ["from collections import defaultdict", ""]
    lines += ["import numpy as np"] if moves else []
    lines += ["import torch"] if "zero" in kinds else []
    lines += ["", "import interp"] if moves or "zero" in kinds else ["import interp"]
    names = [*(["moves"] if moves else []), *(["sites"] if places or view.hold else [])]
    lines += [f"from interp.interventions import {', '.join(names)}"] if names else []
    lines += ["import dataclasses"] if view.hold else []
    lines += [
        "",
        f"model = {bench.origin}" if bench.origin else "# model is the machine that was given to interp.explore",
        "task = interp.tasks.of(model)",
        f"episodes = task.sample_for(model, {len(bench.episodes)}, {bench.n_rounds}, {sampled})",
        f"before = interp.rollout(model, episodes.select([{view.episode}]))",
        "edited, hooks = episodes, defaultdict(list)",
    ]
    if moves:
        more = sampled.replace(f"seed={view.seed}", f"seed={view.seed + 1}")
        lines += [
            f"known = task.sample_for(model, {bench.n_known}, {bench.n_rounds}, {more})",
            "writer = moves.Writer.of_state(",
            f"    model, interp.rollout(model, known), task.explains(model), known, ridge={bench.ridge!r}",
            ")",
        ]
    for edit in view.edits:
        lines += ["", f"# {edit}", *edit.python(bench)]
    episode = f"edited.select([{view.episode}])"
    lines += [""]
    if view.hold:
        lines += [
            "# Every round reads what it read without edits: the rounds that changed run again, from there.",
            "latent = sites.resolve('latent', model, before.layout).hook",
            *(
                f"hooks[{edit.round}].append((latent, lambda own, hook: None))"
                for edit in view.edits
                if edit.kind == "input"
            ),
            f"clean = dataclasses.replace(before, fed=interp.rollout(model, {episode}).fed)",
            f"run = interp.rollout(model, {episode}, fwd_hooks=hooks, propagate=False, clean=clean)",
        ]
    else:
        lines += [f"run = interp.rollout(model, {episode}, fwd_hooks=hooks)"]
    lines += ["predictions = run.layout.distribution(run.predictions)[0]"]
    return "\n".join(lines) + "\n"
