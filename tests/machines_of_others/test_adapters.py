"""Each adapter makes a machine that keeps the contract, and computes what the model itself computes."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from transformers import HrmTextForCausalLM

import interp
from interp.machines import RoundEncoder
from interp.machines.learners import learner
from interp.machines.sequences import Embedded, _run_cycles, _run_mixer, thoughts
from interp.model.opened import OpenedCell
from tests.machines_of_others.kinds import (
    ENCODER,
    KINDS,
    LAYOUT,
    REAL,
    WIDTH,
    Mine,
    agent_file,
    cells,
    hrm,
    made,
    observed,
    pair,
)
from tests.refusals import refuses


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_contract_of_machines(kind):
    interp.check_machine(made(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_round_is_that_of_an_unroll_by_hand_bit_for_bit(kind):
    """One step after the other, from zeros: what each leaves, predicts, and shows at every point."""
    machine = made(kind)
    episodes, _ = pair(machine)
    names = []
    for part in machine.points.values():
        names += [part.hook.format(layer=layer) for layer in range(part.n_layers or 1)]
    run = interp.rollout(machine, episodes, commit="target", names_filter=names)
    carried, state_held = machine.initial(len(episodes)), {}

    def hold(x, hook):
        state_held[hook.name] = x

    hooks = [(name, hold) for name in names]
    for t in range(episodes.n_rounds):
        with torch.no_grad():
            assert torch.equal(carried, run.latents[:, t])
            done = machine.step(carried, run.fed.take_round(t))
            with machine.hooks(fwd_hooks=hooks):
                machine.step(carried, run.fed.take_round(t))
        assert torch.equal(done.prediction, run.predictions[:, t])
        for name in (
            names
        ):  # replayed with all rounds in one batch, whose sums may be taken in another order
            torch.testing.assert_close(
                run.cache[name][:, t], state_held[name], rtol=1e-4, atol=1e-5
            )
        carried = done.carried
    assert torch.equal(carried, run.latents[:, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_at_a_round_leaves_earlier_rounds_untouched(kind):
    """And changes later ones: at every point, in round 3 alone."""
    machine = made(kind)
    episodes, _ = pair(machine)
    clean = interp.rollout(machine, episodes, commit="target")

    def shift(x, hook):
        grid = torch.linspace(-1, 1, x.shape[-1])
        return x + 0.7 * grid.cos()

    for component in machine.points.values():
        patch = {3: [(component.hook.format(layer=0), shift)]}
        run = interp.rollout(machine, episodes, commit="target", fwd_hooks=patch)
        assert torch.equal(run.predictions[:, :3], clean.predictions[:, :3])
        assert torch.equal(run.latents[:, :4], clean.latents[:, :4])
        same_predictions = torch.equal(run.predictions[:, 3:], clean.predictions[:, 3:])
        same_latents = torch.equal(run.latents[:, 4:], clean.latents[:, 4:])
        assert not (same_predictions and same_latents)


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_copy_has_no_weight_of_the_machine(kind):
    """Of the weights that are drawn at all: not the ones that begin as zeros, ones or a fixed grid."""
    machine = made(kind)
    fresh = dict(machine.untrained(5).named_parameters())
    other_seed = dict(machine.untrained(6).named_parameters())
    drawn = {name for name in fresh if not torch.equal(fresh[name], other_seed[name])}
    for name, weight in machine.named_parameters():
        if weight.requires_grad and name in drawn:
            assert not torch.equal(weight, fresh[name]), name
    matrices = {name for name, weight in fresh.items() if weight.ndim == 2}
    n_grids = 2 if kind == "Mamba" else 0  # A_log is a grid
    assert len(drawn & matrices) >= len(matrices) - n_grids


# Cells.


@pytest.mark.parametrize("core", [nn.RNNCell, nn.GRUCell, nn.LSTMCell, nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_cells_without_gates_are_their_own_kernels_bit_for_bit_and_open_ones_to_rounding(
    core, n_layers
):
    if issubclass(core, nn.RNNCellBase) and n_layers > 1:
        return
    layers = {} if issubclass(core, nn.RNNCellBase) else {"num_layers": n_layers}
    torch.manual_seed(0)
    fused = core(ENCODER.n_after, WIDTH, **layers)
    plain, opened = cells(fused, show_gates=False), cells(fused)
    episodes, _ = pair(plain)
    run = interp.rollout(plain, episodes)
    torch.testing.assert_close(
        interp.rollout(opened, episodes).latents, run.latents, rtol=0, atol=1e-6
    )
    state = None
    with torch.no_grad():
        for t in range(episodes.n_rounds):
            x = ENCODER.after(run.fed.take_round(t))
            state = fused(x.unsqueeze(0), state)[1] if layers else fused(x, state)
            parts = state if isinstance(state, tuple) else (state,)
            stacked = torch.cat(parts) if layers else torch.stack(parts)
            assert torch.equal(run.latents[:, t + 1], stacked.transpose(0, 1))


LAYERS, CELLS = (nn.RNN, nn.GRU, nn.LSTM), (nn.GRUCell, nn.LSTMCell)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("core", [*LAYERS, *CELLS])
@pytest.mark.parametrize("options", [{"batch_first": True, "num_layers": 2}, {"bias": False}])
def test_open_layers_and_cells_are_the_fused_ones_to_rounding(core, options, dtype):
    torch.manual_seed(0)
    is_cell, of_batch = core in CELLS, 6 if "batch_first" in options else 4
    fused = core(5, 8, **{"bias": "bias" not in options} if is_cell else options).to(dtype)
    opened, x = OpenedCell(fused), torch.randn(6, 4, 5, dtype=dtype)
    states = torch.randn(2, options.get("num_layers", 1), of_batch, 8, dtype=dtype)
    if is_cell:
        x, states = x[0], states[:, 0, :4]
    state = tuple(states) if core in (nn.LSTM, nn.LSTMCell) else states[0]
    for arguments in ((x, state), (x,)):
        atol = (8 if is_cell else 40) * torch.finfo(dtype).eps
        torch.testing.assert_close(opened(*arguments), fused(*arguments), rtol=0, atol=atol)
    assert list(opened.parameters()) == []  # the weights are the fused one's


@pytest.mark.parametrize("core", LAYERS)
def test_open_layers_have_dropout_between_them_in_training(core):
    fused = core(5, 8, num_layers=3, dropout=0.5)
    opened, x = OpenedCell(fused), torch.randn(6, 4, 5)
    torch.manual_seed(0)
    outputs, _ = fused(x[:1])
    torch.manual_seed(0)
    opened_outputs, _ = opened(x[:1])
    torch.testing.assert_close(opened_outputs, outputs, rtol=0, atol=1e-6)
    assert not torch.equal(opened(x)[0], opened(x)[0])


def test_the_input_before_round_0_is_trained():
    begun = nn.Parameter(torch.ones(1, ENCODER.n_after))
    core, head = nn.GRUCell(ENCODER.n_after, 5), nn.Linear(5, 2)
    machine = interp.machines.cell(
        nn.ModuleDict({"core": core, "head": head}),
        LAYOUT,
        encode=lambda m, fed: ENCODER.after(fed),
        read=lambda m, h, fed: m["head"](h),
        first_input=lambda m: begun,
    )
    episodes, _ = pair(machine)
    fed = machine.prepare(LAYOUT.encode(episodes)).take_round(0)
    prediction, _ = machine.step(machine.initial(len(episodes)), fed)
    prediction.sum().backward()
    assert begun.grad.abs().max() > 0


def test_a_cell_that_updates_before_it_predicts_and_one_with_a_first_input():
    core, head = nn.GRUCell(ENCODER.n_before, 5), nn.Linear(5, 2)
    begun = torch.ones(1, ENCODER.n_before)
    machine = interp.machines.cell(
        nn.ModuleDict({"core": core, "head": head}),
        LAYOUT,
        encode=lambda m, fed: ENCODER.before(fed),
        read=lambda m, h, fed: m["head"](h),
        first_input=lambda m: begun,
        update="before",
        show_gates=False,
    )
    episodes, _ = pair(machine)
    run = interp.rollout(machine, episodes)
    start = core(begun).expand(len(episodes), -1)
    assert torch.equal(run.latents[:, 0, 0], start)
    after = core(ENCODER.before(run.fed.take_round(0)), start)
    predictions = head(after).softmax(1)[:, 1]
    torch.testing.assert_close(run.predictions[:, 0], predictions)


def test_cells_that_cannot_be_machines_are_refused():
    n = ENCODER.n_after
    for core in (
        nn.GRU(n, WIDTH, bidirectional=True),
        nn.LSTM(n, WIDTH, proj_size=3),
        nn.Linear(n, WIDTH),
    ):
        refuses(r"core 'memory' must name an nn\.RNNCell", cells, core)


# Loops.


def test_every_cycle_of_a_loop_is_seen_and_the_block_is_applied_by_hand():
    machine = learner("loop", LAYOUT, width=WIDTH)
    episodes, _ = pair(machine)
    run = interp.rollout(machine, episodes, names_filter=[f"points.cycle.{i}" for i in range(3)])
    module, z = machine.module, torch.zeros(len(episodes), WIDTH)
    with torch.no_grad():
        for t in range(episodes.n_rounds):
            encoded = module.hear(ENCODER.after(run.fed.take_round(t)))
            for i in range(3):
                z = module.core(z + encoded / 3)
                torch.testing.assert_close(
                    run.cache[f"points.cycle.{i}"][:, t], z, rtol=0, atol=1e-6
                )
            assert torch.equal(run.latents[:, t + 1, 0], z)
    refuses("a loop has one block", learner, "loop", LAYOUT, n_layers=2)


@pytest.mark.long
def test_hrm_with_nothing_carried_is_the_models_own_pass_bit_for_bit():
    machine = hrm(n_fast=2)
    model: HrmTextForCausalLM = machine.module
    tokens = torch.randint(0, 9, (3, 13))
    with torch.no_grad():
        whole = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        nothing = torch.zeros(3, 16)
        z_H, _ = _run_cycles(model.model, model.model.embed_tokens(tokens), nothing, nothing)
    assert torch.equal(z_H, whole)
    assert machine.points["fast"].n_layers == 4
    assert machine.points["slow"].n_layers == 2


# Thoughts.


def test_one_input_after_the_other_is_what_mamba_gives_for_the_whole_sequence():
    from transformers import MambaConfig, MambaModel

    torch.manual_seed(0)
    model = MambaModel(
        MambaConfig(vocab_size=5, hidden_size=8, state_size=4, num_hidden_layers=2)
    ).eval()
    x = torch.randn(3, 9, 8)
    with torch.no_grad():
        whole = model(inputs_embeds=x, use_cache=False).last_hidden_state
        states = [(torch.zeros(3, 16, 4), torch.zeros(3, 16, 3)) for _ in range(2)]
        for t in range(9):
            y = x[:, t]
            for i, layer in enumerate(model.layers):
                out, *state = _run_mixer(layer.mixer, layer.norm(y), *states[i])
                states[i] = state
                y = y + out
            torch.testing.assert_close(model.norm_f(y), whole[:, t], rtol=1e-4, atol=1e-5)


# Agents.


def test_an_agent_acts_as_it_did_in_sb3(tmp_path):
    """Its ``h`` and its actions for what it saw are those that ``RecurrentPPO.predict`` gave, of the file it saved."""
    actor = interp.machines.read_agent(agent_file(tmp_path))
    arrays = np.load(REAL)
    state = None
    with torch.no_grad():
        for seen, action, h in zip(arrays["obs"], arrays["actions"], arrays["h"], strict=True):
            out, state = actor.core(torch.tensor(seen).view(1, 1, -1), state)
            np.testing.assert_allclose(out[0, 0], h, rtol=0, atol=1e-6)
            assert int(actor.scores(out[0]).argmax()) == action


def test_an_agent_plays_in_our_worlds():
    from interp.tasks import mdp

    machine = made("agent")
    episodes, run = interp.play(machine, mdp.sample_mdps(5, 4, 3, seed=0), n_rounds=7, seed=0)
    chosen = run.predictions.argmax(-1).numpy()
    assert np.array_equal(chosen[:, :-1], episodes.actions[:, 1:])
    first_observation = observed(None, run.fed.take_round(0)).unsqueeze(0)
    out, _ = machine.module.core(first_observation, None)
    torch.testing.assert_close(run.latents[:, 1, 0], out[0].detach(), rtol=0, atol=1e-6)


def test_files_that_hold_no_agent_are_refused(tmp_path):
    for beside in (
        "features_extractor.cnn.0.weight",
        "log_std",
    ):  # the second: actions are numbers, not classes
        path = agent_file(tmp_path, **{beside: torch.zeros(1)})
        sentence = re.escape(f"than a policy of discrete actions ({beside})")
        refuses(sentence, interp.machines.read_agent, path)
    (tmp_path / "text.zip").write_text("nothing")
    refuses("give the file that model", interp.machines.read_agent, tmp_path / "text.zip")
    refuses("activation", interp.machines.read_agent, agent_file(tmp_path), activation="sine")


def test_a_module_without_the_core_that_is_named_is_refused_with_what_it_has(tmp_path):
    without_core = Mine(nn.GRU(5, WIDTH))
    nothing_embedded = Embedded(lambda m, fed: None, 2, 0, 0)
    options = {"embedded": nothing_embedded, "read": lambda m, y, fed: y}
    refuses(
        "core 'memory' must name a model of transformers with recurrent layers, got GRU",
        interp.machines.state_space,
        without_core,
        LAYOUT,
        core="memory",
        **options,
    )
    refuses(
        "core 'transformer' must name a GPT2Model of transformers, got NoneType",
        interp.machines.thoughts,
        without_core,
        LAYOUT,
        n_rounds=2,
        **options,
    )
    beyond = {**options, "embedded": Embedded(lambda m, fed: None, 2, 0, 2)}
    refuses(
        "slot of embedded must be an integer >= 0 and <= 1",
        thoughts,
        without_core,
        LAYOUT,
        n_rounds=2,
        **beyond,
    )
    refuses(
        "block 'body' must name a submodule; there are memory, head",
        interp.machines.loop,
        without_core,
        LAYOUT,
        cycles=2,
        shape=(3,),
        encode=options["read"],
        read=options["read"],
        block="body",
    )
    refuses(
        "expected an HrmTextForCausalLM", interp.machines.hrm, without_core, LAYOUT, outcomes=[0, 1]
    )
    refuses("layout must be a RoundLayout", RoundEncoder, "experts")
