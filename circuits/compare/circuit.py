"""Do two models compute by the same circuit? Match their heads by what each reads and which later
heads it feeds.

For each model, a table of its heads is measured by ablation on the same episodes. The result is how
much two tables have in common under the best one-to-one matching of heads. The control is the best
matching of untrained copies. ``docs/method/roles-of-heads.md`` explains the table, the matching and
what they do not prove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from circuits.compare.question import HALF, Budget, Compared, Participant, Question
from interp.choices.fitting import Array
from interp.core.algorithm import participants_of
from interp.core.display import describe_lacking
from interp.core.machine import Machine, can_resume_rounds
from interp.interventions.experiment import Edit, Experiment, Outcome, Outputs, batches
from interp.interventions.sites import Place, Site, head_address
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.results.measure import UNTRAINED, Measure, Result, merge_copies
from interp.stats.intervals import NO_NUMBER, Interval, resample_weights
from interp.support.checks import checked_result
from interp.support.errors import require

_N_RESAMPLES = 200
"""Number of bootstrap resamples; in each, the heads of both models are matched again."""
_ROUNDING = 1e-12
"""Sums of squares below this are rounding errors, so that no share of them is taken."""


def group_positions(labels: Sequence[str]) -> pd.DataFrame:
    """Return a table with one row per token position and one column per kind of position; an entry
    is 1 if the position is of the kind, otherwise 0.

    Positions are of one kind if their labels differ only by a number.

    Args:
        labels: labels of the positions of a round, in order.

    >>> group_positions(("p_1", "p_2", "p?")).to_dict("list")
    {'p': [1.0, 1.0, 0.0], 'p?': [0.0, 0.0, 1.0]}
    """
    kinds = pd.Series(labels).str.replace(r"_\d+$", "", regex=True)
    return pd.get_dummies(kinds, dtype=float)


@dataclass(frozen=True, eq=False)
@checked_result
class HeadTable:
    """Measurements of every attention head of a model: what it reads, and what depends on it.

    The entries of the arrays below are built from these terms:

    - a head is *ablated* at a position by replacing its output there by the output's mean over the
      episodes and the measured rounds;
    - the *variation* of an output is its squared distance from this mean;
    - a *change* is the squared distance between the ablated run and the run without ablation;
    - positions are of one *kind* if their labels differ only by a number, such as p_1 and p_2.

    Every entry is a sum over the measured rounds of one episode, and over the query positions of
    one kind.

    Attributes:
        heads: names of the heads, such as "L1H0 2.1 fetch z".
        positions: label of each token position of a round.
        kinds: name of each kind of position (:func:`group_positions`).
        read: variation of what a head moves from the key position ``pos`` to query positions of a
            kind (attention times value, written to the residual stream), ``[episode, head, kind,
            pos]``.
        lost: change if a head is ablated at the positions of a kind, ``[episode, head, kind, 2]``.
            The last axis has the change of the prediction (index 0) and of the state after the
            round (index 1).
        changed: change of a later head's output at the positions of a kind if an earlier head is
            ablated at all positions, ``[episode, earlier head, later head, kind]``.
        varied: variation of a head's output at the positions of a kind, ``[episode, head, kind]``.
    """

    heads: tuple[str, ...]
    positions: tuple[str, ...]
    kinds: tuple[str, ...]
    read: Float[np.ndarray, "episode head kind pos"]
    lost: Float[np.ndarray, "episode head kind 2"]
    changed: Float[np.ndarray, "episode head head kind"]
    varied: Float[np.ndarray, "episode head kind"]

    def compute_shares(self, weights: Float[np.ndarray, " episode"]) -> HeadShares:
        """Average the table over episodes, and convert its sums of squares to shares of the whole
        model, so that tables of different models can be compared.

        The last axis of both arrays in the result is the outcome: the prediction (index 0) and the
        state (index 1). In each array, the entries about the prediction sum to 1/2 (or are all 0).
        The entries about the state also sum to 1/2 (or are all 0).

        Args:
            weights: weight of each episode in the average, ``[episode]``; only ratios of weights
                matter.

        Returns:
            Two arrays. ``reads``, ``[head, kind, pos, 2]``, says how important each head is at
            query positions of a kind, through what it reads at each key position. ``feeds``,
            ``[earlier head, later head, 2]``, says how important an earlier head is through a later
            one. :class:`HeadShares` has the formulas.
        """
        read = np.tensordot(weights, self.read, 1)
        lost = np.tensordot(weights, self.lost, 1)
        changed = np.tensordot(weights, self.changed, 1)
        varied = np.tensordot(weights, self.varied, 1)
        lost_size = np.sqrt(lost)
        # [head, kind, outcome], summing to 1/2 for each outcome.
        importance = _divide(lost_size, 2 * lost_size.sum((0, 1)))
        read_share = _divide(read, read.sum(-1, keepdims=True))  # [head, kind, pos]
        # In einsum: e, l and h are heads (earlier, later), k kinds, p key positions, o outcomes.
        reads = np.einsum("hko,hkp->hkpo", importance, read_share)
        changed_share = np.minimum(_divide(changed, varied), 1.0)  # [earlier, later, kind]
        feeds = np.einsum("elk,lko->elo", changed_share, importance)
        return HeadShares(reads, _divide(feeds, 2 * feeds.sum((0, 1))))


class HeadShares(NamedTuple):
    """The importance of a model's attention heads, divided by where they read from and by which
    earlier heads change them. Arrays of different models can be compared.

    The importance of a head is ``sqrt(HeadTable.lost)``: how much an outcome changes if the head is
    ablated at query positions of one kind. A kind is positions whose labels differ only by a
    number, such as p_1 and p_2. There are two outcomes, along the last axis of both arrays: the
    prediction (index 0) and the state (index 1).

    Each array is scaled so that, for each outcome, its entries sum to 1/2. They are all 0 if no
    head has an effect.

    Attributes:
        reads: importance of a head at query positions of a kind, divided among the key positions in
            proportion to ``HeadTable.read``, ``[head, kind, pos, 2]``.
        feeds: importance that an earlier head has because it changes a later head, ``[earlier head,
            later head, 2]``. It is ``min(HeadTable.changed / HeadTable.varied, 1)`` times the
            importance of the later head, summed over the kinds.
    """

    reads: Float[np.ndarray, "head kind pos 2"]
    feeds: Float[np.ndarray, "head head 2"]


class Matching(NamedTuple):
    """A one-to-one matching of the heads of two tables.

    Attributes:
        pairs: index of a head in the first table -> index of its partner in the second. If the
            tables differ in the number of heads, some heads of the larger one have no partner.
        similarity: weighted Jaccard index of the matched tables, from 0 to 1. Of any two matched
            entries, one is the smaller and one the larger; the index is the sum of the smaller ones
            divided by the sum of the larger ones.
    """

    pairs: dict[int, int]
    similarity: float


def match_heads(first: HeadShares, second: HeadShares) -> Matching:
    """Match the heads of two models one to one by what they read. Compute the similarity of the
    matched tables, which say what each head reads and which later heads it feeds.

    Args:
        first, second: tables of the two models, as shares (:meth:`HeadTable.compute_shares`).

    Returns:
        The matching. Its similarity is the weighted Jaccard index, from 0 to 1: the sum over
        matched entries of the smaller of the two, divided by the sum of the larger of the two. It
        is NaN if no head of either model has an effect.
    """
    # What every pair of heads has in common, [head of the first, head of the second].
    common = np.minimum(first.reads[:, None], second.reads).sum((2, 3, 4))
    rows, columns = linear_sum_assignment(common, maximize=True)
    first_feeds = first.feeds[np.ix_(rows, rows)]
    second_feeds = second.feeds[np.ix_(columns, columns)]
    minima = common[rows, columns].sum() + np.minimum(first_feeds, second_feeds).sum()
    total = sum(part.sum() for part in (*first, *second))
    # max(x, y) = x + y - min(x, y), so that total - minima is the sum of the larger entries.
    similarity = minima / (total - minima) if total else np.nan
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return Matching(dict(pairs), similarity)


def compare_tables(
    first: HeadTable, second: HeadTable, participants: Any = None, seed: int = 0
) -> tuple[Matching, Interval]:
    """Match the heads of two tables that were measured on the same episodes.

    Args:
        first, second: the tables of the two models, whose rounds must have the same positions.
        participants: label of the participant (such as a person) of each episode, ``[episode]``;
            the bootstrap resamples participants. None if every episode is independent.
        seed: seed of the bootstrap.

    Returns:
        A pair: the matching on all episodes; and its similarity (weighted Jaccard index) with a 95
        % bootstrap interval. Heads are matched anew in every resample.
    """
    require(
        first.positions == second.positions,
        f"tables must be of the same positions, got {first.positions} and {second.positions}",
    )
    n_episodes = len(first.lost)
    # [resample, episode]; in the first, every episode counts once, which gives the estimate.
    weights = resample_weights(
        n_episodes, _N_RESAMPLES, seed, plain_first=True, participants=participants
    )
    matched = [
        match_heads(first.compute_shares(drawn), second.compute_shares(drawn)) for drawn in weights
    ]
    estimate, *resampled = [matching.similarity for matching in matched]
    if np.isnan(estimate):
        return matched[0], NO_NUMBER
    return matched[0], Interval.of_samples(resampled, estimate)


def _divide(part: Array, whole: Array) -> Array:
    """Return ``part / whole``, and 0 where ``whole`` is at most 1e-12: mere rounding."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > _ROUNDING)


