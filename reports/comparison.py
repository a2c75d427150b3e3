"""The page of a comparison: the verdicts first, then what each rests on, and the rounds at which two models differ.

Every number was computed by :func:`circuits.compare.run`; nothing is computed here. The parts of the comparison are
drawn by their keys; one that has no drawing here is a table.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from circuits.compare import FULL, Comparison
from circuits.compare.algorithm import RARE
from circuits.compare.behaviour import ALIKE, RESPONSE
from circuits.compare.circuit import CircuitPart
from circuits.compare.question import NotApplicable, at_most, best, in_words
from circuits.compare.response import Cell
from circuits.compare.state import StatePart, Trajectory
from circuits.compare.where import WherePart
from circuits.known import resolution
from interp import figures, tasks
from interp.statistics import Interval
from reports.attention import unnumbered
from reports.blocks import Figure, Prose, Table, joined, number
from reports.measured import IntervalPlot, Measured, Row
from reports.page import Report, Section, index_of, slug, write_index
from reports.parts.compared import PAGE, badge, measured_by
from reports.side_by_side import machines

_LEAD = (
    "Is it the same machine? Four questions have four answers, since a model can predict what another one predicts "
    "and do it in another way."
)
_DECIDED = (
    "Each answer is decided by one number with its 95 % interval over episodes: same where all of the interval reaches "
    "the threshold, different where none does, else undecided."
)
_ALGORITHM = (
    "Every family of algorithms that the task knows is fitted on some episodes and scored on others, by the "
    "{measure} of the predictions. This says what the model predicts, not how it does so."
)
_MEASURES = {
    "classes": ("Jensen-Shannon divergence", "nats", "nats a round", "P(first outcome)"),
    "mean": ("squared difference", "squared difference", "share of its variance", "predicted mean"),
    "normal": ("mean of both Kullback-Leibler divergences", "nats", "nats a round", "predicted mean"),
}
"""Kind of prediction -> by what predictions are apart, in what, what a memory is worth in, and what is drawn."""
_BEHAVIOUR = (
    "**Average, rounds, responses.** The average says how far apart the predictions are, as a share of what the two "
    "memories are worth. It hides what is rare: so the share of rounds in which they are plainly apart stands beside "
    "it, and the response to single inputs. One input is changed in one round of one episode, and the change of every "
    "later prediction compared; 1 is the same response, 0 none or an unrelated one."
)
_RESPONSE = (
    "**Through the state.** The response to a changed input is compared with the effect of moving the decoded state, "
    "just before the prediction, as the algorithm says that the input changes it. A machine that hears an input late, "
    "or predicts from something else, responds otherwise."
)
_STATE = (
    "**Stitching.** An affine map takes one model's latents to the other's. It is fitted on other episodes, and the "
    "other model then runs on from the mapped latents. A score of 1 means its own predictions, 0 those of its empty "
    "memory. Where the round is supplied, the map has an offset of its own at every round."
)
_UPDATE = (
    "**Step R2.** The state is decoded before and after a round, and the second is compared with the algorithm's "
    "update of the first: on the states that occur, and off that manifold, on states that no episode reached."
)
_EFFECTS = (
    "**Graded effects.** One variable is moved alone, and the outcome's move is compared with the algorithm's; a score "
    "of 1 is the whole effect. **Above rival** says how much better than its rival the first algorithm predicts it."
)
_CIRCUIT = (
    "**Roles.** Heads of one model are matched to heads of the other by what they read where, and what is lost without "
    "them; then it is compared which head reads what which other wrote. **Mediation.** Attention patterns are held at "
    "the values that they have without an effect, in both models; the share of the effect that is lost passes through "
    "them. Equal roles are no proof of equal circuits."
)
_WHERE = (
    "**Sites and maps.** For every variable, the table names the place that scores best under interchange, among all "
    "places where the model is claimed to hold it: subspaces of the weights where a machine is handwired, whole "
    "activations elsewhere. The maps show which share of an effect each activation of the residual stream carries by "
    "itself, on one scale for both models. They show where a cause arrives, and in which layer two causes meet."
)
_N_RESPONSES = 6
"""So many responses are listed on the page; the tables have all."""
_N_HEADS = 8
"""So many heads are listed on the page; the tables have all."""


def page(comparison: Comparison) -> Report:
    """The report on a comparison: its verdicts, then a section for each part that has something to show."""
    against = f" against {comparison.reference}" if comparison.reference else " against algorithms"
    verdicts: list[Any] = [*_side_by_side(comparison), _plot(comparison)]
    verdicts.append(Prose(f"**Which algorithm.** {comparison.algorithm}."))
    if seen := resolution.sentence(comparison.algorithm.settings["task"], _is_quick(comparison)):
        verdicts.append(Prose(seen))
    words = [verdict.word for verdict in comparison.verdicts.values()]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    about = {"kind": "comparison", "verdicts": counts, "sentence": comparison.sentence}
    sections = [Section("Verdicts", verdicts), *_sections(comparison)]
    title, said = comparison.model + against, comparison.sentence
    return Report(title, _LEAD, sections, comparison.settings, about=about, sentence=said)


def _is_quick(comparison: Comparison) -> bool:
    """Whether less was done than by default, so that what it can see is at most what a quick comparison sees."""
    return any(comparison.settings[key] < getattr(FULL, key) for key in ("known", "test", "scored", "edits"))


def write(comparison: Comparison, folder: str | Path) -> Path:
    """Write the page as ``comparison.html``, and again the list of reports that it belongs to."""
    path = Path(folder) / PAGE
    if (listed := index_of(path)) is None:
        return page(comparison).write(path)
    written = replace(page(comparison), index=Path(os.path.relpath(listed, path.parent)).as_posix()).write(path)
    write_index(listed.parent)
    return written


def _sections(comparison: Comparison) -> Iterator[Section]:
    """The parts with a drawing, in the order of the drawings; then the tables of the others."""
    for key, (title, text, draw) in _DRAWINGS.items():
        part = comparison.parts.get(key)
        if isinstance(part, NotApplicable):
            yield Section(title, [_lacking(part.reason)])
        elif part is not None and (blocks := draw(part, comparison)):
            yield Section(title, [*([Prose(text)] if text else []), *blocks])
    for key, frame in comparison.frames.items():
        if key not in _DRAWINGS:
            title = key.replace("_", " ").capitalize()
            yield Section(title, [Table(frame, f"{title}: everything that was measured")])


def _lacking(*reasons: str) -> Prose:
    """In the place of a part: what one of the two machines lacks."""
    return Prose(" ".join(f"{reason[0].upper()}{reason[1:]}." for reason in reasons))


def _side_by_side(comparison: Comparison) -> list[Figure]:
    """The two machines, their parts joined by the verdicts; nothing where there is one."""
    if not comparison.reference:
        return []
    answers = {
        key: (v.word, number(round(v.bound.estimate, 3)) if v.decided_by else "")
        for key, v in comparison.verdicts.items()
    }
    same_name = " (reference)" if comparison.reference == comparison.model else ""
    picture = machines(comparison.model, comparison.reference + same_name, answers)
    caption = "The parts of the two machines, joined by their verdicts and the number that decided each."
    return [Figure(picture, comparison.sentence, caption)]


def _plot(comparison: Comparison) -> IntervalPlot:
    rows, lines = [], []
    for v in comparison.verdicts.values():
        value, direction = v.bound if v.decided_by else None, "at most" if at_most(v.decided_by) else "at least"
        measured = None if value is None else measured_by(v.decided_by, value, v.threshold, v.control)
        title = _DRAWINGS[v.question][0] if v.question in _DRAWINGS else ""
        name = f"Same {in_words(v.question)}? {v.decided_by.replace('_', ' ').replace('->', '→')}"
        rows.append(Row(name, measured, badge(v.word), f"#{slug(title)}" if title else "", v.note))
        held = f"{direction} {v.threshold:.2f}" if v.decided_by else ""
        lines.append((f"same {in_words(v.question)}?", badge(v.word), v.note, v.decided_by, value, held, v.control))
    columns = ["question", "answer", "note", "decided by", "value", "same where", "best untrained"]
    table = Table(pd.DataFrame(lines, columns=columns), "The verdicts, and what decided each", collapsed=True)
    return IntervalPlot(rows, _DECIDED, beneath=table)


def _measures(comparison: Comparison) -> tuple[str, str, str, str]:
    return _MEASURES[tasks.get(comparison.algorithm.settings["task"]).kind]


def _algorithm(part: Any, comparison: Comparison) -> list[Any]:
    frame, text = comparison.frames["algorithm"], _ALGORITHM.format(measure=_measures(comparison)[0])
    whole = frame[(frame["set"] == "all") & (frame["name"] == "explained")]
    drawn = whole.assign(name=[part.scores[key].name for key in whole["family"]], estimate=whole["value"])
    drawn = drawn.assign(control=drawn["family"] != part.closest)[["name", "estimate", "low", "high", "control"]]
    rows = [
        {
            "family": score.name,
            "parameters": ", ".join(f"{k} {v:.3g}" for k, v in score.parameters.items() if isinstance(v, float)),
            "explained": Interval(*whole.loc[whole["family"] == score.key, ["value", "low", "high"]].iloc[0]),
        }
        for score in part.scores.values()
    ]
    picture = figures.intervals(drawn, xlabel="share of the predictions that is explained", floor=-0.5)
    closest = part.scores[part.closest].name
    caption = (
        f"{closest} comes closest (blue); the other families in grey. Share of the divergence from a guess without a "
        "memory that each explains, with 95 % intervals over episodes."
    )
    return [
        Prose(text),
        Figure(picture, "Which algorithm explains the predictions", caption),
        Table(pd.DataFrame(rows), "Every family with the parameters found", collapsed=True),
    ]


def _state(part: StatePart, comparison: Comparison) -> list[Any]:
    columns = ["latents of", "in", "supplied", "control", "score"]
    rows = [(s.source, s.target, " and ".join(s.supplied) or "nothing", s.control, s.score) for s in part.stitchings]
    _, _, unit, shown = _measures(comparison)
    worth = pd.DataFrame(list(part.worth.items()), columns=["model", unit])
    table = Table(pd.DataFrame(rows, columns=columns), "Stitching both ways, with controls", collapsed=True)
    threshold = comparison.verdicts["state"].threshold
    ways = []
    for s in (s for s in part.stitchings if not s.control):
        beside = [c for c in part.stitchings if c.target == s.target and c.control]
        shuffled = best(c.score.estimate for c in beside if c.control == "shuffled")
        controls = {"untrained": part.untrained(s.target), "other episodes' latents": shuffled}
        name = f"Latents of {s.source} in {s.target}" + ", the round number also given" * bool(s.supplied)
        ways.append(Row(name, Measured(s.score, threshold, controls=controls)))
    return [
        IntervalPlot(ways, f"{_takeaway(comparison, 'state')} Scores of stitching, both ways.", beneath=table),
        *(_trajectory(way, shown) for way in part.trajectories),
        Table(worth, "What each memory is worth", formats={unit: ".4f"}, collapsed=True),
    ]


def _takeaway(comparison: Comparison, question: str) -> str:
    """What a figure of one question shows, in a sentence."""
    verdict = comparison.verdicts[question]
    note = f", {verdict.note}" if verdict.note else ""
    return f"{in_words(question).capitalize()}: {verdict.word}{note}."


def _trajectory(way: Trajectory, shown: str) -> Figure:
    drawn = {f"{way.target}, by itself": way.own, f"on the latents of {way.source}": way.stitched, "cut": way.cut}
    rounds = range(way.first + 1, way.first + 1 + len(way.own))
    frame = pd.concat(
        pd.DataFrame({"round": rounds, "algorithm": name, "name": name, "mean": values[:, 0]})
        for name, values in drawn.items()
    )
    distance, cut = (float(np.abs(of - way.own).mean()) for of in (way.stitched, way.cut))
    caption = (
        f"On the latents of {way.source}, {way.target} predicts within {distance:.3f} of its own, without a memory "
        f"within {cut:.3f} (means over rounds). The first test episode; at round {way.first + 1} {way.target} got what "
        f"{way.source} remembered, mapped, or its initial latents (cut)."
    )
    picture = figures.curves(frame, ylabel=shown)
    return Figure(picture, f"{way.source} in {way.target}: predictions after stitching", caption)


def _update(part: Any, comparison: Comparison) -> list[Any]:
    frame = comparison.frames["update"]
    steps = frame[frame["name"] == "step R2"].drop(columns=["name", "model"]).dropna(axis=1, how="all")
    verdict, rows = comparison.verdicts["update"], []
    for s in steps.to_dict("records"):
        on = "on states that occur" if s["manifold"] == "on" else "on states that no episode reached"
        ahead = "one round" if s["horizon"] == 1 else f"{s['horizon']} rounds"
        state = str(s["state"]).replace("_", " ")
        name = f"{str(s['algorithm']).replace('_', ' ')}: {state}, {ahead} on, {on}"
        threshold = verdict.threshold if verdict.decided_by.startswith("step") else None
        controls = {"untrained": s.get("untrained", math.nan)}
        rows.append(Row(name, Measured(Interval(s["value"], s["low"], s["high"]), threshold, controls=controls)))
    table = Table(joined(steps), "Step R2 of decoded states", collapsed=True)
    blocks: list[Any] = [
        IntervalPlot(rows, f"{_takeaway(comparison, 'update')} Step R2 of decoded states.", beneath=table)
    ]
    if len(fitted := frame[frame["name"] == "fitted update"]):
        shown = fitted[["algorithm", "parameters", "state", "value", "low", "high"]]
        caption = "Updates fitted to what one round makes of the decoded state, closest first"
        blocks.append(Table(joined(shown), caption, collapsed=True))
    return blocks


def _effects(part: Any, comparison: Comparison) -> list[Any]:
    moved = ["variable", "change", "where", "read in", "algorithm"]
    scores = ["score", "slope", "above rival", "placebo", "untrained"]
    rows, plotted = [], []
    for e in part.effects:
        if e.score is not None:
            name = f"{e.variable.replace('_', ' ')}, {e.what}, at {e.where}, read in the {e.outcome}"
            controls = {"untrained": e.untrained, "a move that should do nothing": e.placebo}
            name += f": under {e.algorithm.replace('_', ' ')}"
            plotted.append(Row(name, Measured(e.score, controls=controls)))
        what = (e.variable.replace("_", " "), e.what, e.where, e.outcome, e.algorithm.replace("_", " "))
        rows.append((*what, e.score, e.slope, e.difference, e.placebo, e.untrained))
    frame = pd.DataFrame(rows, columns=moved + scores)
    table = Table(frame, "Every move under every algorithm", {"placebo": ".3f", "untrained": ".3f"}, collapsed=True)
    plot = IntervalPlot(plotted, "How much of the effect each move has that the algorithm says it has.", beneath=table)
    return [plot, _lacking(f"Moves of inputs: {part.missing}")] if part.missing else [plot]


def _circuit(part: CircuitPart, comparison: Comparison) -> list[Any]:
    paths = []
    for path in part.paths:
        called = f"{path.cause} to {path.outcome}, through patterns at {path.at}"
        untrained = _range(path.untrained), _range(path.reference_untrained)
        paths.append((called, "blocked", path.blocked, path.reference_blocked, *untrained))
        paths.append((called, "carried", path.carried, path.reference_carried, "", ""))
    shares = ["path", "share", part.model, part.reference, "untrained", "untrained reference"]
    roles = [
        (_head(r.head), _head(r.reference), r.similarity, r.weight, r.reference_weight) for r in part.roles[:_N_HEADS]
    ]
    alike = ["head", "matched with", "similarity", "weight", "weight of the match"]
    said = (f"{name} {value}, untrained {_range(untrained)}" for name, value, untrained in part.alike())
    matched = f"Heads matched by role, weightiest first (at most {_N_HEADS}): {', '.join(said)}"
    seen = []
    for name, looks in ((part.model, part.looks), (part.reference, part.reference_looks)):
        for look in looks[:_N_HEADS]:
            attends, alike_only = f"{look.variable.replace('_', ' ')} at {look.positions}", look.is_look_alike
            seen.append((name, _head(look.head), attends, look.r2, look.carried, "yes" if alike_only else "no"))
    edges = [(of.model, of.n, of.of, of.reason) for of in part.needed]
    needed, shared = "Edges that the prediction needs", part.shared
    if shared is not None:
        needed += (
            f": {shared.n} are needed by both when heads stand for their matches, {shared.random_mean:.1f} (at most "
            f"{shared.random_most}) under random matchings"
        )
    threshold, controls = comparison.verdicts["circuit"].threshold, ".3f"
    plotted = [
        Row(f"Heads {name}", Measured(value, threshold, controls={"untrained": best(untrained)}))
        for name, value, untrained in part.alike()
    ]
    tables = [
        IntervalPlot(plotted, f"{_takeaway(comparison, 'circuit')}"),
        Table(pd.DataFrame(paths, columns=shares), "Shares of effects that pass through attention patterns"),
        Table(pd.DataFrame(roles, columns=alike), matched, dict.fromkeys(alike[2:], controls), collapsed=True),
        Table(
            pd.DataFrame(edges, columns=["model", "edges needed", "of", "not found, because"]), needed, collapsed=True
        ),
    ]
    attend = f"Heads that attend as the state says, and what they carry; {_N_HEADS} most"
    columns = ["model", "head", "attends as", "R2", "carries", "look-alike"]
    return [*tables, *([Table(pd.DataFrame(seen, columns=columns), attend, collapsed=True)] if seen else [])]


def _head(called: str | None) -> str | None:
    """A head's address and words: ``2.1 3.2 update`` without the number that the paper gives it."""
    address, _, name = (called or "").partition(" ")
    return f"{address} {unnumbered(name)}".strip() if called else called


