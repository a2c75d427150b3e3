"""Pairs of rounds with the algorithm's choices as targets, and the training of a subspace on them.

A pair consists of a round of a base episode and the same round of a source episode. Its
*counterfactual* is the algorithm's choice in the base round with one variable set to its value in
the source round. A pair is *informative* if its counterfactual differs from the algorithm's
unchanged choice in the base round. The *rank* is the number of directions of the variable on which
the algorithm's choices depend. It is a property of the algorithm on these pairs, not of a model.

docs/method/alignment.md says how pairs are drawn, when training stops, and how the rank is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformer_lens import TransformerLensKeyValueCacheEntry as KeyValues
from transformer_lens.tools.analysis.interchange import (
    Intervention,
    LearnedSubspace,
    SubspaceInterchange,
    intervened_logits,
    random_basis,
    run_with_intervention,
)

from interp.core.algorithm import Algorithm, Values
from interp.core.machine import Machine, runs_from
from interp.interventions.experiment import CHUNK, Rows, run_one_round
from interp.interventions.sites import Site, carried_mask, freeze_parameters
from interp.model.rollout import replay
from interp.model.run import Rollout
from interp.support.checks import checked_fields, checked_result, integer, refuse_endless
from interp.support.errors import require

_LARGEST = 8192  # maximum number of pairs in one part of the episodes
_TIE = 1e-6  # a choice is tied if a move of the variable by this share of its spread changes it
_N_MOVES = 8  # number of random moves that are tried to find ties
_STOPPING_SHARE = 1 / 3  # share of the episodes that are not scored which determines when to stop
_N_CROSSINGS = 128  # maximum number of informative pairs used to find the rank
_HALVINGS = 45
_REACH = 0.02  # share of the way from base to source within which a shifted crossing is searched
_STEP = 1e-4  # step of an element of the variable, in standard deviations
_SMALLEST = 1e-3  # singular values below this share of the largest count as zero


@dataclass(frozen=True)
@checked_fields
class Pairs:
    """Pairs of rounds for interchange interventions. The model runs the base round with an
    activation from the source round. The algorithm computes the base round with a variable's value
    from the source round. Pairs are ordered by base episode, then by source episode, then by round.

    Attributes:
        n_episodes: number of base episodes.
        base, source: index of the base and of the source round, ``[pair]``. Rounds of all episodes
            are numbered ``episode * n_rounds + round``.
        rounds: index of the round within its episode, which is the same for base and source,
            ``[pair]``.
        target: the algorithm's distribution over outcomes in the base round, with the variable set
            to its value in the source round, ``[pair, outcome]``.
        informative: True if setting the variable changes the algorithm's choice (the most probable
            outcome), and the choice is tied neither before nor after, ``[pair]``.
        tied: True if the algorithm's choice is tied before or after the variable is set: a tiny
            change of the variable would change it, ``[pair]``. Such pairs are not trained on.
    """

    n_episodes: int
    base: Int[Tensor, " pair"]
    source: Int[Tensor, " pair"]
    rounds: Int[Tensor, " pair"]
    target: Float[Tensor, "pair outcome"]
    informative: Bool[Tensor, " pair"]
    tied: Bool[Tensor, " pair"]

    def __len__(self) -> int:
        return len(self.base)

    @property
    def n_informative(self) -> int:
        """Number of pairs in which setting the variable changes the algorithm's choice."""
        return int(self.informative.sum())

    def draw_pairs(self, n: int, seed: int) -> Int[Tensor, " n"]:
        """Draw pairs at random, with replacement. On average, half of them are informative (setting
        the variable changes the algorithm's choice) and half are not. In both halves, every round
        is equally likely.

        Args:
            n: number of pairs.
            seed: seed of the draw.

        Returns:
            Indices of the pairs.
        """
        weights = torch.zeros(len(self), dtype=torch.float64)
        for kind in (self.informative, ~self.informative & ~self.tied):
            rounds = self.rounds[kind]
            counts = torch.bincount(rounds)
            n_of_kind = counts[rounds] * (counts > 0).sum()
            weights[kind] = 1 / n_of_kind.double()
        generator = torch.Generator().manual_seed(seed)
        return torch.multinomial(weights, n, replacement=True, generator=generator)


