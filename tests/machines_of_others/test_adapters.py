"""Each adapter makes a machine that keeps the contract, and computes what the model itself computes."""

import re
import zipfile

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.testing import assert_close

import interp
from interp.machines import Said, recurrent
from interp.machines.learners import learner
from interp.machines.sequences import Embedded, thoughts
from interp.model.opened import OpenedCell
from tests.machines_of_others.kinds import (
    KINDS,
    LAYOUT,
    N_ROUNDS,
    OUTCOMES,
    REAL,
    SAID,
    WIDTH,
    Mine,
    agent_file,
    cells,
    coconut,
    made,
    observed,
    pair,
)
from tests.refusals import refuses

DISTINCT = [kind for kind in KINDS if kind not in ("GRU", "LSTM", "thoughts")]
"""The learners that are left out are made by the adapters of cells and of Coconut."""


@pytest.mark.parametrize("kind", DISTINCT)
def test_every_kind_keeps_the_contract_of_machines(kind):
    interp.check_machine(made(kind))


@pytest.mark.parametrize("kind", DISTINCT)
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
            done = machine.step(carried, run.fed.at(t))
            with machine.hooks(fwd_hooks=hooks):
                machine.step(carried, run.fed.at(t))
        assert torch.equal(done.prediction, run.predictions[:, t])
        for name in (
            names
        ):  # replayed with all rounds in one batch, whose sums may be taken in another order
            assert_close(run.cache[name][:, t], state_held[name], rtol=1e-4, atol=1e-5)
        carried = done.carried
    assert torch.equal(carried, run.latents[:, -1])


@pytest.mark.parametrize("kind", DISTINCT)
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


@pytest.mark.parametrize("kind", DISTINCT)
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
    fused = core(SAID.n_told, WIDTH, **layers)
    plain, opened = cells(fused, show_gates=False), cells(fused)
    episodes, _ = pair(plain)
    run = interp.rollout(plain, episodes)
    assert_close(interp.rollout(opened, episodes).latents, run.latents, rtol=0, atol=1e-6)
    state = None
    with torch.no_grad():
        for t in range(episodes.n_rounds):
            x = SAID.after(run.fed.at(t))
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
        assert_close(opened(*arguments), fused(*arguments), rtol=0, atol=atol)
    assert list(opened.parameters()) == []  # the weights are the fused one's


def test_a_cell_that_hears_before_it_predicts_and_one_that_has_heard_something():
    core, head = nn.GRUCell(SAID.n_asked, 5), nn.Linear(5, 2)
    begun = torch.ones(1, SAID.n_asked)
    machine = interp.machines.cell(
        nn.ModuleDict({"core": core, "head": head}),
        LAYOUT,
        hear=lambda m, fed: SAID.before(fed),
        read=lambda m, h, fed: m["head"](h),
        first=lambda m: begun,
        hears="before",
        show_gates=False,
    )
    episodes, _ = pair(machine)
    run = interp.rollout(machine, episodes)
    start = core(begun).expand(len(episodes), -1)
    assert torch.equal(run.latents[:, 0, 0], start)
    after = core(SAID.before(run.fed.at(0)), start)
    predictions = head(after).softmax(1)[:, 1]
    assert_close(run.predictions[:, 0], predictions)


def test_cells_that_cannot_be_machines_are_refused():
    n = SAID.n_told
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
            heard = module.hear(SAID.after(run.fed.at(t)))
            for i in range(3):
                z = module.core(z + heard / 3)
                assert_close(run.cache[f"points.cycle.{i}"][:, t], z, rtol=0, atol=1e-6)
            assert torch.equal(run.latents[:, t + 1, 0], z)
    refuses("a loop has one block", learner, "loop", LAYOUT, n_layers=2)


# Thoughts.


def test_thoughts_without_a_part_do_not_read_it():
    for used, dead in (("thought", "cache"), ("cache", "thought")):
        machine = coconut(uses=[used])
        episodes, _ = pair(machine)
        plain = interp.rollout(machine, episodes)
        add_one = (f"points.{dead}", lambda x, hook: x + 1)
        changed = interp.rollout(machine, episodes, fwd_hooks={3: [add_one]})
        assert torch.equal(plain.predictions, changed.predictions)
    for uses in ([], ["memory"]):
        refuses("uses says which of 'thought', 'cache' a round reads", coconut, uses=uses)


def test_thoughts_have_room_for_as_many_rounds_as_they_were_given():
    machine = coconut()
    refuses(
        f"no round fits after {N_ROUNDS}",
        interp.rollout,
        machine,
        pair(machine, 2, N_ROUNDS + 1)[0],
    )
    refuses(
        "13 rounds of 13 take 169 positions, and the model has 156: no more than 12",
        interp.machines.thoughts,
        machine.module.model,
        LAYOUT,
        n_rounds=13,
        outcomes=OUTCOMES,
    )


