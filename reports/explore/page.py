"""What a page is filled with, all from a view and its answers, and the longer work on one round.

The longer work (:func:`layers`, :func:`carriers`) comes row by row, so that a page shows it as it comes and can stop
it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Experiment, batches
from interp.interventions.sites import Site, sites, swept
from interp.model.rollout import replay, rollout
from interp.model.run import Rollout
from interp.results.palette import INK, LIGHT
from interp.results.style import WIDTH, house_style, inline_svg
from interp.stats.decoder import Decoder
from interp.support.errors import InputError, require
from reports.attention import AttentionView, heads_of
from reports.explore.answer import Answer
from reports.explore.view import KINDS, Bench, score, script

VISIBLE = 1e-3
"""A change of a prediction that matters: no axis is finer, and smaller changes are said to be none."""
_MOST_ROWS = 12  # outcomes that a page lists: those that move most, or are likeliest


def _state_number(answer: Answer) -> tuple[str, str, int, list[np.ndarray]] | None:
    """The number of the decoded state that edits move most, or that varies most.

    Its name, its variable, its index, and what it is in every round without and with the edits.
    """
    before, after = answer.decoded
    far: dict[str, np.ndarray] = {}
    for key, first in before.items():
        rows, moved = (x.reshape(len(x), -1) for x in (first, after[key] - first))
        spread = max(float(rows.std()), 1e-9)
        moves = np.abs(moved).max() > 1e-6 * spread
        far[key] = np.abs(moved).max(0) / spread if moves else rows.std(0) / spread * 1e-3
    if not far:
        return None
    key = max(far, key=lambda key: float(far[key].max()))
    at = int(far[key].argmax())
    name = answer.bench.numbers(key)[at].replace(
        key, answer.bench.algorithm.variable(key).noun.removeprefix("the ")
    )
    return name, key, at, [side[key].reshape(len(side[key]), -1)[:, at] for side in (before, after)]


def figure(answer: Answer, reference: Answer | None = None) -> Figure:
    """The timeline: the outcome's probability, how far edits move predictions, and a number of the decoded state."""
    rounds, at, drawn = np.arange(answer.bench.n_rounds), answer.outcome, _state_number(answer)
    (before, after), (wanted, asked) = answer.machine, answer.algorithm
    name, moved = answer.bench.layout.outcomes[at], answer.differences()
    algorithm = {"color": LIGHT["vermilion"], "linestyle": (0, (6, 2))}
    with house_style(**{"figure.constrained_layout.use": False}):
        picture = Figure(figsize=(WIDTH, 5.6 if drawn else 4.0))
        axes = picture.subplots(3 if drawn else 2, 1, sharex=True)
        top, middle = axes[0], axes[1]
        if answer.view.edits:
            top.plot(
                rounds,
                before[:, at],
                color=LIGHT["blue"],
                linewidth=4,
                alpha=0.3,
                label="model, without edits",
            )
            top.plot(rounds, wanted[:, at], **algorithm | {"linewidth": 3, "alpha": 0.3})
        top.plot(rounds, after[:, at], color=LIGHT["blue"], label="model")
        top.plot(rounds, asked[:, at], **algorithm, label="algorithm")
        if reference is not None:
            top.plot(rounds, reference.machine[1][:, at], color=LIGHT["green"], label="reference")
        if answer.bench.classes:
            right = [i for i, truth in enumerate(answer.truth) if name in truth.split(" or ")]
            top.plot(
                right,
                np.full(len(right), 1.0),
                "|",
                color=INK,
                label=f"truth is {name}",
                clip_on=False,
            )
            top.set_ylim(-0.03, 1.03)
        top.set_ylabel(f"P({name})" if answer.bench.classes else name)
        top.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, fontsize=8.5, borderaxespad=0.2
        )
        if "control_mean" in moved:
            low, high = moved["control_low"], moved["control_high"]
            middle.fill_between(rounds, low, high, color=LIGHT["grey"], alpha=0.3, linewidth=0)
            middle.plot(
                rounds, moved["control_mean"], color=LIGHT["grey"], linestyle=(0, (1.2, 1.6))
            )
        middle.plot(rounds, moved["machine"], color=LIGHT["blue"])
        middle.plot(rounds, moved["algorithm"], **algorithm)
        if reference is not None:
            middle.plot(rounds, reference.differences()["machine"], color=LIGHT["green"])
        middle.set_ylabel("moved by edits")
        middle.set_ylim(0, max(middle.get_ylim()[1], VISIBLE if answer.bench.classes else 0.0))
        if drawn:
            label, key, number, sides = drawn
            if answer.view.edits:
                axes[2].plot(rounds, sides[0], color=LIGHT["blue"], linewidth=4, alpha=0.3)
            axes[2].plot(rounds, sides[1], color=LIGHT["blue"])
            held = np.asarray(answer.values_after[key][0], dtype=np.float64)
            axes[2].plot(rounds, held.reshape(len(rounds), -1)[:, number], **algorithm)
            axes[2].set_ylabel(label.replace(": ", "\n"))
        for one in axes:
            one.axvline(answer.view.round, color=INK, linewidth=0.7)
            one.margins(x=0.01)
        axes[-1].set_xlabel("round")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        picture.subplots_adjust(left=0.08, right=0.99, top=0.93, bottom=0.09, hspace=0.16)
    return picture


