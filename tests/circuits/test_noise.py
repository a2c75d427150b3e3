"""Epsilon-greedy in the circuit: the draw of a round is an input, the choice follows it, and the update does not."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import circuits
import interp
from interp.tasks import mdp
from interp.tasks.qlearning import algorithms
from interp.tasks.qlearning.episodes import MDPEpisodes
from tests.interventions import known_sites
from tests.refusals import refuses

Q = "qlearning-handwired"
VARIANTS = ("mlp", "softmlp", "lin")
FORMS = [("softmlp", {}), ("lin", {"signed": True, "rewards": (-1.0, 1.0)}), ("mlp", {"beta": 2.0})]


def chosen(run: Any) -> np.ndarray:
    """The action that is chosen in every round; what rounding leaves between two of them is no choice."""
    assert run.predictions.amax(-1).min() > 0.99
    return np.asarray(run.predictions.argmax(-1))


@settings(max_examples=3)
@given(
    n_states=st.integers(1, 5), n_actions=st.integers(1, 4), epsilon=st.floats(0, 1), seed=st.integers(0, 10**6),
    variant=st.sampled_from(VARIANTS),
)  # fmt: skip
def test_the_circuit_explores_as_the_wrapper_does(
    n_states: int, n_actions: int, epsilon: float, seed: int, variant: str
) -> None:
    """Nothing is put in the place of its choices: actions, luck and tables are those of the wrapper, round by round."""
    worlds = mdp.sample_mdps(4, n_states, n_actions, seed=seed)
    sizes = {"n_states": n_states, "n_actions": n_actions}
    plain = circuits.load(Q, variant=variant, **sizes)
    own_noise = circuits.load(Q, variant=variant, noise=True, **sizes)
    wrapped, wrapped_run = interp.play(plain, worlds, 15, seed=seed, epsilon=epsilon)
    played, run = interp.play(own_noise, worlds, 15, seed=seed, epsilon=epsilon)
    for name in ("states", "actions", "rewards", "next_states", "q_tables", "noise"):
        assert np.array_equal(getattr(played, name), getattr(wrapped, name))
    assert np.array_equal(chosen(run)[:, :-1], played.actions[:, 1:])
    before = own_noise.read_state(run.latents)
    after = plain.read_state(wrapped_run.latents)
    assert torch.allclose(before, after, rtol=0, atol=1e-13)


def test_without_the_head_that_fetches_the_draw_nobody_explores() -> None:
    """The control: the actions above are the circuit's own."""
    worlds = mdp.sample_mdps(6, 4, 3, seed=0)
    deaf = circuits.compile_circuit(
        circuits.build(Q, n_states=4, n_actions=3, noise=True).without("1.7")
    )
    wrapped, _ = interp.play(
        circuits.load(Q, n_states=4, n_actions=3), worlds, 25, seed=0, epsilon=0.5
    )
    played, _ = interp.play(deaf, worlds, 25, seed=0, epsilon=0.5)
    assert not np.array_equal(played.actions, wrapped.actions)


@pytest.mark.parametrize(("variant", "form"), FORMS[1:])
def test_another_draw_changes_the_choice_and_never_the_update(
    variant: str, form: dict[str, Any]
) -> None:
    model = circuits.load(Q, n_states=4, n_actions=3, variant=variant, noise=True, **form)
    episodes = mdp.sample(5, 15, 4, 3, seed=2)
    greedy = replace(episodes, noise=np.zeros_like(episodes.noise))
    base = interp.rollout(model, greedy)
    # A soft head 3.1 gives e^-100 of its attention to a*, the chosen token, at Update.
    smallest = 1e-40 if "beta" in form else 0.0
    for action in range(3):
        run = interp.rollout(model, replace(greedy, noise=greedy.noise + 1 + action))
        one_hot = torch.eye(3).double()[action].expand(5, 15, 3)
        assert torch.allclose(run.predictions, one_hot, rtol=0, atol=1e-40)
        assert torch.allclose(run.latents, base.latents, rtol=0, atol=smallest)
    assert not torch.equal(base.predictions, run.predictions)


@pytest.mark.long
@pytest.mark.parametrize(("variant", "form"), FORMS)
def test_it_is_verified_in_both_precisions(variant: str, form: dict[str, Any]) -> None:
    result = circuits.verify(
        Q, [(3, 2)], n_rounds=10, n_episodes=4, variant=variant, noise=True, **form
    )
    table = result.table()
    assert result.passed, table[~table["passed"]].to_string()
    maximum = "best_column" if variant == "lin" else "maximum"
    assert {"noise", "policy", maximum} <= set(table["variable"])


