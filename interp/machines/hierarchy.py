"""HRM-Text of ``transformers``: a slow and a fast stack of layers that run in nested cycles, on two states.

In every one of ``H_cycles`` the fast stack runs ``L_cycles`` times and the slow one once (Wang et al., 2025)::

    z_L = L(z_L + z_H)        z_H = H(z_H + z_L)

HRM-Text begins ``z_H`` at the input and ``z_L`` at a constant in every pass, and passes nothing on but its cache. Here
both are carried: the state at the end of a round is added where the next one begins. With nothing carried, a round is
the model's own forward pass, bit for bit. No weights are published with ``transformers``: this is of a configuration::

    >>> import interp
    >>> from transformers import HrmTextConfig, HrmTextForCausalLM
    >>> from interp.tasks import experts
    >>> layout = experts.TASK.layout(n_experts=4)
    >>> config = HrmTextConfig(vocab_size=len(layout.vocabulary), hidden_size=16, intermediate_size=16, pad_token_id=0,
    ...                        num_attention_heads=2, num_layers_per_stack=1, H_cycles=2, L_cycles=3)
    >>> ids = layout.token_ids
    >>> machine = hrm(HrmTextForCausalLM(config), layout, outcomes=[ids["q0"], ids["q1"]], name="hrm")
    >>> [channel.name for channel in machine.channels], machine.points["fast"].n_layers, machine.points["slow"].n_layers
    (['z_H', 'z_L'], 6, 2)
    >>> interp.check_machine(machine)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from interp.checks import checked
from interp.errors import require
from interp.machine import Channel
from interp.machines.said import Embedded, redraw
from interp.model.adapted import AdaptedMachine, Point, adapt, layout_for
from interp.model.layout import RoundLayout
from interp.task import Task


@checked
def hrm(
    model: nn.Module,
    task: str | Task | RoundLayout,
    *,
    outcomes: Sequence[int],
    ids: Sequence[int] | None = None,
    **options: Any,
) -> AdaptedMachine:
    """A machine of an ``HrmTextForCausalLM``; ``fast`` and ``slow`` are what the stacks give in each of their runs.

    Args:
        task, options: as ``interp.adapt`` takes them.
        outcomes: the model's tokens that stand for the outcomes, in the layout's order.
        ids: the model's token for each token of the layout's vocabulary; their own numbers when None.
    """
    inner: Any = getattr(model, "model", None)
    config: Any = getattr(inner, "config", None)
    require(hasattr(inner, "L_module"), f"expected an HrmTextForCausalLM of transformers, got {type(model).__name__}")
    layout = layout_for(task, options.pop("sizes", None))
    rounds = Embedded.tokens(layout, "model.embed_tokens", ids)

    def step(model: Any, carried: dict[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        z_H, z_L = refined(model.model, rounds.embed(model, fed), carried["z_H"], carried["z_L"])
        scores = model.lm_head(z_H[:, rounds.at])[:, list(outcomes)]
        return scores, {"z_H": z_H[:, -1], "z_L": z_L[:, -1]}

    n_slow = config.H_cycles
    points = {
        "fast": Point("model.L_module", times=n_slow * config.L_cycles, axes="pos", labels=layout.labels),
        "slow": Point("model.H_module", times=n_slow, axes="pos", labels=layout.labels),
    }
    options = {"reset": redraw, **options, "points": {**points, **(options.get("points") or {})}}
    channels = [Channel(name, (config.hidden_size,)) for name in ("z_H", "z_L")]
    return adapt(model.eval(), layout, step=step, channels=channels, **options)


def refined(model: Any, x: Tensor, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """The two states ``[batch, pos, width]`` after all cycles, from what is carried, ``[batch, width]`` each."""
    from transformers.masking_utils import create_causal_mask

    x = x * model.embedding_scale
    where = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
    mask = create_causal_mask(
        config=model.config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=where
    )
    given = {"attention_mask": mask, "position_embeddings": model.rotary_emb(x, where), "position_ids": where}
    z_H = x + above.unsqueeze(1)
    z_L = model.z_L_init.to(x).expand_as(x) + below.unsqueeze(1)
    for _ in range(model.config.H_cycles):
        for _ in range(model.config.L_cycles):
            z_L = model.L_module(z_L + z_H, **given)
        z_H = model.H_module(z_H + z_L, **given)
    return z_H, z_L