def tabulate_heads(subject: Participant, outcomes: Sequence[Outcome], budget: Budget) -> HeadTable:
    """Ablate every attention head of a model on the test episodes, and return the table of heads.
    The table says from which positions each head reads, and how much outcomes and later heads
    change if the head is ablated.

    A head is ablated by replacing its output by the output's mean over the episodes and the
    measured rounds.

    Args:
        subject: the model, with its episodes.
        outcomes: the two outcomes whose change is measured: the prediction, then the state.
        budget: every second round of ``budget.at`` is a measured round, in which heads are ablated.
    """
    run = subject.run(subject.samples.test)
    model = cast(HookedLatentTransformer, subject.model)
    layers = range(model.config.n_layers)
    groups = group_positions(run.layout.labels)
    by_kind = groups.to_numpy()
    rounds = budget.at[::2]
    # Positions at which a head is ablated: those of each kind, and then all, [area, pos].
    areas = np.concatenate([by_kind.T.astype(bool), np.ones((1, len(by_kind)), bool)])
    n_areas, n_episodes = areas.shape[0], run.n_episodes
    # All ablations of a head run together: every episode once for each area. The run without an
    # ablation has the same rows, so that both meet the same noise if a hook draws some.
    repeated_run = run.select(np.tile(np.arange(n_episodes), n_areas))
    slots = repeated_run.slots[:, rounds]

    def measure_outcomes(outputs: Outputs) -> list[Tensor]:
        """Compute the numbers of the two outcomes, the prediction and the state, in a run.

        Args:
            outputs: the run's predictions and carried states.

        Returns:
            One tensor per outcome, ``[area * episode, round, number]``; an area is a set of
            positions at which heads are ablated.
        """
        prediction, carried = outputs.predictions[0, :, :, 0], outputs.carried[0, :, :, 0]
        return [o.values(model, run.layout, prediction, carried, slots) for o in outcomes]

    watched = [Site(key, i) for key in ("resid_pre", "pattern", "v", "z") for i in layers]
    unedited = Experiment(model, repeated_run, {"": []}, rounds, commit="target", watched=watched)
    (plain,) = batches(unedited)  # a single one, of the run without edits
    plain_outcomes = measure_outcomes(plain)
    once = {site: values[:n_episodes] for site, values in plain.activations.items()}
    heads, read_by_layer, lost, changed, varied = [], [], [], [], []
    for layer in layers:
        z = once[Site("z", layer)]  # [episode, round, pos, head, d_head]
        means = z.mean((0, 1))
        varied.append(_measure_write_norm(z - means, model, layer) @ by_kind)
        read_by_layer.append(_measure_reading(once, model, layer, by_kind))
        later_sites = {later: Site("z", later) for later in layers[layer + 1 :]}
        for head in range(model.config.n_heads):
            heads.append(_name_head(model.config, layer, head))
            ablated = []  # by area: [episode, round, pos, d_head]
            for area in areas:
                z_of_area = z[:, :, :, head].clone()
                z_of_area[:, :, area] = means[area, head]
                ablated.append(z_of_area)
            ablation = replace(
                unedited,
                edits={"": [Edit(Place(Site("z", layer, head)), torch.cat(ablated))]},
                watched=list(later_sites.values()),
                known=plain.activations,
            )
            (outputs,) = batches(ablation)
            lost_by_outcome = []
            for without, intact in zip(measure_outcomes(outputs), plain_outcomes, strict=True):
                by_area = _sum_squares(without - intact).reshape(n_areas, n_episodes)
                lost_by_outcome.append(by_area[:-1])  # without the area of all positions
            lost.append(np.stack(lost_by_outcome, -1).swapaxes(0, 1))  # [episode, kind, 2]
            # Heads of this layer and of earlier ones do not change.
            changes = [np.zeros_like(earlier) for earlier in varied]
            for later, site in later_sites.items():
                # The last area is all positions.
                change = outputs.activations[site][-n_episodes:] - once[site]
                changes.append(_measure_write_norm(change, model, later) @ by_kind)
            changed.append(np.concatenate(changes, 1))
    return HeadTable(
        heads=tuple(heads),
        positions=run.layout.labels,
        kinds=tuple(map(str, groups)),
        read=np.concatenate(read_by_layer, 1),
        lost=np.stack(lost, 1),
        changed=np.stack(changed, 1),
        varied=np.concatenate(varied, 1),
    )


