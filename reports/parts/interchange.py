"""Interventions that an algorithm foretells: variables set to another episode's values, states written into latents."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from circuits.compiler import wired
from interp.interventions import causal_tables
from interp.results import figures
from interp.results.measure import NOTHING, VERDICTS, Control, Measure, listed
from interp.stats.intervals import Interval
from interp.support.errors import InputError
from reports import panels
from reports.blocks import TEXTS, Figure, Measures, Prose, Table, cell, claim, joined, number, plain
from reports.part import Context, Part

_SAYS = TEXTS["interchange"]
_ALIGNED, _COLUMNS = _SAYS["aligned"], _SAYS["columns"]
_MOST = 0.5  # a variable is carried where interchanging a place makes more than this share of the counterfactual effect
_NOTHING = {"doing nothing": Control(0.0)}
"""The control of a place that can move in no other direction: a score of 0 is that of no effect."""
_NAMED = 2  # so many variables are named in a sentence; the claim names all
_SHOWS = {"prediction": "the prediction", "state": "what is written"}


_Tables = tuple[pd.DataFrame, pd.DataFrame | None]
"""What places carry, and learned subspaces, where there are any, of :mod:`interp.interventions.causal_tables`."""


def _compute(context: Context) -> _Tables:
    """The places are those that a handwired model's circuit names; of a learned model, those that its task claims."""
    model, (bases, sources), t, seed = context.model, context.pairs, context.looked_at, context.seed
    claims = wired(context.circuit) if context.compiled else None
    carried = causal_tables.interchange_table(model, bases, sources, t, seed, claims)
    carried["noun"] = [
        context.task.explains(model).variable(key).noun for key in carried["variable"]
    ]
    if context.model.is_handwired or context.quick or not context.task.analysis.aligned(model):
        return carried, None
    return carried, causal_tables.alignment_table(model, bases, sources, t, seed)


def _nowhere(context: Context) -> str:
    """What a circuit lacks that does not say which places carry its variables."""
    try:
        claimed = not context.compiled or bool(context.circuit.carried)
    except InputError:
        return ""  # a circuit that was edited: the part says so
    says = f"the circuit of {context.model.name} says of no variable which places carry it"
    return "" if claimed else f"not applicable: {says}"


def _interchanged(computed: _Tables, context: Context) -> list[Measure]:
    """A measure for each outcome and each word that variables which should show in it have; the weakest decides."""
    carried = computed[0]
    is_claim = ~carried["control"].astype(bool)
    claimed = carried.merge(carried.loc[is_claim, ["variable", "outcome"]].drop_duplicates())
    best = [_best(rows) for _, rows in claimed.groupby(["variable", "outcome"], sort=False)]
    ways = [(word, outcome) for word in VERDICTS for outcome in _SHOWS]
    alike = [[one for one in best if (one.verdict, one.key) == way] for way in ways]
    return [_together(measures) for measures in alike if measures]


def _together(alike: Sequence[Measure]) -> Measure:
    """One measure of variables that have one word: the weakest, with the names of all."""
    weakest = min(alike, key=lambda one: one.number.estimate)
    names = list(dict.fromkeys(one.claim for one in alike))
    causes = [name for name in names if name != f"the {weakest.key}" or len(names) == 1][:_NAMED]
    verb = {"prediction": "predict from", "state": "update its state by"}[weakest.key]
    return replace(
        weakest,
        key=f"interchange {weakest.key}",
        claim=f"Swapping in another episode's values changes {_SHOWS[weakest.key]} as the algorithm says: "
        f"{', '.join(names)}",
        about=f"the weakest: {weakest.claim}" if len(alike) > 1 else "",
        yes=f"{verb.replace(' ', 's ', 1)} {listed(causes)}",
        no=f"does not {verb} {listed(causes)}",
    )


def _best(rows: pd.DataFrame) -> Measure:
    """The best place of one variable (the claim) under one outcome (the key), beside its best control."""
    is_control = rows["control"].astype(bool)
    first: dict[Any, Any] = (
        rows[~is_control].sort_values("score", ascending=False).iloc[0].to_dict()
    )
    known = [
        value
        for value in [first["random_score"], *rows.loc[is_control, "score"]]
        if not math.isnan(value)
    ]
    beside = {"a random direction or another place": Control(max(known))} if known else _NOTHING
    score = Interval(*(first[key] for key in ("score", "score_low", "score_high")))
    rests, about = (
        ("interchange accuracy by variable and place",),
        (first["outcome"], first["noun"]),
    )
    return Measure(
        *about, score, _MOST, unit="share of the effect", controls=beside, rests_on=rests
    )


