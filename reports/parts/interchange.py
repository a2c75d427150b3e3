"""Report parts on interventions with effects that the algorithm predicts: interchange of
activations, and steering by changing the state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import isnan
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
    format_number,
    join_intervals,
    make_unjudged,
)
from reports.part import Context, Part
from reports.texts import TEXTS

_TEXTS = TEXTS["interchange"]
_SUBSPACE_TEXT, _HEADERS = _TEXTS["aligned"], _TEXTS["columns"]
_CARRIED_SHARE = 0.5
"""A place carries a variable if interchanging it makes more than this share of the counterfactual
effect.
"""
_NO_EFFECT_CONTROL = {"doing nothing": Control(0.0)}
"""The control of a place that can move in no other direction: a score of 0 is that of no effect."""
_MOST_NAMED = 2
"""Most variables that a phrase of the page's summary names; the claim names all."""
_OUTCOME_NOUNS = {"prediction": "the prediction", "state": "what is written"}

_Tables = tuple[pd.DataFrame, pd.DataFrame | None]
"""Results of interchange at sites, and of learned subspaces (or None): see
:mod:`interp.interventions.causal_tables`.
"""


def _compute(context: Context) -> _Tables:
    """Measure interchange interventions at the sites where variables should be; in a full report,
    also learn subspaces of a learned model.

    These sites are those of the circuit for a handwired model, otherwise those that the task names.

    Returns:
        The table of interchange, and the table of learned subspaces or None.
    """
    model = context.model
    bases, sources = context.pairs
    t, seed = context.detailed_round, context.seed
    # Which sites should carry which variable; None stands for the claims of the task.
    claims = list_wired_claims(context.circuit) if context.is_compiled else None
    carried = causal_tables.interchange_table(model, bases, sources, t, seed, claims)
    algorithm = context.task.explains(model)  # the one that the task assigns to the model
    carried["noun"] = [algorithm.variable(key).noun for key in carried["variable"]]
    # ``aligned`` lists (variable, site at which its subspace is learned); a task may have none.
    if model.is_handwired or context.quick or not context.task.analysis.aligned(model):
        return carried, None
    return carried, causal_tables.alignment_table(model, bases, sources, t, seed)


def _describe_lack(context: Context) -> str:
    """Return a sentence that the part does not apply, if the model's circuit does not say which
    sites carry a variable; otherwise "".
    """
    try:
        if not context.is_compiled or context.circuit.carried:
            return ""
    except InputError:
        return ""  # a circuit that was edited: the part says so
    name = context.model.name
    return f"not applicable: the circuit of {name} says of no variable which places carry it"


def _measure_interchange(computed: _Tables, context: Context) -> list[Measure]:
    """Make the measures for the page's overview from the results of the interchange interventions.

    Variables are grouped by outcome ("prediction", or the "state" that the model writes) and
    verdict. Each group becomes one measure, with the number of the variable with the smallest
    effect.

    Args:
        computed: the tables that the part computed: effects at all sites, and learned subspaces or
            None.
        context: the model and the episodes of the report; not used.
    """
    carried, _ = computed
    is_control = carried["control"].astype(bool)
    claimed_pairs = carried.loc[~is_control, ["variable", "outcome"]].drop_duplicates()
    claimed = carried.merge(claimed_pairs)  # without variables that have only control sites
    groups: dict[tuple[str, str], list[Measure]] = defaultdict(list)  # by verdict and outcome
    for _, rows in claimed.groupby(["variable", "outcome"], sort=False):
        measure = _measure_best_site(rows)  # its key is the outcome
        groups[measure.verdict, measure.key].append(measure)
    ordered_keys = product(VERDICTS, _OUTCOME_NOUNS)
    return [_merge(groups[key]) for key in ordered_keys if key in groups]


