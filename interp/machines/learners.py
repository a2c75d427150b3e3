"""Untrained machines to be trained: a core such as a GRU, with small input and output networks
around it.

    >>> import interp
    >>> machine = learner("lstm", "experts", width=8)
    >>> [channel.name for channel in machine.channels], machine.name
    (['h', 'c'], 'lstm')
    >>> interp.check_machine(machine)
    '12 checks passed'

``interp train TASK --machine KIND-TASK`` trains one: every kind has a builder for every task.
:mod:`interp.machines.presets` adds these builders to the list of models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from interp.core import catalog
from interp.core.task import Task
from interp.machines.recurrent import RoundEncoder, cell, loop
from interp.machines.sequences import Embedded, state_space, thoughts
from interp.model.adapted import AdaptedMachine, layout_for
from interp.model.checkpoints import BUILDERS
from interp.model.layout import EncodedRounds, RoundLayout
from interp.support.checks import checked, integer
from interp.support.errors import require, require_known

_CACHE_ROUNDS = 100
"""Number of rounds for which a key-value cache has room."""
_LOOP_CYCLES = 3
"""Number of runs of a loop's block in a round."""
_HIDDEN_UNITS = 64
"""Number of hidden units of the input and output networks."""


def _two_layers(n_inputs: int, n_outputs: int) -> nn.Sequential:
    """Return an untrained network with one hidden layer.

    Args:
        n_inputs, n_outputs: numbers of inputs and outputs.
    """
    hidden = nn.Linear(n_inputs, _HIDDEN_UNITS)
    return nn.Sequential(hidden, nn.ReLU(), nn.Linear(_HIDDEN_UNITS, n_outputs))


class _Learner(nn.Module):
    """A core, such as a GRU, with an input and an output network. The output network predicts from
    the core's state before the round, and from the round's inputs before the prediction. The core
    then reads the whole round, including the outcome.

    Args:
        encoder: encodes a round as numbers.
        core: the core.
        width: width of the core's input and state.
    """

    def __init__(self, encoder: RoundEncoder, core: nn.Module, width: int) -> None:
        """Make the input network ``hear`` (whole round -> the core's input) and the output network
        ``read`` (the core's state, and the inputs before the prediction -> raw prediction).
        """
        super().__init__()
        # Saved checkpoints have these names in the names of their weights.
        self.hear = _two_layers(encoder.n_after, width)
        self.core = core
        self.read = _two_layers(width + encoder.n_before, encoder.layout.n_outputs)


class _Reader(nn.Module):
    """A core, such as a Mamba, with input and output networks. In each round, the core first reads
    the inputs before the prediction, and the prediction is computed from its output. The core then
    reads the whole round, including the outcome.

    Args:
        encoder: encodes a round as numbers.
        core: the core.
        width: width of the core's inputs and outputs.
    """

    def __init__(self, encoder: RoundEncoder, core: nn.Module, width: int) -> None:
        """Make the networks around the core:

        - ``ask`` maps the round's inputs before the prediction to an input of the core;
        - ``hear`` maps the whole round, including the outcome, to an input of the core;
        - ``read`` maps an output of the core to the raw prediction;
        - ``begin`` is a learned vector, which "thoughts" reads in the first round in place of its
          last hidden state.
        """
        super().__init__()
        self.ask = _two_layers(encoder.n_before, width)
        self.hear = _two_layers(encoder.n_after, width)
        self.begin = nn.Linear(1, width, bias=False)
        self.core = core
        self.read = nn.Linear(width, encoder.layout.n_outputs)


class _Refine(nn.Sequential):
    """A sequence of layers ``f`` with a small residual update: the output is ``z + 0.1 f(z)``."""

    def forward(self, z: Tensor) -> Tensor:
        """Return ``z + 0.1 f(z)``, where f are the layers."""
        return z + 0.1 * super().forward(z)


@checked
def learner(
    kind: str,
    task: str | Task | RoundLayout,
    *,
    width: int = 48,
    n_layers: int = 1,
    n_rounds: int = _CACHE_ROUNDS,
    sizes: Mapping[str, Any] | None = None,
) -> AdaptedMachine:
    """Make an untrained machine (a model that carries a state from round to round) for a task: a
    core of some kind, with small input and output networks around it.

    Args:
        kind: kind of its core: "gru", "lstm", "loop" (a block applied three times a round), "mamba"
            or "thoughts" (a GPT-2 that reads its last hidden state as the next round's input).
        task: the task, its key, or a layout of its rounds.
        width: width of the core's state, or of its embeddings.
        n_layers: number of layers of the core; a loop has one block.
        n_rounds: maximum number of rounds of "thoughts", for which its key-value cache has room;
            other kinds have no limit.
        sizes: sizes of the task's episodes by name, such as ``{"n_experts": 4}``; defaults when
            None.
    """
    require_known("kind of learner", kind, list(KINDS))
    n_layers = integer("n_layers", n_layers, least=1, most=100)
    require(kind != "loop" or n_layers == 1, "a loop has one block: n_layers must be 1")
    encoder = RoundEncoder(layout_for(task, sizes))  # encodes a round as a vector of numbers
    checked_width = integer("width", width, least=1, most=4096)
    machine: AdaptedMachine = KINDS[kind](encoder, checked_width, n_layers, n_rounds)
    machine.name = kind
    return machine


