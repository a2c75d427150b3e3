"""The numbers behind the verdicts: swaps of states, directions, heuristics and ties, fixed points of napkin maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import interp
from interp.audit import Budget, audit, content, fixed_points, shortcuts, used
from interp.audit.trial import ALL, Trial
from interp.audit.used import Change, change_states, draw_donors, draw_donors_with_same_label
from interp.stats.intervals import Interval
from interp.stats.refit import PLATEAU
from interp.support.session import session
from interp.tasks import experts
from tests.audit.planted import SMALL, cached, moving
from tests.refusals import refuses

TINY = Budget(episodes=12, rounds=6, writes=3, copies=2)


@pytest.fixture(scope="module", autouse=True)
def whole_file():
    """Runs and effects of a trial are computed once for all tests here."""
    with session():
        yield


def of(machine, budget=TINY):
    return Trial.of(machine, budget)


@pytest.fixture(scope="module")
def majority():
    return of(interp.load("wma-handwired", n_experts=4), SMALL)


def test_every_change_is_what_it_is_called(majority):
    starts, run = majority.writes, majority.run
    state = {change: change_states(majority, starts, change) for change in Change}
    states = majority.select_states(starts)
    assert all(part.shape == states.shape for part in state.values())
    assert torch.equal(state[Change.INITIAL][0], run.latents[:, 0])
    one_round_before = majority.select_states([t - 1 for t in starts])
    assert torch.equal(state[Change.LATE], one_round_before)
    donors = draw_donors(len(states[0]), majority.budget.seed)
    assert (donors != np.arange(len(donors))).all()
    assert sorted(donors) == list(range(len(donors)))
    states_of_donors = states[2][torch.from_numpy(donors)]
    assert torch.equal(state[Change.DONOR][2], states_of_donors)
    mean_state = states[1].mean(0).expand_as(states[1])
    assert torch.allclose(state[Change.MEAN][1], mean_state)
    labels = run.choices[:, starts[1]].numpy()
    same, has_donor = draw_donors_with_same_label(labels, majority.budget.seed)
    assert (labels[same] == labels).all()
    episodes = np.arange(len(labels))
    assert (same[has_donor] != episodes[has_donor]).all()
    states_of_same = states[1][torch.from_numpy(same)]
    assert torch.equal(state[Change.SAME][1], states_of_same)


def test_noise_has_the_covariance_of_the_states(majority):
    """Over many draws; a covariance of 48 episodes alone is 15 % off."""
    starts = majority.writes[-1:]
    states = majority.select_states(starts)[0].flatten(1).double()
    replaced = []
    for seed in range(20):
        trial = replace(majority, budget=replace(majority.budget, seed=seed))
        noise = change_states(trial, starts, Change.NOISE)[0]
        replaced.append(noise.flatten(1).double())
    drawn = torch.cat(replaced)
    covariance = torch.cov(states.T)
    largest = float(covariance.abs().max())
    assert torch.allclose(torch.cov(drawn.T), covariance, atol=0.15 * largest)
    largest_deviation = float(states.std(0).max())
    assert torch.allclose(drawn.mean(0), states.mean(0), atol=0.15 * largest_deviation)


def test_a_state_put_back_changes_nothing_and_a_channel_that_nobody_reads_has_no_effect(majority):
    own_states = majority.select_states(majority.writes)
    back = majority.distribution(majority.rerun(own_states, majority.writes))
    assert majority.distance(back, majority.unchanged_distributions).max() < 1e-12
    machine = of(cached())
    assert set(machine.channels) == {ALL, "cache", "thought"}
    thought = used.measure_influence(machine, "thought", Change.DONOR)
    assert np.nanmax(np.abs(thought.effect)) == 0
    assert np.nanmax(np.abs(thought.cost)) == 0
    cache, whole = (used.measure_influence(machine, name, Change.DONOR) for name in ("cache", ALL))
    assert np.array_equal(cache.effect, whole.effect, equal_nan=True)
    assert np.nanmax(cache.effect) > 0.05


def test_continued_rounds_equal_a_rollout_with_a_hook(majority):
    """The influence of a swap in round 3, by another route."""
    (start,) = [t for t in majority.writes if t == 3]
    donors = torch.from_numpy(draw_donors(majority.shape[0], majority.budget.seed))
    swap = [("hook_latents", lambda latents, hook: latents[donors])]
    hooked = interp.rollout(majority.model, majority.episodes, fwd_hooks={start: swap})
    effect = majority.distance(
        majority.distribution(hooked.predictions), majority.unchanged_distributions
    )
    influence = used.measure_influence(majority, ALL, Change.DONOR)
    of_start = influence.effect[majority.writes.index(start)]
    n_later = majority.shape[1] - start
    assert np.allclose(of_start[:, :n_later], effect[:, start:], atol=1e-9)
    assert (effect[:, :start] == 0).all()
    assert effect[:, start].mean() > 0.05


def test_four_directions_carry_what_four_log_weights_say(majority):
    measure = content.check_directions(majority, is_used=True)
    assert measure.number.low > 0.99
    assert measure.controls["a random choice of 4"].number < 0.5
    assert measure.verdict == "yes"
    assert content.check_directions(majority, is_used=False).verdict == "not applicable"
    doses = content.doses(majority).set_index("dose")["share"]
    assert doses.loc[1.0] == 1
    assert doses.is_monotonic_increasing


def test_a_memory_is_not_called_unread_where_there_are_too_few_episodes_to_read_it(monkeypatch):
    """Scores of all and of half of the episodes, of others' memories and of two copies, as the decoder gives them."""
    trial = of(interp.load("wma-gru"))
    assert len({copy.model.digest() for copy in trial.copies}) == 2
    n, sizes = trial.shape[0], []

    def judged(whole, half, copies=(0.0, 0.1), memories=0.0):
        scores = iter([whole, half, *copies, memories])
        sizes.clear()

        def r2(_, memory, rows=slice(None)):
            sizes.append(len(memory[rows]))
            return Interval(x := next(scores), x - 0.05, x + 0.05)

        monkeypatch.setattr(content, "_score_decoding", r2)
        return content.check_decoding(trial)

    for scores, right in (((0.6, 0.2), "yes"), ((0.4, 0.2), "undecided"), ((0.4, 0.35), "no")):
        assert judged(*scores).verdict == right
        assert sizes == [
            n,
            n // 2,
            PLATEAU,
            PLATEAU,
            n,
        ]  # untrained copies get as many episodes as they need
    assert judged(0.4, 0.2).reason.startswith("too few episodes")
    assert judged(0.47, 0.47).verdict == "undecided"
    assert (
        judged(0.6, 0.2, copies=(0.3, 0.5)).reason
        == "an untrained copy comes too near (less than 3 times its odds)"
    )
    assert (
        judged(0.6, 0.2, memories=0.5).reason
        == "the memory of other episodes comes too near (less than 3 times its odds)"
    )
    trial = of(interp.load("wma-gru"), replace(TINY, episodes=8))
    assert len(trial.copies) == 2

    def few(*_):
        return Interval(0.1, 0.05, 0.15)

    monkeypatch.setattr(content, "_score_decoding", few)
    assert (
        content.check_decoding(trial).verdict == "undecided"
    )  # too few episodes for a half of them to be read