def _measure_reading(
    activations: Mapping[Site, Tensor],
    model: HookedLatentTransformer,
    layer: int,
    by_kind: Float[np.ndarray, "pos kind"],
) -> Float[np.ndarray, "episode head kind pos"]:
    """Measure the variation of what heads move from every key position to each kind of query
    position.

    What a head moves is attention times value, written to the residual stream; its mean over
    episodes and rounds is subtracted.

    Args:
        activations: attention patterns and values of every layer.
        model: the model.
        layer: the heads' layer.
        by_kind: matrix of 0 and 1, ``[pos, kind]``: 1 where a position is of a kind.

    Returns:
        Sums of squares ``[episode, head, kind, pos]``.
    """
    # The hook's axes are [episode, round, head, query, key]; here the query comes before the head.
    patterns = activations[Site("pattern", layer)].transpose(2, 3)
    values = activations[Site("v", layer)]  # [episode, round, key, head, d_head]
    by_query = []
    for attention in patterns.unbind(2):  # of one query, [episode, round, head, key]
        # What each head moves from each key to this query, [episode, round, key, head, d_head].
        inputs = attention.mT[..., None] * values
        by_query.append(_measure_write_norm(inputs - inputs.mean((0, 1)), model, layer))
    # [kind, query] @ [episode, head, query, key]: summed over the queries of each kind.
    return by_kind.T @ np.stack(by_query, 2)