def split(whose: Int[np.ndarray, " episode"], held_out: float) -> list[Int[np.ndarray, " chosen"]]:
    """Split episodes by participant into three parts: for training, for deciding when to stop, and
    for scoring. All episodes of a participant are in the same part.

    >>> [len(part) for part in split(np.arange(64), 0.5)]
    [21, 11, 32]

    Args:
        whose: index of the participant who played each episode; without participants, the index of
            the episode.
        held_out: share of the participants in the scoring part (the last ones).

    Returns:
        The indices of the episodes in each part: [training, stopping, scoring].
    """
    n_episodes = int(whose.max()) + 1
    scored = max(1, round(held_out * n_episodes))
    stopping = max(1, round(_STOPPING_SHARE * (n_episodes - scored)))
    training = n_episodes - scored - stopping
    require(
        0.0 < held_out < 1.0 and training >= 1,
        f"held_out {held_out} of {n_episodes} episodes leaves none to train, to stop training or to score; give more "
        "episodes",
    )
    part = np.searchsorted([training, training + stopping], whose, side="right")
    return [np.flatnonzero(part == i) for i in range(3)]


def make_pairs(
    algorithm: Algorithm,
    base_values: Values,
    source_values: Values,
    variable: str,
    episodes: Int[np.ndarray, " chosen"],
) -> Pairs:
    """Pair each chosen base episode with one or more of the chosen source episodes. Each of their
    rounds makes one pair.

    Every base episode has equally many sources: as many as are possible with at most 8192 pairs in
    all, but at least one.

    Args:
        algorithm: the algorithm; its predictions after the interchange are the targets.
        base_values, source_values: the algorithm's variables in base and source episodes: key ->
            values ``[episode, round, ...]``.
        variable: key of the variable that is set to its value in the source.
        episodes: indices of the chosen episodes, the same for base and source.

    Returns:
        The pairs, each with the algorithm's prediction in the base round after the variable is set.
    """
    first_values = next(iter(base_values.values()))
    n, n_rounds = len(episodes), len(first_values[0])
    n_sources = min(n, max(1, _LARGEST // (n * n_rounds)))
    bases, shifts, rounds = np.meshgrid(
        np.arange(n), np.arange(n_sources), np.arange(n_rounds), indexing="ij"
    )
    sources = (bases + shifts) % n
    of_rows = rounds.ravel()
    base = episodes[bases].ravel() * n_rounds + of_rows
    source = episodes[sources].ravel() * n_rounds + of_rows
    before, theirs = _select_rows(base_values, base), _select_rows(source_values, source)
    target, tied = _outcome(algorithm, before, theirs[variable], variable)
    unpatched, tied_before = _outcome(algorithm, before, before[variable], variable)
    tied |= tied_before
    is_changed = target.argmax(-1) != unpatched.argmax(-1)
    informative = is_changed & ~tied
    arrays = (base, source, of_rows, target, informative, tied)
    return Pairs(n, *(torch.from_numpy(array) for array in arrays))


def _select_rows(values: Values, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of variables in some rounds, each ``[row, 1, ...]``.

    Args:
        values: variables ``[episode, round, ...]``.
        rows: indices of rounds, ``episode * n_rounds + round``.

    Returns:
        The variables in these rounds, ``[row, 1, ...]`` each.
    """
    chosen = {}
    for key, value in values.items():
        by_row = value.reshape(-1, 1, *value.shape[2:])
        chosen[key] = by_row[rows]
    return chosen


def _outcome(
    algorithm: Algorithm, base: Values, value: np.ndarray, variable: str
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the algorithm's prediction in base rounds with one variable set.

    Args:
        algorithm: the algorithm.
        base: the algorithm's variables in the base rounds, ``[row, 1, ...]`` each.
        value: values that the variable is set to, ``[row, 1, ...]``.
        variable: key of the variable.

    Returns:
        The distribution over outcomes, ``[row, outcome]``, and whether the choice is tied,
        ``[row]``: whether a tiny random change of a real-valued variable changes it.
    """
    distribution = _read_outcome(algorithm, base, value, variable)
    tied = np.zeros(len(distribution), dtype=bool)
    if algorithm.variable(variable).kind == "real":
        rng, size = np.random.default_rng(0), _TIE * value.std()
        for _ in range(_N_MOVES):
            shifted = value + size * rng.standard_normal(value.shape)
            near = _read_outcome(algorithm, base, shifted, variable)
            tied |= near.argmax(-1) != distribution.argmax(-1)
    return distribution, tied


def _read_outcome(
    algorithm: Algorithm, base: Values, value: np.ndarray, variable: str
) -> np.ndarray:
    """Compute the algorithm's distribution over outcomes in base rounds with one variable set,
    ``[row, outcome]``.

    Args:
        algorithm: the algorithm.
        base: the algorithm's variables in the base rounds, ``[row, 1, ...]`` each.
        value: values that the variable is set to, ``[row, 1, ...]``.
        variable: key of the variable.
    """
    after = algorithm.interchange(base, {variable: value}, variable)
    return np.asarray(algorithm.distribution(after), np.float64)[:, 0]


def identified_rank(
    algorithm: Algorithm, base_values: Values, source_values: Values, variable: str, pairs: Pairs
) -> int:
    """Estimate on how many directions of a variable (such as a vector of weights) the algorithm's
    choices depend.

    Only informative pairs are used, in which setting the variable to its value in the source
    changes the choice. On the line between the two values, there is a point at which the choice
    changes. The shift of this point when an element of the variable is changed gives the normal of
    the decision boundary. The result is the rank of the normals of all pairs, or the number of
    elements if there are no normals. For a variable with k classes, the result is k - 1 times the
    number of elements.

    Args:
        algorithm: the algorithm.
        base_values, source_values: the algorithm's variables in base and source episodes: key ->
            values ``[episode, round, ...]``.
        variable: key of the variable.
        pairs: pairs of rounds of these episodes.
    """
    shape = base_values[variable].shape[2:]
    n, record = int(np.prod(shape)), algorithm.variable(variable)
    if record.n_classes is not None:
        return n * (record.n_classes(base_values) - 1)
    informative = np.flatnonzero(pairs.informative.numpy())
    if n == 1 or not len(informative):
        return n
    every = max(1, len(informative) // _N_CROSSINGS)
    looked_at = informative[::every][:_N_CROSSINGS]
    base, source = pairs.base.numpy()[looked_at], pairs.source.numpy()[looked_at]
    start = base_values[variable].reshape(-1, n)[base]
    path = source_values[variable].reshape(-1, n)[source] - start
    n_pairs = len(looked_at)

    def choice(values: Float[NDArray, "row element"]) -> NDArray:
        n_rows = len(values)
        rows = _select_rows(base_values, np.repeat(base, n_rows // n_pairs))
        value = values.reshape(n_rows, 1, *shape)
        return _read_outcome(algorithm, rows, value, variable).argmax(-1)

    before, ones = choice(start), np.ones(n_pairs)
    crossing, _ = _find_crossings(choice, before, start, path, 0 * ones, ones)
    h = _STEP * float(base_values[variable].std())
    unit = np.eye(n)
    shifts = np.stack([sign * h * unit[j] for j in range(n) for sign in (1, -1)])
    n_shifts = 2 * n
    low, high = (np.repeat(crossing + sign * _REACH, n_shifts) for sign in (-1, 1))
    before, along, starts = (np.repeat(x, n_shifts, 0) for x in (before, path, start))
    starts = starts + np.tile(shifts, (n_pairs, 1))
    shifted, bracketed = _find_crossings(choice, before, starts, along, low, high)
    normals = shifted.reshape(n_pairs, n, 2) @ np.array([1.0, -1.0])
    is_bracketed = bracketed.reshape(n_pairs, -1).all(-1)
    normals = normals[is_bracketed]
    lengths = np.linalg.norm(normals, axis=-1, keepdims=True)
    has_length = lengths[:, 0] > 0
    normals = normals[has_length] / lengths[has_length]
    if not len(normals):
        return n
    singular = np.linalg.svd(normals, compute_uv=False)
    return int((singular > _SMALLEST * singular[0]).sum())


def _find_crossings(
    choice: Callable[[NDArray], NDArray],
    before: NDArray,
    start: NDArray,
    path: NDArray,
    low: NDArray,
    high: NDArray,
) -> tuple[Float[NDArray, " row"], Bool[NDArray, " row"]]:
    """Find by bisection the point on each path at which the choice changes.

    Args:
        choice: function from values of the variable, ``[row, element]``, to choices, ``[row]``.
        before: choice at the start of each path.
        start, path: values of the variable at the start of each path, and difference between its
            end and its start, ``[row, element]``.
        low, high: shares of the path between which to search, ``[row]``.

    Returns:
        The share of the path at which the choice changes, and whether it changes between ``low``
        and ``high``.
    """

    def is_beyond(share: NDArray) -> NDArray:
        return choice(start + share[:, None] * path) != before

    bracketed = ~is_beyond(low) & is_beyond(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = is_beyond(middle)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return (low + high) / 2, bracketed


_BATCH = 128
_RATE = 0.06  # Adam's initial learning rate; it falls to 0
_CHECK_EVERY = 10  # number of steps between two evaluations of the stopping loss
_PATIENCE = 10  # a start ends after this many evaluations without a smaller stopping loss
_N_STOPPING = 512  # number of pairs for the stopping loss
_SOLVED = 1e-6  # training ends at this share of the loss without an intervention
_DIFFERS = 1e-5  # directions with a smaller share of the largest difference are left out
_SEEDS_APART = 1000  # distance between the seeds of two starts


class RoundsWithSite:
    """Rounds of two rollouts of a model, base and source. Base rounds can be run again with the
    activation at one site changed, for example to that of a source round.

    Arrays have one row per episode and round: row ``e * len(rounds) + i`` is the i-th of the chosen
    rounds in episode e.

    Args:
        model: the model.
        runs: base and source rollouts.
        rounds: indices of the rounds.
        site: the site at which the activation is changed.

    Attributes:
        own, source: activations at the site in base and source, ``[row, width]``. If the site is
            several latents (vectors of the carried state), they are concatenated.
        is_used: False for numbers of the activation that are only padding, ``[width]``.
    """

    def __init__(
        self, model: Machine, runs: tuple[Rollout, Rollout], rounds: list[int], site: Site
    ) -> None:
        self.model, self.layout, self.site, self.hook = model, runs[0].layout, site, site.hook
        config = getattr(model, "config", model)
        self.gives_probabilities = getattr(config, "output", "logits") == "probability"
        self.may_lack_gradient = True  # the site may be computed after the prediction is read
        self.rows = Rows.of(runs[0], rounds)
        vectors = []
        for run in runs:
            _, _, cache = replay(model, run, rounds=rounds, names_filter=self.hook)
            activation = cache[self.hook].flatten(0, 1)
            vectors.append(site.read(activation, self.layout).flatten(1))
        self.own, self.source = vectors
        self.is_used = torch.ones(self.own.shape[1], dtype=torch.bool)
        if site.kind.axes == "latent":
            rows = carried_mask(model)[: runs[0].latents.shape[2]]
            self.is_used = site.read(rows.unsqueeze(0), self.layout).flatten()

    def random_basis(self, rank: int, seed: int) -> Float[Tensor, "width rank"]:
        """Draw an orthonormal basis of a random subspace of the activation, for the control,
        ``[width, rank]``. It is 0 for numbers that are only padding.

        Args:
            rank: number of dimensions.
            seed: seed of the draw.
        """
        drawn = random_basis(int(self.is_used.sum()), rank, seed)
        basis = drawn.new_zeros(len(self.is_used), rank)
        basis[self.is_used] = drawn
        return basis

    def differences(self, pairs: Pairs) -> Float[Tensor, "d_model direction"]:
        """Return an orthonormal basis of the space that the differences between source and base
        activations span, over all ``pairs``: ``[width, direction]``.
        """
        moves = self.source[pairs.source] - self.own[pairs.base]
        values, vectors = torch.linalg.eigh(moves.T @ moves)
        differs = values > _DIFFERS**2 * values.max()
        return vectors[:, differs]

    def run_pairs(self, intervention: Intervention, pairs: Pairs, at: Tensor) -> Tensor:
        """Run the base rounds of some pairs with the activation at the site changed, and return the
        model's outputs. Gradients are computed if they are enabled in torch.

        Args:
            intervention: function that is called with the activations at the site in base and
                source, ``[pair, width]`` each, and returns the new activations.
            pairs: the pairs.
            at: indices of the pairs to run.

        Returns:
            The model's outputs, ``[pair, outcome]``: probabilities for a model that outputs these,
            otherwise log-probabilities or logits.
        """
        source = self.source[pairs.source[at]]

        def change(activation: Tensor) -> Tensor:
            return intervention(activation.flatten(1), source).view_as(activation)

        rows = self.rows.part(pairs.base[at])
        changes = [(self.site, change)]
        gradient = torch.is_grad_enabled()
        done, _ = run_one_round(self.model, rows, self.layout, changes, gradient=gradient)
        outcomes = self.layout.distribution(done.prediction)
        if self.gives_probabilities:
            return outcomes
        tiny = torch.finfo(outcomes.dtype).tiny
        return outcomes.clamp_min(tiny).log()

    def run_all_pairs(self, intervention: Intervention, pairs: Pairs) -> Tensor:
        """Run the base rounds of all pairs with the activation at the site changed, without
        gradients.

        Args:
            intervention: function that is called with the activations at the site in base and
                source, ``[pair, width]`` each, and returns the new activations.
            pairs: the pairs.

        Returns:
            Log-probabilities, ``[pair, outcome]``, or probabilities if the model outputs these, on
            the CPU.
        """
        chunks = torch.arange(len(pairs)).split(CHUNK)
        with torch.no_grad():
            parts = [self.run_pairs(intervention, pairs, chunk).cpu() for chunk in chunks]
        return torch.cat(parts)


class _RoundsFromSite(RoundsWithSite):
    """A faster form of :class:`RoundsWithSite` for sites in the residual stream of a transformer:
    rounds are computed only from the site on.

    The arguments are those of :class:`RoundsWithSite`.
    """

    model: Any  # a HookedLatentTransformer

    def __init__(
        self, model: Any, runs: tuple[Rollout, Rollout], rounds: list[int], site: Site
    ) -> None:
        self.model, self.layout, self.site = model, runs[0].layout, site
        self.gives_probabilities = model.config.output == "probability"
        self.may_lack_gradient = any(
            rule == "hard" for rules in model.config.attention_rules for rule in rules
        )
        # The embedding and the first residual stream differ by the position's code, the same in base and source.
        self.layer = site.layer or 0
        self.hook = site.hook if site.layer is not None else "blocks.0.hook_resid_pre"
        start = self.layout.position(str(site.position))
        resid = f"blocks.{self.layer}.hook_resid_pre"
        layers = range(self.layer, model.config.n_layers)
        past = [f"blocks.{i}.attn.hook_{kv}" for i in layers for kv in "kv"]
        names = list(dict.fromkeys([resid, self.hook, *past]))
        _, _, known = replay(model, runs[0], rounds=rounds, names_filter=names)
        _, _, theirs = replay(model, runs[1], rounds=rounds, names_filter=[self.hook])
        activations = (known[self.hook], theirs[self.hook])
        self.own, self.source = (x[:, :, start].flatten(0, 1) for x in activations)
        self.is_used = torch.ones(self.own.shape[1], dtype=torch.bool)
        end = self.layout.predict_position + 1
        self.resid = known[resid][:, :, start:end].flatten(0, 1)
        before = [known[name][:, :, :start].flatten(0, 1) for name in past]
        keys, values = before[::2], before[1::2]
        self.past = list(zip(keys, values, strict=True)) if start else None

    def __call__(self, rows: Int[Tensor, " pair"]) -> Float[Tensor, "pair outcome"]:
        """Run base rounds from the site on, and return the model's logits or probabilities,
        ``[pair, outcome]``.

        Args:
            rows: index of the base round of each pair to run, ``[pair]``.
        """
        past = None
        if self.past is not None:
            past = (KeyValues(keys[rows], values[rows]) for keys, values in self.past)
        model = self.model
        resid = model.run_from(self.resid[rows], self.layer, past=past)
        logits = model.unembed(model.ln_final(resid[:, -1]))
        return logits[:, : self.layout.n_outputs]

    def run_pairs(self, intervention: Intervention, pairs: Pairs, at: Tensor) -> Tensor:
        """Run the base rounds of some pairs with the activation at the site changed, and return the
        outcomes, with gradients.

        Args:
            intervention: function from the base's and the source's activation to the new
                activation.
            pairs: the pairs.
            at: indices of the pairs to run.

        Returns:
            Logits, ``[pair, outcome]``; probabilities if the model outputs these.
        """
        base, source = pairs.base[at], self.source[pairs.source[at]]
        first = torch.zeros_like(base)
        return run_with_intervention(
            self.model, self.hook, intervention, base, source, self, positions=first
        )

    def run_all_pairs(self, intervention: Intervention, pairs: Pairs) -> Tensor:
        """Run the base rounds of all pairs with the activation at the site changed, without
        gradients. Equal rows are run once.

        Args:
            intervention: function from the base's and the source's activation to the new
                activation.
            pairs: the pairs.

        Returns:
            Logits or probabilities, ``[pair, outcome]``.
        """
        base = pairs.base
        new = intervention(self.own[base], self.source[pairs.source])
        new = new.detach().double().cpu()
        every = torch.cat([base.unsqueeze(1), new], 1)
        rows, which = every.unique(dim=0, return_inverse=True)
        base, new = rows[:, 0].long(), rows[:, 1:]
        first = torch.zeros(len(rows), dtype=torch.long)
        logits = intervened_logits(
            self.model, self.hook, lambda _, new: new, base, new, self, positions=first
        )
        return logits[which]


def rounds_with(
    model: Machine, runs: tuple[Rollout, Rollout], rounds: list[int], site: Site
) -> RoundsWithSite:
    """Return the object that runs rounds of the base rollout with the activation at a site changed.
    For a site in the residual stream of a transformer, it saves time by computing only what comes
    after the site.

    Args:
        model: the model.
        runs: base and source rollouts.
        rounds: indices of the rounds.
        site: site at which activations are interchanged.
    """
    runs_on = runs_from(model) and site.kind.axes == "pos"
    return (_RoundsFromSite if runs_on else RoundsWithSite)(model, runs, rounds, site)


@dataclass(frozen=True)
@checked_fields
class Search:
    """Settings of :func:`~interp.interventions.alignment.align`, the search for a subspace of
    activations that carries a variable.

    Attributes:
        rank: number of dimensions of the subspace. By default, the number of directions of the
            variable on which the algorithm's choices depend (:func:`identified_rank`).
        steps: maximum number of Adam steps from each random start.
        restarts: maximum number of random starts.
        seed: seed of the starts and the batches.
        held_out: share of the participants whose episodes are used only for scoring; the last ones
            are taken. The other episodes are for training and for deciding when to stop. Without
            recorded participants, it is a share of the episodes.
        smooth: differentiable variant to train with, if the model has hard choices, which have no
            gradients: for example ``circuits.differentiable(model)``. The learned subspace is
            scored in the model itself. The untrained control is then a copy of ``smooth`` with
            random weights. None to train with the model.
    """

    rank: int | None = None
    steps: int = 400
    restarts: int = 3
    seed: int = 0
    held_out: float = 0.5
    smooth: Machine | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "restarts"):
            refuse_endless(name, integer(name, getattr(self, name), 1))


@dataclass(frozen=True)
@checked_result
class Fit:
    """The result of training a subspace.

    Attributes:
        basis: orthonormal basis of the subspace, ``[d_model, rank]``.
        loss: mean loss on the pairs that decide when to stop. It is the cross-entropy of the
            model's prediction after the interchange, with the algorithm's distribution as the
            target. For models that output probabilities, it is the squared distance of the two.
        steps: number of training steps from each random start.
    """

    basis: Float[Tensor, "d_model rank"]
    loss: float
    steps: tuple[int, ...]


def fit(rounds: RoundsWithSite, training: Pairs, stopping: Pairs, rank: int, search: Search) -> Fit:
    """Train a subspace of activations from several random starts, and return the best. A start
    whose loss falls to 1e-6 of the loss without an intervention is the last.

    Args:
        rounds: runs base rounds with a changed activation; here, its part in the subspace is taken
            from the source round.
        training: pairs to train on.
        stopping: pairs on which the loss is computed that selects the best step and start.
        rank: number of dimensions of the subspace.
        search: settings of the training.

    Returns:
        The subspace with the smallest loss on ``stopping``.
    """
    fits: list[Fit] = []
    with freeze_parameters(rounds.model):
        with torch.no_grad():
            drawn = stopping.draw_pairs(_N_STOPPING, search.seed)
            nothing = float(_loss(rounds, lambda base, _: base, stopping, drawn))
        frame = rounds.differences(training)
        if not frame.shape[1]:
            basis = rounds.random_basis(rank, search.seed)
            return Fit(basis.to(frame), nothing, (0,))
        solved = _SOLVED * nothing
        for start in range(search.restarts):
            seed = search.seed + _SEEDS_APART * start
            trained = _start(rounds, frame, rank, training, stopping, search, seed, solved)
            fits.append(trained)
            if trained.loss <= solved:
                break
    best = min(fits, key=lambda fit: fit.loss)
    steps = tuple(fit.steps[0] for fit in fits)
    return Fit(best.basis, best.loss, steps)


def has_gradient(rounds: RoundsWithSite, training: Pairs, rank: int, seed: int) -> bool:
    """Return False if training cannot improve a subspace, because the gradient of the loss is 0 at
    a random subspace. Otherwise return True, also if the activations of base and source are equal:
    the gradient then shows nothing.

    Args:
        rounds: runs base rounds with a changed activation; here, its part in the subspace is taken
            from the source round.
        training: pairs to train on.
        rank: number of dimensions of the subspace.
        seed: seed of the random subspace, and of the pairs on which its loss is computed.
    """
    frame = rounds.differences(training)
    if not frame.shape[1]:
        return True
    subspace = _draw_subspace(frame, rank, seed)
    with freeze_parameters(rounds.model):
        step = SubspaceInterchange(frame @ subspace.basis)
        loss = _loss(rounds, step, training, training.draw_pairs(_BATCH, seed))
        if not loss.requires_grad or frame.shape[1] <= rank:
            return loss.requires_grad
        loss.backward()
    gradients = [parameter.grad for parameter in subspace.parameters()]
    return any(gradient.any() for gradient in gradients if gradient is not None)


def _draw_subspace(
    frame: Float[Tensor, "d_model direction"], rank: int, seed: int
) -> LearnedSubspace:
    """Draw a random subspace of the space that the columns of ``frame`` span, in their coordinates.

    Args:
        frame: orthonormal directions, as columns.
        rank: number of dimensions; at most the number of columns is used.
        seed: seed of the draw.
    """
    n = frame.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return LearnedSubspace(n, min(rank, n)).to(frame)


def _start(
    rounds: RoundsWithSite,
    frame: Float[Tensor, "d_model direction"],
    rank: int,
    training: Pairs,
    stopping: Pairs,
    search: Search,
    seed: int,
    solved: float,
) -> Fit:
    """Train a subspace from one random start, with a falling learning rate. Return the basis with
    the smallest stopping loss.

    Args:
        rounds: runs rounds with the subspace interchanged.
        frame: orthonormal directions that the subspace lies in.
        rank: number of dimensions of the subspace.
        training, stopping: pairs to train on, and pairs on which the loss decides when to stop.
        search: settings.
        seed: seed of the start.
        solved: stopping loss that is low enough to end the training.
    """
    subspace = _draw_subspace(frame, rank, seed)
    optimizer = torch.optim.Adam(subspace.parameters(), lr=_RATE)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=search.steps)
    batches = training.draw_pairs(search.steps * _BATCH, seed).split(_BATCH)
    looked_at = stopping.draw_pairs(_N_STOPPING, search.seed)
    best, taken = Fit(frame @ subspace.basis.detach(), float("inf"), (0,)), 0
    for i, batch in enumerate([*batches, None]):
        if i % _CHECK_EVERY == 0 or batch is None:
            with torch.no_grad():
                basis = frame @ subspace.basis
                loss = float(_loss(rounds, SubspaceInterchange(basis), stopping, looked_at))
            if loss < best.loss:
                best = Fit(basis, loss, (i,))
        is_patient = i - best.steps[0] < _PATIENCE * _CHECK_EVERY
        if batch is None or best.loss <= solved or not is_patient:
            break
        optimizer.zero_grad()
        _loss(rounds, SubspaceInterchange(frame @ subspace.basis), training, batch).backward()
        optimizer.step()
        falling.step()
        taken = i + 1
    return replace(best, steps=(taken,))


def _loss(rounds: RoundsWithSite, step: Intervention, pairs: Pairs, indices: Tensor) -> Tensor:
    """Return the training loss of a subspace, a scalar: the mean cross-entropy of the model's
    outcomes with the counterfactual distributions as targets. For a model that outputs
    probabilities it is the mean squared distance.

    Targets are distributions, because with hard labels the best subspace would move the prediction
    further than the variable does.

    Args:
        rounds: runs rounds with the subspace interchanged.
        step: function from the base's and the source's activation to the new activation.
        pairs: the pairs.
        indices: indices of the pairs over which the mean is taken.
    """
    outcomes = rounds.run_pairs(step, pairs, indices)
    target = pairs.target[indices].to(outcomes)
    if rounds.gives_probabilities:
        squares = (outcomes - target).square()
        return squares.sum(-1).mean()
    return cross_entropy(outcomes, target)
