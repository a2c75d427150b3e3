"""Adapters that make machines from common kinds of models, each a few lines over ``interp.adapt``.

    cell         ``nn.RNN``, ``nn.GRU``, ``nn.LSTM`` and their cells, with gates as hook points
    loop         a block that is applied several times in a round
    depth        a block that runs once a round, on a question that is read in the first round
    hrm          HRM-Text of ``transformers``: two stacks that run in nested cycles
    thoughts     GPT-2 with its last hidden state as the next input (Coconut), and its cache
    state_space  Mamba and other models of ``transformers`` with recurrent layers
    agent        the LSTM of an agent that ``sb3-contrib`` trained, read from its file

Most adapters take two functions of the user's: one that reads a round's inputs, and one that reads
the prediction. :class:`RoundEncoder` encodes a round as numbers, for models without an input
format. The interface of machines is in :mod:`interp.core.machine`; training is in
:mod:`interp.training`.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
