"""Six machines that think, adapted to the toolkit and checked against plain PyTorch hooks.

For each it prints the lines of code to adapt it, the largest difference from hooks written by hand,
CPU seconds, and the answer to one question. All weights are random: it shows that the tools are
right on such models, not what they learn. The row of TRM needs its package in a folder TRM,
``PYTHONPATH=TRM python examples/thinking.py``, and is left out otherwise (docs/results/thinking.md
says how to get the package).
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import interp
from interp import machines
from interp.interventions import mediation, patching
from interp.machines.sequences import Embedded
from interp.model.carried import unpack
from interp.model.taps import Point
from interp.tasks import experts, register, series

LAYOUT = experts.TASK.layout(n_experts=4)
ENCODER = machines.RoundEncoder(LAYOUT)
OUTCOMES = [LAYOUT.token_ids["q0"], LAYOUT.token_ids["q1"]]
WIDTH, N_ROUNDS = 16, 6


def draw(n_episodes: int, n_rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw eight bits per episode, and ask in every round whether most of them are 1.

    Args:
        n_episodes: number of episodes.
        n_rounds: number of rounds, all with the same bits.
        seed: seed of the draws.
    """
    bits = np.random.default_rng(seed).choice([-1.0, 1.0], (n_episodes, 8))
    truth = (bits.sum(1) > 0).astype(int)
    return bits[:, None].repeat(n_rounds, 1), truth[:, None].repeat(n_rounds, 1)


BITS = series("bits", draw, inputs=8, outcomes=("few", "many"))


def begin_trm(module: Any) -> dict[str, Tensor]:
    """Return TRM's state before the first round."""
    y = module.output_init_embed.expand(8, -1)
    z = module.latent_init_embed.expand(8, -1)
    return {"outputs": y, "latents": z}


# Each of the following functions makes a machine. Its source lines are counted in the table, so it
# contains only what is needed to adapt the model.


def trm() -> Any:
    from tiny_recursive_model.mlp_mixer_1d import MLPMixer1D
    from tiny_recursive_model.trm import TinyRecursiveModel

    network = MLPMixer1D(dim=WIDTH, depth=1, seq_len=8)
    module = TinyRecursiveModel(dim=WIDTH, num_tokens=2, network=network)
    places = BITS.layout().positions([f"x_{i + 1}" for i in range(8)])

    def step(module: Any, carried: dict[str, Tensor], fed: Any) -> Any:
        bits = (fed.values[:, places] > 0).long()
        inputs = module.input_embed(bits)
        y, z = module.deep_refinement(inputs, carried["outputs"], carried["latents"])
        return module.to_pred(y).mean(1), {"outputs": y, "latents": z}

    labels = tuple(f"bit_{i + 1}" for i in range(8))
    channels = [interp.Channel(name, (8, WIDTH)) for name in ("outputs", "latents")]
    points = {"network": Point("network", times=21, axes="pos", labels=labels)}
    return interp.adapt(
        module,
        BITS,
        step=step,
        channels=channels,
        points=points,
        initial=begin_trm,
        reset=lambda m: [nn.init.normal_(weight, std=0.2) for weight in m.parameters()],
        name="TRM",
        check=False,
    )


class Pondering(nn.Module):
    """A loop that halts, for each batch row separately, once the sum of its gates reaches 1."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(ENCODER.n_after, WIDTH)
        self.block = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 1)
        self.read = nn.Linear(WIDTH + ENCODER.n_before, 2)
        # So that rows halt after different numbers of passes, though all weights are random.
        self.gate.weight.data *= 6
        self.gate.bias.data -= 2

    def forward(self, z: Tensor, encoded: Tensor) -> Tensor:
        """Return the state after at most 12 passes through the block, ``[batch, number]``.

        Args:
            z: the state before.
            encoded: what is added to the state before each pass, in the same shape.
        """
        total = z.new_zeros(len(z))
        for _ in range(12):
            live = total < 1
            if not live.any():
                break
            new = self.block(z + encoded).tanh()
            gate = self.gate(new).sigmoid()[:, 0]
            z = torch.where(live.unsqueeze(1), new, z)
            total = total + torch.where(live, gate, 0)
        return z


def goes_on(gates: list[Tensor]) -> Tensor:
    """Return True for each batch row whose block runs again, from the gate's logits so far, one
    tensor ``[batch, 1]`` per pass.
    """
    total = torch.stack(gates).sigmoid().sum(0)
    return total[:, 0] < 1


def pondering() -> Any:
    def step(module: Any, carried: dict[str, Tensor], fed: Any) -> Any:
        z = carried["z"]
        scores = module.read(torch.cat([z, ENCODER.before(fed)], 1))
        return scores, {"z": module(z, module.enter(ENCODER.after(fed)))}

    channels = [interp.Channel("z", (WIDTH,))]
    point = Point("block", times=12, gate="gate", alive=goes_on)
    return interp.adapt(
        Pondering(),
        LAYOUT,
        step=step,
        channels=channels,
        points={"block": point},
        name="halting loop",
        check=False,
    )


class Learner(nn.Module):
    """A model of ``transformers``, with maps that embed the question and answer of a round, and one
    that reads its prediction.
    """

    def __init__(self, core: nn.Module, width: int) -> None:
        super().__init__()
        self.core = core
        self.read = nn.Linear(width, 2)
        self.embed_question = nn.Linear(ENCODER.n_before, width)
        self.embed_answer = nn.Linear(ENCODER.n_after, width)


def embed(module: Any, fed: Any) -> Tensor:
    """Return a round as two inputs of the model, the question and the answer, ``[batch, 2, width]``."""
    question = module.embed_question(ENCODER.before(fed))
    answer = module.embed_answer(ENCODER.after(fed))
    return torch.stack([question, answer], 1)


def read_last(module: Any, y: Tensor, fed: Any) -> Tensor:
    """Return the prediction from the model's output ``y`` after the question."""
    return module.read(y)