def _merge(measures: Sequence[Measure]) -> Measure:
    """Merge the measures of several variables with the same verdict into one, which has their
    smallest number, and whose claim names all of them.
    """
    weakest = min(measures, key=lambda measure: measure.number.estimate)
    outcome = weakest.key
    # The claim of each measure is the name of its variable, such as "the counts".
    names = list(dict.fromkeys(measure.claim for measure in measures))
    causes = names
    # "It predicts from the prediction" would say nothing. If there are other variables to name, the
    # outcome itself is not named.
    if len(names) > 1:
        causes = [name for name in names if name != f"the {outcome}"]
    listed_causes = join_words(causes[:_MOST_NAMED])
    claim = f"Swapping in another episode's values changes {_OUTCOME_NOUNS[outcome]} as the algorithm says"
    if outcome == "prediction":
        yes = f"predicts from {listed_causes}"
        no = f"does not predict from {listed_causes}"
    else:
        yes = f"updates its state by {listed_causes}"
        no = f"does not update its state by {listed_causes}"
    return replace(
        weakest,
        key=f"interchange {outcome}",
        claim=f"{claim}: {', '.join(names)}",
        about=f"the weakest: {weakest.claim}" if len(measures) > 1 else "",
        yes=yes,
        no=no,
    )


def _measure_best_site(rows: pd.DataFrame) -> Measure:
    """Return the measure of the site where interchanging one variable has the largest effect. The
    control is the strongest effect of a random direction at this site, or of a control site.

    The site is chosen on the episodes that also give its interval. The interval is not corrected
    for the choice, so of many sites the number is too high, and "no" too rare.

    Args:
        rows: scores at all sites of the variable; all are effects on the prediction, or all on the
            state.
    """
    is_control = rows["control"].astype(bool)
    best = rows[~is_control].sort_values("score", ascending=False).iloc[0]
    control_scores = [best["random_score"], *rows.loc[is_control, "score"]]
    strongest = float(pd.Series(control_scores, dtype=float).max())  # NaN if none has a score
    controls = {"a random direction or another site": Control(strongest)}
    if isnan(strongest):
        controls = _NO_EFFECT_CONTROL
    return Measure(
        key=best["outcome"],
        claim=best["noun"],  # _merge writes the claim, from the nouns of several variables
        number=_read_score(best),
        threshold=_CARRIED_SHARE,
        unit="share of the effect",
        controls=controls,
        rests_on=("interchange accuracy by variable and site",),
        caution="the best site is chosen on the same episodes; its interval ignores the choice",
    )


def _read_score(row: Any) -> Interval:
    """Return the score in a table row, with its interval."""
    return Interval(row["score"], row["score_low"], row["score_high"])


def _draw(computed: _Tables, context: Context) -> list[object]:
    """Return the blocks of the page on interchange interventions: the size of the effect at every
    site, a table of accuracies, and what learned subspaces carry, if any were learned.

    Args:
        computed: the tables that the part computed: effects at all sites, and learned subspaces or
            None.
        context: the model and the episodes of the report.
    """
    carried, aligned = computed
    is_control = carried["control"].astype(bool)
    names = carried["places"].map(_write_places)
    carried = carried.assign(place=names.where(~is_control, names + " (control)"))
    measures = []
    for row in carried[carried["score"].notna()].to_dict("records"):
        name = f"{row['noun']}, read in {_OUTCOME_NOUNS[row['outcome']]}: {row['place']}"
        measures.append(
            make_unjudged(name, _read_score(row), {"a random direction": row["random_score"]})
        )
    best = carried[~is_control].groupby("variable")["score"].max()
    n_carried = int((best > _CARRIED_SHARE).sum())
    setting = _TEXTS["wired" if context.is_compiled else "whole"]
    blocks: list[object] = [
        Prose(f"{_TEXTS['text']}\n\n{setting}"),
        Measures(measures, _TEXTS["carried"].format(held=n_carried, all_of=len(best))),
        _tabulate(carried),
    ]
    if aligned is not None:
        blocks += _draw_subspaces(aligned)
    return blocks


def _tabulate(carried: pd.DataFrame) -> Table:
    """Make the table of the accuracy of interchange interventions, beside the accuracy that chance
    gives, for every variable and site.

    Args:
        carried: results of the interventions, one row per variable and site.
    """
    # "low" and "high" are the bounds of iia_informative, which join_intervals finds under the names
    # iia_informative_low and iia_informative_high.
    bounds = {"low": "iia_informative_low", "high": "iia_informative_high"}
    table = join_intervals(carried.rename(columns=bounds))
    table["variable"] = table["noun"].str.removeprefix("the ")
    table["places"] = table["place"]
    table["outcome"] = table["outcome"].map(_OUTCOME_NOUNS)
    if "no_random" in table:  # the reason why a site has no random direction, or NaN
        reasons = table["no_random"]
        for column in ("random", "random_score"):
            table[column] = table[column].astype(object).where(reasons.isna(), reasons)
    formats = {_HEADERS[key]: ".3f" for key in _THREE_DIGITS}
    table = table[list(_HEADERS)].rename(columns=_HEADERS)
    caption = "Interchange accuracy by variable and site, with 95 % intervals over episodes"
    return Table(table, caption, formats, collapsed=True)


