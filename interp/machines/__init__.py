"""Machines of foreign models: adapters that make a machine of a kind of model, each a few lines
over ``interp.adapt``.

    cell        ``nn.RNN``, ``nn.GRU``, ``nn.LSTM`` and their cells: what is carried by layer, the gates as points
    loop        a block that is applied several times in a round
    depth       a block that runs once a round, on a question that is read once
    hrm         HRM-Text of ``transformers``: two stacks that run in nested cycles
    thoughts    GPT-2 with its last hidden state as the next input (Coconut), and its cache
    state_space Mamba of ``transformers``: its states and the last inputs of its convolutions
    agent       the LSTM of an agent that ``sb3-contrib`` trained, read from its file

All take two functions of the user's: what the model reads of a round, and how its prediction is
read. :class:`Said` says a round as numbers, for a model that has no input format of its own. What
all of them need is in :mod:`interp.core.machine`; what is trained here, in :mod:`interp.training`.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
