"""Every room has a budget of lines: what is added, replaces something. ``python -m tests.census`` prints the counts."""

from __future__ import annotations

from tests.census import Count, census

BUDGET = {
    # One set of weights for every horizon (issue 44).
    "circuits": 2513,  # read as rounds run (42); what softmax forms leave (36); every outcome; what does not fit (41)
    "circuits/benchmark": 3470,  # wma-tied; Q-learning taught by single rounds (44); inert edges
    "circuits/known": 2070,  # known machines of three tasks (issue 36): how they are made, what is right, errors
    # Choices in place of probabilities, and language models as subjects (43); the old analysis in interp/llm went.
    "circuits/compare": 5298,  # references (44); wide maps (37); players, plays repeated (43); rivals; responses
    "circuits/q_learning": 940,  # exploration by a drawn token (issue 44); the allowance of softmax forms (36)
    "circuits/reachability": 394,  # the allowance of softmax forms
    "circuits/weighted_majority": 462,  # the allowance of softmax forms
    # Batches run as one, figures drawn once (issue 42).
    "interp": 4330,  # wide maps (37); an exact share; looks (39); draws (44); checks, of starts (41); stores, bounds
    "interp/audit": 2000,  # the critics' battery (issue 38): a file a question, a verdict each; writes repeated, cycles
    "interp/cli": 1800,  # references (44); a live page (40); shares (42); notes, players, who plays (43); JSON (39)
    "interp/evaluation": 325,  # what does not apply to a machine, said in its place
    # Real numbers: metrics, grades. Machines: channels as sites, their controls, from other points where a point is one
    # vector and none where a channel is one number; mediation, effect maps and alignment.
    # What changes nothing is not run, imports are put off (42); steering at every dose (39); what does not fit (41).
    "interp/interventions": 5345,
    "interp/llm": 5080,  # opened with notes; notes edited and gone on from, budgets, embedded answers, Inspect (43)
    # Machines of others (issue 37): an adapter for each kind of model that carries a state, and learners of each kind.
    "interp/machines": 1060,
    # Any module adapted to a machine, its open cells, the checks of the contract; layouts that declare where they are
    # read, and predict real numbers.
    # Layouts with draws, learned probabilities cut (44); norms, long rounds in smaller batches (42); chunks (41).
    "interp/model": 4010,
    # Machines: claims, what is read where there are no slots; algorithms that are late, stop, or miss an input (36).
    "interp/tasks": 9185,  # controls that overflow, draws as an input, the corollary (44); families for players (43)
    "interp/training": 1735,  # the loss of a real number; machines that are no transformers
    "probes": 3145,  # places of any machine; tables made part by part; scores that lean low are told (issue 36)
    "reports": 3759,  # interval plots, a sentence on every page, that of language models too, folds, thumbnails (39)
    # A live page (issue 40): edits, what they do, their controls, as Python; the page and its server.
    "reports/explore": 1530,
    # Overview, patching and interchange of machines that are no transformers; circuits without edges; a metric by the
    # kind of prediction; comparisons of what one of the two lacks; no learning curves, no other direction.
    "reports/parts": 1995,  # the battery on a page (38); every finding says its number and its bound (39)
    "reports/tasks": 1275,  # agreement, update and moves as interval plots; is reachability solved? (39)
}
"""Room -> the most lines that it may hold. Raising a number needs a reason, beside it."""
# Sentences; machines; known machines; responses to inputs; cross-fitted maps; the critics' battery (issue 38);
# a live page (issue 40).
MODULES, NAMES = 325, 1790
"""The most modules and public names of all rooms together."""


def test_every_room_keeps_to_its_budget_of_lines() -> None:
    counted = {room: count.lines for room, count in census().items()}
    assert counted.keys() == BUDGET.keys()
    assert {room: lines for room, lines in counted.items() if lines > BUDGET[room]} == {}


def test_modules_and_public_names_are_few() -> None:
    whole = Count(0, 0, 0)
    for count in census().values():
        whole += count
    assert whole.modules <= MODULES and whole.names <= NAMES