def _draw(computed: _Tables, context: Context) -> list[object]:
    carried, aligned = computed
    places = [
        _where(at) + " (control)" * bool(control)
        for at, control in zip(carried["places"], carried["control"], strict=True)
    ]
    bounds, named = (
        {bound: f"iia_informative_{bound}" for bound in ("low", "high")},
        carried["noun"].str[4:],
    )
    shown = joined(carried.rename(columns=bounds))[list(_COLUMNS)].assign(
        variable=named, places=places, outcome=carried["outcome"].map(_SHOWS)
    )
    if "no_random" in carried:
        for column in ("random", "random_score"):
            shown[column] = (
                shown[column]
                .astype(object)
                .where(carried["no_random"].isna(), carried["no_random"])
            )
    formats = {
        _COLUMNS[key]: ".3f"
        for key in ("chance_informative", "random", "random_score", "iia", "chance")
    }
    caption = "Interchange accuracy by variable and place, with 95 % intervals over episodes"
    text = Prose(f"{_SAYS['text']}\n\n{_SAYS['wired' if context.compiled else 'whole']}")
    table = Table(shown.rename(columns=_COLUMNS), caption, formats, collapsed=True)
    rows = []
    for row, place in zip(carried.to_dict("records"), places, strict=True):
        score = Interval(row["score"], row["score_low"], row["score_high"])
        name = f"{row['noun']}, read in {_SHOWS[row['outcome']]}: {place}"
        rows += (
            []
            if math.isnan(score.estimate)
            else [plain(name, score, {"a random direction": row["random_score"]})]
        )
    best = carried[~carried["control"].astype(bool)].groupby("variable")["score"].max()
    drawn = Measures(
        rows, _SAYS["carried"].format(held=int((best > _MOST).sum()), all_of=len(best))
    )
    return [text, drawn, table, *([] if aligned is None else _learned(aligned))]


def _learned(aligned: pd.DataFrame) -> list[object]:
    bounds = {f"{bound}_informative": f"iia_informative_{bound}" for bound in ("low", "high")}
    aligned = aligned.rename(columns=bounds).assign(site=aligned["site"].map(_called))
    aligned["variable"] = aligned["variable"].str.replace("_", " ")
    at = aligned["variable"] + ", " + aligned["site"]
    refused = aligned["refused"].notna()
    reasons = zip(at[refused], aligned["refused"][refused], strict=True)
    why = "\n\n".join(f"**{where}** was not learned: {text}" for where, text in reasons)
    if refused.all():
        return [Prose(f"{_ALIGNED}\n\n{why}")]
    at, aligned = at[~refused], aligned[~refused].drop(columns="refused")
    learned = aligned["condition"] == "learned"
    names = (at + ", rank " + aligned["rank"].astype("Int64").astype(str)).where(
        learned, aligned["condition"]
    )
    drawn = aligned.assign(name=names, estimate=aligned["iia"], control=~learned)
    best = drawn[learned].iloc[int(drawn[learned]["estimate"].argmax())]
    caption = _SAYS["learned"].format(name=best["name"], share=best["estimate"])
    return [
        Prose(f"{_ALIGNED}\n\n{why}".strip()),
        Figure(
            figures.intervals(drawn, xlabel="accuracy"),
            "Learned subspaces beside their controls",
            caption,
        ),
        Table(
            aligned,
            "The same numbers, with those on informative pairs and on training pairs",
            collapsed=True,
        ),
    ]


def _called(text: str) -> str:
    """A site without its address: ``resid_post[0]@p?`` as ``residual stream after layer 0 at p?``.

    >>> _called("resid_post[0]@p? (rank 2)"), _called("L2H0@w?")
    ('residual stream after layer 0 at p? (rank 2)', 'head L2H0 at w?')
    """

    def said(site: re.Match[str]) -> str:
        component, layer, head = site[1], int(site[2]), site[3]
        if head is not None:
            return f"{component} of head L{layer}H{head}"
        return str(_SAYS["sites"].get(component, component + " of layer {}")).format(layer)

    named = re.sub(r"(\w+)\[(\d+)(?:\.(\d+))?\]", said, text)
    return re.sub(r"(?<!head )\bL\d+H\d+", r"head \g<0>", named).replace("@", " at ")