_THREE_DIGITS = ("chance_informative", "random", "random_score", "iia", "chance")
"""Columns whose numbers the table shows with three digits."""


def _draw_subspaces(aligned: pd.DataFrame) -> list[object]:
    """Return the blocks on learned subspaces: a text that says why some could not be learned; and a
    picture and a table of the accuracies, beside those of controls.

    Args:
        aligned: table with one row per learned subspace or control.
    """
    # Names under which the table shows the bounds in one column with the estimate.
    bounds = {
        "low_informative": "iia_informative_low",
        "high_informative": "iia_informative_high",
    }
    table = aligned.rename(columns=bounds)
    table["site"] = table["site"].map(_name_site)
    table["variable"] = table["variable"].str.replace("_", " ")
    places = table["variable"] + ", " + table["site"]  # a name for each row
    refusals = table["refused"].dropna()  # reasons why a subspace could not be learned
    paragraphs = [_SUBSPACE_TEXT]
    for place, why in zip(places[refusals.index], refusals, strict=True):
        paragraphs.append(f"**{place}** was not learned: {why}")
    text = Prose("\n\n".join(paragraphs))
    shown = table.drop(index=refusals.index, columns="refused")
    if shown.empty:
        return [text]
    # Each variable has a row of the learned subspace, and one per control.
    is_learned = shown["condition"] == "learned"
    # Ranks may be floats, since refused rows had none: written as "2", not "2.0".
    ranks = shown["rank"].astype("Int64").astype(str)
    names = places[shown.index] + ", rank " + ranks
    names = names.where(is_learned, shown["condition"])  # controls: the name of the control
    drawn = shown.assign(name=names, estimate=shown["iia"], control=~is_learned)
    best = drawn[is_learned].sort_values("estimate", ascending=False, kind="stable").iloc[0]
    caption = _TEXTS["learned"].format(name=best["name"], share=best["estimate"])
    picture = figures.intervals(drawn, xlabel="accuracy")
    table_caption = "The numbers of the picture, also for informative pairs and training pairs"
    return [
        text,
        Figure(picture, "Learned subspaces and their controls", caption),
        Table(shown, table_caption, collapsed=True),
    ]


def _name_site(text: str) -> str:
    """Return a site's address in words.

    >>> _name_site("resid_post[0]@p? (rank 2)"), _name_site("L2H0@w?")
    ('residual stream after layer 0 at p? (rank 2)', 'head L2H0 at w?')
    """

    def name_component(match: re.Match[str]) -> str:
        """Return one component in words: "z of head L2H1" for a match of "z[2.1]"."""
        component, layer, head = match.groups()  # "z[2.1]": z, 2, 1; "resid_post[0]" has no head
        if head is not None:
            return f"{component} of head L{layer}H{head}"
        return str(_TEXTS["sites"].get(component, component + " of layer {}")).format(layer)

    named = re.sub(r"(\w+)\[(\d+)(?:\.(\d+))?\]", name_component, text)
    return re.sub(r"(?<!head )\bL\d+H\d+", r"head \g<0>", named).replace("@", " at ")


def _write_places(text: str) -> str:
    """Return several sites in words; positions of the same component are listed together.

    >>> _write_places("embed@p_1 (rank 2) + embed@p_2 (rank 2)")
    'embed at p_1, p_2 (rank 2)'
    """
    labels: dict[tuple[str, str], list[str]] = defaultdict(list)  # of positions, by (site, rank)
    for place in text.split(" + "):
        address, opening, rank = place.partition(" (rank")
        site, _, label = address.partition("@")
        labels[site, opening + rank].append(label)
    places = []
    for (site, rank), site_labels in labels.items():
        positions = f"@{', '.join(site_labels)}" if any(site_labels) else ""
        places.append(f"{site}{positions}{rank}")
    return _name_site(" + ".join(places))


_EXACT = "the change of the latent along the state axes of the circuit"
_FITTED = "the least-squares change of the latents with the state"
_SMALLEST_MOVE = 0.02
"""Change of the algorithm's prediction below which steering shows nothing."""
_CURVE_NAMES = {"model": "model", "algorithm": "algorithm", "random": "random directions"}