ROUND = Embedded(embed, 2, at=0, slot=0)
"""A round is read in two steps: the question, after which the model predicts, then the answer."""


def rwkv() -> Any:
    from transformers import RwkvConfig, RwkvModel

    sizes = {"hidden_size": WIDTH, "attention_hidden_size": WIDTH, "num_hidden_layers": 2}
    return machines.state_space(
        Learner(RwkvModel(RwkvConfig(vocab_size=1, **sizes)), WIDTH),
        LAYOUT,
        embedded=ROUND,
        read=read_last,
        name="RWKV",
        check=False,
    )


def xlstm() -> Any:
    from transformers import xLSTMConfig, xLSTMModel

    sizes = {"hidden_size": 128, "embedding_dim": 128, "num_heads": 2, "num_blocks": 2}
    core = xLSTMModel(xLSTMConfig(vocab_size=1, num_hidden_layers=2, **sizes))
    return machines.state_space(
        Learner(core, 128),
        LAYOUT,
        embedded=ROUND,
        read=read_last,
        name="xLSTM",
        check=False,
    )


def gpt2() -> Any:
    """Return a small random GPT-2 for the tokens of a round; its source lines are not counted."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "initializer_range": 0.5}
    n_words, n_positions = len(LAYOUT.vocabulary), LAYOUT.n_positions * N_ROUNDS
    return GPT2LMHeadModel(GPT2Config(vocab_size=n_words, n_positions=n_positions, **sizes))


def coconut() -> Any:
    points = {"block_1": Point("model.transformer.h.0", axes="pos", labels=LAYOUT.labels)}
    return machines.thoughts(
        gpt2(),
        LAYOUT,
        n_rounds=N_ROUNDS,
        outcomes=OUTCOMES,
        points=points,
        name="Coconut",
        check=False,
    )


def codi() -> Any:
    model = gpt2()
    model.prj = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
    points = {"block_1": Point("model.transformer.h.0", axes="pos", labels=LAYOUT.labels)}
    return machines.thoughts(
        model,
        LAYOUT,
        n_rounds=N_ROUNDS,
        outcomes=OUTCOMES,
        project=lambda m, h: m.prj(h),
        points=points,
        name="CODI",
        check=False,
    )


# Beside plain hooks.


SHIFT = 0.7
"""Largest shift of a coordinate when a hidden activation is edited."""


def shifted(hidden: Tensor, by: float) -> Tensor:
    """Edit an activation: add numbers from ``-by`` to ``by``, another one to each coordinate."""
    return hidden + by * torch.linspace(-1, 1, hidden.shape[-1])


def step_by_hand(
    machine: Any, part: str, which: int, run: Any, t: int, shift: float
) -> tuple[Tensor, Tensor]:
    """Run one round with PyTorch hooks alone; return the hidden activation of one inner run, and
    the prediction.

    Args:
        machine: the machine.
        part: name of the submodule that runs several times per round.
        which: index of the inner run that is edited.
        run: a rollout, for the state before the round.
        t: the round.
        shift: size of the edit.
    """
    carried = unpack(machine.channels, run.latents[:, t])
    # Lengths of caches are carried as floats like the rest of the state; the model reads integers.
    for name in machine.channel_of_length:
        length = carried[name].squeeze(-1)
        carried[name] = length.round().long()
    outputs: list[Tensor] = []

    def visit(module: Any, args: Any, output: Any) -> Any:
        """Forward hook: record the output, and replace it if this is the inner run to edit."""
        hidden = output if isinstance(output, Tensor) else output[0]
        outputs.append(hidden.clone())
        if len(outputs) - 1 != which:
            return None
        edited = shifted(hidden, shift)
        return edited if isinstance(output, Tensor) else (edited, *output[1:])

    module = machine.module.eval()
    handle = module.get_submodule(part).register_forward_hook(visit)
    with torch.no_grad():
        scores, _ = machine.one_step(module, carried, run.fed.take_round(t))
    handle.remove()
    return outputs[which], scores.softmax(-1)


def compare_with_hooks(machine: Any, key: str, part: str, which: int) -> tuple[float, float]:
    """Return the largest differences from hooks written by hand: of a cache, and of an edited
    prediction.

    They are measured in round 2 of eight episodes.

    Args:
        machine: the machine.
        key: name of the inner run among the machine's hook points.
        part: name of the submodule.
        which: index of the inner run.
    """
    name = machine.points[key].hook.format(layer=which)
    episodes = interp.tasks.of(machine).sample_for(machine, 8, 4, 0)
    run = interp.rollout(machine, episodes, names_filter=name, commit="target")
    hook = (name, lambda x, hook: shifted(x, SHIFT))
    edited = interp.rollout(machine, episodes, fwd_hooks={2: [hook]}, commit="target")
    output, _ = step_by_hand(machine, part, which, run, t=2, shift=0.0)
    _, scores = step_by_hand(machine, part, which, run, t=2, shift=SHIFT)

    distribution = run.layout.distribution
    # The edit must change the next round, too, which it reaches only through the carried state.
    unmoved_later = distribution(run.predictions[:, 3])
    moved_later = distribution(edited.predictions[:, 3])
    assert not torch.equal(moved_later, unmoved_later)

    cache = run.cache[name][:, 2]
    has_run = ~cache.flatten(1).isnan().any(1)  # NaN where a row had halted before this inner run
    predicted = distribution(edited.predictions[:, 2])
    by_hand = machine.layout.distribution(run.layout.prediction(scores))
    cache_gap = (cache - output)[has_run].abs().max()
    patch_gap = (predicted - by_hand)[has_run].abs().max()
    return float(cache_gap), float(patch_gap)


# One question each.


def ask_sweep(machine: Any, sites: list[str]) -> str:
    """Answer: at which sites does the difference between two histories pass?

    Args:
        machine: the machine.
        sites: the sites to patch in round 2; the prediction is read one round later.
    """
    task = interp.tasks.of(machine)
    build = task.corruption(task.analysis.default_corruption).build
    clean, corrupted = build(task.sample_for(machine, 32, 5, 1), round=2)
    swept = patching.sweep(machine, clean, corrupted, round=2, read_round=3, sites=sites)
    return swept.sentence


def ask_mediation(machine: Any) -> str:
    """Answer: does the thought carry the past, or the cache?"""
    base = experts.sample(16, N_ROUNDS, 4, seed=1)
    source = experts.sample(16, N_ROUNDS, 4, seed=2)
    mediated = mediation.mediate(
        machine, base, source, "latent", ["thought", "cache"], round=[2, 3]
    )
    shares = {}
    for name in mediated.mediators[:-1]:
        shares[name] = f"{mediated.carried(name).estimate:.0%}"
    return f"of the effect of another past: {shares}"


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        make: makes the machine; the lines of its source are counted.
        key: name of an inner run among the machine's hook points.
        part: name of the submodule that runs.
        which: index of the inner run that is compared.
        ask: answers the question about the machine.
    """

    make: Callable[[], Any]
    key: str
    part: str
    which: int
    ask: Callable[[Any], str]


