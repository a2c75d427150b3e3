"""Six machines that think, adapted: lines, largest differences from plain PyTorch hooks, CPU seconds, one question.

All are at random weights: what is shown is that the tools are right on them, not what such models learn. The row
of TRM needs its package in the folder TRM, ``PYTHONPATH=TRM python examples/thinking.py``, and is left out without
(docs/results/thinking.md says how to have the package).
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
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
SAID = machines.Said(LAYOUT)
OUTCOMES = [LAYOUT.token_ids["q0"], LAYOUT.token_ids["q1"]]
WIDTH, N_ROUNDS = 16, 6


def draw(n_episodes: int, n_rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight bits, asked in every round: are most of them 1?"""
    bits = np.random.default_rng(seed).choice([-1.0, 1.0], (n_episodes, 8))
    truth = (bits.sum(1) > 0).astype(int)
    return bits[:, None].repeat(n_rounds, 1), truth[:, None].repeat(n_rounds, 1)


BITS = series("bits", draw, inputs=8, outcomes=("few", "many"))


def trm() -> Any:
    from tiny_recursive_model.mlp_mixer_1d import MLPMixer1D
    from tiny_recursive_model.trm import TinyRecursiveModel

    network = MLPMixer1D(dim=WIDTH, depth=1, seq_len=8)
    module = TinyRecursiveModel(dim=WIDTH, num_tokens=2, network=network)
    places = BITS.layout().positions([f"x_{i + 1}" for i in range(8)])

    def step(module: Any, carried: dict[str, Tensor], fed: Any) -> Any:
        inputs = module.input_embed((fed.values[:, places] > 0).long())
        y, z = module.deep_refinement(inputs, carried["outputs"], carried["latents"])
        return module.to_pred(y).mean(1), {"outputs": y, "latents": z}

    labels = tuple(f"bit_{i + 1}" for i in range(8))
    return interp.adapt(
        module,
        BITS,
        step=step,
        channels=[interp.Channel(name, (8, WIDTH)) for name in ("outputs", "latents")],
        points={"network": Point("network", times=21, axes="pos", labels=labels)},
        initial=lambda m: {
            "outputs": m.output_init_embed.expand(8, -1),
            "latents": m.latent_init_embed.expand(8, -1),
        },
        reset=lambda m: [nn.init.normal_(weight, std=0.2) for weight in m.parameters()],
        name="TRM",
        check=False,
    )