def _where(text: str) -> str:
    """``embed@p_1 (rank 2) + embed@p_2 (rank 2)`` as ``embed at p_1, p_2 (rank 2)``."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for place in text.split(" + "):
        matched = re.fullmatch(r"([^@]+)(?:@(.+?))?( \(rank \d+\))?", place)
        assert matched is not None
        grouped.setdefault((matched[1], matched[3] or ""), []).append(matched[2] or "")
    sites = grouped.items()
    places = [
        site + ("@" if any(labels) else "") + ", ".join(labels) + rank
        for (site, rank), labels in sites
    ]
    return _called(" + ".join(places))


_EXACT = "the one latent change that the circuit's readout sees"
_FITTED = "how latents vary with the state, by least squares"
_SMALLEST = 0.02  # the move of the algorithm's prediction below which steering shows nothing
_NAMES = {"model": "model", "algorithm": "algorithm", "random": "random directions"}


def _steered(frame: pd.DataFrame, context: Context) -> list[Measure]:
    """That doses which move the algorithm move the model alike, and random directions do not: the worst decides."""
    rest = frame["algorithm"].iloc[int(frame["dose"].abs().argmin())]
    moving = frame[((frame["algorithm"] - rest).abs() >= _SMALLEST) & frame["score"].notna()]
    if moving.empty:
        none = f"{NOTHING}: no dose moves the algorithm's prediction by {_SMALLEST}"
        return [claim("steering", unless={"undecided": none})]
    worst = moving.loc[moving["score"].idxmin()]
    number_of, beside = (
        Interval(*worst[["score", "score_low", "score_high"]]),
        float(worst["random_score"]),
    )
    about = f"dose {number(worst['dose'])}" + f", the worst of {len(moving)}" * (len(moving) > 1)
    return [
        claim("steering", number_of, controls={"a random direction": Control(beside)}, about=about)
    ]


def _draw_steering(frame: pd.DataFrame, context: Context) -> list[object]:
    assert context.task.analysis.steering is not None
    record = context.task.analysis.steering()

    def curves(of: Mapping[str, str]) -> pd.DataFrame:
        """The columns of a frame, with their bounds, as curves of the algorithms that they are of."""
        found = [
            frame[["dose", column, f"{column}_low", f"{column}_high"]]
            .set_axis(["dose", "mean", "low", "high"], axis="columns")
            .assign(algorithm=key, name=_NAMES[key])
            for column, key in of.items()
        ]
        return pd.concat(found)

    apart = curves({"difference": "model", "random_difference": "random"})
    drawn = panels.beside(
        curves({key: key for key in _NAMES}), apart, x=f"dose: {record.what}", ylabel=record.shows
    )
    columns = {
        "dose": "dose",
        **_NAMES,
        "difference": "model minus algorithm",
        "score": "share of the move",
    }
    columns |= {"mean_error": "mean distance from the algorithm", "max_error": "largest"}
    columns["random_mean_error"] = "of random directions, mean"
    table = (
        joined(frame)
        .assign(**frame[["mean_error", "random_mean_error"]])[list(columns)]
        .rename(columns=columns)
    )
    moved = frame[frame["dose"] != 0]
    about = {
        "distance": moved["mean_error"].mean(),
        "random": moved["random_mean_error"].mean(),
        "shows": record.shows,
    }
    widest = frame.iloc[int(frame["difference"].abs().argmax())]
    about |= {"dose": number(widest["dose"]), "apart": cell(widest["difference"], "+.2f")}
    caption = _SAYS["steered"].format(**about)
    return [
        Prose(_SAYS["steering_text"].format(how=_EXACT if context.compiled else _FITTED)),
        Figure(
            drawn, "Dose-response beside the algorithm's and random directions'", caption, frame
        ),
        Table(table, "The same numbers", collapsed=True),
    ]


INTERCHANGE = Part(
    "interchange",
    "Interchange interventions",
    _compute,
    _draw,
    lambda context: bool(
        context.algorithms and (context.compiled or context.task.analysis.claims(context.model))
    ),
    _interchanged,
    lacking=_nowhere,
)
"""Which places carry which variables of the algorithm, beside what chance would give."""
STEERING = Part(
    "steering",
    "Steering",
    lambda of: causal_tables.steering_table(of.model, of.pairs[0], of.looked_at, of.seed),
    _draw_steering,
    lambda context: bool(context.algorithms and context.task.analysis.steering is not None),
    _steered,
)
"""What a model does after the task's state change is written into its latents, beside what the algorithm would."""