def ask_states_of_rwkv(machine: Any) -> str:
    return ask_sweep(machine, [f"latent@state_{i}" for i in range(5)])


def ask_states_of_xlstm(machine: Any) -> str:
    return ask_sweep(machine, [f"latent@rnn_state_{i}_0" for i in range(2)])


MACHINES = [
    Entry(trm, "network", "network", which=13, ask=lambda m: ask_sweep(m, ["network"])),
    Entry(pondering, "block", "block", which=4, ask=lambda m: ask_sweep(m, ["block"])),
    Entry(rwkv, "layer_1", "core.blocks.0", which=0, ask=ask_states_of_rwkv),
    Entry(xlstm, "layer_1", "core.blocks.0", which=0, ask=ask_states_of_xlstm),
    Entry(coconut, "block_1", "model.transformer.h.0", which=0, ask=ask_mediation),
    Entry(codi, "block_1", "model.transformer.h.0", which=0, ask=ask_mediation),
]


def measure(entry: Entry) -> dict[str, Any]:
    """Make one machine, check it, ask its question, and return its row."""
    start = time.process_time()
    torch.manual_seed(0)
    machine = entry.make()
    if entry.make is trm:  # its last layers begin at 0
        machine.reset(machine.module)
    cache, patch = compare_with_hooks(machine, entry.key, entry.part, entry.which)
    answer = entry.ask(machine)
    source = inspect.getsource(entry.make)
    seconds = time.process_time() - start
    return {
        "machine": machine.name,
        "lines": len(source.splitlines()) - 1,
        "inner run": f"{entry.key}[{entry.which}]",
        "cache": cache,
        "patch": patch,
        "CPU s": round(seconds, 1),
        "answer": answer,
    }


def main() -> pd.DataFrame:
    """Measure all machines whose packages are installed."""
    warnings.simplefilter("ignore")
    register(BITS)
    has_trm = find_spec("tiny_recursive_model") is not None
    rows = []
    for entry in MACHINES:
        if entry.make is trm and not has_trm:
            continue
        rows.append(measure(entry))
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
