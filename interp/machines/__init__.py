"""Machines of others: adapters that make a machine of a kind of model, each a few lines over ``interp.adapt``.

    cell        ``nn.GRUCell``, ``nn.LSTMCell``, ``nn.GRU``, ``nn.LSTM``: what is carried by layer, the gates as points
    loop        a block that is applied several times in a round
    hrm         HRM-Text of ``transformers``: two stacks that run in nested cycles
    thoughts    GPT-2 whose last hidden state is the next input (Coconut), with its cache
    state_space Mamba of ``transformers``: its states and the last inputs of its convolutions
    agent       the LSTM of an agent that ``sb3-contrib`` trained, read from its file

All take two functions of the user's: what the model hears of a round, and how its prediction is read. :class:`Said`
says a round as numbers, for a model that has no input format of its own. What all of them need is in
:mod:`interp.machine`; what is trained here, in :mod:`interp.training`.
"""

from typing import TYPE_CHECKING

from interp.lazy import facade

if TYPE_CHECKING:
    from interp.machines.agents import agent, read_agent
    from interp.machines.cells import cell
    from interp.machines.hierarchy import hrm
    from interp.machines.loops import loop
    from interp.machines.said import Said
    from interp.machines.spaces import state_space
    from interp.machines.thinking import read_coconut, thoughts

__all__ = ["Said", "agent", "cell", "hrm", "loop", "read_agent", "read_coconut", "state_space", "thoughts"]

__getattr__, __dir__ = facade(
    __name__,
    {
        "interp.machines.agents": "agent read_agent",
        "interp.machines.cells": "cell",
        "interp.machines.hierarchy": "hrm",
        "interp.machines.loops": "loop",
        "interp.machines.said": "Said",
        "interp.machines.spaces": "state_space",
        "interp.machines.thinking": "read_coconut thoughts",
    },
)
