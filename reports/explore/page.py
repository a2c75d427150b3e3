"""What a page of the explorer shows, made from a view (episode, round and edits) and its results."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from interp.core.display import describe_lacking
from interp.core.task import Corruption
from interp.interventions.sites import sites
from interp.model.hooked import Hooks
from interp.model.rollout import replay
from interp.model.run import Rollout
from interp.results.palette import INK, LIGHT
from interp.results.style import WIDTH, house_style, inline_svg
from reports.attention import AttentionView, heads_of
from reports.explore.answer import Answer
from reports.explore.view import KINDS, Setup, write_script

VISIBLE = 1e-3
"""Smallest change of a prediction that a page treats as a change.

Axes are not finer, and smaller changes are reported as none.
"""
_MOST_ROWS = 12
"""Most outcomes that a page lists: those that move most, or are likeliest."""
_SMALLEST_MOVE = 1e-6
"""Change of a number of the state, as a share of its variable's standard deviation, below which it
counts as rounding.
"""
_BLUE, _GREEN, _GREY = LIGHT["blue"], LIGHT["green"], LIGHT["grey"]
_PALE: dict[str, Any] = {"linewidth": 4, "alpha": 0.3}
_ALGORITHM: dict[str, Any] = {"color": LIGHT["vermilion"], "linestyle": (0, (6, 2))}


@dataclass(frozen=True, eq=False)
class _StateNumber:
    """One number of the state that is decoded from the latents.

    Attributes:
        name: name of the number on the page.
        key: key of the variable that the number belongs to.
        index: index of the number in the flattened variable.
        without_edits, with_edits: the number in every round, ``[round]``.
    """

    name: str
    key: str
    index: int
    without_edits: np.ndarray
    with_edits: np.ndarray

    @property
    def moves(self) -> np.ndarray:
        """Absolute change of this number by the edits, ``|after - before|``, ``[round]``, rounded to
        six decimals.
        """
        return np.abs(self.with_edits - self.without_edits).round(6)


def _find_state_number(answer: Answer) -> _StateNumber | None:
    """Return the number of the decoded state that the edits change most; if they change none, the
    number that varies most over rounds.

    Return None if no state can be decoded.
    """
    before, after = answer.decoded
    if not before:
        return None
    # Key of a variable -> largest change, and standard deviation, of each of its numbers, [number].
    # Both are divided by the standard deviation of the whole variable, so that variables with
    # different units can be compared.
    moves, variations = {}, {}
    for key in before:
        rows = _flatten(before[key])  # [round, number]
        spread = max(float(rows.std()), 1e-9)
        moves[key] = np.abs(_flatten(after[key]) - rows).max(0) / spread
        variations[key] = rows.std(0) / spread
    are_moved = any(shares.max() > _SMALLEST_MOVE for shares in moves.values())
    ranks = moves if are_moved else variations
    key = max(ranks, key=lambda key: float(ranks[key].max()))
    index = int(ranks[key].argmax())
    noun = answer.setup.algorithm.variable(key).noun.removeprefix("the ")
    name = answer.setup.name_numbers(key)[index]  # such as "counts: e_1", with the key "counts"
    return _StateNumber(
        name=name.replace(key, noun),
        key=key,
        index=index,
        without_edits=_flatten(before[key])[:, index],
        with_edits=_flatten(after[key])[:, index],
    )


def _flatten(values: np.ndarray) -> np.ndarray:
    """Return values ``[round, ...]`` as a table with one row per round."""
    return np.asarray(values, dtype=np.float64).reshape(len(values), -1)


def figure(answer: Answer, reference: Answer | None = None) -> Figure:
    """Draw panels over rounds: the predicted probability of an outcome (or the predicted number),
    how much the edits change predictions, and, if the state can be decoded, one of its numbers.

    Args:
        answer: result of the machine.
        reference: result of the reference machine, or None.
    """
    number = _find_state_number(answer)
    n_rows = 2 if number is None else 3
    # Without an automatic layout: the margins are set below.
    with house_style(**{"figure.constrained_layout.use": False}):
        picture = Figure(figsize=(WIDTH, 1.6 * n_rows + 0.8))
        axes = picture.subplots(n_rows, 1, sharex=True)
        _draw_outcome(axes[0], answer, reference)
        _draw_moves(axes[1], answer, reference)
        if number is not None:
            _draw_state(axes[2], answer, number)
        for panel in axes:
            panel.axvline(answer.view.round, color=INK, linewidth=0.7)
            panel.margins(x=0.01)
        axes[-1].set_xlabel("round")
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        picture.subplots_adjust(left=0.08, right=0.99, top=0.93, bottom=0.09, hspace=0.16)
    return picture


def _draw_outcome(axes: Axes, answer: Answer, reference: Answer | None) -> None:
    """Draw the predicted probability (or mean) of the chosen outcome in every round, for machine,
    algorithm and reference.

    Args:
        axes: the axes to draw on.
        answer: result of the machine.
        reference: result of the reference machine, or None.
    """
    outcome = answer.outcome
    name = answer.setup.layout.outcomes[outcome]
    before, after = answer.machine  # [round, outcome] each
    algorithm_before, algorithm_after = answer.algorithm
    if answer.view.edits:
        axes.plot(before[:, outcome], color=_BLUE, label="model, without edits", **_PALE)
        axes.plot(algorithm_before[:, outcome], **_ALGORITHM | {"linewidth": 3, "alpha": 0.3})
    axes.plot(after[:, outcome], color=_BLUE, label="model")
    axes.plot(algorithm_after[:, outcome], **_ALGORITHM, label="algorithm")
    if reference is not None:
        _, reference_after = reference.machine
        axes.plot(reference_after[:, outcome], color=_GREEN, label="reference")
    axes.set_ylabel(name)
    if answer.setup.predicts_classes:
        # A mark at probability 1 in every round in which this outcome is right.
        rounds = [t for t, truth in enumerate(answer.truth) if name in truth.split(" or ")]
        ones = np.ones(len(rounds))
        axes.plot(rounds, ones, "|", color=INK, label=f"truth is {name}", clip_on=False)
        axes.set_ylim(-0.03, 1.03)
        axes.set_ylabel(f"P({name})")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, fontsize=8.5, borderaxespad=0.2)


def _draw_moves(axes: Axes, answer: Answer, reference: Answer | None) -> None:
    """Draw how much the edits change the predictions of every round, and how much random changes of
    equal size do.

    Args:
        axes: the axes to draw on.
        answer: result of the machine.
        reference: result of the reference machine, or None.
    """
    moves = answer.differences()
    if "control_mean" in moves:
        rounds = np.arange(answer.setup.n_rounds)
        low, high = moves["control_low"], moves["control_high"]
        axes.fill_between(rounds, low, high, color=_GREY, alpha=0.3, linewidth=0)
        axes.plot(moves["control_mean"], color=_GREY, linestyle=(0, (1.2, 1.6)))
    axes.plot(moves["machine"], color=_BLUE)
    axes.plot(moves["algorithm"], **_ALGORITHM)
    if reference is not None:
        axes.plot(reference.differences()["machine"], color=_GREEN)
    axes.set_ylabel("moved by edits")
    # The axis does not magnify changes of probabilities that are too small to be visible. Predicted
    # real numbers have their task's unit, so that no size is too small.
    smallest_top = VISIBLE if answer.setup.predicts_classes else 0.0
    axes.set_ylim(0, max(axes.get_ylim()[1], smallest_top))


def _draw_state(axes: Axes, answer: Answer, number: _StateNumber) -> None:
    """Draw one number of the decoded state in every round with the edits, and the algorithm's value.
    If there are edits, the number without them is drawn, too.

    Args:
        axes: the axes to draw on.
        answer: result of the machine.
        number: the number.
    """
    if answer.view.edits:
        axes.plot(number.without_edits, color=_BLUE, **_PALE)
    axes.plot(number.with_edits, color=_BLUE)
    # The algorithm's values with the edits are [1, round, ...], of the only episode.
    values = _flatten(answer.values_after[number.key][0])
    axes.plot(values[:, number.index], **_ALGORITHM)
    axes.set_ylabel(number.name.replace(": ", "\n"))


def _describe_edits(answer: Answer) -> str:
    """Return the page's sentence: how much the edits change predictions, compared with random
    changes of equal size and with the algorithm.
    """
    edits = answer.view.edits
    if not edits:
        return "No edit yet. The page shows the model and its algorithm."
    subject = f"{len(edits)} edits change"
    if len(edits) == 1:
        edit = edits[0]
        names = dict(_list_inputs(answer.setup))  # "what value" of an edit of inputs -> its name
        default_name = f"{edit.what}: {KINDS[edit.kind]}"
        name = names.get(f"{edit.what} {edit.value}", default_name)
        subject = f"edit ({name}) changes"
    moves = answer.differences()
    machine, algorithm = moves["machine"], moves["algorithm"]
    t = int(np.nanargmax(machine))  # the round of the largest change
    # A change of the algorithm's predictions alone is reported, too.
    largest = max(machine[t], np.nanmax(algorithm, initial=0.0))
    # The threshold is a probability. A predicted real number has its task's unit, in which a change
    # below it may be large.
    if answer.setup.predicts_classes and largest < VISIBLE:
        return f"The {subject} no prediction by {VISIBLE} or more{_describe_state(answer)}."
    low, high = moves["control_low"][t], moves["control_high"][t]
    controls = f"change it by {low:.3f} to {high:.3f}"
    if controls.endswith(" to 0.000"):  # even the largest of the random changes rounds to 0
        controls = "do not change it"
    if not answer.n_followed:
        response = "the algorithm has no counterpart of this edit"
    elif np.isnan(algorithm[t]):
        response = "the algorithm cannot have such a state"
    else:
        response = f"the algorithm's prediction changes by {algorithm[t]:.3f}"
    return (
        f"The {subject} the prediction of round {t} most, by {machine[t]:.3f}; "
        f"random changes of equal size {controls}; {response}."
    )


def _describe_state(answer: Answer) -> str:
    """Return a phrase that ends a sentence and says by how much the edits change the decoded state,
    and in which round, for the number that they change most; "" if no state is decoded.
    """
    number = _find_state_number(answer)
    if number is None:
        return ""
    t = int(number.moves.argmax())
    change = number.with_edits[t] - number.without_edits[t]
    return f"; the decoded {number.name} changes by {change:.3f}, in round {t}"


def template_variables(answer: Answer, reference: Answer | None) -> dict[str, Any]:
    """Return the variables with which the HTML template of the explorer's page is filled.

    Args:
        answer: result of the machine.
        reference: result of the reference machine, or None.

    Returns:
        Name of a variable of the template, such as "picture" (an SVG) or "sentence" -> its value.
    """
    setup = answer.setup
    sentence = _describe_edits(answer)
    choices = _list_choices(setup)
    state = _list_state(answer)
    tiles = []
    # Both lists have the numbers of the decoded state, in the same order.
    for row, (address, _) in zip(state, choices["state"], strict=True):
        key, _, _ = address.partition(".")  # "counts.1" is a number of the variable "counts"
        tiles.append({**row, "what": address, "key": key})
    edited_rounds: set[int] = set()
    for edit in answer.view.edits:
        edited_rounds.update(edit.rounds(setup))
    return {
        "picture": inline_svg(figure(answer, reference), sentence, "timeline"),
        "sentence": sentence,
        "outcomes": _list_outcomes(answer, reference),
        "state": state,
        "tiles": tiles,
        "tokens": _list_tokens(answer),
        "moved": answer.differences()["machine"].tolist(),
        "acted": edited_rounds,
        "choices": choices,
        "python": write_script(setup, answer.view),
        "kinds": KINDS,
    }


def _list_tokens(answer: Answer) -> list[dict[str, Any]]:
    """Return one row per position of the round that the page shows: its label, token and scalar
    value.
    """
    layout = answer.setup.layout
    fed = answer.after.fed.take_round(answer.view.round)
    names = {token: name for name, token in layout.token_ids.items()}
    rows = []
    for i, label in enumerate(layout.labels):
        token = int(fed.tokens[0, i])
        name = "carried" if i in layout.latent_positions else names.get(token, str(token))
        rows.append({"position": label, "token": name, "value": float(fed.values[0, i])})
    return rows


def _list_outcomes(answer: Answer, reference: Answer | None) -> list[dict[str, Any]]:
    """Return one row per outcome with its predictions in the round that the page shows; of many
    outcomes, only the most important.

    Args:
        answer: result of the machine.
        reference: result of the reference machine, or None.
    """
    t = answer.view.round
    # Column -> numbers in every round, [round, outcome].
    # "without" and "with": without and with the page's edits.
    columns = dict(zip(("without", "with"), answer.machine, strict=True))
    columns |= zip(("algorithm without", "algorithm with"), answer.algorithm, strict=True)
    controls = answer.controls
    if len(controls):
        columns["control, least"] = controls.min(0)
        columns["control, most"] = controls.max(0)
    if reference is not None:
        columns |= zip(("reference without", "reference with"), reference.machine, strict=True)
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(answer.setup.layout.outcomes):
        numbers = {column: float(values[t, i]) for column, values in columns.items()}
        rows.append({"outcome": name, **numbers})
    if len(rows) > _MOST_ROWS:
        rows.sort(key=_measure_importance, reverse=True)
    return rows[:_MOST_ROWS]


def _measure_importance(row: dict[str, Any]) -> float:
    """Return how important it is to show an outcome. It is the largest of the change of the
    machine's prediction, half of this prediction with the edits, and half of the algorithm's.

    Args:
        row: the outcome's row of the page's table of outcomes.
    """
    move = abs(row["with"] - row["without"])
    return float(max(move, row["with"] / 2, row["algorithm with"] / 2))


def _list_state(answer: Answer) -> list[dict[str, Any]]:
    """Return one row per number of the decoded state that the shown round reads: the number's
    values without and with the edits, in machine and algorithm.
    """
    t = answer.view.round
    before, after = answer.decoded  # {key: [round, ...]}
    rows = []
    for key in before:
        columns = {
            "without": before[key][t],
            "with": after[key][t],
            "algorithm without": answer.values_before[key][0, t],
            "algorithm with": answer.values_after[key][0, t],
        }
        for i, name in enumerate(answer.setup.name_numbers(key)):
            row: dict[str, Any] = {"number": name}
            row |= {column: float(np.ravel(values)[i]) for column, values in columns.items()}
            rows.append(row)
    return rows


_Choices = list[tuple[str, str]]
"""Options of a form: (value, displayed name)."""


def _list_choices(setup: Setup) -> dict[str, Any]:
    """List the options of the page's forms.

    Args:
        setup: the machine with its episodes.

    Returns:
        A dictionary of five lists. "inputs" and "numbered" have changes of an input, without and
        with a number to enter; "state" has the single numbers of the decoded state. Each option of
        these three is a pair (value that the form sends, displayed name). "heads" and "places" have
        the names of heads, and of all sites whose activation can be edited.
    """
    numbered: _Choices = []
    for corruption in setup.task.analysis.corruptions():
        numbered += _list_numbers(corruption)
    state: _Choices = []
    if not setup.decoder_error:
        for key in setup.writer.shapes:
            state += zip(setup.list_addresses(key), setup.name_numbers(key), strict=True)
    model = setup.model
    layout = setup.layout
    # Without the argument None there is a site for each position; with it, one for all together.
    places = ["latent", *map(str, sites(model, layout, ["latent"]))]
    points = [key for key in model.points if key != "latent"]
    if points:
        places += map(str, sites(model, layout, points, None))
    heads: list[str] = []
    if not describe_lacking(model, "z"):
        heads += map(str, sites(model, layout, ["z"], None))
    return {
        "inputs": _list_inputs(setup),
        "numbered": numbered,
        "state": state,
        "heads": heads,
        "places": places,
    }


def _list_inputs(setup: Setup) -> _Choices:
    """List the possible changes of a single input of the machine's episodes for a form, as pairs
    (value that the form sends, displayed name).
    """
    inputs = []
    for corruption, name, options in setup.input_changes:
        displayed = f"{corruption.name}, {name}" if name else corruption.name
        inputs.append((f"{corruption.key} {options}", displayed))
    return inputs


def _list_numbers(record: Corruption) -> _Choices:
    """List the changes of an input that need a number, such as a new reward, as (value in the form,
    displayed name).

    Args:
        record: the corruption that makes these changes.
    """
    # The first two parameters are the episodes and the round.
    _, _, *options = inspect.signature(record.build, eval_str=True).parameters.values()
    choices = []
    for option in options:
        if float in (option.annotation, *get_args(option.annotation)):
            displayed = f"{option.name} ({record.name})"
            choices.append((f"{record.key} {option.name}=", displayed))
    return choices


def _prepare_edited_run(answer: Answer) -> tuple[Rollout, Hooks]:
    """Return what is needed to replay the shown round with the edits.

    Returns:
        The run with edits, with the latents that each round read; and the hooks of the edits in
        this round, without those on the latents, which have these edits already.
    """
    # A run stores latents as the round before wrote them. Edits of latents come later, so that the
    # latents that rounds read with these edits were stored apart (`read_latents`).
    latents = answer.after.latents.clone()  # [episode, round + 1, ...]: no round reads the last
    latents[:, :-1] = answer.read_latents
    latent_hook = answer.setup.model.points["latent"].hook
    hooks = answer.hooks.get(answer.view.round, ())
    other_hooks = [pair for pair in hooks if pair[0] != latent_hook]
    return replace(answer.after, latents=latents), other_hooks


def attention(answer: Answer) -> list[AttentionView]:
    """Return views of the attention in the shown round: without the edits and, if there are edits,
    with them.
    """
    views = [_view_attention(answer, answer.before, hooks=(), name="without the edits")]
    if answer.view.edits:
        edited, hooks = _prepare_edited_run(answer)
        views.append(_view_attention(answer, edited, hooks=hooks, name="with the edits"))
    return views


def _view_attention(answer: Answer, run: Rollout, hooks: Hooks, name: str) -> AttentionView:
    """Replay the round that the page shows, with hooks, and return a view of its attention.

    Args:
        answer: result of the machine, for the episode and the round.
        run: the machine's run over this episode.
        hooks: forward hooks of the user's edits, or none.
        name: words for the title of the view.
    """
    model = answer.setup.model
    t = answer.view.round
    heads = [list(heads_of_layer) for heads_of_layer in heads_of(model)]
    hook = model.points["pattern"].hook
    points = [hook.format(layer=layer) for layer in range(len(heads))]
    _, _, cache = replay(model, run, rounds=t, names_filter=points, fwd_hooks=hooks)
    patterns = []
    for point, names in zip(points, heads, strict=True):
        # [episode, round, head, query, key], without the padding heads, which come last.
        pattern = cache[point][:, :, : len(names)]
        patterns.append(pattern.double().numpy(force=True))
    return AttentionView(
        patterns=patterns,
        labels=answer.setup.layout.labels,
        heads=heads,
        title=f"Round {t}, {name}",
        episodes=(answer.view.episode,),
        rounds=(t,),
    )
