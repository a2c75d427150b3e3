"""Loops that halt: what did not take place is missing, and a patch of it is counted, as plain PyTorch hooks say."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import interp
import probes
from interp.interventions import mediation, patching
from interp.interventions.experiment import Edit, Experiment, run
from interp.model.taps import Point
from interp.support.session import session
from interp.tasks import experts
from tests.machines_of_others.kinds import ENCODER, LAYOUT, drawn
from tests.refusals import refuses

MOST, WIDTH = 12, 8


class Pondering(nn.Module):
    """A block that runs until its gate has said 1 in sum, on all rows or on those alone that go on."""

    def __init__(self, leaves: bool) -> None:
        super().__init__()
        self.leaves = leaves
        self.enter = nn.Linear(ENCODER.n_after, WIDTH)
        self.block, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.read = nn.Linear(WIDTH + ENCODER.n_before, 2)
        self.gate.weight.data *= 6
        self.gate.bias.data -= 2

    def think(self, z: Tensor, encoded: Tensor) -> Tensor:
        total = z.new_zeros(len(z))
        for _ in range(MOST):
            live = total < 1
            if not live.any():
                break
            rows = live if self.leaves else torch.ones_like(live)
            new = torch.tanh(self.block((z + encoded)[rows]))
            stop = self.gate(new).sigmoid().squeeze(-1)
            new = torch.zeros_like(z).index_put((rows,), new)
            stop = torch.zeros_like(total).index_put((rows,), stop)
            z = torch.where(live.unsqueeze(1), new, z)
            total = total + torch.where(live, stop, 0)
        return z


def goes_on(gates: list[Tensor]) -> Tensor:
    """Whether the gate's probabilities add up to less than 1."""
    return total_of(gates) < 1


def total_of(gates: list[Tensor]) -> Tensor:
    probabilities = torch.stack(gates).sigmoid()
    return probabilities.sum(0).squeeze(-1)


def took_place(outputs: Tensor) -> Tensor:
    """Whether a run took place in each row, ``[..., width] -> [...]``."""
    return ~outputs.isnan().any(-1)


def step(module, carried, fed):
    scores = module.read(torch.cat([carried["z"], ENCODER.before(fed)], 1))
    encoded = module.enter(ENCODER.after(fed))
    return scores, {"z": module.think(carried["z"], encoded)}


def pondering(leaves: bool = False, alive=goes_on):
    points = {
        "cycle": Point("block", times=MOST, gate="gate", alive=alive),
        "gate": Point("gate", times=MOST, alive=alive),
    }
    channels = [interp.Channel("z", (WIDTH,))]
    module = drawn(lambda: Pondering(leaves))
    return interp.adapt(module, LAYOUT, step=step, channels=channels, points=points)


checked = cache(pondering)
"""The machine that several tests look at: it is checked once."""
CYCLES = [f"points.cycle.{i}" for i in range(MOST)]
WAYS = pytest.mark.parametrize("leaves", [False, True], ids=["masked", "leaving"])


def by_hand(module, z, fed, edit=None):
    """The outputs of the block in every run, NaN where a row had halted, by hooks of PyTorch alone."""
    outputs = []
    live = torch.ones(len(z), dtype=torch.bool)
    total = torch.zeros(len(z))

    def look(block, args, output):
        whole = torch.full((len(live), WIDTH), torch.nan)
        whole[live] = output if len(output) < len(live) else output[live]
        outputs.append(whole)
        if edit is not None and edit[0] == len(outputs) - 1:
            return output + edit[1]
        return None

    def hear(gate, args, output):
        stop = output.sigmoid().squeeze(-1)
        total[live] += stop if len(stop) < len(live) else stop[live]
        live.copy_(total < 1)

    handles = [module.block.register_forward_hook(look), module.gate.register_forward_hook(hear)]
    with torch.no_grad():
        scores, carried = step(module, {"z": z}, fed)
    for handle in handles:
        handle.remove()
    halted = torch.full((len(z), WIDTH), torch.nan)
    outputs += [halted] * (MOST - len(outputs))
    return outputs, scores, carried["z"]


@pytest.mark.long
@WAYS
def test_the_contract_holds(leaves):
    interp.check_machine(checked(leaves))


@WAYS
def test_runs_that_did_not_take_place_are_nan_in_the_cache(leaves):
    machine, episodes = checked(leaves), experts.sample(9, 4, 4, seed=0)
    cache = interp.rollout(machine, episodes, names_filter=CYCLES)
    n_runs = set()
    for t in range(4):
        outputs, _, z = by_hand(machine.module, cache.latents[:, t, 0], cache.fed.take_round(t))
        for name, output in zip(CYCLES, outputs, strict=True):
            assert_close(cache.cache[name][:, t], output, rtol=0, atol=1e-6, equal_nan=True)
        assert_close(cache.latents[:, t + 1, 0], z, rtol=0, atol=1e-6)
        runs_of_rows = took_place(torch.stack(outputs)).sum(0)
        n_runs |= set(runs_of_rows.tolist())
    assert len(n_runs) > 1
    assert max(n_runs) < MOST  # rows do stop apart, and before the last run


