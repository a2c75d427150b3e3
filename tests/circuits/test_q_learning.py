"""Tabular Q-learning wired by hand: equal to the table, causal, symmetric, with the promised options and refusals."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import special

import circuits
import interp
from circuits.q_learning import value_bound
from interp.tasks import mdp
from interp.tasks.qlearning import tabular
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from tests.refusals import refused, refuses

VARIANTS = ("mlp", "softmlp", "lin")


def errors(episodes: MDPEpisodes, **arguments: Any) -> tuple[float, float]:
    """Largest error of the Q-table, and of the policy against a one-hot greedy choice on Q_t."""
    sizes = {"n_states": episodes.n_states, "n_actions": episodes.n_actions}
    model = circuits.load(
        "qlearning-handwired", alpha=episodes.alpha, gamma=episodes.gamma, **sizes, **arguments
    )
    run = interp.rollout(model, episodes)
    table = model.read_state(run.latents).double().numpy()
    table_error = np.abs(table - episodes.q_tables).max()
    greedy_action = episodes.next_values_before.argmax(-1)
    greedy_policy = np.eye(episodes.n_actions)[greedy_action]
    policy_error = np.abs(run.predictions.double().numpy() - greedy_policy).max()
    return float(table_error), float(policy_error)


def shifted(episodes: MDPEpisodes, by: float = -0.5) -> MDPEpisodes:
    """The same transitions with other rewards, lowered by 1/2 unless told otherwise."""
    mdps = MDPs(episodes.mdps.transitions, episodes.mdps.rewards + by)
    steps = episodes.states, episodes.actions, episodes.rewards + by, episodes.next_states
    return MDPEpisodes.from_transitions(mdps, *steps, alpha=episodes.alpha, gamma=episodes.gamma)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("regime", "size"),
    [("grid", (1, 1)), ("grid", (4, 3)), ("deterministic", (2, 3)), ("sparse", (6, 4))],
)
def test_exact_in_float64_ties_included(variant: str, size: tuple[int, int], regime: str) -> None:
    """The table to rounding, and a one-hot choice equal to numpy's argmax at every step (all ties at t = 0)."""
    table, choice = errors(mdp.sample(5, 20, *size, seed=1, regime=regime), variant=variant)
    assert table <= 1e-13
    assert choice == 0.0


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("alpha", "gamma"), [(1.0, 0.5), (0.3, 0.97)])
def test_any_rates(variant: str, alpha: float, gamma: float) -> None:
    episodes = mdp.sample(5, 20, 3, 2, seed=2, alpha=alpha, gamma=gamma)
    assert errors(episodes, variant=variant)[0] <= 1e-12


@pytest.mark.parametrize(
    "arguments", [{"variant": "lin"}, {"signed": True}, {"variant": "softmlp", "signed": True}]
)
def test_negative_rewards_with_doubled_neurons_or_lin(arguments: dict[str, Any]) -> None:
    table, choice = errors(
        shifted(mdp.sample(6, 20, 4, 3, seed=4)), rewards=(-0.5, 0.5), **arguments
    )
    assert table <= 1e-13
    assert choice == 0.0


@pytest.mark.parametrize("by", [-3.0, 30.0])
def test_lin_takes_any_sign_and_size_of_q(by: float) -> None:
    """Far below 0 every candidate is worth less than a token that is none; it must win nevertheless."""
    episodes = shifted(mdp.sample(4, 40, 3, 2, seed=13, alpha=0.5), by)
    best_values = episodes.next_values_before.max(-1)
    assert abs(best_values).max() > abs(by)
    table, choice = errors(episodes, variant="lin")
    assert table <= 1e-12
    assert choice == 0.0


