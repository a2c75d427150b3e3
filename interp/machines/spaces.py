"""Mamba of ``transformers``: what passes are the states and the last inputs of the convolutions, a row for each layer.

The layer's own weights run here one input at a time, in plain PyTorch (Gu and Dao, 2023, section 3): with ``x`` after
the projection, the convolution and its nonlinearity, ``dt``, ``B`` and ``C`` read from ``x``, and ``A`` fixed::

    state' = exp(dt A) state + dt B x        y = C state' + D x

A round may be several inputs; the prediction is read after one of them, from the last layer's normed output::

    >>> import interp
    >>> from torch import nn
    >>> from transformers import MambaConfig, MambaModel
    >>> from interp.machines.said import Embedded
    >>> from interp.tasks import experts
    >>> class Learner(nn.Module):
    ...     def __init__(self, n_words):
    ...         super().__init__()
    ...         sizes = {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2}
    ...         self.core, self.read = MambaModel(MambaConfig(vocab_size=n_words, **sizes)), nn.Linear(8, 2)
    >>> layout = experts.TASK.layout(n_experts=2)
    >>> machine = state_space(Learner(len(layout.vocabulary)), layout, read=lambda m, y, fed: m.read(y),
    ...                       embedded=Embedded.tokens(layout, "core.embeddings"), name="mamba")
    >>> [(channel.name, channel.shape) for channel in machine.channels]
    [('state', (2, 64)), ('conv', (2, 48))]
    >>> interp.check_machine(machine)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from interp.checks import checked
from interp.errors import require
from interp.machine import Channel
from interp.machines.said import Embedded, core_of, redraw
from interp.model.adapted import AdaptedMachine, Point, adapt
from interp.model.layout import RoundLayout
from interp.task import Task


@checked
def state_space(
    module: nn.Module,
    task: str | Task | RoundLayout,
    *,
    embedded: Embedded,
    read: Callable[[Any, Tensor, Any], Tensor],
    core: str = "core",
    **options: Any,
) -> AdaptedMachine:
    """A machine of a module with a ``MambaModel`` in it.

    Its points, for every layer and every input of a round: ``selected_1``, ``selected_2``, ... are what dt, B and C
    are read from, ``gated_1``, ... what the layer's state gives, before the projection out.

    Args:
        task, options: as ``interp.adapt`` takes them.
        embedded: how a round becomes inputs; its ``slot`` is not used.
        read: ``(module, y, fed)`` to scores from the core's normed output ``[batch, width]`` at the prediction.
        core: name of the ``MambaModel`` within ``module``; "" for itself.
    """
    model = core_of(module, core, "norm_f", "MambaModel of transformers")
    layers = model.layers
    require(all(hasattr(layer.mixer, "A_log") for layer in layers), f"{core!r} has layers that are no Mamba mixers")
    config = model.config
    inner, kept = config.intermediate_size, config.conv_kernel - 1

    def step(module: Any, carried: dict[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        model: Any = module.get_submodule(core)
        states, convs = (carried[name].unflatten(2, (inner, -1)).unbind(1) for name in ("state", "conv"))
        scores = None
        for i, x in enumerate(embedded.embed(module, fed).unbind(1)):
            after = []
            for layer, state, conv in zip(model.layers, states, convs, strict=True):
                y, *held = mixed(layer.mixer, layer.norm(x), state, conv)
                x = x + y
                after.append(held)
            states, convs = zip(*after, strict=True)
            if i == embedded.at:
                scores = read(module, model.norm_f(x), fed)
        assert scores is not None
        return scores, {name: torch.stack(part, 1).flatten(2) for name, part in (("state", states), ("conv", convs))}

    points = {}
    for i in range(len(layers)):
        mixer = f"{core}.layers.{i}.mixer".lstrip(".")
        points[f"selected_{i + 1}"] = Point(f"{mixer}.x_proj", of="input", times=embedded.n_pos)
        points[f"gated_{i + 1}"] = Point(f"{mixer}.out_proj", of="input", times=embedded.n_pos)
    options = {"reset": redraw, **options, "points": {**points, **(options.get("points") or {})}}
    sizes = {"state": inner * config.state_size, "conv": inner * kept}
    channels = [Channel(name, (len(layers), size)) for name, size in sizes.items()]
    return adapt(module, task, step=step, channels=channels, **options)


def mixed(mixer: Any, x: Tensor, state: Tensor, conv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One input ``[batch, width]`` through a Mamba mixer: its output, and what it holds then.

    Args:
        state: ``[batch, inner, state]``.
        conv: ``[batch, inner, kernel - 1]``, the last inputs of the convolution.
    """
    heard, gate = mixer.in_proj(x).chunk(2, -1)
    window = torch.cat([conv, heard.unsqueeze(2)], 2)
    total = (window * mixer.conv1d.weight.squeeze(1)).sum(2)
    selected = mixer.act(total if mixer.conv1d.bias is None else total + mixer.conv1d.bias)
    sizes = [mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size]
    time, B, C = mixer.x_proj(selected).split(sizes, -1)
    dt = functional.softplus(mixer.dt_proj(time)).unsqueeze(2)
    A = -mixer.A_log.exp()
    state = (dt * A).exp() * state + dt * B.unsqueeze(1) * selected.unsqueeze(2)
    y = (state * C.unsqueeze(1)).sum(2) + mixer.D * selected
    return mixer.out_proj(y * mixer.act(gate)), state, window[:, :, 1:]