def _sentence(answer: Answer) -> str:
    moved, n = answer.differences(), len(answer.view.edits)
    if not n:
        return "No edit yet: the model beside its algorithm."
    machine, algorithm = moved["machine"], moved["algorithm"]
    edit = answer.view.edits[0]
    first = dict(_choices(answer.bench)["inputs"]).get(
        f"{edit.what} {edit.value}", f"{edit.what}: {KINDS[edit.kind]}"
    )
    t, what = int(np.nanargmax(machine)), f"edit ({first}) moves" if n == 1 else f"{n} edits move"
    if answer.bench.classes and max(machine[t], np.nanmax(algorithm, initial=0.0)) < VISIBLE:
        said = f"The {what} no prediction by {VISIBLE} or more"
        if drawn := _state_number(answer):
            label, _, _, (before, after) = drawn
            t = int(
                np.abs(after - before).round(6).argmax()
            )  # the first of those that differ by rounding
            said += f"; the decoded {label} moves by {after[t] - before[t]:.3f}, in round {t}"
        return f"{said}."
    said = f"The {what} the prediction by at most {machine[t]:.3f}, in round {t}"
    low, high = (
        moved.get(f"control_{end}", np.full(len(machine), np.nan))[t] for end in ("low", "high")
    )
    by = (
        "do not move it there"
        if f"{high:.3f}" == "0.000"
        else f"move it there by {low:.3f} to {high:.3f}"
    )
    said += f"; random changes of equal size {by}"
    if not answer.followed:
        said += "; the algorithm has no counterpart to it"
    elif np.isnan(algorithm[t]):
        said += "; the algorithm has no answer, since it can hold no such state"
    else:
        said += f"; the algorithm's prediction moves by {algorithm[t]:.3f}"
    return f"{said}."


def contents(answer: Answer, reference: Answer | None) -> dict[str, Any]:
    """What a view's page is filled with, by the names that its template has for it."""
    said, bench, view = _sentence(answer), answer.bench, answer.view
    fed, layout = answer.after.fed.at(view.round), bench.layout
    names = {i: name for name, i in layout.token_ids.items()}
    tokens = [names.get(token, str(token)) for token in fed.tokens[0].tolist()]
    called = [
        "carried" if i in layout.latent_positions else token for i, token in enumerate(tokens)
    ]
    choices, state = _choices(bench), _state(answer)
    places = {label: what for what, label in choices["state"]}
    tiles = [
        {**row, "what": places[row["number"]], "key": places[row["number"]].split(".")[0]}
        for row in state
    ]
    positions = zip(layout.labels, called, fed.values[0].tolist(), strict=True)
    return {
        "picture": inline_svg(figure(answer, reference), said, "timeline"),
        "sentence": said,
        "outcomes": _outcomes(answer, reference),
        "state": state,
        "tiles": tiles,
        "tokens": [
            dict(zip(("position", "token", "value"), row, strict=True)) for row in positions
        ],
        "moved": answer.differences()["machine"].tolist(),
        "acted": {t for edit in view.edits for t in edit.rounds(bench)},
        "choices": choices,
        "python": script(bench, view),
        "kinds": KINDS,
    }