def _measure_write_norm(
    z: Float[Tensor, "episode round pos head d_head"], model: HookedLatentTransformer, layer: int
) -> Float[np.ndarray, "episode head pos"]:
    """Measure the squared norm of what heads write to the residual stream, summed over rounds,
    ``[episode, head, pos]``.

    Args:
        z: sums of values, weighted by attention, before the output matrix, ``[episode, round, pos,
            head, d_head]``.
        model: the model, for the output matrix.
        layer: index of the heads' layer.
    """
    output = model.blocks[layer].attn.W_O.double()  # [head, d_head, d_model]
    gram = (output @ output.mT).numpy(force=True)  # [head, d_head, d_head]
    vectors = z.double().numpy(force=True)
    # |z W|^2 = z (W W^T) z^T; axes e, r, p, h: episode, round, pos, head; d and f: d_head.
    norms: Array = np.einsum("erphd,hdf,erphf->ehp", vectors, gram, vectors, optimize=True)
    return norms


def _sum_squares(change: Float[Tensor, "episode round value"]) -> Float[np.ndarray, " episode"]:
    sums: Array = change.pow(2).sum((1, 2)).numpy(force=True)
    return sums


def _name_head(config: LatentTransformerConfig, layer: int, head: int) -> str:
    """Return the name of a head in tables: its address, and the model's name for it if there is
    one, such as "L1H0 2.1 fetch z".

    Args:
        config: configuration of the model; ``head_names`` may be empty.
        layer, head: indices, counted from 0.
    """
    address = head_address(layer, head)
    return f"{address} {config.head_names[layer][head]}" if config.head_names else address


