"""Learn the subspace that carries a variable (distributed alignment search, DAS), with controls.

The basis of a subspace of the activation at one site is trained. The aim: if the activation's part
in this subspace is taken from another episode, the model predicts what the algorithm would with
the variable taken from that episode. DAS finds something in any network. So every result has four
controls: a basis trained to produce random outcomes (``arbitrary labels``), a basis trained on a
copy of the model with random weights (``untrained model``), a change of the same length within a
random subspace (``norm-matched random``), and no change (``nothing``). A basis that beats all four
carries the variable for such pairs of episodes; other subspaces may carry it, too.
docs/method/alignment.md describes the training and the controls.

    >>> import interp
    >>> from interp.interventions.alignment import Search, align
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=3)
    >>> pair = [experts.sample(24, 12, 3, seed=seed) for seed in (0, 1)]
    >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
    >>> result = align(model, *pair, algorithm, "log_weights", "resid_post[1]@p?", search=Search(steps=50, restarts=1))
    >>> result.rank, result.accuracy() > 0.9 > result.accuracy("untrained model")
    (2, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import one_hot
from transformer_lens.tools.analysis.interchange import (
    Intervention,
    NormMatchedPlacebo,
    SubspaceInterchange,
    arbitrary_targets,
)

from interp.core.algorithm import Algorithm, Episodes, participants_of
from interp.core.machine import Machine, can_resume_rounds
from interp.interventions.alignment.subspace import (
    Fit,
    Pairs,
    RoundsWithSite,
    Search,
    fit,
    has_gradient,
    has_hard_attention,
    identified_rank,
    make_pairs,
    prepare_rounds,
    split_episodes,
)
from interp.interventions.experiment import make_interval_table
from interp.interventions.interchange import variables_in_rounds
from interp.interventions.pairs import paired_runs
from interp.interventions.sites import Site, resolve_one
from interp.model.rollout import rollout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.model.transformer import untrained
from interp.results.measure import Result
from interp.stats.intervals import NO_NUMBER, Interval, share_interval
from interp.support.checks import checked, checked_result
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance

__all__ = ["COLUMNS", "AlignmentError", "AlignmentResult", "Search", "align"]

_MIN_INFORMATIVE = {"train": 100, "stop training": 20, "score": 50}
"""Minimum number of informative pairs in each part of the episodes, with a margin: the handwired
Weighted Majority was found from 17; a score over 50 pairs is known to within .14."""
COLUMNS = (
    *("variable", "site", "rank", "condition", "iia", "low", "high"),
    *("iia_informative", "low_informative", "high_informative", "train_accuracy", "n_informative"),
)
"""Columns of :meth:`AlignmentResult.to_frame`."""
UNTRAINED, _ARBITRARY_LABELS = "untrained model", "arbitrary labels"


class AlignmentError(InputError):
    """The error that :func:`align` raises if the model's predictions cannot show whether a site
    carries a variable. The message says why, and what to do.
    """


@dataclass(frozen=True)
@checked_result
class AlignmentResult(Result):
    """Result of a search for a subspace of activations that carries a variable: interchange
    accuracy of the learned subspace and of its controls, on held-out episodes.

    A pair is a base round and a source round. The model runs the base round with its activation in
    the subspace taken from the source. The *counterfactual* is the algorithm's choice in the base
    round with the variable taken from the source. A pair is *informative* if the counterfactual
    differs from the algorithm's choice without this change.

    A *condition* is "learned" or the name of a control:

    - "arbitrary labels": a subspace trained to produce random outcomes,
    - "untrained model": a subspace trained on a copy of the model with random weights,
    - "norm-matched random": a random subspace, with a change of the same length,
    - "nothing": no change.

    Attributes:
        variable: key of the variable.
        site: the site, as text.
        rank: number of dimensions of the subspace.
        hits: condition -> for each scored pair, True if the model's choice is the counterfactual
            (for "arbitrary labels", the random outcome), ``[episode, pair]``.
        train_accuracy: condition -> share of hits among the informative pairs on which its subspace
            was trained; NaN for controls that are not trained.
        informative: True for informative pairs, ``[episode, pair]``.
        decided: True for pairs in which the algorithm's choice is clear, ``[episode, pair]``. The
            others are tied: a tiny change of the variable would change the choice. They are not
            counted in any accuracy.
        fits: condition -> the trained subspace.
        settings: settings of the analysis, name and digest of the model, versions of packages.
        participants: index of the participant who played each scored episode, ``[episode]``;
            intervals resample participants. Without recorded participants, every episode counts as
            one.
    """

    variable: str
    site: str
    rank: int
    hits: dict[str, Bool[np.ndarray, "episode pair"]]
    train_accuracy: dict[str, float]
    informative: Bool[np.ndarray, "episode pair"]
    decided: Bool[np.ndarray, "episode pair"]
    fits: dict[str, Fit]
    settings: dict[str, Any] = field(default_factory=dict)
    participants: Any = None

    def __post_init__(self) -> None:
        has_both = {"learned", UNTRAINED} <= self.hits.keys()
        require(has_both, f"hits need 'learned' and {UNTRAINED!r}, got {list(self.hits)}")

    @property
    def basis(self) -> Tensor:
        """Orthonormal basis of the learned subspace, ``[width, rank]``. If the site is several
        vectors of the carried state, they are concatenated, and ``width`` is their total length.
        """
        return self.fits["learned"].basis

    def interval(self, condition: str = "learned", informative: bool = True) -> Interval:
        """Return the interchange accuracy with its 95 % bootstrap interval over episodes.

        It is the share of pairs (a base and a source round) in which model and algorithm make the
        same choice in the base round. Both get something from the source round: the model its
        activation in the subspace, the algorithm its variable.

        Args:
            condition: "learned" for the subspace that was searched for, or the name of a control
                (:class:`AlignmentResult` lists them).
            informative: True counts only pairs in which the variable of the source round changes
                the algorithm's choice. False counts all pairs in which its choice is not tied
                (:attr:`decided`).
        """
        require_known("condition", condition, self.hits)
        counted = self.informative if informative else self.decided
        hits = (self.hits[condition] & counted).sum(1)
        return share_interval(hits, counted.sum(1), participants=self.participants)

    def accuracy(self, condition: str = "learned", informative: bool = True) -> float:
        """Return the interchange accuracy.

        It is the share of pairs (a base and a source round) in which model and algorithm make the
        same choice in the base round. Both get something from the source round: the model its
        activation in the subspace, the algorithm its variable.

        Args:
            condition: "learned" for the subspace that was searched for, or the name of a control
                (:class:`AlignmentResult` lists them).
            informative: True counts only pairs in which the variable of the source round changes
                the algorithm's choice. False counts all pairs in which its choice is not tied
                (:attr:`decided`).
        """
        return self.interval(condition, informative).estimate

    @property
    def sentence(self) -> str:
        """The finding in a sentence: how often the learned subspace makes the model choose as the
        algorithm does, and how often the best control does. The control "arbitrary labels" is left
        out here.
        """
        controls = {
            name: self.accuracy(name)
            for name in self.hits
            if name not in ("learned", _ARBITRARY_LABELS)
        }
        best_control = max(controls, key=lambda name: controls[name])
        subject = f"A basis of {self.rank} at {self.site} for {self.variable}"
        finding = f"gives the algorithm's choice in {self.accuracy():.0%} of informative pairs"
        return f"{subject} {finding}; {best_control}: {controls[best_control]:.0%}."

    def _draw(self, figures: Any) -> Any:
        """Draw the interchange accuracy of the learned subspace and of every control, with 95 %
        intervals.
        """
        # Random outcomes are no counterfactuals, so that all pairs count for them.
        rows = {
            name: self.interval(name, informative=name != _ARBITRARY_LABELS) for name in self.hits
        }
        xlabel = f"interchange accuracy of {self.variable} at {self.site}"
        return figures.intervals(make_interval_table(rows), xlabel=xlabel)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per condition: "learned" or the name of a control.

        A pair consists of a base round and a source round, whose variable is put into the base
        round. ``iia`` is the interchange accuracy (:meth:`accuracy`) over all pairs without a tied
        choice, with its 95 % interval ``low`` to ``high``. ``iia_informative`` is the accuracy over
        the pairs in which the variable of the source round changes the algorithm's choice, with its
        interval ``low_informative`` to ``high_informative``. ``iia_informative`` is NaN for the
        control "arbitrary labels", which is trained to produce random outcomes.
        ``n_informative`` is the number of these pairs, and ``train_accuracy`` the accuracy on such
        pairs in training. The other columns are ``variable``, ``site`` and ``rank`` (number of
        dimensions of the subspace).
        """
        rows = []
        n_informative = int(self.informative.sum())
        for condition in self.hits:
            every = self.interval(condition, informative=False)
            informative = self.interval(condition)
            if condition == _ARBITRARY_LABELS:
                # An arbitrary label is no counterfactual: no pair of it is informative.
                informative = NO_NUMBER
            row = {
                "variable": self.variable,
                "site": self.site,
                "rank": self.rank,
                "condition": condition,
                "iia": every.estimate,
                "low": every.low,
                "high": every.high,
                "iia_informative": informative.estimate,
                "low_informative": informative.low,
                "high_informative": informative.high,
                "train_accuracy": self.train_accuracy[condition],
                "n_informative": n_informative,
            }
            rows.append(row)
        return pd.DataFrame(rows, columns=list(COLUMNS))