def test_a_checkpoint_of_coconut_is_read(tmp_path):
    model = coconut().module.model
    state_dict = {f"base_causallm.{name}": value for name, value in model.state_dict().items()}
    state_dict["embedding.weight"] = model.transformer.wte.weight
    torch.save(state_dict, tmp_path / "checkpoint_33")
    again = interp.machines.read_coconut(tmp_path / "checkpoint_33", n_head=2)
    assert again.config.n_layer == 2
    assert again.config.n_positions == 156
    tokens = torch.randint(0, 9, (2, 7))
    logits = model.eval()(tokens).logits
    assert torch.equal(again(tokens).logits, logits)
    state_dict["base_causallm.transformer.h.0.attn.bias"] = torch.ones(
        1, 1, 156, 156
    )  # a mask that older versions stored
    torch.save(state_dict, tmp_path / "old")
    old = interp.machines.read_coconut(tmp_path / "old")
    assert old.config.n_head == 1  # of fewer than 64 dimensions
    other_numbers = model.transformer.wte.weight + 1
    torch.save({**state_dict, "embedding.weight": other_numbers}, tmp_path / "apart")
    refuses(
        r"other numbers in embedding\.weight than where",
        interp.machines.read_coconut,
        tmp_path / "apart",
    )
    torch.save({**state_dict, "lora.weight": torch.zeros(1)}, tmp_path / "more")
    refuses(
        r"is no checkpoint of Coconut: .* got lora.weight$",
        interp.machines.read_coconut,
        tmp_path / "more",
    )
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other")
    refuses(
        "is no checkpoint of Coconut: its keys begin with",
        interp.machines.read_coconut,
        tmp_path / "other",
    )
    refuses(
        "does not divide the 16 dimensions",
        interp.machines.read_coconut,
        tmp_path / "checkpoint_33",
        n_head=3,
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([1], r"must hold tensors by their names, got \[1\]"),
        ({1: torch.zeros(1)}, "must hold tensors by their names, got {1: T"),
        ("x", "must hold tensors by their names, got 'x'"),
        ({"a": "b"}, "must hold tensors by their names"),
        (nn.Linear(2, 2), "holds Python objects, which could run code, .*; it is not opened$"),
    ],
    ids=["a list", "keys that are numbers", "a text", "values that are texts", "a module"],
)
def test_a_file_that_holds_no_state_dict_is_refused(content, sentence, tmp_path):
    """Neither as a checkpoint nor as the weights of an agent; nothing in it runs."""
    torch.save(content, tmp_path / "file")
    refuses(sentence, interp.machines.read_coconut, tmp_path / "file")
    with zipfile.ZipFile(tmp_path / "agent.zip", "w") as archive:
        archive.write(tmp_path / "file", "policy.pth")
    refuses(sentence, interp.machines.read_agent, tmp_path / "agent.zip")


def test_an_archive_of_weights_that_would_fill_memory_is_not_unpacked(tmp_path, monkeypatch):
    """10 MB of zeros are 10 kB in the archive; the limit stands at 5 MB here, and at 10 GB for users."""
    with zipfile.ZipFile(tmp_path / "agent.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("policy.pth", bytes(10**7))
    monkeypatch.setattr(recurrent, "MOST_GB", 0.005)
    sentence = r"the weights in .*, unpacked, would take about 0.01 GB, more than 0.005 GB"
    refuses(sentence, interp.machines.read_agent, tmp_path / "agent.zip")


# State spaces.


# Agents.


def test_an_agent_acts_as_it_did_in_sb3(tmp_path):
    """Its ``h`` and its actions for what it saw are those that ``RecurrentPPO.predict`` gave, of the file it saved."""
    actor = interp.machines.read_agent(agent_file(tmp_path))
    arrays = np.load(REAL)
    state = None
    with torch.no_grad():
        for seen, action, h in zip(arrays["obs"], arrays["actions"], arrays["h"], strict=True):
            out, state = actor.core(torch.tensor(seen).view(1, 1, -1), state)
            assert_allclose(out[0, 0], h, rtol=0, atol=1e-6)
            assert int(actor.scores(out[0]).argmax()) == action


def test_an_agent_plays_in_our_worlds():
    from interp.tasks import mdp

    machine = made("agent")
    episodes, run = interp.play(machine, mdp.sample_mdps(5, 4, 3, seed=0), n_rounds=7, seed=0)
    chosen = run.predictions.argmax(-1).numpy()
    assert np.array_equal(chosen[:, :-1], episodes.actions[:, 1:])
    first_observation = observed(None, run.fed.at(0)).unsqueeze(0)
    out, _ = machine.module.core(first_observation, None)
    assert_close(run.latents[:, 1, 0], out[0].detach(), rtol=0, atol=1e-6)


def test_files_that_hold_no_agent_are_refused(tmp_path):
    for beside in (
        "features_extractor.cnn.0.weight",
        "log_std",
    ):  # the second: actions are numbers, not classes
        refuses(
            re.escape(f"than a policy of discrete actions ({beside})"),
            interp.machines.read_agent,
            agent_file(tmp_path, **{beside: torch.zeros(1)}),
        )
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
        hear=options["read"],
        read=options["read"],
        block="body",
    )
    refuses(
        "expected an HrmTextForCausalLM", interp.machines.hrm, without_core, LAYOUT, outcomes=[0, 1]
    )
    refuses("layout must be a RoundLayout", Said, "experts")