@dataclass(frozen=True)
@checked_result
class HeadRole:
    """What one attention head does, as a row of the printed table.

    Attributes:
        model, head: names of the model and of the head.
        weight: the head's importance: the mean of ``prediction`` and ``update``.
        reads: the key position from which the head reads most, and the kind of query position that
            reads there, such as "p_1 at p?".
        prediction, update: how much the prediction and the state change if the head is ablated,
            each as a share of the sum over all heads.
        feeds: the later head that depends most on this head; "" if none does.
        match: for a head of the compared model, the matched head of the reference model; "" if
            there is none, and for the heads of the reference.
    """

    model: str
    head: str
    weight: float
    reads: str
    prediction: float
    update: float
    feeds: str
    match: str


def describe_heads(model: str, table: HeadTable, matches: Mapping[int, str]) -> list[HeadRole]:
    """Describe the role of every head that matters: the prediction or the state changes if the head
    is ablated.

    Args:
        model: name of the model.
        table: the model's table of heads.
        matches: index of a head in the table -> name of the matched head of the other model.

    Returns:
        The roles, the most important head (largest ``weight``) first.
    """
    n_episodes = len(table.lost)
    shares = table.compute_shares(np.ones(n_episodes))
    roles = []
    for i, head in enumerate(table.heads):
        reads_by_outcome = shares.reads[i]  # [kind, pos, 2]
        reads = reads_by_outcome.sum(-1)
        feeds = shares.feeds[i].sum(-1)  # [later head]
        if not reads.any():  # nothing changes without the head
            continue
        kind, key = np.unravel_index(reads.argmax(), reads.shape)
        # The shares of all heads sum to 1/2 for each outcome, and twice them to 1.
        of_prediction, of_update = 2 * reads_by_outcome.sum((0, 1))
        most_fed = table.heads[feeds.argmax()] if feeds.any() else ""
        role = HeadRole(
            model=model,
            head=head,
            weight=(of_prediction + of_update) / 2,
            reads=f"{table.positions[key]} at {table.kinds[kind]}",
            prediction=of_prediction,
            update=of_update,
            feeds=most_fed,
            match=matches.get(i, ""),
        )
        roles.append(role)
    return sorted(roles, key=lambda role: -role.weight)


