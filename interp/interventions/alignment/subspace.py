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
from dataclasses import dataclass
from functools import partial
from math import prod
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
from interp.core.machine import Machine, can_resume_rounds
from interp.interventions.experiment import CHUNK, Rows, run_one_round
from interp.interventions.sites import Site, carried_mask, freeze_parameters
from interp.model.rollout import replay
from interp.model.run import Rollout
from interp.support.checks import checked_fields, checked_result, integer, refuse_endless
from interp.support.errors import require

_MAX_PAIRS = 8192  # maximum number of pairs in one part of the episodes
# A choice is tied if a move of the variable by this share of its standard deviation changes it.
_TIE_SHARE = 1e-6
_N_TIE_PROBES = 8  # number of random moves that are tried to find ties
_STOPPING_SHARE = 1 / 3  # share of the episodes that are not scored which determines when to stop
_N_CROSSINGS = 128  # maximum number of informative pairs used to find the rank
_N_BISECTIONS = 45  # number of bisections; each halves the part of the path that holds the crossing
_BRACKET = 0.02  # share of the way from base to source within which a shifted crossing is searched
_DIFFERENCE_STEP = 1e-4  # step of an element of the variable, in standard deviations
_RANK_TOLERANCE = 1e-3  # singular values below this share of the largest count as zero


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
        is_uninformative = ~self.informative & ~self.tied
        for is_in_half in (self.informative, is_uninformative):
            rounds = self.rounds[is_in_half]
            counts = torch.bincount(rounds)  # number of pairs in each round
            n_rounds = (counts > 0).sum()
            # Each half has weight 1 in all, divided equally among rounds, then among their pairs.
            weights[is_in_half] = 1 / (counts[rounds] * n_rounds).double()
        generator = torch.Generator().manual_seed(seed)
        return torch.multinomial(weights, n, replacement=True, generator=generator)


def split_episodes(
    participants: Int[np.ndarray, " episode"], held_out: float
) -> list[Int[np.ndarray, " chosen"]]:
    """Split episodes by participant into three parts: for training, for deciding when to stop, and
    for scoring. All episodes of a participant are in the same part.

    >>> [len(part) for part in split_episodes(np.arange(64), 0.5)]
    [21, 11, 32]

    Args:
        participants: index of the participant who played each episode; without participants, the
            index of the episode.
        held_out: share of the participants in the scoring part (the last ones).

    Returns:
        The indices of the episodes in each part: [training, stopping, scoring].
    """
    n_participants = int(participants.max()) + 1
    n_scoring = max(1, round(held_out * n_participants))
    n_stopping = max(1, round(_STOPPING_SHARE * (n_participants - n_scoring)))
    n_training = n_participants - n_scoring - n_stopping
    require(
        0.0 < held_out < 1.0 and n_training >= 1,
        f"held_out {held_out} of {n_participants} episodes leaves none to train, to stop training or to score; give "
        "more episodes",
    )
    # 0, 1 or 2 for each episode, by the index of its participant
    first_of_parts = [n_training, n_training + n_stopping]  # first participant of parts 1 and 2
    part = np.searchsorted(first_of_parts, participants, side="right")
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
        episodes: indices of the chosen episodes, the same for base and source, ``[chosen]``.

    Returns:
        The pairs, each with the algorithm's prediction in the base round after the variable is set.
    """
    first_values = next(iter(base_values.values()))
    n, n_rounds = len(episodes), len(first_values[0])
    n_sources = min(n, max(1, _MAX_PAIRS // (n * n_rounds)))
    # Indices of the chosen episodes and rounds, [base episode, source, round]: the sources of base
    # episode i are the source episodes i, i + 1, ...
    bases, shifts, rounds = np.meshgrid(
        np.arange(n), np.arange(n_sources), np.arange(n_rounds), indexing="ij"
    )
    sources = (bases + shifts) % n
    round_of_pair = rounds.ravel()
    base = episodes[bases].ravel() * n_rounds + round_of_pair
    source = episodes[sources].ravel() * n_rounds + round_of_pair
    in_base = _select_rows(base_values, base)
    in_source = _select_rows(source_values, source)
    target, tied = _predict_and_mark_ties(algorithm, in_base, in_source[variable], variable)
    unpatched, tied_before = _predict_and_mark_ties(algorithm, in_base, in_base[variable], variable)
    tied |= tied_before
    is_changed = target.argmax(-1) != unpatched.argmax(-1)
    return Pairs(
        n_episodes=n,
        base=torch.from_numpy(base),
        source=torch.from_numpy(source),
        rounds=torch.from_numpy(round_of_pair),
        target=torch.from_numpy(target),
        informative=torch.from_numpy(is_changed & ~tied),
        tied=torch.from_numpy(tied),
    )


def _select_rows(values: Values, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of variables in some rounds, each ``[row, 1, ...]``: every row as an episode
    of one round, since algorithms expect both axes.

    Args:
        values: variables ``[episode, round, ...]``.
        rows: indices of rounds, ``episode * n_rounds + round``.

    Returns:
        The variables in these rounds, ``[row, 1, ...]`` each.
    """
    chosen = {}
    for key, value in values.items():
        by_row = value.reshape(-1, 1, *value.shape[2:])  # episodes and rounds as one axis
        chosen[key] = by_row[rows]
    return chosen


