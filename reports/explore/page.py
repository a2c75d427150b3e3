"""What a page is filled with: figure, tables and links, all from a view and its answers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interp.interventions.sites import sites
from interp.palette import INK, LIGHT
from interp.style import WIDTH, house_style
from reports.explore.answer import Answer
from reports.explore.bench import Bench
from reports.explore.edits import KINDS
from reports.explore.view import View

MOST_ROWS = 12
"""Outcomes that a page lists: those that move most, or are likeliest."""


class Drawn(NamedTuple):
    """A line of the decoded state: which variable, which number of it, and what it is called."""

    key: str
    number: int
    label: str


def state_number(answer: Answer) -> Drawn | None:
    """The number of the decoded state that edits move most, or that varies most; None where nothing is decoded."""
    before, after = answer.decoded
    best: tuple[float, Drawn] | None = None
    for key, first in before.items():
        rows, moved = (x.reshape(len(x), -1) for x in (first, after[key] - first))
        spread = max(float(rows.std()), 1e-9)
        far = np.abs(moved).max(0) / spread if np.abs(moved).max() > 1e-6 * spread else rows.std(0) / spread * 1e-3
        label = answer.bench.algorithm.variable(key).labels(answer.bench.values[key])[int(far.argmax())]
        if best is None or far.max() > best[0]:
            best = (float(far.max()), Drawn(key, int(far.argmax()), label))
    return best[1] if best else None


def figure(answer: Answer, reference: Answer | None = None) -> Figure:
    """The timeline: the outcome's probability, how far edits move predictions, and a number of the decoded state."""
    rounds, at, drawn = np.arange(answer.bench.n_rounds), answer.outcome, state_number(answer)
    (before, after), (wanted, asked) = answer.machine, answer.algorithm
    name, moved = answer.bench.layout.outcomes[at], answer.differences()
    algorithm = {"color": LIGHT["vermilion"], "linestyle": (0, (6, 2))}
    with house_style(**{"figure.constrained_layout.use": False}):
        picture = Figure(figsize=(WIDTH, 5.6 if drawn else 4.0))
        axes = picture.subplots(3 if drawn else 2, 1, sharex=True)
        top, middle = axes[0], axes[1]
        if answer.view.edits:
            top.plot(rounds, before[:, at], color=LIGHT["blue"], linewidth=4, alpha=0.3, label="model, without edits")
            top.plot(rounds, wanted[:, at], **algorithm | {"linewidth": 3, "alpha": 0.3})
        top.plot(rounds, after[:, at], color=LIGHT["blue"], label="model")
        top.plot(rounds, asked[:, at], **algorithm, label="algorithm")
        if reference is not None:
            top.plot(rounds, reference.machine[1][:, at], color=LIGHT["green"], label="reference")
        if answer.classes:
            right = [i for i, truth in enumerate(answer.truth) if name in truth.split(" or ")]
            top.plot(right, np.full(len(right), 1.0), "|", color=INK, label=f"truth is {name}", clip_on=False)
            top.set_ylim(-0.03, 1.03)
        top.set_ylabel(f"P({name})" if answer.classes else name)
        top.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, fontsize=8.5, borderaxespad=0.2)
        if "control_mean" in moved:
            low, high = moved["control_low"], moved["control_high"]
            middle.fill_between(rounds, low, high, color=LIGHT["grey"], alpha=0.3, linewidth=0)
            middle.plot(rounds, moved["control_mean"], color=LIGHT["grey"], linestyle=(0, (1.2, 1.6)))
        middle.plot(rounds, moved["machine"], color=LIGHT["blue"])
        middle.plot(rounds, moved["algorithm"], **algorithm)
        if reference is not None:
            middle.plot(rounds, reference.differences()["machine"], color=LIGHT["green"])
        middle.set_ylabel("moved by edits")
        middle.set_ylim(bottom=0)
        if drawn:
            sides = [side[drawn.key].reshape(len(rounds), -1)[:, drawn.number] for side in answer.decoded]
            if answer.view.edits:
                axes[2].plot(rounds, sides[0], color=LIGHT["blue"], linewidth=4, alpha=0.3)
            axes[2].plot(rounds, sides[1], color=LIGHT["blue"])
            held = np.asarray(answer.values_after[drawn.key][0], dtype=np.float64)
            axes[2].plot(rounds, held.reshape(len(rounds), -1)[:, drawn.number], **algorithm)
            axes[2].set_ylabel(f"{drawn.key}: {drawn.label}" if drawn.label != drawn.key else drawn.key)
        for one in axes:
            one.axvline(answer.view.round, color=INK, linewidth=0.7)
            one.margins(x=0.01)
        axes[-1].set_xlabel("round")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        picture.subplots_adjust(left=0.08, right=0.99, top=0.93, bottom=0.09, hspace=0.16)
    return picture


def sentence(answer: Answer) -> str:
    """What the edits do, in words and numbers."""
    moved, n = answer.differences(), len(answer.view.edits)
    if not n:
        return "No edit yet: the model beside its algorithm."
    machine, algorithm = moved["machine"], moved["algorithm"]
    t = int(np.nanargmax(machine))
    said = (
        f"The {'edit moves' if n == 1 else f'{n} edits move'} the prediction by at most {machine[t]:.3f}, in round {t}"
    )
    low, high = (moved.get(f"control_{end}", np.full(len(machine), np.nan))[t] for end in ("low", "high"))
    said += f"; random changes of equal size move it there by {low:.3f} to {high:.3f}"
    if not answer.followed:
        said += "; the algorithm has no counterpart to it"
    elif np.isnan(algorithm[t]):
        said += "; the algorithm has no answer, since it can hold no such state"
    else:
        said += f"; the algorithm's prediction moves by {algorithm[t]:.3f}"
    return f"{said}."