@dataclass(frozen=True, repr=False)
@checked_result
class CircuitPart(Result):
    """How similar the roles of two models' attention heads are: what they read, which later heads
    they feed, and what changes without them.

    Attributes:
        similarity: how similar the two models' tables of heads are after their heads were matched
            one to one: the weighted Jaccard index, from 0 to 1.
        heads: the roles of the heads of both models.
        untrained: for each untrained copy of the model, its similarity with the reference.
    """

    similarity: Interval
    heads: tuple[HeadRole, ...]
    untrained: tuple[float, ...]

    @property
    def measure(self) -> Measure:
        """The measure of the claim that the heads of both models have the same roles. Its number is
        the similarity; the control is the best similarity of an untrained copy.
        """
        return Measure(
            key="circuit",
            claim="",
            number=self.similarity,
            threshold=HALF,
            unit="similarity of roles",
            controls={UNTRAINED: merge_copies(self.untrained)},
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a table whose first row has the similarity of the two models' heads. Then follows
        one row for every head, of both models, that the prediction or the state depends on.

        The column "name" is "similarity of roles" or "head". The first row has the columns number,
        number_low and number_high (the ends of its 95 % interval) and untrained (the number of the
        best untrained copy). The rows of heads have the fields of :class:`HeadRole` as columns,
        such as reads and feeds.
        """
        row = {"name": "similarity of roles", **self.similarity.columns("number")}
        row["untrained"] = merge_copies(self.untrained).number
        return pd.DataFrame([row, *({"name": "head", **asdict(head)} for head in self.heads)])


def compare_circuits(compared: Compared) -> CircuitPart:
    """Compare the roles of the model's heads with those of the reference's heads.

    The role of a head is what the head reads, which later heads it feeds, and what changes if it is
    ablated. The control is the same comparison with untrained copies in the model's place.

    Args:
        compared: the model, the reference and the untrained copies, with their episodes.
    """
    subject, reference = compared.pair
    # The algorithm that the task assigns to the reference; its state is one of the two outcomes.
    algorithm = reference.task.explains(reference.model)
    tables = []
    for participant in (reference, subject, *compared.untrained):
        # All latents, unless the algorithm has a state that can be decoded from them.
        state = Outcome("latents")
        if algorithm.state:
            # `algorithm.memory` is the key of its main state variable.
            state = Outcome("state", participant.decoder(algorithm, algorithm.memory))
        outcomes = (Outcome("prediction"), state)
        tables.append(tabulate_heads(participant, outcomes, compared.budget))
    table_of_reference, table, *tables_of_untrained = tables
    participants, seed = participants_of(subject.samples.test), compared.budget.seed
    matching, similarity = compare_tables(table, table_of_reference, participants, seed)
    untrained = []
    equal_weights = np.full(len(participants), 1 / len(participants))
    shares_of_reference = table_of_reference.compute_shares(equal_weights)
    for table_of_copy in tables_of_untrained:
        # The control is one number, so that no heads are matched in resamples.
        shares_of_copy = table_of_copy.compute_shares(equal_weights)
        matching_of_copy = match_heads(shares_of_copy, shares_of_reference)
        untrained.append(float(matching_of_copy.similarity))
    matches = {i: table_of_reference.heads[j] for i, j in matching.pairs.items()}
    heads = describe_heads(subject.name, table, matches)
    heads += describe_heads(reference.name, table_of_reference, {})  # matches are listed once
    return CircuitPart(similarity=similarity, heads=tuple(heads), untrained=tuple(untrained))


def _explain_why_not_ablated(machine: Machine) -> str:
    """Return "" if the heads of a model can be ablated one by one, and otherwise the reason why
    they cannot, as a text.

    Args:
        machine: the model.
    """
    missing = describe_lacking(machine, "pattern")  # attention patterns: it has no heads
    # An ablated run resumes a round at the residual stream of the head's layer.
    if missing or can_resume_rounds(machine):
        return missing
    return f"{machine.name} has attention, but no residual stream to be run on from"


CIRCUIT = Question(
    "circuit",
    CircuitPart,
    compare_circuits,
    claim="Its heads have the same roles as those of {}",
    yes="has heads of the same roles",
    no="divides the work of its heads differently",
    needs_reference=True,
    find_lack=_explain_why_not_ablated,
)