def _range(values: Sequence[float]) -> str:
    known = [value for value in values if np.isfinite(value)]
    return f"{min(known):.3f} to {max(known):.3f}" if known else "none"


def _where(part: WherePart, comparison: Comparison) -> list[Any]:
    controls = ["untrained, same site", "untrained, its best site"]
    columns = ["variable", "read in", "model", "best site", "sites tried", "score", *controls]
    rows = [
        (h.variable.replace("_", " "), h.outcome, h.model, h.where, h.n_sites, h.score, h.untrained, h.untrained_best)
        for h in sorted(part.held, key=lambda h: (h.outcome, h.variable))
    ]
    frame, formats = pd.DataFrame(rows, columns=columns), dict.fromkeys(controls, ".3f")
    table = Table(frame, "Every variable where each model holds it best", formats, collapsed=True)
    plotted = [
        Row(
            f"{h.variable.replace('_', ' ')}, read in the {h.outcome}: {h.model} at {h.where.replace(' + ', ', ')}",
            Measured(
                h.score, controls={"untrained": h.untrained, "its best site, untrained elsewhere": h.untrained_best}
            ),
        )
        for h in sorted(part.held, key=lambda h: (h.outcome, h.variable))
    ]
    blocks: list[Any] = [IntervalPlot(plotted, "Every variable, where each model holds it best.", beneath=table)]
    if part.missing:
        blocks.append(_lacking(*(f"Map: {reason}" for reason in part.missing)))
    # Two maps of each cause, one below the other, on one scale.
    causes = dict.fromkeys(m.cause for _, m in part.maps)
    for model, m in (pair for cause in causes for pair in part.maps if pair[1].cause == cause):
        layers = [f"layer {layer}" for layer in m.layers] or m.points
        shown = "The residual stream after each layer" if m.layers else "Each point of the machine"
        places = [position or "share" for position in m.positions]
        picture = figures.heatmaps({"": pd.DataFrame(m.shares, layers, places)}, label="share of the effect", limit=1.0)
        cause = ", ".join(m.cause)
        title = f"{model}: the effect of {cause} on the {m.outcome}"
        blocks.append(Figure(picture, title, f"**{title}.** {_peak(m)} {shown}; blank where no effect can pass."))
    return blocks