class Pondering(nn.Module):
    """A loop that halts, row by row, once its gate has said 1 in sum."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.block = nn.Linear(SAID.n_told, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 1)
        self.read = nn.Linear(WIDTH + SAID.n_asked, 2)
        self.gate.weight.data *= 6
        self.gate.bias.data -= 2

    def forward(self, z: Tensor, heard: Tensor) -> Tensor:
        total = z.new_zeros(len(z))
        for _ in range(12):
            live = total < 1
            if not live.any():
                break
            new = self.block(z + heard).tanh()
            z = torch.where(live.unsqueeze(1), new, z)
            total = total + torch.where(live, self.gate(new).sigmoid()[:, 0], 0)
        return z


def pondering() -> Any:
    def step(module: Any, carried: dict[str, Tensor], fed: Any) -> Any:
        scores = module.read(torch.cat([carried["z"], SAID.before(fed)], 1))
        return scores, {"z": module(carried["z"], module.enter(SAID.after(fed)))}

    def goes_on(gates: list[Tensor]) -> Tensor:
        return torch.stack(gates).sigmoid().sum(0)[:, 0] < 1

    return interp.adapt(
        Pondering(),
        LAYOUT,
        step=step,
        channels=[interp.Channel("z", (WIDTH,))],
        points={"block": Point("block", times=12, gate="gate", alive=goes_on)},
        name="halting loop",
        check=False,
    )


class Learner(nn.Module):
    """A model of ``transformers`` between what asks and hears a round and what reads its answer."""

    def __init__(self, core: nn.Module, width: int) -> None:
        super().__init__()
        self.core, self.read = core, nn.Linear(width, 2)
        self.ask = nn.Linear(SAID.n_asked, width)
        self.hear = nn.Linear(SAID.n_told, width)


def embed(module: Any, fed: Any) -> Tensor:
    return torch.stack([module.ask(SAID.before(fed)), module.hear(SAID.after(fed))], 1)


def rwkv() -> Any:
    from transformers import RwkvConfig, RwkvModel

    sizes = {"hidden_size": WIDTH, "attention_hidden_size": WIDTH, "num_hidden_layers": 2}
    return machines.state_space(
        Learner(RwkvModel(RwkvConfig(vocab_size=1, **sizes)), WIDTH),
        LAYOUT,
        embedded=Embedded(embed, 2, at=0, slot=0),
        read=lambda m, y, fed: m.read(y),
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
        embedded=Embedded(embed, 2, at=0, slot=0),
        read=lambda m, y, fed: m.read(y),
        name="xLSTM",
        check=False,
    )


def gpt2() -> Any:
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


def step_by_hand(machine: Any, part: str, which: int, run: Any, t: int, shift: float) -> Any:
    """One round of the module with hooks of PyTorch alone: what the run gave, the scores, and what is carried."""
    tree = unpack(machine.channels, run.latents[:, t])
    for name in machine.lengths:
        tree[name] = tree[name].squeeze(-1).round().long()
    outputs: list[Tensor] = []

    def visit(module: Any, args: Any, output: Any) -> Any:
        hidden = output if isinstance(output, Tensor) else output[0]
        outputs.append(hidden.clone())
        if len(outputs) - 1 != which:
            return None
        moved = hidden + shift * torch.linspace(-1, 1, hidden.shape[-1])
        return moved if isinstance(output, Tensor) else (moved, *output[1:])

    handle = machine.module.get_submodule(part).register_forward_hook(visit)
    with torch.no_grad():
        scores, _ = machine.one_step(machine.module.eval(), tree, run.fed.at(t))
    handle.remove()
    return outputs[which], scores.softmax(-1)


def hold_against_hooks(machine: Any, key: str, part: str, which: int) -> tuple[float, float]:
    """The largest differences of a cache, and of an edited prediction, in round 2 of eight episodes."""
    component = machine.points[key]
    name = component.hook.format(layer=which)
    task = interp.tasks.of(machine)
    episodes = task.sample_for(machine, 8, 4, 0)
    run = interp.rollout(machine, episodes, names_filter=name, commit="target")
    hook = (name, lambda x, hook: x + 0.7 * torch.linspace(-1, 1, x.shape[-1]))
    edited = interp.rollout(machine, episodes, fwd_hooks={2: [hook]}, commit="target")
    output, _ = step_by_hand(machine, part, which, run, 2, 0.0)
    cache = run.cache[name][:, 2]
    ran = ~cache.flatten(1).isnan().any(1)
    _, moved = step_by_hand(machine, part, which, run, 2, 0.7)
    predicted = run.layout.distribution(edited.predictions[:, 2])
    later = run.layout.distribution(edited.predictions[:, 3])
    assert not torch.equal(later, run.layout.distribution(run.predictions[:, 3]))
    gaps = (
        (cache - output)[ran],
        (predicted - machine.layout.distribution(run.layout.prediction(moved)))[ran],
    )
    return tuple(float(gap.abs().max()) for gap in gaps)


# One question each.


def ask_sweep(machine: Any, sites: list[str], lag: int = 1) -> str:
    """Where does the difference of two histories pass?"""
    task = interp.tasks.of(machine)
    build = task.corruption(task.analysis.default_corruption).build
    clean, corrupted = build(task.sample_for(machine, 32, 5, 1), round=2)
    found = patching.sweep(machine, clean, corrupted, round=2, read_round=2 + lag, sites=sites)
    return found.sentence


def ask_mediation(machine: Any) -> str:
    """Does the thought carry the past, or the cache?"""
    base, source = (experts.sample(16, N_ROUNDS, 4, seed=seed) for seed in (1, 2))
    found = mediation.mediate(machine, base, source, "latent", ["thought", "cache"], round=[2, 3])
    shares = {name: f"{found.carried(name).estimate:.0%}" for name in found.mediators[:-1]}
    return f"of the effect of another past: {shares}"


MACHINES: list[tuple[Callable[[], Any], str, str, int, Callable[[Any], str]]] = [
    (trm, "network", "network", 13, lambda m: ask_sweep(m, ["network"])),
    (pondering, "block", "block", 4, lambda m: ask_sweep(m, ["block"])),
    (
        rwkv,
        "layer_1",
        "core.blocks.0",
        0,
        lambda m: ask_sweep(m, [f"latent@state_{i}" for i in range(5)]),
    ),
    (
        xlstm,
        "layer_1",
        "core.blocks.0",
        0,
        lambda m: ask_sweep(m, [f"latent@rnn_state_{i}_0" for i in range(2)]),
    ),
    (coconut, "block_1", "model.transformer.h.0", 0, ask_mediation),
    (codi, "block_1", "model.transformer.h.0", 0, ask_mediation),
]


def measure(entry: Any) -> dict[str, Any]:
    """The row of one machine."""
    make, key, part, which, ask = entry
    began = time.process_time()
    torch.manual_seed(0)
    machine = make()
    if make is trm:  # its last layers begin at 0
        machine.reset(machine.module)
    cache, patch = hold_against_hooks(machine, key, part, which)
    answer = ask(machine)
    lines = len(inspect.getsource(make).splitlines()) - 1
    seconds = time.process_time() - began
    row = {"machine": machine.name, "lines": lines, "inner run": f"{key}[{which}]"}
    return {**row, "cache": cache, "patch": patch, "CPU s": round(seconds, 1), "answer": answer}


def main() -> pd.DataFrame:
    """Measure all of them."""
    warnings.simplefilter("ignore")
    register(BITS)
    entries = [e for e in MACHINES if e[0] is not trm or find_spec("tiny_recursive_model")]
    rows = []
    for entry in entries:
        rows.append(measure(entry))
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