def _make_cell(
    encoder: RoundEncoder, width: int, n_layers: int, n_rounds: int, layers: Any
) -> AdaptedMachine:
    """Make an untrained machine with a GRU or an LSTM as its core.

    Args:
        encoder: encodes a round as a vector.
        width: width of the core's input and state.
        n_layers: number of layers of the core.
        n_rounds: ignored; all functions in :data:`KINDS` have this parameter.
        layers: class of the core, ``nn.GRU`` or ``nn.LSTM``.
    """
    module = _Learner(encoder, layers(width, width, num_layers=n_layers), width)
    return cell(module, encoder.layout, check=False, **_make_input_and_output(encoder))


def _make_loop(encoder: RoundEncoder, width: int, n_layers: int, n_rounds: int) -> AdaptedMachine:
    """Make an untrained machine with a small residual network that runs three times in a round.
    Each run starts from the output of the last one.

    Args:
        encoder: encodes a round as a vector.
        width: number of numbers in the carried state.
        n_layers, n_rounds: ignored; all functions in :data:`KINDS` have these parameters.
    """
    widen, narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    block = _Refine(nn.LayerNorm(width), widen, nn.GELU(), narrow)

    def inject(module: Any, z: Tensor, encoded: Tensor) -> Tensor:
        """Return the input of the core in one of its runs: the state plus a part of the encoded
        round. All runs in a round together add the encoded round once.

        Args:
            module: not used.
            z: the state, ``[batch, width]``.
            encoded: the encoded round, ``[batch, width]``.
        """
        return z + encoded / _LOOP_CYCLES

    return loop(
        _Learner(encoder, block, width),
        encoder.layout,
        block="core",
        cycles=_LOOP_CYCLES,
        shape=(width,),
        inject=inject,
        check=False,
        **_make_input_and_output(encoder),
    )


def _read_core(module: Any, y: Tensor, fed: EncodedRounds) -> Tensor:
    """Return the round's raw prediction, one number per output, ``[batch, output]``.

    Args:
        module: the learner, whose network ``read`` predicts.
        y: the core's output where the prediction is read, ``[batch, width]``.
        fed: the inputs of the round; not used.
    """
    return cast(Tensor, module.read(y))


def _embed_two_parts(module: Any, encoder: RoundEncoder, fed: EncodedRounds) -> list[Tensor]:
    """Return two inputs of the core for a round, each ``[batch, width]``: one from the inputs
    before the prediction, and one from the whole round, including the outcome.

    Args:
        module: the learner; its networks ``ask`` and ``hear`` compute the two.
        encoder: encodes a round as numbers.
        fed: the inputs of the round.
    """
    return [module.ask(encoder.before(fed)), module.hear(encoder.after(fed))]


def _make_mamba(encoder: RoundEncoder, width: int, n_layers: int, n_rounds: int) -> AdaptedMachine:
    """Make an untrained machine with a Mamba of ``transformers`` as its core. The core reads a
    round as two inputs: the part before the prediction, then the whole round, including the
    outcome.

    Args:
        encoder: encodes a round as a vector.
        width: width of the core's inputs and outputs.
        n_layers: number of layers of the core.
        n_rounds: ignored; all functions in :data:`KINDS` have this parameter.
    """
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=1, hidden_size=width, state_size=8, num_hidden_layers=n_layers)
    module = _Reader(encoder, MambaModel(config), width)
    # The learned vector `begin` is the first vector that "thoughts" reads in place of its own last
    # hidden state. A Mamba reads no such vector.
    del module.begin
    del module.core.embeddings  # unused, since its inputs are vectors

    def embed_round(module: Any, fed: EncodedRounds) -> Tensor:
        """Return the two inputs of the core in a round, ``[batch, 2, width]``.

        Args:
            module: the learner, whose networks compute the inputs.
            fed: the inputs of the round.
        """
        return torch.stack(_embed_two_parts(module, encoder, fed), 1)

    # The prediction is read after input 0. The slot is the place of a carried vector among the
    # inputs; a Mamba carries none there, so any number will do.
    rounds = Embedded(embed_round, n_pos=2, at=0, slot=0)
    return state_space(module, encoder.layout, read=_read_core, embedded=rounds, check=False)