@checked
def align(
    model: Machine,
    base: Episodes | Rollout,
    source: Episodes | Rollout,
    algorithm: Algorithm,
    variable: str,
    sites: Site | str | Sequence[Site | str],
    *,
    round: Rounds = "all",
    search: Search | None = None,
) -> AlignmentResult:
    """Search for a subspace of the activation at a site that carries a variable of an algorithm
    (distributed alignment search), and train its controls. The activation in the subspace is taken
    from another episode, and so is the algorithm's variable. The subspace is trained so that the
    model's choice then equals the algorithm's.

    Args:
        model: a model that predicts one of several outcomes.
        base, source: episodes of the same sizes, or the model's rollouts of them. Activations and
            variables are taken from source episodes, and put into base episodes.
        algorithm: the algorithm; its choices after an interchange of the variable are the targets.
        variable: key of the variable.
        sites: one site. In a transformer: a site of the residual stream with a position up to the
            prediction, such as "resid_post[1]@p?". In any model: the carried state ("latent"), a
            channel of it ("latent@h"), or a hook point that affects the prediction.
        round: rounds to take pairs from: an int, a slice, a list or "all".
        search: settings of the training; by default ``Search()``.

    Returns:
        The accuracy of the learned subspace and of its controls on held-out episodes, and the
        learned basis.

    Raises:
        AlignmentError: if predictions cannot show whether the site carries the variable, such as
            with too few pairs in which the variable changes the choice.
    """
    if model.layout.kind != "classes":
        raise AlignmentError(
            f"a basis is learned from choices, and {model.name!r} predicts a real number ({model.layout.kind!r}); "
            "interchange the site as it is, which grades numbers"
        )
    search = search or Search()
    smooth, seed = search.smooth, search.seed
    runs = paired_runs(model, base, source, "alignment")
    base_run, source_run = runs
    base_episodes, source_episodes = base_run.episodes, source_run.episodes
    place = _find_site(model, base_episodes, sites)
    algorithm.variable(variable)  # raises on an unknown one
    rounds = select_rounds(round, base_run.n_rounds)
    base_values = variables_in_rounds(algorithm, base_episodes, rounds)
    source_values = variables_in_rounds(algorithm, source_episodes, rounds)
    players = participants_of(base_episodes)
    episodes_of_parts = split_episodes(players, search.held_out)
    parts = [
        make_pairs(algorithm, base_values, source_values, variable, chosen)
        for chosen in episodes_of_parts
    ]
    _require_informative(parts, variable)
    training, stopping, scoring = parts
    tested_rounds = prepare_rounds(model, runs, rounds, place)

    def run_in_rounds(machine: Machine) -> RoundsWithSite:
        machine.eval()
        machine_runs = (
            rollout(machine, base_episodes, commit=base_run.commit),
            rollout(machine, source_episodes, commit=base_run.commit),
        )
        return prepare_rounds(machine, machine_runs, rounds, place)

    trained_rounds = tested_rounds if smooth is None else run_in_rounds(smooth)
    untrained_rounds = run_in_rounds(untrained(smooth or model, seed))
    width = int(trained_rounds.is_used.sum())
    rank = search.rank
    if rank is None:
        identified = identified_rank(algorithm, base_values, source_values, variable, training)
        rank = min(identified, width)
    name = "d_model" if place.kind.axes == "pos" else f"the width of {str(place)!r}"
    require(1 <= rank <= width, f"rank must be an integer from 1 to {name} = {width}, got {rank!r}")
    if trained_rounds.may_lack_gradient and not has_gradient(trained_rounds, training, rank, seed):
        raise AlignmentError(_explain_no_gradient(model, trained_rounds, place))
    labelled_training, labelled_stopping, labelled_scoring = [
        _label_at_random(pairs, model.layout.n_outputs, seed) for pairs in parts
    ]
    fits = {
        "learned": fit(trained_rounds, training, stopping, rank, search),
        _ARBITRARY_LABELS: fit(trained_rounds, labelled_training, labelled_stopping, rank, search),
        UNTRAINED: fit(untrained_rounds, training, stopping, rank, search),
    }
    interventions: dict[str, Intervention] = {
        condition: SubspaceInterchange(trained.basis) for condition, trained in fits.items()
    }
    random = tested_rounds.random_basis(rank, seed)
    interventions["norm-matched random"] = NormMatchedPlacebo(interventions["learned"], random)
    interventions["nothing"] = lambda base, _: base

    def find_hits(condition: str, pairs: Pairs, labelled_pairs: Pairs) -> np.ndarray:
        judged = labelled_pairs if condition == _ARBITRARY_LABELS else pairs
        judged_rounds = untrained_rounds if condition == UNTRAINED else tested_rounds
        choices = judged_rounds.run_all_pairs(interventions[condition], judged).argmax(-1)
        return (choices == judged.target.argmax(-1)).numpy()

    is_informative = training.informative.numpy()
    train_accuracy = dict.fromkeys(interventions, float("nan"))
    for condition in fits:
        hits = find_hits(condition, training, labelled_training)
        train_accuracy[condition] = float(hits[is_informative].mean())
    by_episode = scoring.n_episodes, -1  # pairs are ordered by base episode
    scored = {
        condition: find_hits(condition, scoring, labelled_scoring).reshape(by_episode)
        for condition in interventions
    }
    n_informative = [pairs.n_informative for pairs in parts]  # in the order of _MIN_INFORMATIVE
    informative = scoring.informative.numpy().reshape(by_episode)
    decided = ~scoring.tied.numpy().reshape(by_episode)
    smooth_digest = None if smooth is None else smooth.digest()
    informative_pairs = dict(zip(_MIN_INFORMATIVE, n_informative, strict=True))
    settings = provenance(
        model,
        smooth=smooth_digest,
        algorithm=algorithm.key,
        rank=rank,
        steps=search.steps,
        restarts=search.restarts,
        seed=seed,
        commit=base_run.commit,
        rounds=rounds,
        informative=informative_pairs,
    )
    return AlignmentResult(
        variable=variable,
        site=str(place),
        rank=rank,
        hits=scored,
        train_accuracy=train_accuracy,
        informative=informative,
        decided=decided,
        fits=fits,
        settings=settings,
        participants=players[episodes_of_parts[-1]],
    )