def outcomes(answer: Answer, reference: Answer | None) -> list[dict[str, Any]]:
    """A row for each outcome in the chosen round, those that matter first where there are many."""
    t, names = answer.view.round, answer.bench.layout.outcomes
    (before, after), (wanted, asked) = answer.machine, answer.algorithm
    columns = {"without": before, "with": after, "algorithm without": wanted, "algorithm with": asked}
    if len(answer.controls):
        columns |= {"control, least": answer.controls.min(0), "control, most": answer.controls.max(0)}
    if reference is not None:
        columns |= dict(zip(("reference without", "reference with"), reference.machine, strict=True))
    rows = [{"outcome": name, **{c: float(x[t, i]) for c, x in columns.items()}} for i, name in enumerate(names)]
    if len(rows) > MOST_ROWS:
        matters = np.max([np.abs(after[t] - before[t]), after[t] / 2, asked[t] / 2], axis=0)
        rows = [rows[i] for i in np.argsort(-matters, kind="stable")]
    return rows[:MOST_ROWS]


def state(answer: Answer) -> list[dict[str, Any]]:
    """A row for each number of the carried state that the chosen round reads."""
    t, rows = answer.view.round, []
    for key, first in answer.decoded[0].items():
        variable = answer.bench.algorithm.variable(key)
        labels = variable.labels(answer.bench.values[key])
        columns = [first[t], answer.decoded[1][key][t]]
        columns += [np.asarray(v[key][0, t], dtype=np.float64) for v in (answer.values_before, answer.values_after)]
        names = ("without", "with", "algorithm without", "algorithm with")
        for label, *numbers in zip(labels, *(np.ravel(x) for x in columns), strict=True):
            said = {name: float(number) for name, number in zip(names, numbers, strict=True)}
            rows.append({"number": f"{key}: {label}" if label != key else key, **said})
    return rows


def tokens(answer: Answer) -> list[dict[str, Any]]:
    """A row for each position of the chosen round: its label, its token, and its payload where it has one."""
    fed, layout, t = answer.after.fed, answer.bench.layout, answer.view.round
    names = {i: name for name, i in layout.token_ids.items()}
    rows = []
    for i, label in enumerate(layout.labels):
        latent = i in layout.latent_positions
        token = "carried" if latent else names.get(int(fed.tokens[0, t, i]), str(int(fed.tokens[0, t, i])))
        rows.append({"position": label, "token": token, "value": float(fed.values[0, t, i])})
    return rows


def choices(bench: Bench) -> dict[str, list[tuple[str, str]]]:
    """What the forms offer: (value, name) of inputs, of numbers of the state, and of places."""
    inputs: list[tuple[str, str]] = []
    numbered: list[tuple[str, str]] = []
    for record in bench.task.analysis.corruptions():
        for name, options in record.each(bench.episodes).items():
            said = ",".join(f"{key}={value}" for key, value in options.items()) or "-"
            inputs.append((f"{record.key} {said}", f"{record.name}{f', {name}' if name else ''}"))
        taken = list(inspect.signature(record.build, eval_str=True).parameters.values())[2:]
        numbered += [(f"{record.key} {p.name}=", f"{p.name} ({record.name})") for p in taken if _real(p)]
    numbers = []
    for key, shape in {} if bench.unreadable else bench.writer.shapes.items():
        labels = bench.algorithm.variable(key).labels(bench.values[key])
        for index, label in zip(np.ndindex(*shape), labels, strict=True):
            numbers.append((".".join([key, *map(str, index)]), f"{key}: {label}" if label != key else key))
    several = [key for key in bench.model.points if key != "latent"]
    places = [str(site) for site in sites(bench.model, bench.layout, several, None)] if several else []
    rows = [str(site) for site in sites(bench.model, bench.layout, ["latent"])]
    held = [(place, place) for place in ("latent", *rows, *places)]
    return {"inputs": inputs, "numbered": numbered, "state": numbers, "places": held}


def _real(parameter: inspect.Parameter) -> bool:
    return float in (parameter.annotation, *getattr(parameter.annotation, "__args__", ()))


def timeline(answer: Answer) -> list[dict[str, Any]]:
    """A link for each round, with how far the edits move its prediction."""
    moved, acted = answer.differences()["machine"], {t for edit in answer.view.edits for t in edit.rounds(answer.bench)}
    most = max(float(np.nanmax(moved)), 1e-9)
    return [
        {
            "round": t,
            "query": answer.view.query(round=t),
            "height": round(100 * float(moved[t]) / most) if most > 1e-6 else 0,
            "moved": float(moved[t]),
            "acted": t in acted,
        }
        for t in range(answer.bench.n_rounds)
    ]


def edits(view: View) -> list[dict[str, str]]:
    """Every edit of a view with the views without it and with it alone."""
    each: Sequence[Any] = view.edits
    return [
        {
            "text": str(edit),
            "what": KINDS[edit.kind],
            "without": replace(view, edits=(*each[:i], *each[i + 1 :])).query(),
            "alone": replace(view, edits=(edit,)).query(),
        }
        for i, edit in enumerate(each)
    ]