def test_content_and_presence_are_told_apart(majority):
    loss = used.presence(majority).set_index(["content", "presence"])["loss"]
    assert loss["own", "yes"] < min(loss["none", "yes"], loss["none", "no"])


def test_a_heuristic_is_wrong_on_every_adversarial_episode_and_search_is_not():
    trial = of(interp.load("reachability-handwired", n_nodes=12, n_edges=18, marks=False))
    for key in ("fewer_parents", "nearer_undirected"):
        found_episodes = shortcuts.find_adversarial(trial, trial.heuristics[key])
        assert (found_episodes.heuristic_losses - found_episodes.algorithm_losses > 0.05).all()
        assert len(found_episodes.heuristic_losses) >= 8
        assert found_episodes.side().estimate == 1.0


class _Ring(nn.Module):
    """A state that is pulled to the unit circle, and kicked by how many more experts say 1 than 0."""

    def forward(self, x: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        size = x.norm(dim=-1, keepdim=True).clamp_min(0.1)
        towards_circle = 0.5 * (1 - size) * x / size
        direction = torch.tensor([1.0, 0.6], dtype=x.dtype)
        kick = (said.mean(-1, keepdim=True) - 0.5) * direction
        off_zero = 0.01 * (x == 0)
        return x + towards_circle + kick + off_zero


def test_the_settings_say_how_many_rounds_were_run(monkeypatch):
    """A search has found all after a few rounds, however many the budget has."""
    monkeypatch.setattr("interp.audit.battery._measure_checks", lambda trial: [])
    monkeypatch.setattr("interp.audit.battery._make_tables", lambda trial: {})
    machine = interp.load("reachability-handwired")
    result = audit(machine, budget=replace(TINY, rounds=40))
    assert result.settings["rounds"] == interp.tasks.of(machine).cap_rounds(40) < 40


@pytest.mark.long
def test_fixed_points_of_known_maps():
    """Two basins with the saddle between them, one point of a leak, and a ring along which states stay."""
    episodes = experts.sample(16, 8, 4, seed=0)
    even = np.argwhere(episodes.advice.sum(-1) == 2)
    is_last = even[:, 1] == even[:, 1].max()
    episode, round_index = even[is_last][0].tolist()
    two_basins = moving([[1.0]], inputs=0.2, bend=3.0)
    basins = fixed_points(two_basins, episodes, round_index, episode=episode)
    table = basins.to_frame().sort_values("modulus", ignore_index=True)
    assert (table["kind"] == "fixed").all()
    assert table["leaving"].tolist() == [0, 0, 1]
    x = np.sort(basins.points[:, 0])
    kick = 0.2 * (episodes.advice[episode, round_index, 0] - 0.5)
    assert np.allclose(x, np.tanh(3 * x) + kick, atol=1e-6)
    low, saddle, high = x
    assert low < -0.8
    assert abs(saddle) < 0.2
    assert high > 0.8
    slope = 3 / np.cosh(3 * saddle) ** 2
    assert np.isclose(table["modulus"][2], slope, atol=1e-4)
    matrix = [[0.5, 0.3], [0.0, -0.25]]
    leak = fixed_points(moving(matrix, drift=[1.0, 0.0], inputs=0.0), episodes)
    at_rest = np.linalg.solve(np.eye(2) - matrix, [1.0, 0.0])
    assert np.allclose(leak.points, at_rest, atol=1e-6)
    assert np.allclose(leak.eigenvalues, [[0.5, -0.25]], atol=1e-6)
    assert "stable: 1;" in leak.sentence
    machine = moving([[1.0, 0.0], [0.0, 1.0]])
    machine.module.__class__ = type("Ringed", (_Ring, type(machine.module)), {})
    ring = fixed_points(machine, episodes, round_index, episode=episode, starts=12)
    is_on_ring = (
        np.linalg.norm(ring.points, axis=1) > 1e-6
    )  # the middle is a point, too, which states leave
    assert is_on_ring.sum() > 6
    assert np.allclose(np.linalg.norm(ring.points[is_on_ring], axis=1), 1, atol=1e-6)
    assert (ring.to_frame()["marginal"][is_on_ring] == 1).all()
    n_leaving = np.where(is_on_ring, 0, 2)
    assert (ring.to_frame()["leaving"] == n_leaving).all()
    assert ring.plot().axes
    drifting = fixed_points(moving([[1.0]], drift=[0.5], inputs=0.0), episodes, starts=4)
    assert drifting.to_frame().empty
    assert "no fixed or slow point" in drifting.sentence
    refuses(r"no fixed points: its channel 'cache' grows", fixed_points, cached(), episodes)
