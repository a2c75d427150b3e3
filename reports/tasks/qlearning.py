"""The report on a model of tabular Q-learning: wired by hand, or learned."""

from __future__ import annotations

from interp.choices.fitting import make_distributions
from interp.evaluation.plan import predictions_of
from interp.evaluation.qlearning.agreement import QUANTITIES, agreement
from interp.evaluation.qlearning.plan import reference_table
from interp.results.measure import FEW, UNTRAINED, Control, Measure, Scores
from reports.blocks import Measures, Prose, Table, claim, make_unjudged
from reports.part import Context, Part
from reports.tasks import default_parts
from reports.tasks.texts import PROSE

_PROSE = PROSE["qlearning"]


def parts() -> tuple[Part, ...]:
    """Return all parts of a report on a model of Q-learning, in page order."""
    agreed = Part(
        "agreement", _AGREEMENT, _score_agreement, _draw_agreement, summary=_measure_agreement
    )
    return default_parts(
        said=_PROSE["parts"],
        after={
            "state": [agreed],
        },
    )


_AGREEMENT = "Agreement with the Q-table"
_FEWEST_STEPS = 20
"""Number of disputed steps below which agreement on them decides nothing."""


def _score_agreement(context: Context) -> tuple[Scores, Scores]:
    """Score how often the model, and how often an untrained copy, chooses the greedy action of the
    Q-table. Return the two scores in this order.
    """
    # "before" or "after": whether choices are compared with the table before or after a round.
    table = reference_table(context.model)
    chosen = predictions_of(context.run)  # probabilities of actions, [episode, round, action]
    # An untrained copy may predict numbers that are no probabilities.
    untrained_chosen = make_distributions(predictions_of(context.untrained_run))
    episodes, seed = context.episodes, context.seed
    return (
        agreement(chosen, episodes, table=table, seed=seed),
        agreement(untrained_chosen, episodes, table=table, seed=seed),
    )


def _measure_agreement(results: tuple[Scores, Scores], context: Context) -> list[Measure]:
    """Return measures of whether the model chooses the greedy actions of its Q-table, and whether
    it bootstraps.

    The second one is left out if no step shows the difference.

    Args:
        results: scores of the model and of an untrained copy.
        context: the report's model, episodes and settings; not used.
    """
    result, untrained_result = results
    # `beside` has further columns of a number's row, such as the number of steps that it is from.
    n_steps = result.beside["disputed", "all"]["n_steps"]
    # Only disputed steps separate the Q-table from one with a discount of 0. If there are few, an
    # undecided verdict on the gain gets this reason, and the verdict on bootstrapping is undecided
    # whatever the number.
    is_too_few = n_steps < _FEWEST_STEPS
    why = f"{FEW}: {n_steps} disputed steps, where {_FEWEST_STEPS} decide"
    gain = result.get("untied_gain", "all")
    controls = {UNTRAINED: Control(untrained_result.get("untied_gain", "all").estimate)}
    # `unless`: verdict -> the reason with which "undecided" is returned in its place.
    unless = {"undecided": why} if is_too_few else {}
    measures = [claim("agreement", gain, controls=controls, unless=unless)]
    if n_steps:
        shallow_share = result.get("disputed_gamma0", "all").estimate
        controls = {
            UNTRAINED: Control(untrained_result.get("disputed", "all").estimate),
            "the table with γ = 0": Control(shallow_share),
        }
        unless = dict.fromkeys(("yes", "no"), why) if is_too_few else {}
        disputed = result.get("disputed", "all")
        measures.append(claim("bootstraps", disputed, controls=controls, unless=unless))
    return measures


def _draw_agreement(results: tuple[Scores, Scores], context: Context) -> list[object]:
    """Return the blocks of the section: agreement of the model's choices with the Q-table, and with
    a table that does not bootstrap.

    Args:
        results: scores of the model and of an untrained copy.
        context: the report's model, episodes and settings.
    """
    result, _ = results
    rows = []
    for key in ("untied", "random_ties", "disputed"):
        n_steps = result.beside[key, "all"]["n_steps"]
        if n_steps:
            controls = {"the table with γ = 0": result.get(f"{key}_gamma0", "all").estimate}
            name = f"{QUANTITIES[key]} ({n_steps} steps)"
            rows.append(make_unjudged(name, result.get(key, "all"), controls))
    untied = result.get("untied", "all").estimate
    baseline = result.get("untied_gamma0", "all").estimate
    caption = (
        f"The model chooses the best action of its Q-table in {untied:.2f} of untied steps, and the table with "
        f"γ = 0 does so in {baseline:.2f}."
    )
    frame = result.to_frame()[["name", "phase", "estimate", "low", "high", "n_steps"]]
    is_whole = frame["phase"] == "all"
    whole = frame[is_whole].drop(columns="phase").rename(columns={"name": "quantity"})
    # The table that counts is that of the end or the beginning of each round.
    when = "ended" if reference_table(context.model) == "after" else "began"
    return [
        Prose(_PROSE["agreement"].format(when=when)),
        Measures(rows, caption),
        Table(whole, "All rounds, with 95 % intervals over episodes", collapsed=True),
        Table(frame[~is_whole], "Early, middle and late rounds", collapsed=True),
    ]