@pytest.mark.long
def test_interchanges_of_the_draw_have_the_whole_effect_where_it_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And every location has a row or a reason, as in the other forms."""
    arguments = {"variant": "lin", "noise": True}
    monkeypatch.setitem(known_sites.FORMS, "noise", (Q, arguments))
    circuit = circuits.build(Q, **known_sites.SIZES[True][Q], **arguments)
    known_sites.assert_every_location_has_a_row(circuit)
    frame = known_sites.sites(
        True, forms=["noise"], variables=["noise", "policy", "reward"], n_pairs=2
    )
    assert set(frame["variable"]) == {"noise", "policy", "reward"}
    below_the_whole_effect = (frame[["score", "slope"]] - 1).abs()
    assert below_the_whole_effect.max(axis=None) <= known_sites.EXACT
    assert frame["wrong"].max() <= known_sites.NOTHING


def test_soft_heads_choose_the_drawn_action_too() -> None:
    result = circuits.verify(Q, [(3, 2)], 15, 6, "float64", variant="softmlp", noise=True, eta=80.0)
    table = result.table()
    assert result.passed, table[~table["passed"]].to_string()


def test_the_algorithm_takes_the_drawn_action_and_learns_as_before() -> None:
    episodes = mdp.sample(6, 20, 4, 3, seed=3)
    with_noise = algorithms.q_learning(noise=True).run(episodes)
    plain = algorithms.q_learning(noise=False).run(episodes)
    explores = with_noise["noise"] > 0
    assert 0.1 < explores.mean() < 0.9
    drawn_actions = with_noise["noise"][explores] - 1
    policy = with_noise["policy"]
    assert np.array_equal(policy[explores], np.eye(3)[drawn_actions])
    assert np.array_equal(policy[~explores], plain["policy"][~explores])
    assert np.array_equal(with_noise["next_table"], plain["next_table"])


def test_the_draw_of_a_round_is_that_of_the_next_action() -> None:
    """In sampled episodes, under their labels and after a selection; the last round has no next action."""
    episodes = mdp.sample(8, 40, 4, 3, seed=4).select([5, 1, 2])
    draws = episodes.noise[:, :-1]
    explores = draws > 0
    assert 0.1 < explores.mean() < 0.9
    next_actions = episodes.actions[:, 1:]
    assert np.array_equal(next_actions[explores], draws[explores] - 1)
    assert not episodes.noise[:, -1].any()


def test_without_the_position_nothing_is_as_it_was_not() -> None:
    """Weights, identity and layout of machines that read no draw are those from before there was one."""
    model = circuits.load(Q, n_states=3, n_actions=2)
    digest = hashlib.sha256()
    for _, weights in sorted(model.state_dict().items()):
        digest.update(weights.numpy().tobytes())
    assert digest.hexdigest().startswith("0b5d52e496d09609")
    assert "noise" not in model.layout.to_dict()
    assert "noise" not in model.config.origin["arguments"]
    noisy = circuits.load(Q, n_states=3, n_actions=2, noise=True)
    labels, noisy_labels = set(model.layout.labels), set(noisy.layout.labels)
    assert noisy_labels - labels == {"n"}
    rebuilt = circuits.from_origin(noisy.config.origin)
    assert circuits.compile_circuit(rebuilt).digest() == noisy.digest()


def recorded() -> MDPEpisodes:
    """Episodes of which nobody knows the draws."""
    e = mdp.sample(3, 5, 4, 3, seed=5)
    return MDPEpisodes.from_transitions(e.mdps, e.states, e.actions, e.rewards, e.next_states)


def test_draws_that_are_missing_or_wrong_are_refused_with_a_sentence() -> None:
    with_noise = circuits.load(Q, noise=True)
    plain = circuits.load(Q, noise=False)
    refuses(
        r"no noise, the draw of every round that this model reads at 'n'",
        interp.rollout,
        with_noise,
        recorded(),
    )
    refuses(
        r"no noise, which q_learning\(noise=True\) is given",
        algorithms.q_learning(noise=True).run,
        recorded(),
    )
    refuses(
        r"noise must be whole numbers from 0 to 3, got 4 at \[0, 0\]",
        replace,
        recorded(),
        noise=np.full((3, 5), 4),
    )
    refuses(
        r"noise must be \[episode, round\] = \(3, 5\)",
        replace,
        recorded(),
        noise=np.zeros((3, 4), int),
    )
    # A machine without the position has no place and no variable for a draw; episodes that have one, it reads without.
    refuses("unknown variable", interp.tasks.of(plain).explains(plain).variable, "noise")
    refuses("'n'", plain.layout.position, "n")
    episodes = mdp.sample(3, 5, 4, 3, seed=5)
    drawn_run = interp.rollout(plain, episodes)
    recorded_run = interp.rollout(plain, recorded())
    assert torch.equal(drawn_run.predictions, recorded_run.predictions)