@WAYS
@pytest.mark.parametrize("cycle", [0, 6])
def test_an_edit_moves_the_rows_that_run_and_voids_the_others(leaves, cycle):
    """Row by row it is the edit by hand; where the run did not take place, this round and later ones predict NaN."""
    machine, episodes = checked(leaves), experts.sample(9, 4, 4, seed=0)
    plain = interp.rollout(machine, episodes, names_filter=CYCLES)
    hook = (CYCLES[cycle], lambda x, hook: x + 0.7)
    edited = interp.rollout(machine, episodes, fwd_hooks={1: [hook]})
    _, scores, z = by_hand(
        machine.module, plain.latents[:, 1, 0], plain.fed.take_round(1), (cycle, 0.7)
    )
    ran = took_place(plain.cache[CYCLES[cycle]][:, 1])
    assert_close(edited.latents[ran, 2, 0], z[ran], rtol=0, atol=1e-6)
    predictions = scores.softmax(1)[:, 1]
    assert_close(edited.predictions[ran, 1], predictions[ran])
    assert edited.predictions[~ran, 1:].isnan().all()
    assert edited.latents[~ran, 2:].isnan().all()
    assert not edited.predictions[ran].isnan().any()
    assert ran.all() == (cycle == 0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_hook_may_write_in_place(mode):
    machine, episodes = checked(), experts.sample(9, 4, 4, seed=0)
    plain = interp.rollout(machine, episodes)

    def carry(hook):
        with mode(), machine.hooks(fwd_hooks=[(CYCLES[0], hook)]):
            return machine.step(plain.latents[:, 1], plain.fed.take_round(1)).carried

    in_place = carry(lambda x, hook: x.add_(0.7))
    assert torch.equal(in_place, carry(lambda x, hook: x + 0.7))


def test_an_edit_before_an_error_does_not_void_the_next_run():
    machine, episodes = checked(), experts.sample(9, 4, 4, seed=0)
    plain = interp.rollout(machine, episodes)

    def fail(x, hook):
        raise ZeroDivisionError

    hooks = [(CYCLES[6], lambda x, hook: x + 0.7), (CYCLES[7], fail)]
    with pytest.raises(ZeroDivisionError):
        interp.rollout(machine, episodes, fwd_hooks={1: hooks})
    again = interp.rollout(machine, episodes)
    assert torch.equal(again.predictions, plain.predictions)


def test_an_infinite_state_stays_infinite():
    halting, episodes = checked(), experts.sample(2, 3, 4, seed=0)
    plain = interp.adapt(halting.module, LAYOUT, step=step, channels=halting.channels)
    carried = torch.tensor([-torch.inf, 0]).reshape(2, 1, 1).expand(2, 1, WIDTH)
    fed = plain.prepare(LAYOUT.encode(episodes)).take_round(0)
    predictions = halting.step(carried, fed).prediction
    assert_close(predictions, plain.step(carried, fed).prediction, equal_nan=True)


def test_weights_that_are_written_to_in_inference_mode_are_read_again():
    episodes = experts.sample(9, 4, 4, seed=0)
    with torch.inference_mode(), session():
        module = drawn(lambda: Pondering(leaves=False))
        channels = [interp.Channel("z", (WIDTH,))]
        machine = interp.adapt(module, LAYOUT, step=step, channels=channels)
        digest = machine.digest()
        before = interp.rollout(machine, episodes)
        module.read.weight.zero_()
        assert machine.digest() != digest
        assert not torch.equal(interp.rollout(machine, episodes).predictions, before.predictions)


@WAYS
def test_nan_from_a_run_that_did_not_take_place_voids_the_row_that_it_is_put_in(leaves):
    machine, episodes = checked(leaves), experts.sample(4, 3, 4, seed=0)
    empty = torch.tensor([True, False, False, True])

    def put_nan(x, hook):
        return x.masked_fill(empty.unsqueeze(1), torch.nan)

    edited = interp.rollout(machine, episodes, fwd_hooks={0: [(CYCLES[0], put_nan)]})
    assert torch.equal(edited.predictions[:, 0].isnan(), empty)


# pandas 2 warns that pandas 3 keeps the type of a column without numbers; the tables are the same.
@pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning")
def test_a_sweep_counts_the_episodes_in_which_a_site_ran_in_both_runs():
    machine, episodes = checked(), experts.sample(24, 4, 4, seed=0)
    clean, corrupted = experts.TASK.corruption("flip-vote").build(episodes, round=1, expert="p_2")
    caches = []
    for side in (clean, corrupted):
        caches.append(interp.rollout(machine, side, names_filter=CYCLES).cache)
    swept = patching.sweep(machine, clean, corrupted, round=1, read_round=2, sites=["cycle"])
    rows = swept.to_frame().set_index("site")
    for i, name in enumerate(CYCLES):
        ran_clean, ran_corrupted = (took_place(cache[name][:, 1]) for cache in caches)
        ran_in_both = ran_clean & ran_corrupted
        n_episodes = int(ran_in_both.sum())
        assert rows.loc[f"cycle[{i}]", "n_episodes"] == n_episodes
        effects = swept.effects[i, ran_in_both]
        assert not effects.isnan().any()
        if n_episodes:
            assert np.isclose(rows.loc[f"cycle[{i}]", "effect"], effects.mean(), atol=1e-6)
    assert set(rows["n_episodes"]) - {0, 24}  # some sites have some of the episodes
    assert swept.grid("cycle", "effect").notna().any(axis=None)


def test_an_experiment_counts_the_pairs_that_ran_for_each_edit():
    machine, episodes = checked(), experts.sample(24, 4, 4, seed=0)
    base = interp.rollout(machine, episodes, names_filter=CYCLES)
    edits = {}

    def put_ones(x, rows):
        return torch.ones_like(x)

    for site in ("cycle[0]", "cycle[5]"):
        edits[site] = [Edit.of(site, put_ones, machine)]
    effects = run(Experiment(machine, base, edits, rounds=[1, 2], horizon=1))
    of_edits = effects.to_frame().drop_duplicates(["edit", "edited"])
    frame = of_edits.set_index(["edit", "edited"])
    for t in (1, 2):
        n_ran = int(took_place(base.cache[CYCLES[5]][:, t]).sum())
        assert 0 < n_ran < 24
        assert frame.loc[("cycle[5]", t), "n_episodes"] == n_ran
        assert frame.loc[("cycle[0]", t), "n_episodes"] == 24
    refuses(
        "edits runs that did not take place in .* of 96 pairs of episode and round, and mediation counts all",
        mediation.mediate,
        machine,
        base,
        interp.rollout(machine, experts.sample(24, 4, 4, seed=1)),
        "latent",
        ["cycle[5]"],
        outcome="latents",
    )


@pytest.mark.filterwarnings("ignore")
def test_a_probe_leaves_out_the_rounds_in_which_its_run_did_not_take_place():
    machine, episodes = checked(), experts.sample(40, 6, 4, seed=0)
    cache = interp.rollout(machine, episodes, names_filter=CYCLES).cache
    n_ran = int(took_place(cache[CYCLES[5]]).sum())
    (result,) = probes.probe(machine, episodes, ["log_weights_centred"], sites="cycle[5]")
    assert 0 < n_ran < 240
    assert result.settings["n_counted"] == n_ran
    refuses(
        "takes place in no round of these episodes",
        probes.probe,
        machine,
        episodes,
        ["log_weights_centred"],
        sites=f"cycle[{MOST - 1}]",
    )


@pytest.mark.long
def test_what_alive_says_is_held_against_what_the_loop_does():
    def stops_early(gates):
        return total_of(gates) < 0.5

    refuses("that alive= says do not take place move the result by", pondering, alive=stops_early)
    refuses("rows where alive= says that", pondering, True, alive=stops_early)
    refuses("gives Bool", pondering, alive=lambda gates: gates[0])
    refuses("decides nothing without alive=", Point, "block", gate="gate")
    wrong = Point("block", alive=goes_on, gate="gat")
    refuses(
        "unknown submodule 'gat'",
        interp.adapt,
        drawn(lambda: Pondering(False)),
        LAYOUT,
        step=step,
        channels=[interp.Channel("z", (WIDTH,))],
        points={"cycle": wrong},
    )


def test_a_loop_may_ask_its_own_output_and_halt_at_a_fixed_point():
    """Without a gate: the block runs until it moves a row by less than .05."""

    class Settling(Pondering):
        def think(self, z, encoded):
            live = torch.ones(len(z), dtype=torch.bool)
            for _ in range(MOST):
                new = self.block(z + encoded) / 2
                step_size = (new - z).norm(dim=1)
                z = torch.where(live.unsqueeze(1), new, z)
                live = live & (step_size > 0.05)
            return z

    def moves(outputs):
        if len(outputs) < 2:
            return torch.ones(len(outputs[0]), dtype=torch.bool)
        step_size = (outputs[-1] - outputs[-2]).norm(dim=1) / 2
        return step_size > 0.05

    module = drawn(lambda: Settling(False))
    point = Point("block", times=MOST, alive=moves)
    machine = interp.adapt(
        module,
        LAYOUT,
        step=step,
        channels=[interp.Channel("z", (WIDTH,))],
        points={"cycle": point},
    )
    run = interp.rollout(machine, experts.sample(9, 3, 4, seed=0), names_filter=CYCLES)
    outputs = torch.stack([run.cache[name] for name in CYCLES])
    n_runs = took_place(outputs).sum(0)
    assert len(set(n_runs.flatten().tolist())) > 1
