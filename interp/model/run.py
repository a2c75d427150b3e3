"""The rollout: what a model did in every round of every episode; and how rounds are selected."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from interp.core.display import Cache, table_html
from interp.core.machine import Machine
from interp.model.layout import EncodedRounds, RoundLayout
from interp.support.checks import check_type, checked, checked_result, format_value, non_empty
from interp.support.errors import require
from interp.support.foreign import escape_line
from interp.support.lazy import entry

Commit = Literal["own", "target"]
Rounds = int | slice | Sequence[int] | Literal["all"]


@dataclass(frozen=True, repr=False)
@checked_result
class Rollout:
    """What a model did over a batch of episodes: predictions, carried states, inputs, and cached
    activations.

    Attributes:
        predictions: usually the probability of each outcome, ``[episode, round, outcome]``. A
            task's layout may define another form, such as P(y = 1) for expert advice, ``[episode,
            round]``. For a real number they are its mean, or mean and log variance. Missing rounds
            have NaN here and in the cache.
        latents: carried states, ``[episode, round + 1, latent, d_model]`` for a transformer and
            ``[episode, round + 1, row, width]`` for other machines. Index t of the second axis is
            the state that round t reads, so index 0 is the initial state.
        fed: the rounds as the model read them, including the tokens of choices: ``tokens``,
            ``values``, ``slots`` and ``missing`` of
            :class:`~interp.model.layout.EncodedRounds`.
        layout: layout of the rounds.
        commit: origin of the choices (such as actions) that rounds contain: made by the model
            ("own") or recorded ("target").
        cache: name of a hook point -> its activations, ``[episode, cached round, ...]``; empty
            without a ``names_filter``.
        cached_rounds: indices of the rounds in the cache, in order.
        settings: how the run was made: name -> value. Among them are the model's name, digest and
            dtype, whether effects of hooks propagate, the hooked rounds, whether the model was
            "quiet" (no hook was attached to it beforehand), and versions of packages.
        model: the model, from which controls are computed. None if hooks acted, if a rollout was
            passed as ``clean=``, or if the rollout was read from a file.
        episodes: the episodes; None if the rollout was read from a file, or made by :meth:`join`.
    """

    predictions: Tensor
    latents: Float[Tensor, "episode round_plus_1 latent d_model"]
    fed: EncodedRounds
    layout: RoundLayout
    commit: str
    cache: dict[str, Tensor] = field(default_factory=Cache)
    cached_rounds: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    model: Any = field(default=None, compare=False)
    episodes: Any = field(default=None, compare=False)

    @classmethod
    @checked
    def join(cls, runs: Sequence[Rollout]) -> Rollout:
        """Concatenate rollouts of one model over different episodes of the same sizes. The settings
        are those of the first rollout.
        """
        first = non_empty("runs", runs)[0]
        cache = copy(first.cache)  # with the number of layers
        for name in first.cache:
            cache[name] = torch.cat([run.cache[name] for run in runs])
        predictions = torch.cat([run.predictions for run in runs])
        latents = torch.cat([run.latents for run in runs])
        fed = EncodedRounds.join([run.fed for run in runs])
        return replace(
            first, predictions=predictions, latents=latents, fed=fed, cache=cache, episodes=None
        )

    def __repr__(self) -> str:
        model = escape_line(self.settings.get("model", "a model"))
        text = f"{self.n_episodes} episodes of {self.n_rounds} rounds"
        if self.missing is not None:
            n_counting = int((~self.missing).sum())
            text += f", {n_counting:,} of which count"
        text += f", commit {self.commit!r}"
        if self.cache:
            text += f", cache of {len(self.cache)} activations in {len(self.cached_rounds)} rounds"
        return f"Rollout({model}: {text})"

    def _repr_html_(self) -> str:
        import pandas as pd  # the model's room does without it elsewhere

        tensors = {"predictions": self.predictions, "latents": self.latents, **self.cache}
        shapes = [" x ".join(map(str, tensor.shape)) for tensor in tensors.values()]
        return table_html(repr(self), pd.DataFrame({"holds": list(tensors), "shape": shapes}))

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return self.tokens.shape[0]

    @property
    def n_rounds(self) -> int:
        """Number of rounds of every episode."""
        return self.tokens.shape[1]

    @property
    def missing(self) -> NDArray[np.bool_] | None:
        """Bool[episode, round], True for missing rounds (missed trials and padding); None if there
        are none.
        """
        missing = self.fed.missing
        return None if missing is None else missing.numpy(force=True)

    # Tokens and payloads that were fed, and the index of the latent that each round's update changed.
    tokens = property(attrgetter("fed.tokens"))
    values = property(attrgetter("fed.values"))
    slots = property(attrgetter("fed.slots"))

    def rows(self, rounds: Rounds) -> tuple[Tensor, EncodedRounds]:
        """Return chosen rounds of every episode as one batch; row ``e * len(rounds) + i`` is
        episode e in the i-th chosen round.

        Returns:
            The carried states that the rounds read, ``[row, latent, d_model]``, and the encoded
            inputs of the rounds.
        """
        chosen = select_rounds(rounds, self.n_rounds, may_repeat=True)
        return self.latents[:, chosen].flatten(0, 1), self.fed.rows(chosen)

    def select(self, episodes: slice | Sequence[int] | NDArray[Any] | Tensor) -> Rollout:
        """Return a rollout of some of the episodes, without the cache.

        Args:
            episodes: a slice, a mask or indices.
        """
        all_episodes = self.episodes
        selected_episodes = None
        # If a user has replaced the tensors by those of fewer episodes, `episodes` may still have
        # all. Indices into the one are then no indices into the other.
        if all_episodes is not None and len(all_episodes) == self.n_episodes:
            selected_episodes = all_episodes.select(episodes)
        return replace(
            self,
            predictions=self.predictions[episodes],
            latents=self.latents[episodes],
            fed=self.fed.select(episodes),
            cache=Cache(),
            cached_rounds=(),
            episodes=selected_episodes,
        )

    def activation_cache(self, round: int, names_filter: Any = None) -> Any:
        """Run one round again, and return its activations as TransformerLens' ``ActivationCache``.

        Refused for a rollout with hooks, such as an ablated one, because its round would be run
        without them; its attribute ``cache`` has the activations with hooks.

        Args:
            round: index of the round; a negative one counts from the end.
            names_filter: hook points to cache; None for all that are not switched off. Methods of
                the cache, such as ``stack_head_results`` and ``accumulated_resid``, need the points
                that they read.

        Returns:
            The cache, ``[episode, ...]``; NaN for episodes in which the round is missing.

        >>> import interp
        >>> from interp.tasks import experts
        >>> run = interp.rollout(interp.load("wma-learned"), experts.sample(2, 5, 4, seed=0))
        >>> cache = run.activation_cache(round=3)
        >>> tuple(cache["resid_post", 1].shape), tuple(cache.stack_head_results(layer=2).shape)
        ((2, 13, 64), (8, 2, 13, 64))
        """
        require(
            self.model is not None,
            "this rollout does not know its model (hooks acted in it, or it was read from a file). Its own cache, of "
            "rollout(..., rounds=[round], names_filter=lambda name: True), makes one: transformer_lens.ActivationCache("
            "{name: x[:, 0] for name, x in run.cache.items()}, model)",
        )
        require(
            hasattr(self.model, "cfg"),
            f"{escape_line(self.model.name)!r} has no layers and heads as TransformerLens has them; "
            "interp.rollout(model, episodes, names_filter=...).cache holds its activations, and "
            "model(*run.rows([round])) is one round with gradients",
        )
        from transformer_lens import ActivationCache

        replay = entry("rollouts").replay  # its module imports this one
        names = self.model.hook_names(names_filter)
        _, _, cache = replay(self.model, self, rounds=round, names_filter=names)
        # [episode, cached round, ...], of which there is one
        of_round = {name: activation[:, 0] for name, activation in cache.items()}
        return ActivationCache(of_round, self.model)

    @property
    def choices(self) -> Shaped[Tensor, "episode round"]:
        """The model's prediction in every round, ``[episode, round]``: the index of the most
        probable outcome (the lowest on ties) or, if outcomes are real numbers, the predicted mean.
        It has no meaning in missing rounds.
        """
        return self.layout.choose(self.predictions)


def select_rounds(rounds: Rounds, n_rounds: int, *, may_repeat: bool = False) -> list[int]:
    """Return the indices of selected rounds, counted from 0, as a list. Rounds that do not exist
    are refused.

    Args:
        rounds: an int (negative counts from the end), a slice, a list, or "all".
        n_rounds: number of rounds that exist.
        may_repeat: True if the same round may be named more than once.
    """
    rounds = check_type("rounds", rounds, Rounds)
    if isinstance(rounds, str):
        return list(range(n_rounds))
    if isinstance(rounds, slice):
        return _select_slice(rounds, n_rounds)
    selected = [rounds] if isinstance(rounds, int) else list(rounds)
    require(selected, "no rounds were selected; give at least one, or 'all'")
    for t in selected:
        require(
            -n_rounds <= t < n_rounds,
            f"round {t} is out of range: the episodes have rounds 0 to {n_rounds - 1}",
        )
    indices = [t % n_rounds for t in selected]  # negative ones count from the end
    require(
        may_repeat or len(set(indices)) == len(indices),
        f"rounds name one round twice, which would count twice: {format_value(rounds)}",
    )
    return indices


def _select_slice(rounds: slice, n_rounds: int) -> list[int]:
    """Return the indices of the rounds in a slice; refuse one that selects none.

    Args:
        rounds: the slice; its ends may be negative, as for a list.
        n_rounds: number of rounds that exist.
    """
    for end in (rounds.start, rounds.stop, rounds.step):
        check_type("the ends of a slice of rounds", end, int | None)
    require(rounds.step != 0, "a slice of rounds needs a step other than 0")
    selected = list(range(n_rounds)[rounds])
    require(len(selected) > 0, f"{rounds} selects none of the {n_rounds} rounds")
    return selected


def limit_rounds(machine: Machine, n_rounds: int) -> int:
    """Return the number of rounds that a model can run: ``n_rounds``, or fewer if a growing channel
    of its carried state (such as a key-value cache) has room for fewer.
    """
    for channel in machine.channels:
        if channel.grows:  # number of rows that a round adds, of the channel's shape[0] rows
            n_rounds = min(n_rounds, channel.shape[0] // channel.grows)
    return n_rounds