def _predict_and_mark_ties(
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
    distribution = _predict(algorithm, base, value, variable)
    choice = distribution.argmax(-1)
    tied = np.zeros(len(choice), dtype=bool)
    if algorithm.variable(variable).kind == "real":
        # A fixed seed: which pairs are tied is a property of the pairs, not of a search.
        rng, size = np.random.default_rng(0), _TIE_SHARE * value.std()
        for _ in range(_N_TIE_PROBES):
            nearby_value = value + size * rng.standard_normal(value.shape)
            tied |= _predict(algorithm, base, nearby_value, variable).argmax(-1) != choice
    return distribution, tied


def _predict(algorithm: Algorithm, base: Values, value: np.ndarray, variable: str) -> np.ndarray:
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
    values = base_values[variable]
    n_elements, record = prod(values.shape[2:]), algorithm.variable(variable)
    if record.n_classes is not None:
        return n_elements * (record.n_classes(base_values) - 1)
    informative = np.flatnonzero(pairs.informative.numpy())
    n_informative = len(informative)
    if n_elements == 1 or not n_informative:
        return n_elements
    # At most _N_CROSSINGS of the informative pairs, evenly spaced.
    spacing = max(1, n_informative // _N_CROSSINGS)
    selected = informative[::spacing][:_N_CROSSINGS]
    normals = _find_normals(
        algorithm,
        _select_rows(base_values, pairs.base.numpy()[selected]),
        _select_rows(source_values, pairs.source.numpy()[selected])[variable],
        variable,
        step=_DIFFERENCE_STEP * float(values.std()),
    )
    # Unit length, so that no pair counts more than another.
    lengths = np.linalg.norm(normals, axis=-1, keepdims=True)
    has_length = lengths[:, 0] > 0
    unit_normals = normals[has_length] / lengths[has_length]
    if not len(unit_normals):
        return n_elements
    singular = np.linalg.svd(unit_normals, compute_uv=False)
    return int((singular > _RANK_TOLERANCE * singular[0]).sum())


def _find_normals(
    algorithm: Algorithm, base: Values, source_value: NDArray, variable: str, step: float
) -> Float[NDArray, "crossing element"]:
    """Find vectors that are perpendicular to the boundary at which an algorithm's choice changes,
    in the space of values of one variable.

    Each pair of rounds, base and source, defines a line from the variable's value in the base to
    its value in the source. The choice changes at some share of the length of this line. The normal
    is the gradient of this share by the position of the line: the share stays equal if the line is
    moved along the boundary. To estimate it by central differences, the line is moved by ``step``
    up and down along each element of the variable.

    Args:
        algorithm: the algorithm.
        base: the algorithm's variables in the base rounds: key -> values ``[pair, 1, ...]``.
        source_value: value of the variable in the source rounds, ``[pair, 1, ...]``.
        variable: key of the variable.
        step: how far lines are moved, in the variable's unit.

    Returns:
        The normals, not scaled to length 1, ``[crossing, element]``. Pairs are left out if, on a
        moved line, the share at which the choice changes differs by .02 or more.
    """
    shape = source_value.shape
    n_pairs = len(source_value)
    start = base[variable].reshape(n_pairs, -1)  # [pair, element]
    path = source_value.reshape(n_pairs, -1) - start

    def choose(values: Float[NDArray, "pair element"]) -> NDArray:
        return _predict(algorithm, base, values.reshape(shape), variable).argmax(-1)

    choice_before, ones = choose(start), np.ones(n_pairs)
    crossing, _ = _find_crossings(choose, choice_before, start, path, low=0 * ones, high=ones)
    # The crossing of a shifted line is searched for near that of the line itself.
    find_nearby = partial(
        _find_crossings, choose, choice_before, low=crossing - _BRACKET, high=crossing + _BRACKET
    )
    differences: list[NDArray] = []
    is_found = ones.astype(bool)
    for unit in np.eye(start.shape[1]):  # one element after another
        above, is_found_above = find_nearby(start + step * unit, path)
        below, is_found_below = find_nearby(start - step * unit, path)
        differences.append(above - below)
        is_found &= is_found_above & is_found_below
    return np.stack(differences, -1)[is_found]


def _find_crossings(
    choose: Callable[[NDArray], NDArray],
    choice_before: NDArray,
    start: NDArray,
    path: NDArray,
    low: NDArray,
    high: NDArray,
) -> tuple[Float[NDArray, " row"], Bool[NDArray, " row"]]:
    """Find by bisection the point on each path at which the choice changes.

    Args:
        choose: function from values of the variable, ``[row, element]``, to choices, ``[row]``.
        choice_before: choice at the start of each path, ``[row]``.
        start, path: values of the variable at the start of each path, and difference between its
            end and its start, ``[row, element]``.
        low, high: shares of the path between which to search, ``[row]``.

    Returns:
        The share of the path at which the choice changes, and whether it changes between ``low``
        and ``high``, ``[row]`` each.
    """

    def is_beyond(share: NDArray) -> NDArray:
        return choose(start + share[:, None] * path) != choice_before

    bracketed = ~is_beyond(low) & is_beyond(high)
    for _ in range(_N_BISECTIONS):
        middle = (low + high) / 2
        beyond = is_beyond(middle)
        low = np.where(beyond, low, middle)
        high = np.where(beyond, middle, high)
    return (low + high) / 2, bracketed


_BATCH_SIZE = 128  # number of pairs per training step
_LEARNING_RATE = 0.06  # Adam's initial learning rate; it falls to 0
_STEPS_PER_CHECK = 10  # number of steps between two evaluations of the stopping loss
_PATIENCE_CHECKS = 10  # a start ends after this many evaluations without a smaller stopping loss
_N_STOPPING_PAIRS = 512  # number of pairs for the stopping loss
_SOLVED_SHARE = 1e-6  # training ends at this share of the loss without an intervention
# Directions with a smaller share of the largest difference are left out.
_MIN_DIFFERENCE_SHARE = 1e-5
_SEED_STRIDE = 1000  # distance between the seeds of two starts


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
        base, source: activations at the site in base and source, ``[row, width]``. If the site is
            several latents (vectors of the carried state), they are concatenated.
        is_used: False for entries of the activation that are only padding, ``[width]``.
        gives_probabilities: whether the model outputs probabilities, not logits.
        may_lack_gradient: whether the prediction may have no gradient by the activation.
    """

    def __init__(
        self, model: Machine, runs: tuple[Rollout, Rollout], rounds: list[int], site: Site
    ) -> None:
        """Read the activations at ``site`` in the rounds ``rounds`` of both rollouts."""
        base_run, _ = runs
        layout, hook = base_run.layout, site.hook
        self.model, self.layout, self.site, self.hook = model, layout, site, hook
        config = getattr(model, "config", model)  # without a config, the model may have `output`
        self.gives_probabilities = getattr(config, "output", "logits") == "probability"
        # Always possible here, since the site may be computed after the prediction is read.
        self.may_lack_gradient = True
        self.rows = Rows.of(base_run, rounds)  # a row is an episode and a round
        vectors = []
        for run in runs:
            _, _, cache = replay(model, run, rounds=rounds, names_filter=hook)
            activation = cache[hook].flatten(0, 1)  # [episode, round, ...] -> [row, ...]
            vectors.append(site.read(activation, layout).flatten(1))  # [row, width]
        self.base, self.source = vectors
        self.is_used = torch.ones(self.base.shape[1], dtype=torch.bool)
        if site.kind.axes == "latent":  # only the carried state has padding
            n_latents = base_run.latents.shape[2]
            mask = carried_mask(model)[:n_latents]  # [latent, width of a latent]
            self.is_used = site.read(mask.unsqueeze(0), layout).flatten()

    def random_basis(self, rank: int, seed: int) -> Float[Tensor, "width rank"]:
        """Draw an orthonormal basis of a random subspace of the activation, for the control,
        ``[width, rank]``. It is 0 in padding.

        Args:
            rank: number of dimensions.
            seed: seed of the draw.
        """
        is_used = self.is_used
        drawn = random_basis(int(is_used.sum()), rank, seed)
        basis = drawn.new_zeros(len(is_used), rank)
        basis[is_used] = drawn
        return basis

    def span_differences(self, pairs: Pairs) -> Float[Tensor, "width direction"]:
        """Return an orthonormal basis of the space that the differences between source and base
        activations span, one basis vector per column, ``[width, direction]``.

        Args:
            pairs: the pairs of rounds whose differences are taken.
        """
        differences = self.source[pairs.source] - self.base[pairs.base]
        # Eigenvalues are squares of the singular values of the differences.
        eigenvalues, eigenvectors = torch.linalg.eigh(differences.T @ differences)
        is_spanned = eigenvalues > _MIN_DIFFERENCE_SHARE**2 * eigenvalues.max()
        return eigenvectors[:, is_spanned]

    def run_pairs(self, intervention: Intervention, pairs: Pairs, indices: Tensor) -> Tensor:
        """Run the base rounds of some pairs with the activation at the site changed, and return the
        model's outputs. Gradients are computed if they are enabled in torch.

        Args:
            intervention: function that is called with the activations at the site in base and
                source, ``[pair, width]`` each, and returns the new activations.
            pairs: the pairs.
            indices: indices of the pairs to run.

        Returns:
            The model's outputs, ``[pair, outcome]``: probabilities for a model that outputs these,
            otherwise their logarithms. The faster
            :class:`_RoundsFromSite` returns logits in place of the logarithms.
        """
        source = self.source[pairs.source[indices]]  # [pair, width]

        def change(activation: Tensor) -> Tensor:
            return intervention(activation.flatten(1), source).view_as(activation)

        step, _ = run_one_round(
            self.model,
            self.rows.part(pairs.base[indices]),
            self.layout,
            changes=[(self.site, change)],
            gradient=torch.is_grad_enabled(),
        )
        probabilities = self.layout.distribution(step.prediction)
        if self.gives_probabilities:
            return probabilities
        tiny = torch.finfo(probabilities.dtype).tiny
        return probabilities.clamp_min(tiny).log()

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
    """A faster form of :class:`RoundsWithSite`, for a site in the residual stream of a transformer
    at one position. A base round is computed only from the site's layer and position on. What comes
    before them is the same as in the unchanged run, and is stored.

    The arguments are those of :class:`RoundsWithSite`.
    """

    model: Any  # a HookedLatentTransformer

    def __init__(
        self, model: Any, runs: tuple[Rollout, Rollout], rounds: list[int], site: Site
    ) -> None:
        """Read what a run from the site on needs: the activations at the site, the residual stream
        from the site's position on, and the keys and values of earlier positions.
        """
        base_run, source_run = runs
        config, layout = model.config, base_run.layout
        self.model, self.layout, self.site = model, layout, site
        self.gives_probabilities = config.output == "probability"
        # Hard attention chooses one position, and so has no gradient by its scores.
        self.may_lack_gradient = has_hard_attention(model)
        # The embedding is the only such site without a layer. For it, the residual stream before the
        # first layer is changed instead. This stream is the embedding plus the code of the position,
        # which is the same in base and source.
        layer = site.layer or 0
        resid_name = f"blocks.{layer}.hook_resid_pre"
        hook = resid_name if site.layer is None else site.hook
        self.layer, self.hook = layer, hook
        layers = range(layer, config.n_layers)
        key_names = [f"blocks.{i}.attn.hook_k" for i in layers]
        value_names = [f"blocks.{i}.attn.hook_v" for i in layers]
        names = list(dict.fromkeys([resid_name, hook, *key_names, *value_names]))
        # Activations are [episode, round, position, ...].
        _, _, in_base = replay(model, base_run, rounds=rounds, names_filter=names)
        _, _, in_source = replay(model, source_run, rounds=rounds, names_filter=[hook])
        start = layout.position(str(site.position))
        end = layout.predict_position + 1
        self.base = in_base[hook][:, :, start].flatten(0, 1)
        self.source = in_source[hook][:, :, start].flatten(0, 1)
        # All coordinates are used: only the carried state has padding, not the residual stream.
        self.is_used = torch.ones(self.base.shape[1], dtype=torch.bool)
        # Positions before the site stay as in the base: only their keys and values are needed.
        self.resid = in_base[resid_name][:, :, start:end].flatten(0, 1)
        keys = [in_base[name][:, :, :start].flatten(0, 1) for name in key_names]
        values = [in_base[name][:, :, :start].flatten(0, 1) for name in value_names]
        # One pair for each layer, [row, position, head, d_head] each
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
        # The stream ends with the position of the prediction.
        logits = model.unembed(model.ln_final(resid[:, -1]))
        return logits[:, : self.layout.n_outputs]

    def run_pairs(self, intervention: Intervention, pairs: Pairs, indices: Tensor) -> Tensor:
        """Run the base rounds of some pairs with the activation at the site changed, and return the
        model's outputs. Gradients are computed if they are enabled in torch.

        Args:
            intervention: function from the base's and the source's activation to the new
                activation, ``[pair, width]`` each.
            pairs: the pairs.
            indices: indices of the pairs to run.

        Returns:
            Logits, ``[pair, outcome]``; probabilities if the model outputs these.
        """
        base_rows, source = pairs.base[indices], self.source[pairs.source[indices]]
        # Runs begin at the site's position, so that it is position 0 in each.
        positions = torch.zeros_like(base_rows)
        return run_with_intervention(
            self.model, self.hook, intervention, base_rows, source, self, positions=positions
        )

    def run_all_pairs(self, intervention: Intervention, pairs: Pairs) -> Tensor:
        """Run the base rounds of all pairs with the activation at the site changed, without
        gradients. Pairs with the same base round and the same new activation are run once.

        Args:
            intervention: function from the base's and the source's activation to the new
                activation, ``[pair, width]`` each.
            pairs: the pairs.

        Returns:
            Logits, ``[pair, outcome]``; probabilities if the model outputs these.
        """
        base = pairs.base
        new = intervention(self.base[base], self.source[pairs.source])
        new = new.detach().double().cpu()
        # The result depends only on the base round and the new activation: [pair, 1 + width].
        inputs = torch.cat([base.unsqueeze(1), new], 1)
        distinct, index_of_pair = inputs.unique(dim=0, return_inverse=True)
        base_rows, activations = distinct[:, 0].long(), distinct[:, 1:]
        # Runs begin at the site's position, so that it is position 0 in each.
        positions = torch.zeros(len(distinct), dtype=torch.long)
        logits = intervened_logits(
            self.model,
            self.hook,
            lambda _, source: source,  # the new activation takes the place of the source's
            base_rows,
            activations,
            self,
            positions=positions,
        )
        return logits[index_of_pair]


def has_hard_attention(model: Machine) -> bool:
    """Return whether some head of a model has hard attention; False if the model has no heads."""
    config = getattr(model, "config", None)
    rules_by_layer = getattr(config, "attention_rules", ())
    return any("hard" in rules for rules in rules_by_layer)


def prepare_rounds(
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
    can_start_at_site = can_resume_rounds(model) and site.kind.axes == "pos"
    rounds_class = _RoundsFromSite if can_start_at_site else RoundsWithSite
    return rounds_class(model, runs, rounds, site)


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
    """The subspace of activations that training found, with its loss.

    Attributes:
        basis: orthonormal basis of the subspace, one column per dimension, ``[width, rank]``.
        loss: mean loss of this subspace over the pairs of rounds that decide when training stops.
            It compares the model's prediction after an interchange in the subspace with the
            algorithm's prediction after the same interchange of its variable. It is the
            cross-entropy if the model outputs logits, and the squared distance if it outputs
            probabilities.
        steps: number of training steps from each random start.
    """

    basis: Float[Tensor, "width rank"]
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
            drawn = stopping.draw_pairs(_N_STOPPING_PAIRS, search.seed)
            unchanged_loss = float(_compute_loss(rounds, lambda base, _: base, stopping, drawn))
        span = rounds.span_differences(training)  # orthonormal columns, [width, direction]
        if not span.shape[1]:
            # Base and source never differ at the site: every subspace acts alike.
            basis = rounds.random_basis(rank, search.seed)
            return Fit(basis.to(span), loss=unchanged_loss, steps=(0,))
        solved = _SOLVED_SHARE * unchanged_loss
        for start in range(search.restarts):
            trained = _train_from_start(
                rounds,
                span,
                rank,
                training,
                stopping,
                search,
                seed=search.seed + _SEED_STRIDE * start,
                solved=solved,
            )
            fits.append(trained)
            if trained.loss <= solved:
                break
    best = min(fits, key=lambda fit: fit.loss)
    steps = tuple(fit.steps[0] for fit in fits)  # each of these fits had one start
    return Fit(best.basis, loss=best.loss, steps=steps)


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
    span = rounds.span_differences(training)
    n_directions = span.shape[1]
    if not n_directions:
        return True
    subspace = _draw_subspace(span, rank, seed)
    drawn = training.draw_pairs(_BATCH_SIZE, seed)
    with freeze_parameters(rounds.model):
        interchange = SubspaceInterchange(span @ subspace.basis)
        loss = _compute_loss(rounds, interchange, training, drawn)
        is_differentiable = loss.requires_grad
        # A subspace of all directions has nothing to learn: its gradient is 0 in any model.
        if not is_differentiable or n_directions <= rank:
            return is_differentiable
        loss.backward()
    gradients = [parameter.grad for parameter in subspace.parameters()]
    return any(gradient.any() for gradient in gradients if gradient is not None)


def _draw_subspace(span: Float[Tensor, "width direction"], rank: int, seed: int) -> LearnedSubspace:
    """Draw a random subspace of the space that ``span`` spans. Its basis has one coordinate for
    each direction of ``span``, so ``span @ subspace.basis`` is the basis in the space of
    activations.

    Args:
        span: orthonormal directions, as columns.
        rank: number of dimensions; at most the number of columns is used.
        seed: seed of the draw.
    """
    n = span.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # draws the subspace from which learning starts
        return LearnedSubspace(n, min(rank, n)).to(span)


def _train_from_start(
    rounds: RoundsWithSite,
    span: Float[Tensor, "width direction"],
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
        rounds: runs base rounds with a changed activation. The change made here is an interchange:
            the activation's part in the subspace becomes that of the source round.
        span: orthonormal directions, as columns, whose span contains the subspace.
        rank: number of dimensions of the subspace.
        training, stopping: pairs to train on, and pairs on which the loss decides when to stop.
        search: settings.
        seed: seed of the start.
        solved: stopping loss that is low enough to end the training.
    """
    subspace = _draw_subspace(span, rank, seed)
    optimizer = torch.optim.Adam(subspace.parameters(), lr=_LEARNING_RATE)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=search.steps)
    batches = training.draw_pairs(search.steps * _BATCH_SIZE, seed).split(_BATCH_SIZE)
    # The same pairs for every start, so that their losses can be compared.
    stopping_pairs = stopping.draw_pairs(_N_STOPPING_PAIRS, search.seed)
    best_basis, best_loss, best_step = span @ subspace.basis.detach(), float("inf"), 0
    n_steps = 0
    # After the last batch, the loss is evaluated once more (None).
    for i, batch in enumerate([*batches, None]):
        if i % _STEPS_PER_CHECK == 0 or batch is None:
            with torch.no_grad():
                basis = span @ subspace.basis
                interchange = SubspaceInterchange(basis)
                loss = float(_compute_loss(rounds, interchange, stopping, stopping_pairs))
            if loss < best_loss:
                best_basis, best_loss, best_step = basis, loss, i
        is_patient = i - best_step < _PATIENCE_CHECKS * _STEPS_PER_CHECK
        if batch is None or best_loss <= solved or not is_patient:
            break
        optimizer.zero_grad()
        interchange = SubspaceInterchange(span @ subspace.basis)
        _compute_loss(rounds, interchange, training, batch).backward()
        optimizer.step()
        scheduler.step()
        n_steps = i + 1
    return Fit(best_basis, loss=best_loss, steps=(n_steps,))


def _compute_loss(
    rounds: RoundsWithSite, intervention: Intervention, pairs: Pairs, indices: Tensor
) -> Tensor:
    """Return the mean loss of some pairs, a scalar: the cross-entropy of the model's prediction
    after an intervention, with the pair's target distribution (:attr:`Pairs.target`). For a model
    that outputs probabilities it is the squared distance of the two.

    Targets are distributions, not the algorithm's choices. With choices, the best subspace would
    move the prediction further than the variable does.

    Args:
        rounds: runs base rounds with a changed activation.
        intervention: function from the base's and the source's activation to the new activation,
            ``[pair, width]`` each.
        pairs: the pairs.
        indices: indices of the pairs over which the mean is taken.
    """
    outcomes = rounds.run_pairs(intervention, pairs, indices)
    target = pairs.target[indices].to(outcomes)
    if rounds.gives_probabilities:
        squares = (outcomes - target).square()
        return squares.sum(-1).mean()
    return cross_entropy(outcomes, target)