def _require_informative(parts: Sequence[Pairs], variable: str) -> None:
    """Raise an error if the pairs for training, for stopping or for scoring (``parts``) contain too
    few in which setting the variable changes the algorithm's choice.
    """
    # What a part is for -> its smallest number of such pairs, in the order of the parts.
    for (purpose, fewest), pairs in zip(_MIN_INFORMATIVE.items(), parts, strict=True):
        n = pairs.n_informative
        if n < fewest:
            raise AlignmentError(
                f"{n} of the {len(pairs)} pairs that {purpose} are informative (setting {variable!r} "
                f"changes the algorithm's choice), and {fewest} are needed: give more episodes, more or later rounds, "
                "or a variable that the prediction depends on"
            )


def _explain_no_gradient(model: Machine, trained_rounds: RoundsWithSite, place: Site) -> str:
    """Return why no gradient reaches a site, and what to do about it.

    Args:
        model: the model, for its name.
        trained_rounds: the rounds that subspaces are trained on.
        place: the site.
    """
    if has_hard_attention(trained_rounds.model):
        return (
            f"no gradient reaches {trained_rounds.hook!r} of {model.name!r} through its hard attention: give "
            "smooth=circuits.differentiable(model), its softmax-only variant, or another site"
        )
    return (
        f"no gradient reaches {str(place)!r} of {model.name!r} from its prediction, which is read before this "
        "point is computed, does not depend on it, or does so by a hard choice only: give another site, such as "
        "'latent', or smooth=, a machine without hard choices"
    )