def _peak(effects: Any) -> str:
    """Where most of an effect is carried."""
    shares = np.asarray(effects.shares, dtype=np.float64)
    if not np.isfinite(shares).any():
        return ""
    row, column = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
    layer = f"after layer {effects.layers[row]}" if effects.layers else f"in {effects.points[row]}"
    position = f" at {effects.positions[column]}" if effects.positions[column] else ""
    return f"The largest share, {shares[row, column]:.2f}, is carried {layer}{position}."


def _behaviour(part: Any, comparison: Comparison) -> list[Any]:
    frame = comparison.frames["behaviour"]
    averages = joined(frame[frame["name"] != "response"][["name", "read-out", "value", "low", "high", "untrained"]])
    rows = []
    for s in frame[frame["name"] != "response"].to_dict("records"):
        bounds = {"below": RARE} if s["name"] == "rounds apart" else {"above": ALIKE}
        name = f"{s['name'].capitalize()}{', its read-out fitted' if s['read-out'] else ''}"
        value = Interval(s["value"], s["low"], s["high"])
        rows.append(Row(name, Measured(value, **bounds, controls={"untrained": s.get("untrained", math.nan)})))
    table = Table(averages, "Agreement on average, and the share of rounds plainly apart", collapsed=True)
    rows += [Row(f"Response: {c.what}, {c.when}", Measured(c.alike, RESPONSE)) for c in part.plain.cells[:_N_RESPONSES]]
    few = f" Of {len(part.plain.cells)} responses, the {_N_RESPONSES} least alike." if part.plain.cells else ""
    blocks: list[Any] = [IntervalPlot(rows, f"{_takeaway(comparison, 'behaviour')}{few}", beneath=table)]
    if part.plain.cells:
        caption = f"The {_N_RESPONSES} responses that are least alike, of {len(part.plain.cells)} cells"
        blocks.append(Table(_responses(part.plain.cells), caption, collapsed=True))
    if not part.failures:
        return blocks
    same = " (reference)" if comparison.reference == comparison.model else ""
    unit, names = _measures(comparison)[1], (comparison.model, f"{comparison.reference}{same}")
    columns = ["set", "episode", "round", unit, *names]
    worst = [
        (f.set, f.episode, f.round, f.nats, *(" ".join(f"{p:.3f}" for p in of) for of in (f.model, f.reference)))
        for f in part.failures
    ]
    scored = part.failures[0].n_scored
    caption = f"The rounds that differ most; the second episodes of each set of sets_for(..., n_scored={scored})"
    return [*blocks, Table(pd.DataFrame(worst, columns=columns), caption, collapsed=True)]