def _outcomes(answer: Answer, reference: Answer | None) -> list[dict[str, Any]]:
    """A row for each outcome in the chosen round, those that matter first where there are many."""
    t, names = answer.view.round, answer.bench.layout.outcomes
    (before, after), (wanted, asked) = answer.machine, answer.algorithm
    columns = {
        "without": before,
        "with": after,
        "algorithm without": wanted,
        "algorithm with": asked,
    }
    if len(answer.controls):
        columns |= {
            "control, least": answer.controls.min(0),
            "control, most": answer.controls.max(0),
        }
    if reference is not None:
        columns |= dict(
            zip(("reference without", "reference with"), reference.machine, strict=True)
        )
    rows = [
        {"outcome": name, **{c: float(x[t, i]) for c, x in columns.items()}}
        for i, name in enumerate(names)
    ]
    if len(rows) > _MOST_ROWS:
        matters = np.max([np.abs(after[t] - before[t]), after[t] / 2, asked[t] / 2], axis=0)
        rows = [rows[i] for i in np.argsort(-matters, kind="stable")]
    return rows[:_MOST_ROWS]


def _state(answer: Answer) -> list[dict[str, Any]]:
    """A row for each number of the carried state that the chosen round reads."""
    t, rows = answer.view.round, []
    for key, first in answer.decoded[0].items():
        columns = [first[t], answer.decoded[1][key][t]]
        columns += [
            np.asarray(v[key][0, t], dtype=np.float64)
            for v in (answer.values_before, answer.values_after)
        ]
        names = ("without", "with", "algorithm without", "algorithm with")
        for label, *numbers in zip(answer.bench.numbers(key), *map(np.ravel, columns), strict=True):
            rows.append({"number": label, **dict(zip(names, map(float, numbers), strict=True))})
    return rows


def _choices(bench: Bench) -> dict[str, list[tuple[str, str]]]:
    """What the forms offer: (value, name) of inputs, of numbers of the state, and of places."""
    inputs = [
        (f"{of.key} {said}", f"{of.name}{f', {name}' if name else ''}")
        for of, name, said in bench.changes
    ]
    numbered: list[tuple[str, str]] = []
    for record in bench.task.analysis.corruptions():
        build = inspect.signature(record.build, eval_str=True)
        taken = [
            p
            for p in list(build.parameters.values())[2:]
            if float in (p.annotation, *get_args(p.annotation))
        ]
        numbered += [(f"{record.key} {p.name}=", f"{p.name} ({record.name})") for p in taken]
    numbers = []
    for key, shape in {} if bench.unreadable else bench.writer.shapes.items():
        for index, label in zip(np.ndindex(*shape), bench.numbers(key), strict=True):
            numbers.append((".".join([key, *map(str, index)]), label))
    several = [key for key in bench.model.points if key != "latent"]
    places = (
        [str(site) for site in sites(bench.model, bench.layout, several, None)] if several else []
    )
    rows = [str(site) for site in sites(bench.model, bench.layout, ["latent"])]
    held = [(place, place) for place in ("latent", *rows, *places)]
    return {"inputs": inputs, "numbered": numbered, "state": numbers, "places": held}


_SMALLEST = 1e-6  # a difference of predictions below this is none to be carried
_CHUNK = 256  # rounds that run at once where many are read


