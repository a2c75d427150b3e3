"""Thoughts: hidden states (Coconut), projected (CODI) or of mixed embeddings (soft thinking), beside one sequence."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import GPT2LMHeadModel

import interp
from interp import machines
from tests.machines_of_others.kinds import LAYOUT, N_ROUNDS, OUTCOMES, coconut, drawn, pair
from tests.refusals import refuses


def projection():
    layers = nn.Sequential(nn.Dropout(), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
    layers.add_module("ln", nn.LayerNorm(16))
    return layers.eval()


def projected():
    model: GPT2LMHeadModel = coconut().module.model.eval()
    model.prj = drawn(projection)
    return model


def of(model, project):
    ends = {"n_rounds": N_ROUNDS, "outcomes": OUTCOMES, "project": project}
    return machines.thoughts(model, LAYOUT, **ends)


def by_codi(model, hidden):
    return model.prj(hidden)


def by_hand(model, hidden):
    """Soft thinking at temperature .5, word by word."""
    shares = (2 * hidden @ model.transformer.wte.weight.T).softmax(-1)
    words = zip(shares.unbind(1), model.transformer.wte.weight, strict=True)
    return sum(share.unsqueeze(1) * word for share, word in words)


def as_it_is(model, hidden):
    return hidden


@pytest.mark.parametrize(
    ("project", "own"),
    [(None, as_it_is), (by_codi, by_codi), (machines.mixture(0.5), by_hand)],
    ids=["coconut", "codi", "soft"],
)
def test_a_thought_is_put_into_one_ever_longer_sequence_without_a_cache(project, own):
    model = projected()
    machine = of(model, project)
    episodes, _ = pair(machine, 4, 4)
    run = interp.rollout(machine, episodes)
    sequence = torch.zeros(4, 0, 16)
    with torch.no_grad():
        for t in range(4):
            x = model.transformer.wte(run.fed.take_round(t).tokens)
            if t:
                x[:, 1] = thought
            sequence = torch.cat([sequence, x], 1)
            done = model(inputs_embeds=sequence, output_hidden_states=True)
            thought = own(model, done.hidden_states[-1][:, -1])
            predicted = done.logits[:, -3, OUTCOMES].softmax(1)[:, 1]
            assert_close(run.predictions[:, t], predicted, rtol=1e-4, atol=1e-5)
            assert_close(run.latents[:, t + 1, 0, :16], thought, rtol=1e-4, atol=1e-4)


def test_a_mixture_needs_a_temperature():
    refuses("temperature must be above 0", machines.mixture, 0.0)


def test_a_checkpoint_of_codi_is_read_and_its_updates_are_added(tmp_path):
    model = projected()
    state_dict = {}
    for name, value in model.state_dict().items():
        prefix = "" if name.startswith("prj.") else "codi.base_model.model."
        state_dict[prefix + name] = value
    layer = "codi.base_model.model.transformer.h.0.attn.c_attn"
    state_dict[f"{layer}.base_layer.weight"] = state_dict.pop(f"{layer}.weight")
    state_dict[f"{layer}.base_layer.bias"] = state_dict.pop(f"{layer}.bias")
    a, b = torch.randn(3, 16), torch.randn(48, 3)
    state_dict[f"{layer}.lora_A.default.weight"] = a
    state_dict[f"{layer}.lora_B.default.weight"] = b
    torch.save(state_dict, tmp_path / "codi.bin")
    again = machines.read_codi(tmp_path / "codi.bin", scale=0.25, n_head=2)
    model.transformer.h[0].attn.c_attn.weight.data += 0.25 * (b @ a).T
    tokens = torch.randint(0, 9, (2, 7))
    assert_close(again(tokens).logits, model.eval()(tokens).logits)
    hidden = torch.randn(3, 16)
    assert torch.equal(again.prj(hidden), model.prj(hidden))
    state_dict["lm_head.weight"] = state_dict.pop("codi.base_model.model.lm_head.weight") + 1
    torch.save(state_dict, tmp_path / "untied.bin")
    refuses(
        "has other numbers in transformer.wte.weight",
        machines.read_codi,
        tmp_path / "untied.bin",
        scale=0.25,
        n_head=2,
    )
    torch.save({"weight": a}, tmp_path / "other")
    refuses("is no checkpoint of CODI", machines.read_codi, tmp_path / "other", scale=1.0)


def test_a_checkpoint_of_coconut_is_read(tmp_path):
    """Coconut stores GPT-2's weights with a prefix, and the table of embeddings once more as ``embedding``."""
    model = coconut().module.model.eval()
    stored = {f"base_causallm.{name}": value for name, value in model.state_dict().items()}
    stored["embedding.weight"] = model.transformer.wte.weight.detach()
    torch.save({f"module.{name}": value for name, value in stored.items()}, tmp_path / "coconut")
    again = machines.read_coconut(tmp_path / "coconut", n_head=2)
    tokens = torch.randint(0, 9, (2, 7))
    assert_close(again(tokens).logits, model(tokens).logits)
    torch.save({**stored, "head.weight": torch.zeros(2)}, tmp_path / "unknown")
    refuses("is no checkpoint of Coconut.*head.weight", machines.read_coconut, tmp_path / "unknown")
    other_table = {**stored, "embedding.weight": stored["embedding.weight"] + 1}
    torch.save(other_table, tmp_path / "untied")
    refuses("has other numbers in", machines.read_coconut, tmp_path / "untied", n_head=2)