def _through_state(part: Any, comparison: Comparison) -> list[Any]:
    if not part.cells:
        return []
    caption = f"The {_N_RESPONSES} responses that are least like a move of the state, of {len(part.cells)} cells"
    rows = [Row(f"{c.what}, {c.when}", Measured(c.alike, RESPONSE)) for c in part.cells[:_N_RESPONSES]]
    return [IntervalPlot(rows, f"{caption}.", beneath=Table(_responses(part.cells), caption, collapsed=True))]


def _responses(cells: Sequence[Cell]) -> pd.DataFrame:
    rows = [(c.what, c.when, c.alike, f"{c.size:.3f}", f"{c.reference_size:.3f}") for c in cells[:_N_RESPONSES]]
    return pd.DataFrame(rows, columns=["input", "when", "alike", "response", "held against"])


_DRAWINGS: dict[str, tuple[str, str, Callable[[Any, Comparison], Sequence[Any]]]] = {
    "algorithm": ("Which algorithm", "", _algorithm),
    "behaviour": ("Behaviour", _BEHAVIOUR, _behaviour),
    "state": ("State", _STATE, _state),
    "update": ("Update", _UPDATE, _update),
    "response": ("Response through the state", _RESPONSE, _through_state),
    "effects": ("Effects", _EFFECTS, _effects),
    "circuit": ("Circuit", _CIRCUIT, _circuit),
    "where": ("Where", _WHERE, _where),
}
"""The key of a question of :mod:`circuits.compare` -> its title, its text and what draws its blocks, in page order."""