def _label_at_random(pairs: Pairs, n_outcomes: int, seed: int) -> Pairs:
    """Return the pairs with a random target outcome for each source, for the control with arbitrary
    labels.

    Args:
        pairs: the pairs.
        n_outcomes: number of outcomes.
        seed: seed of the random outcomes.
    """
    source_names = list(map(str, pairs.source.tolist()))
    # Pairs with the same source get the same label.
    labels = arbitrary_targets(source_names, n_outcomes, seed)
    return replace(pairs, target=one_hot(labels, n_outcomes).double())


def _find_site(model: Machine, base: Any, sites: Site | str | Sequence[Site | str]) -> Site:
    """Return the site to align. Refuse it if it is not one vector, or is in a residual stream after
    the position of the prediction.

    Args:
        model: the model.
        base: episodes, which determine the layout.
        sites: one site, or several rows of the carried state, which are joined.
    """
    layout = model.layout.fit(base)
    place = resolve_one(sites, model, layout)
    axes, position = place.kind.axes, place.position
    is_at_position = axes == "pos" and position is not None
    require(
        is_at_position or axes in ("", "latent"),
        "aligning needs one vector: 'latent', a point without positions, or a site of the residual stream with a "
        f"position, got {str(place)!r}",
    )
    last = layout.predict_position
    is_in_stream = is_at_position and can_resume_rounds(model)
    if is_in_stream and layout.position(str(position)) > last:
        first_label, last_label = layout.labels[0], layout.labels[last]
        raise AlignmentError(
            f"{position!r} comes after {last_label!r}, where the prediction is read, and cannot change "
            f"it: give a position from {first_label!r} to {last_label!r}"
        )
    return place