def layers(answer: Answer) -> Iterator[dict[str, Any]]:
    """A row for each place and variable: what is decoded there, the algorithm's value, R2 and an untrained copy's."""
    bench, t, view = answer.bench, answer.view.round, answer.view
    require(not bench.unreadable, f"no state is decoded: {bench.unreadable}")
    if (
        "resid_pre" in bench.model.points
    ):  # the stream where the prediction is read, or every point of one vector
        places = sites(
            bench.model, bench.layout, ("resid_pre", "resid_post"), [bench.layout.predict_label]
        )
    else:
        keys = [key for key, kind in bench.model.points.items() if kind.axes in ("", "latent")]
        places = sites(bench.model, bench.layout, keys, None)
    known, blank = bench.algorithm.run(bench.known), bench.model.untrained(view.seed)
    blank_runs = [rollout(blank, episodes) for episodes in (bench.known, bench.episodes)]
    own = [_at(bench.model, run, places) for run in (bench.known_run, bench.run)]
    seen = (own, [_at(blank, run, places) for run in blank_runs])
    shown = [_at(bench.model, run, places, [t], inner) for run, inner in _sides(answer)]
    for site in places:
        for key in bench.writer.shapes:
            decoders = [Decoder.fit(fit[site], known[key], ridge=bench.ridge) for fit, _ in seen]
            scores = [
                score(bench.values[key], d(held[site]).numpy())
                for d, (_, held) in zip(decoders, seen, strict=True)
            ]
            first, second = (np.ravel(decoders[0](vectors[site]).numpy()) for vectors in shown)
            at = int(np.abs(second - first).argmax())
            values = [
                np.ravel(v[key][0, t])[at] for v in (answer.values_before, answer.values_after)
            ]
            label = bench.algorithm.variable(key).labels(bench.values[key])[at]
            told = {
                "place": str(site),
                "number": label,
                "without": float(first[at]),
                "with": float(second[at]),
            }
            told |= {"algorithm_without": float(values[0]), "algorithm_with": float(values[1])}
            yield {**told, "R2": scores[0], "R2_untrained": scores[1]}


def _at(
    model: Machine, run: Rollout, places: list[Site], rounds: Any = "all", inner: Any = ()
) -> dict[Site, Tensor]:
    """What a run has at some places, ``[episode, round, row, width]``: these alone are kept of its activations."""
    kept: dict[Site, list[Tensor]] = {site: [] for site in places}

    def keep(site: Site, activation: Tensor, hook: object) -> None:
        kept[site].append(site.read(activation, run.layout).double().cpu())

    hooks = [*inner, *((site.hook, partial(keep, site)) for site in places)]
    replay(model, run, rounds=rounds, fwd_hooks=hooks, chunk=_CHUNK)
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
    if not whole > _SMALLEST:
        raise InputError(
            f"the edits move no prediction of round {t}, so nothing carries them there; choose another"
        )
    (_, _), (source, inner) = _sides(answer)
    require(
        not inner, f"edits act inside round {t}; choose a later one to see what carries them on"
    )
    cells = sites(
        bench.model, bench.layout, ("latent", *(k for k in swept(bench.model) if k != "latent"))
    )
    edits = {str(cell): [Edit.of(cell, source)] for cell in cells}
    for ran in batches(Experiment(bench.model, answer.before, edits, [t], update=False)):
        told = bench.layout.distribution(ran.predictions[:, 0, 0, 0]).double().numpy(force=True)
        left = np.abs(told - answer.machine[1][t]).sum(-1) / (2 if answer.bench.classes else 1)
        for i, missed in zip(ran.edits, left, strict=True):
            yield {"place": str(cells[i]), "share": float(1 - missed / whole)}


def attention(answer: Answer) -> list[AttentionView]:
    """The attention of the chosen round without the edits, and with them where there are any."""
    bench, t = answer.bench, answer.view.round
    names = heads_of(bench.model)
    hooks = [bench.model.points["pattern"].hook.format(layer=i) for i in range(len(names))]
    views = []
    sides = _sides(answer) if answer.view.edits else _sides(answer)[:1]
    for name, (run, inner) in zip(("without the edits", "with the edits"), sides, strict=False):
        _, _, cache = replay(bench.model, run, rounds=t, names_filter=hooks, fwd_hooks=inner)
        drawn = zip(hooks, names, strict=True)
        patterns = [
            cache[hook][:, :, : len(named)].double().numpy(force=True) for hook, named in drawn
        ]
        at: dict[str, Any] = {"episodes": (answer.view.episode,), "rounds": (t,)}
        views.append(
            AttentionView(
                patterns, bench.layout.labels, [list(n) for n in names], f"Round {t}, {name}", **at
            )
        )
    return views
