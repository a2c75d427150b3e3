"""Recurrent layers of transformers run from their own cache: a rollout is the library's own pass."""

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

import interp
from interp import machines
from interp.machines.sequences import Embedded
from interp.tasks import experts
from tests.machines_of_others.kinds import ENCODER, LAYOUT, drawn
from tests.refusals import refuses

SIZES = {"vocab_size": 5, "num_hidden_layers": 2}
SMALL = {**SIZES, "hidden_size": 16}
HYBRID = {
    **SMALL,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "layer_types": ["linear_attention", "full_attention"],
}
TAKEN = {
    "Mamba2": {
        **SMALL,
        "state_size": 4,
        "num_heads": 4,
        "head_dim": 8,
        "n_groups": 1,
        "chunk_size": 8,  # sequences are padded to whole chunks
    },
    "FalconMamba": {**SMALL, "state_size": 4},
    "Rwkv": {**SMALL, "attention_hidden_size": 16, "intermediate_size": 24},
    "xLSTM": {**SIZES, "hidden_size": 128, "embedding_dim": 128, "num_heads": 2, "num_blocks": 2},
}
LINEAR = dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2)
REFUSED = {
    "RecurrentGemma": (
        {**SMALL, "lru_width": 16, "num_attention_heads": 2, "intermediate_size": 24},
        "RecurrentGemmaModel",
    ),
    "Qwen3Next": (
        {**HYBRID, **LINEAR, "mlp_only_layers": [0, 1]},
        "the cache of Qwen3NextModel grows with every input: it has attention layers",
    ),
    "OlmoHybrid": ({**HYBRID, **LINEAR, "pad_token_id": 0}, "the cache of OlmoHybridModel grows"),
    "KimiLinear": ({**SMALL, "num_attention_heads": 2, "pad_token_id": 0}, "KimiLinearModel"),
    "GPT2": ({"n_embd": 16, "n_layer": 2, "n_head": 2}, "the cache of GPT2Model grows"),
}


class Learner(nn.Module):
    def __init__(self, kind: str, sizes: dict) -> None:
        super().__init__()
        config = getattr(transformers, f"{kind}Config")(**sizes)
        width = config.hidden_size
        self.core = getattr(transformers, f"{kind}Model")(config)
        self.ask = nn.Linear(ENCODER.n_before, width)
        self.hear = nn.Linear(ENCODER.n_after, width)
        self.read = nn.Linear(width, 2)


def embed(module, fed):
    before = module.ask(ENCODER.before(fed))
    after = module.hear(ENCODER.after(fed))
    return torch.stack([before, after], 1)


def grid(hidden):
    """What is added to a layer's output: no constant, which a norm takes away."""
    return torch.linspace(-1, 1, hidden.shape[-1])


def make(kind, sizes):
    rounds = Embedded(embed, 2, at=0, slot=0)
    module = drawn(lambda: Learner(kind, sizes))

    def read(m, y, fed):
        return m.read(y)

    return machines.state_space(module, LAYOUT, embedded=rounds, read=read, name=kind)


@pytest.mark.parametrize("kind", TAKEN)
def test_rounds_are_the_librarys_pass_over_the_whole_sequence(kind):
    """And an edit of a layer's output in one round is that edit of the sequence, by a hook of PyTorch."""
    machine = make(kind, TAKEN[kind])
    module, n_rounds = machine.module.eval(), 3
    episodes = experts.sample(4, n_rounds, 4, seed=0)
    run = interp.rollout(machine, episodes)
    embedded_rounds = [embed(module, run.fed.take_round(t)) for t in range(n_rounds)]
    x = torch.cat(embedded_rounds, 1)
    component = machine.points["layer_1"]
    runs = [component.hook.format(layer=i) for i in range(component.n_layers or 1)]

    def add_grid(y, hook):
        return y + grid(y)

    edits = [(name, add_grid) for name in runs]
    edited = interp.rollout(machine, episodes, fwd_hooks={1: edits})

    def shift(layer, args, output):
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        shifted = hidden.clone()
        shifted[:, 2:4] += grid(hidden)
        return shifted if isinstance(output, torch.Tensor) else (shifted, *output[1:])

    layers = getattr(module.core, "layers", None) or module.core.blocks
    with torch.no_grad():
        whole = module.core(inputs_embeds=x, use_cache=False).last_hidden_state
        handle = layers[0].register_forward_hook(shift)
        changed = module.core(inputs_embeds=x, use_cache=False).last_hidden_state
        handle.remove()
        for result, reference_run in ((run, whole), (edited, changed)):
            expected = module.read(reference_run[:, ::2]).softmax(-1)[..., 1]
            assert_close(result.predictions, expected, rtol=1e-4, atol=1e-5)
    change = edited.predictions - run.predictions
    assert change[:, 1:].abs().min() > 1e-6


@pytest.mark.parametrize("kind", REFUSED)
def test_the_others_are_refused_by_name_and_reason(kind):
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    sizes, reason = REFUSED[kind]
    refuses(reason, make, kind, sizes)
