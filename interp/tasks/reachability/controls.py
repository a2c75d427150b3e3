"""What critics of latent reasoning ask of a model that seems to hold a search frontier: is the recurrence needed?

The same model runs over the same episodes with its latent taken away (``cut``: every round reads the initial latent),
``frozen`` (every round reads the latent that the first thought wrote, so that rounds are only repeated), ``reset`` (the
initial latent once, halfway: the search begins again), and ``swapped`` (another episode's latent). A model that answers
as well without its recurrence does not search by it, whatever its latents look like.

``discrete`` is the variant that commits: of the nodes that a round adds, the latent keeps one, as a chain of thought in
tokens does. What parallel search gains is the difference. It needs to read and write sets: exact for a handwired model,
by a decoder for a learned one.

    >>> import interp
    >>> from interp.tasks import reachability
    >>> model = interp.load("reachability-handwired", n_nodes=12, n_edges=18)
    >>> runs = controlled(model, reachability.sample(8, 4, 12, 18, seed=0))
    >>> sorted(runs)
    ['cut', 'discrete', 'frozen', 'reset', 'swapped']
    >>> bool((runs["cut"].predictions.max(-1).values == 0.5).all())       # nothing known: both candidates alike
    True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from interp.checks import checked
from interp.evaluation.controls import Hook, cut, swap
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.frontier import Read, Write, codec

_HOOK = "hook_latents"


def frozen() -> Hook:
    """A forward hook that gives every round what the first hooked one read: one thought, repeated."""
    kept: dict[str, Tensor] = {}

    def give(latents: Tensor, hook: Any) -> Tensor:
        return kept.setdefault("first", latents)

    return _HOOK, give


@checked
def discrete(read: Read, write: Write, seed: int = 0) -> Hook:
    """A forward hook that keeps one of the nodes that a thought added, all of them equally likely.

    Args:
        read: latents ``[..., latent, d_model]`` to the set that they hold, ``[..., node]``, above a half where reached.
        write: (latents, set) to latents that hold this set.
    """
    generator = torch.Generator().manual_seed(seed)
    path: dict[str, Tensor] = {}

    def commit(latents: Tensor, hook: Any) -> Tensor:
        reached = read(latents) > 0.5
        known = path.get("known", torch.zeros_like(reached))
        new = reached & ~known
        luck = torch.rand(new.shape, generator=generator).to(latents.device).masked_fill(~new, -1.0)
        chosen = torch.nn.functional.one_hot(luck.argmax(-1), new.shape[-1]).bool() & new
        # The first thought holds the root as well; a chain starts there.
        path["known"] = known | chosen
        return write(latents, path["known"].to(latents.dtype))

    return _HOOK, commit


@checked
def controlled(
    model: HookedLatentTransformer,
    episodes: ReachabilityEpisodes,
    read: Read | None = None,
    write: Write | None = None,
    seed: int = 0,
) -> dict[str, Rollout]:
    """Runs of the model with its latent cut, reset, frozen and swapped; discrete where sets can be read and written.

    Args:
        read, write: as in :func:`discrete`; a handwired model's own when None.
        seed: of the nodes that the discrete variant keeps.
    """
    rounds = range(episodes.n_rounds)
    hooks: dict[str, Mapping[int, list[Hook]]] = {
        "cut": _each(rounds, cut(model)),
        "reset": {len(rounds) // 2: [cut(model)]},
        "frozen": _each(rounds[1:], frozen()),
    }
    if len(episodes) > 1:
        hooks["swapped"] = _each(rounds, swap())
    if model.is_handwired and read is None and write is None:
        read, write = codec(model)
    if read is not None and write is not None:
        hooks["discrete"] = _each(rounds[1:], discrete(read, write, seed))
    return {key: rollout(model, episodes, fwd_hooks=by_round) for key, by_round in hooks.items()}


def _each(rounds: range, hook: Hook) -> dict[int, list[Hook]]:
    return {t: [hook] for t in rounds}