def _measure_steering(frame: pd.DataFrame, context: Context) -> list[Measure]:
    """Return the measure of whether changing the state (by several doses) changes the model's
    prediction as much as the algorithm's. The control is a change in random directions.

    The number is that of the dose with the lowest ``score``: the share of the algorithm's change of
    its prediction that the model makes, too. Doses that hardly change the algorithm's prediction
    are left out.

    Args:
        frame: table of :func:`interp.interventions.causal_tables.steering_table`, one row per dose.
        context: the report's model, episodes and settings; not used.
    """
    # The prediction at the dose nearest to 0.
    unsteered = frame["algorithm"].iloc[int(frame["dose"].abs().argmin())]
    is_moved = (frame["algorithm"] - unsteered).abs() >= _SMALLEST_MOVE
    moving = frame[is_moved & frame["score"].notna()]
    if moving.empty:
        why = f"{NOTHING}: no dose moves the algorithm's prediction by {_SMALLEST_MOVE}"
        return [claim("steering", unless={"undecided": why})]
    worst = moving.loc[moving["score"].idxmin()]
    dose = f"dose {format_number(worst['dose'])}"
    if len(moving) > 1:
        dose += f", the worst of {len(moving)}"
    controls = {"a random direction": Control(float(worst["random_score"]))}
    return [claim("steering", _read_score(worst), controls=controls, about=dose)]


def _name_curves(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the points of three curves over doses, with the curve's name and the bounds of the
    interval in each row: predictions of the model, of the algorithm, and of the model changed in
    random directions.

    Args:
        frame: table of :func:`interp.interventions.causal_tables.steering_table`, one row per dose.
    """
    frames = []
    for key, name in _CURVE_NAMES.items():
        columns = {key: "mean", f"{key}_low": "low", f"{key}_high": "high"}
        curve = frame[["dose", *columns]].rename(columns=columns)
        frames.append(curve.assign(algorithm=key, name=name))
    return pd.concat(frames)


def _draw_steering(frame: pd.DataFrame, context: Context) -> list[object]:
    """Return the blocks of the page on steering: how the predictions of model and algorithm change
    with the dose, beside the effect of random directions.

    Args:
        frame: the table that the part computed, with one row per dose.
        context: the model and the episodes of the report.
    """
    make_steering = context.task.analysis.steering
    assert make_steering is not None  # or the part does not apply
    record = make_steering()
    drawn = figures.curves(
        _name_curves(frame), x="dose", xlabel=f"dose: {record.what}", ylabel=record.shows
    )
    doses = frame[frame["dose"] != 0]
    farthest = frame.iloc[int(frame["difference"].abs().argmax())]  # model from algorithm
    caption = _TEXTS["steered"].format(
        distance=doses["mean_error"].mean(),
        random=doses["random_mean_error"].mean(),
        shows=record.shows,
        dose=format_number(farthest["dose"]),
        apart=cell(farthest["difference"], "+.2f"),
    )
    table = join_intervals(frame)
    # Of the distances, the table shows only the estimates.
    table[["mean_error", "random_mean_error"]] = frame[["mean_error", "random_mean_error"]]
    table = table[list(_STEERING_HEADERS)].rename(columns=_STEERING_HEADERS)
    how = _EXACT if context.is_compiled else _FITTED
    title = (
        "Response to each dose: of the model, of the algorithm, and of the model to random "
        "directions"
    )
    return [
        Prose(_TEXTS["steering_text"].format(how=how)),
        Figure(drawn, title, caption, frame),
        Table(table, "The same numbers", collapsed=True),
    ]


_STEERING_HEADERS = {
    "dose": "dose",
    **_CURVE_NAMES,
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
    applies=lambda context: bool(
        context.algorithms and (context.is_compiled or context.task.analysis.claims(context.model))
    ),
    summary=_measure_interchange,
    lacking=_describe_lack,
)
"""The report part on which sites carry which variables of the algorithm, against chance."""
STEERING = Part(
    "steering",
    "Steering",
    lambda context: causal_tables.steering_table(
        context.model, context.pairs[0], context.detailed_round, context.seed
    ),
    _draw_steering,
    applies=lambda context: bool(context.algorithms and context.task.analysis.steering is not None),
    summary=_measure_steering,
)
"""The report part on steering: changing the state in the latents, against the algorithm's response.
"""