@pytest.mark.parametrize(
    "arguments", [{"positions": "sinusoidal"}, {"rotation": 2}, {"rotation": 2, "variant": "lin"}]
)
def test_other_codes_and_bases_cost_only_rounding(arguments: dict[str, Any]) -> None:
    assert errors(mdp.sample(5, 20, 4, 3, seed=5), **arguments)[0] <= 1e-11


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variable_of_the_ground_truth_is_where_the_table_says(variant: str) -> None:
    result = circuits.verify(
        "qlearning-handwired", sizes=[(3, 2)], n_rounds=12, n_episodes=6, variant=variant
    )
    table = result.table()
    assert result.passed, table[~table["passed"]].to_string()
    circuit = circuits.build("qlearning-handwired", n_states=3, n_actions=2, variant=variant)
    of_every_circuit = {"carried_state", "residue", "position_code", "causality", "horizon"}
    assert set(table["variable"]) == of_every_circuit | set(circuit.sites)
    assert {"table", "state", "next_state", "next_values", "policy", "td_error"} <= set(
        circuit.sites
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("beta", [0.5, 50.0])
def test_boltzmann_softens_the_choice_and_leaves_the_backup_exact(
    variant: str, beta: float
) -> None:
    """beta in head 3.1 alone: the policy is Boltzmann's, the table still the maximum's (not expected SARSA)."""
    episodes = mdp.sample(5, 15, 4, 3, seed=8)
    model = circuits.load(
        "qlearning-handwired", n_states=4, n_actions=3, variant=variant, beta=beta
    )
    run = interp.rollout(model, episodes)
    policy = special.softmax(beta * episodes.next_values_before, -1)
    policy_error = np.abs(run.predictions.numpy() - policy)
    assert policy_error.max() < 1e-12
    table_error = np.abs(model.read_state(run.latents).numpy() - episodes.q_tables)
    assert table_error.max() < 1e-13


@pytest.mark.long
def test_softmax_only_error_falls_with_eta_and_with_hardness() -> None:
    """ "softmlp" with every head softmax (the theorem's claim: the error vanishes)."""
    episodes = mdp.sample(4, 15, 3, 2, seed=10)
    routing = [errors(episodes, variant="softmlp", eta=eta)[0] for eta in (10.0, 20.0, 40.0, 80.0)]
    assert all(later < earlier / 10 for earlier, later in pairwise(routing))
    assert routing[0] > 0.01
    assert routing[-1] < 1e-12
    sharp = [
        errors(episodes, variant="softmlp", eta=120.0, hardness=beta)[0]
        for beta in (1.0, 10.0, 1e3, 1e5)
    ]
    assert all(later < earlier for earlier, later in pairwise(sharp))
    assert sharp[-1] < 1e-5
    rules = circuits.load("qlearning-handwired", variant="softmlp", eta=40.0).config.attention_rules
    assert {rule for row in rules for rule in row} == {"softmax"}


@pytest.mark.parametrize("variant", ["mlp", "lin"])
def test_softmax_pairs_are_second_order_in_epsilon(variant: str) -> None:
    episodes = mdp.sample(4, 20, 4, 3, seed=11)
    coarse, fine = (
        errors(episodes, variant=variant, eta=120.0, epsilon=e)[0] for e in (1e-2, 1e-3)
    )
    assert fine < coarse / 30
    assert fine < 1e-4


@pytest.mark.parametrize(
    ("variant", "heads_of_layers", "weight_slopes", "d_model_terms", "neuron_terms"),
    [
        ("mlp", [6, 1, 3, 3], (18, 38), (3, 6, 29), (2, 0)),
        ("softmlp", [6, 1, 3, 3], (14, 39), (3, 6, 29), (5, 3)),
        ("lin", [6, 3, 3, 4], (29, 62), (4, 7, 35), (0, 0)),
    ],
    ids=VARIANTS,
)
def test_sizes_are_those_of_the_specification(
    variant: str,
    heads_of_layers: list[int],
    weight_slopes: tuple[int, int],
    d_model_terms: tuple[int, int, int],
    neuron_terms: tuple[int, int],
) -> None:
    """d_model, heads per layer, neurons; non-zero weights grow by the specified 18 |S| + 38 |A|, 14 + 39, 29 + 62.

    Three more per action than specified in "lin": candidates are scored by Q minus the mean of their row, which
    replaces a bound on Q.
    """
    n_nonzero = {}
    for n_states, n_actions in ((2, 2), (5, 2), (2, 6)):
        circuit = circuits.build(
            "qlearning-handwired", n_states=n_states, n_actions=n_actions, variant=variant, tau=0.0
        )
        n_nonzero[n_states, n_actions] = sum(head.n_nonzero for head in circuit.heads)
        of_states, of_actions, constant = d_model_terms
        d_model = of_states * n_states + of_actions * n_actions + constant
        assert circuit.basis.d_model == d_model
        assert [len(circuit.layer(i)) for i in range(4)] == heads_of_layers
        neurons_of_states, other_neurons = neuron_terms
        assert len(circuit.neurons) == neurons_of_states * n_states + other_neurons
    per_state, per_action = weight_slopes
    assert n_nonzero[5, 2] - n_nonzero[2, 2] == 3 * per_state
    assert n_nonzero[2, 6] - n_nonzero[2, 2] == 4 * per_action


def test_the_head_table_and_the_ground_truth_are_frames() -> None:
    circuit = circuits.build("qlearning-handwired", n_states=3, n_actions=2, variant="softmlp")
    table = circuit.to_frame()
    assert list(table["head"][:2]) == ["1.1 state to actions", "1.2 state to Select"]
    cleaned = ("4.5 clean up", 4, "relu", "6 neurons, buf2[s_1] ...", "-buf2[s_1] ...", 0, 12)
    assert tuple(table.iloc[15]) == cleaned
    truth = circuit.ground_truth()
    assert truth["reads"][0] == "buf1[s_1] ... buf1[s_3]"
    assert set(truth["variable"]) == set(circuit.sites)
    assert list(truth["location"][truth["variable"] == "state"]) == ["a", "r", "Select"]


def test_the_bound_is_a_power_of_two() -> None:
    assert value_bound((0.0, 1.0), 0.9) == 16.0
    assert value_bound((-3.0, 1.0), 0.5) == 8.0
    assert value_bound((0.0, 0.0), 0.5) == 1.0


test_bad_arguments_are_refused_with_a_sentence = refused(
    ({"n_actions": 0}, "n_actions must be an integer >= 1, got 0"),
    ({"alpha": 0.0}, r"alpha must lie in \(0, 1\], got 0\.0"),
    ({"gamma": 1.0}, r"gamma must lie in \[0, 1\), got 1\.0"),
    ({"beta": -1.0}, r"beta must be a number > 0 or None, got -1\.0"),
    ({"variant": "linear"}, "unknown variant 'linear'; did you mean 'lin'"),
    ({"rewards": (1.0, 0.0)}, r"rewards must be \(lowest, highest\)"),
    ({"rewards": (1.0,)}, r"two finite numbers in order, got \(1\.0,\)"),
    (
        {"rewards": (-0.5, 0.5)},
        r"outside \[0, inf\), what variant 'mlp' is proven for; load it with signed=True",
    ),
    (
        {"epsilons": 0.1},
        "unknown argument of 'qlearning-handwired' 'epsilons'; did you mean 'epsilon'",
    ),
    by=lambda arguments: circuits.load("qlearning-handwired", **arguments),
)


def test_episodes_with_rewards_outside_the_proven_range_are_refused() -> None:
    episodes = shifted(mdp.sample(3, 10, 4, 3, seed=12))
    load = partial(circuits.load, "qlearning-handwired", n_states=4, n_actions=3)
    refuses(r"outside \[0, 1\].*use variant='lin'", interp.rollout, load(), episodes)
    refuses(
        r"outside \[-0.01, 1\]", interp.rollout, load(signed=True, rewards=(-0.01, 1.0)), episodes
    )
    assert interp.rollout(load(variant="lin"), episodes).n_rounds == 10


def test_free_rollouts_on_the_chain_equal_the_tabular_learner() -> None:
    """The model acts by its own choices; the tabular learner that meets the same luck earns exactly the same."""
    mdps = mdp.sample_mdps(6, 4, 2, seed=0, regime="chain")
    model = circuits.load("qlearning-handwired", n_states=4, n_actions=2)
    played, run = interp.play(model, mdps, 60, seed=3, epsilon=0.2)
    replayed = played.relearn(alpha=0.1, gamma=0.9).q_tables
    table_error = np.abs(model.read_state(run.latents).numpy() - replayed)
    assert table_error.max() < 1e-13
    learner = tabular.run(tabular.QLearner(epsilon=0.2), mdps, 60, seed=3)
    earned = played.rewards.sum(1)
    assert np.array_equal(earned, learner.rewards.sum(1))
