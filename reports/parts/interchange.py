"""Report parts on interventions with effects that the algorithm predicts: interchange of
activations, and steering by changing the state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from circuits.compiler import list_wired_claims
from interp.interventions import causal_tables
from interp.results import figures
from interp.results.measure import NOTHING, VERDICTS, Control, Measure, join_words
from interp.stats.intervals import Interval
from interp.support.errors import InputError
from reports.blocks import (
    Figure,
    Measures,
    Prose,
    Table,
    cell,
    claim,
    join_intervals,
    number,
    plain,
)
from reports.part import Context, Part
from reports.texts import TEXTS

_SAYS = TEXTS["interchange"]
_ALIGNED, _COLUMNS = _SAYS["aligned"], _SAYS["columns"]
_MOST = 0.5  # a variable is carried where interchanging a place makes more than this share of the counterfactual effect
_NOTHING = {"doing nothing": Control(0.0)}
"""The control of a place that can move in no other direction: a score of 0 is that of no effect."""
_NAMED = 2  # so many variables are named in a sentence; the claim names all
_SHOWS = {"prediction": "the prediction", "state": "what is written"}


_Tables = tuple[pd.DataFrame, pd.DataFrame | None]
"""Results of interchange at sites, and of learned subspaces (or None): see
:mod:`interp.interventions.causal_tables`.
"""


def _compute(context: Context) -> _Tables:
    """Measure interchange interventions at the sites where variables should be; in a full report,
    also learn subspaces of a learned model.

    These sites are those of the circuit for a handwired model, otherwise those that the task names.
    """
    model = context.model
    bases, sources = context.pairs
    t, seed = context.looked_at, context.seed
    claims = list_wired_claims(context.circuit) if context.compiled else None
    carried = causal_tables.interchange_table(model, bases, sources, t, seed, claims)
    algorithm = context.task.explains(model)
    carried["noun"] = [algorithm.variable(key).noun for key in carried["variable"]]
    if model.is_handwired or context.quick or not context.task.analysis.aligned(model):
        return carried, None
    return carried, causal_tables.alignment_table(model, bases, sources, t, seed)


def _describe_nowhere(context: Context) -> str:
    """Return a sentence that the part does not apply, if the model's circuit does not say which
    sites carry a variable; otherwise "".
    """
    try:
        claimed = not context.compiled or bool(context.circuit.carried)
    except InputError:
        return ""  # a circuit that was edited: the part says so
    if claimed:
        return ""
    name = context.model.name
    return f"not applicable: the circuit of {name} says of no variable which places carry it"


def _measure_interchange(computed: _Tables, context: Context) -> list[Measure]:
    """Return the measures for the page's overview: one for each outcome (prediction, state) and
    verdict.

    Variables with the same outcome and verdict are merged into one measure; its number is that of
    the variable with the smallest effect.
    """
    carried = computed[0]
    claimed = carried.loc[~carried["control"].astype(bool), ["variable", "outcome"]]
    claimed = carried.merge(claimed.drop_duplicates())
    groups: dict[tuple[str, str], list[Measure]] = {}
    for _, rows in claimed.groupby(["variable", "outcome"], sort=False):
        measure = _find_best(rows)
        groups.setdefault((measure.verdict, measure.key), []).append(measure)
    ways = product(VERDICTS, _SHOWS)
    return [_merge(groups[way]) for way in ways if way in groups]


def _merge(measures: Sequence[Measure]) -> Measure:
    """Merge the measures of several variables with the same verdict into one, which has their
    smallest number, and whose claim names all of them.
    """
    weakest = min(measures, key=lambda measure: measure.number.estimate)
    outcome = weakest.key
    names = list(dict.fromkeys(measure.claim for measure in measures))
    causes = names
    if len(names) > 1:
        causes = [name for name in names if name != f"the {outcome}"]
    listed_causes = join_words(causes[:_NAMED])
    claim = f"Swapping in another episode's values changes {_SHOWS[outcome]} as the algorithm says"
    verb, rest = ("predict", "from") if outcome == "prediction" else ("update", "its state by")
    return replace(
        weakest,
        key=f"interchange {outcome}",
        claim=f"{claim}: {', '.join(names)}",
        about=f"the weakest: {weakest.claim}" if len(measures) > 1 else "",
        yes=f"{verb}s {rest} {listed_causes}",
        no=f"does not {verb} {rest} {listed_causes}",
    )


def _find_best(rows: pd.DataFrame) -> Measure:
    """Return the measure of the site where interchanging one variable has the largest effect, with
    the strongest of all controls.

    The site is chosen on the episodes that also give its interval. The interval is not corrected
    for the choice, so of many sites the number is too high, and "no" too rare.

    Args:
        rows: scores at all sites of the variable, for one outcome.
    """
    is_control = rows["control"].astype(bool)
    best = rows[~is_control].sort_values("score", ascending=False).iloc[0]
    scores = pd.Series([best["random_score"], *rows.loc[is_control, "score"]], dtype=float).dropna()
    controls = _NOTHING
    if len(scores):
        controls = {"a random direction or another site": Control(float(scores.max()))}
    return Measure(
        best["outcome"],
        best["noun"],
        _score(best),
        _MOST,
        unit="share of the effect",
        controls=controls,
        rests_on=("interchange accuracy by variable and site",),
        caution="the best site is chosen on the same episodes; its interval ignores the choice",
    )


def _score(row: Any) -> Interval:
    """Return the score in a table row, with its interval."""
    return Interval(row["score"], row["score_low"], row["score_high"])


def _draw(computed: _Tables, context: Context) -> list[object]:
    """Return the blocks of the section: the score of every site, a table of accuracies, and learned
    subspaces.
    """
    carried, aligned = computed
    is_control = carried["control"].astype(bool)
    names = carried["places"].map(_write_places)
    carried = carried.assign(place=names.where(~is_control, names + " (control)"))
    measures = []
    for row in carried[carried["score"].notna()].to_dict("records"):
        name = f"{row['noun']}, read in {_SHOWS[row['outcome']]}: {row['place']}"
        measures.append(plain(name, _score(row), {"a random direction": row["random_score"]}))
    best = carried[~is_control].groupby("variable")["score"].max()
    n_carried = int((best > _MOST).sum())
    setting = _SAYS["wired" if context.compiled else "whole"]
    blocks: list[object] = [
        Prose(f"{_SAYS['text']}\n\n{setting}"),
        Measures(measures, _SAYS["carried"].format(held=n_carried, all_of=len(best))),
        _tabulate(carried),
    ]
    if aligned is not None:
        blocks += _draw_subspaces(aligned)
    return blocks


def _tabulate(carried: pd.DataFrame) -> Table:
    """Make the table with the accuracy of interchange at every site, beside that of chance.

    Args:
        carried: results of interchange, one row per variable and site.
    """
    bounds = {bound: f"iia_informative_{bound}" for bound in ("low", "high")}
    shown = join_intervals(carried.rename(columns=bounds))
    shown["variable"] = shown["noun"].str.removeprefix("the ")
    shown["places"] = shown["place"]
    shown["outcome"] = shown["outcome"].map(_SHOWS)
    if "no_random" in shown:
        for column in ("random", "random_score"):
            reasons = shown["no_random"]
            shown[column] = shown[column].astype(object).where(reasons.isna(), reasons)
    formats = {_COLUMNS[key]: ".3f" for key in _THREE_DIGITS}
    shown = shown[list(_COLUMNS)].rename(columns=_COLUMNS)
    caption = "Interchange accuracy by variable and site, with 95 % intervals over episodes"
    return Table(shown, caption, formats, collapsed=True)


_THREE_DIGITS = ("chance_informative", "random", "random_score", "iia", "chance")


def _draw_subspaces(aligned: pd.DataFrame) -> list[object]:
    """Return the blocks on learned subspaces: their accuracies beside those of controls, and why
    some could not be learned.
    """
    bounds = {f"{bound}_informative": f"iia_informative_{bound}" for bound in ("low", "high")}
    aligned = aligned.rename(columns=bounds)
    aligned["site"] = aligned["site"].map(_name_site)
    aligned["variable"] = aligned["variable"].str.replace("_", " ")
    places = aligned["variable"] + ", " + aligned["site"]
    is_refused = aligned["refused"].notna()
    paragraphs = [_ALIGNED]
    for place, why in zip(places[is_refused], aligned["refused"][is_refused], strict=True):
        paragraphs.append(f"**{place}** was not learned: {why}")
    text = Prose("\n\n".join(paragraphs))
    if is_refused.all():
        return [text]
    aligned = aligned[~is_refused].drop(columns="refused")
    is_learned = aligned["condition"] == "learned"
    ranks = aligned["rank"].astype("Int64").astype(str)
    names = places[~is_refused] + ", rank " + ranks
    names = names.where(is_learned, aligned["condition"])
    drawn = aligned.assign(name=names, estimate=aligned["iia"], control=~is_learned)
    best = drawn[is_learned].sort_values("estimate", ascending=False, kind="stable").iloc[0]
    caption = _SAYS["learned"].format(name=best["name"], share=best["estimate"])
    picture = figures.intervals(drawn, xlabel="accuracy")
    numbers = "The numbers of the picture, also for informative pairs and training pairs"
    return [
        text,
        Figure(picture, "Learned subspaces and their controls", caption),
        Table(aligned, numbers, collapsed=True),
    ]


def _name_site(text: str) -> str:
    """Return a site's address in words.

    >>> _name_site("resid_post[0]@p? (rank 2)"), _name_site("L2H0@w?")
    ('residual stream after layer 0 at p? (rank 2)', 'head L2H0 at w?')
    """

    def name_match(site: re.Match[str]) -> str:
        component, layer, head = site.groups()
        if head is not None:
            return f"{component} of head L{layer}H{head}"
        return str(_SAYS["sites"].get(component, component + " of layer {}")).format(layer)

    named = re.sub(r"(\w+)\[(\d+)(?:\.(\d+))?\]", name_match, text)
    return re.sub(r"(?<!head )\bL\d+H\d+", r"head \g<0>", named).replace("@", " at ")


def _write_places(text: str) -> str:
    """Return several sites in words; positions of the same component are listed together.

    >>> _write_places("embed@p_1 (rank 2) + embed@p_2 (rank 2)")
    'embed at p_1, p_2 (rank 2)'
    """
    labels: dict[tuple[str, str], list[str]] = {}
    for place in text.split(" + "):
        where, space, rank = place.partition(" (rank")
        site, _, label = where.partition("@")
        labels.setdefault((site, space + rank), []).append(label)
    places = []
    for (site, rank), of_site in labels.items():
        listed_labels = ", ".join(of_site)
        places.append(f"{site}@{listed_labels}{rank}" if any(of_site) else f"{site}{rank}")
    return _name_site(" + ".join(places))


_EXACT = "the change of the latent along the state axes of the circuit"
_FITTED = "the least-squares change of the latents with the state"
_SMALLEST = 0.02  # the move of the algorithm's prediction below which steering shows nothing
_NAMES = {"model": "model", "algorithm": "algorithm", "random": "random directions"}


def _measure_steering(frame: pd.DataFrame, context: Context) -> list[Measure]:
    """Return the measure of whether changing the state (by several doses) changes the model's
    prediction as much as the algorithm's.

    The dose with the smallest score decides; doses that hardly change the algorithm's prediction
    are left out. The control is random directions.
    """
    rest = frame["algorithm"].iloc[int(frame["dose"].abs().argmin())]
    moves = (frame["algorithm"] - rest).abs() >= _SMALLEST
    moving = frame[moves & frame["score"].notna()]
    if moving.empty:
        why = f"{NOTHING}: no dose moves the algorithm's prediction by {_SMALLEST}"
        return [claim("steering", unless={"undecided": why})]
    worst = moving.loc[moving["score"].idxmin()]
    dose = f"dose {number(worst['dose'])}"
    if len(moving) > 1:
        dose += f", the worst of {len(moving)}"
    controls = {"a random direction": Control(float(worst["random_score"]))}
    return [claim("steering", _score(worst), controls=controls, about=dose)]


def _name_curves(frame: pd.DataFrame) -> pd.DataFrame:
    """Return three curves over doses with bounds, in one table: predictions of the model, of the
    algorithm, and of the model when it is changed in random directions.
    """
    frames = []
    for key, name in _NAMES.items():
        columns = {key: "mean", f"{key}_low": "low", f"{key}_high": "high"}
        curve = frame[["dose", *columns]].rename(columns=columns)
        frames.append(curve.assign(algorithm=key, name=name))
    return pd.concat(frames)


def _draw_steering(frame: pd.DataFrame, context: Context) -> list[object]:
    """Return the blocks of the section: how predictions of model and algorithm change with the
    dose, beside the effect of random directions.
    """
    steering = context.task.analysis.steering
    assert steering is not None
    record = steering()
    drawn = figures.curves(
        _name_curves(frame), x="dose", xlabel=f"dose: {record.what}", ylabel=record.shows
    )
    doses = frame[frame["dose"] != 0]
    widest = frame.iloc[int(frame["difference"].abs().argmax())]
    caption = _SAYS["steered"].format(
        distance=doses["mean_error"].mean(),
        random=doses["random_mean_error"].mean(),
        shows=record.shows,
        dose=number(widest["dose"]),
        apart=cell(widest["difference"], "+.2f"),
    )
    table = join_intervals(frame)
    table[["mean_error", "random_mean_error"]] = frame[["mean_error", "random_mean_error"]]
    table = table[list(_STEERED)].rename(columns=_STEERED)
    how = _EXACT if context.compiled else _FITTED
    title = (
        "Response to each dose: of the model, of the algorithm, and of the model to random "
        "directions"
    )
    return [
        Prose(_SAYS["steering_text"].format(how=how)),
        Figure(drawn, title, caption, frame),
        Table(table, "The same numbers", collapsed=True),
    ]


_STEERED = {
    "dose": "dose",
    **_NAMES,
    "difference": "model minus algorithm",
    "score": "share of the algorithm's change",
    "mean_error": "mean distance from the algorithm",
    "max_error": "largest",
    "random_mean_error": "mean distance from the algorithm, random directions",
}
"""Headers of the steering table, by column."""


INTERCHANGE = Part(
    "interchange",
    "Interchange interventions",
    _compute,
    _draw,
    lambda context: bool(
        context.algorithms and (context.compiled or context.task.analysis.claims(context.model))
    ),
    _measure_interchange,
    lacking=_describe_nowhere,
)
"""The report part on which sites carry which variables of the algorithm, against chance."""
STEERING = Part(
    "steering",
    "Steering",
    lambda context: causal_tables.steering_table(
        context.model, context.pairs[0], context.looked_at, context.seed
    ),
    _draw_steering,
    lambda context: bool(context.algorithms and context.task.analysis.steering is not None),
    _measure_steering,
)
"""The report part on steering: changing the state in the latents, against the algorithm's response.
"""