def _make_thoughts(
    encoder: RoundEncoder, width: int, n_layers: int, n_rounds: int
) -> AdaptedMachine:
    """Make an untrained machine with a GPT-2 of ``transformers`` as its core. The core reads a
    round as three inputs:

    - the thought, which is its last hidden state in the round before;
    - the part of the round before the prediction;
    - the whole round, including the outcome.

    Args:
        encoder: encodes a round as a vector.
        width: width of the core's inputs and outputs.
        n_layers: number of layers of the core.
        n_rounds: maximum number of rounds, for which the key-value cache has room.
    """
    from transformers import GPT2Config, GPT2Model

    # No dropout: every batch is new, so nothing overfits, and noise makes exact counts harder.
    no_dropout = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    config = GPT2Config(
        vocab_size=1,
        bos_token_id=0,
        eos_token_id=0,
        n_embd=width,
        n_layer=n_layers,
        n_head=math.gcd(4, width),  # 4, or fewer if 4 does not divide the width
        n_positions=3 * n_rounds,  # the three inputs of a round are in embed_round
        initializer_range=0.08,  # as our own transformers have; GPT-2's .02 is for a width of 768
        **no_dropout,
    )
    module = _Reader(encoder, GPT2Model(config), width)
    del module.core.wte  # unused, since its inputs are vectors

    def embed_round(module: Any, fed: EncodedRounds) -> Tensor:
        """Return the three inputs of the core in a round, ``[batch, 3, width]``: a learned vector,
        the part of the round before the prediction, and the whole round. From the second round on,
        the thought takes the place of the learned vector.

        Args:
            module: the learner, whose networks compute the inputs.
            fed: the inputs of the round.
        """
        # In place of the thought, which the first round lacks, a learned vector: begin is a linear
        # map of one number without bias, so of 1 it returns its weights.
        begin = module.begin(fed.values.new_ones(len(fed.values), 1))
        return torch.stack([begin, *_embed_two_parts(module, encoder, fed)], 1)

    return thoughts(
        module,
        encoder.layout,
        read=_read_core,
        core="core",
        # The thought takes the place of input 0; the prediction is read after input 1.
        embedded=Embedded(embed_round, n_pos=3, at=1, slot=0),
        n_rounds=n_rounds,
        check=False,
    )


def _make_input_and_output(encoder: RoundEncoder) -> dict[str, Any]:
    """Make the two functions that connect a core with its task, as keyword arguments for
    :func:`cell` or :func:`loop`: ``encode`` returns the core's input in a round, and ``read`` the
    prediction.

    Args:
        encoder: encodes a round as a vector.
    """

    def encode(module: Any, fed: EncodedRounds) -> Tensor:
        """Return the core's input for a round, ``[batch, width]``.

        Args:
            module: the learner, whose network ``hear`` computes the input.
            fed: the inputs of the round, all of which are read, including the outcome.
        """
        return cast(Tensor, module.hear(encoder.after(fed)))

    def read(module: Any, state: Tensor, fed: EncodedRounds) -> Tensor:
        """Return the round's raw prediction, one number per output, ``[batch, output]``.

        Args:
            module: the learner, whose network ``read`` predicts.
            state: the core's state before the round, ``[batch, width]``.
            fed: the inputs of the round, of which only those before the prediction are read.
        """
        inputs = torch.cat([state, encoder.before(fed)], 1)
        return cast(Tensor, module.read(inputs))

    return {"encode": encode, "read": read}


# All have the same parameters; only "thoughts" uses the number of rounds.
KINDS: dict[str, Callable[..., AdaptedMachine]] = {
    "gru": partial(_make_cell, layers=nn.GRU),
    "lstm": partial(_make_cell, layers=nn.LSTM),
    "loop": _make_loop,
    "mamba": _make_mamba,
    "thoughts": _make_thoughts,
}
"""Kind -> its builder, which takes an encoder of rounds, a width, a number of layers and of
rounds.
"""


# Checkpoints name their builder KIND-TASK.
for _task in catalog.list_tasks():
    for _kind in KINDS:
        _build = partial(learner, _kind, _task.key)
        _build.__module__ = __name__  # a card says what to import to train its model again
        BUILDERS.setdefault(f"{_kind}-{_task.key}", _build)
