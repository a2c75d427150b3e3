"""The printed Q-learning construction (paper, section 4 and appendix C) against the corrected one.

Each test writes one printed statement down as an edit of the circuit's data (the corrected circuit with only that
correction taken back), measures how wrong it is, and compares with the correction on the same episodes. An error of 0
means that the defect is real but does not reach the table. Labels Q1, Q2, ... number the statements; Q16 is notation
(one symbol for a rank-one map and for a set of axes, rows of Q called columns), which no number can show.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch

import circuits
import interp
from circuits.circuit import Circuit
from circuits.heads import Head, Neuron, copy, match
from circuits.q_learning import construction
from interp.model.layout import EncodedRounds
from interp.tasks import mdp
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from interp.tasks.qlearning.layout import QLearningRound
from tests.circuits.faults import edit_head

EPISODES = mdp.sample(6, 40, 4, 4, seed=0)
STATES, ACTIONS = tuple(f"s_{i}" for i in range(1, 5)), tuple(f"a_{i}" for i in range(1, 5))


def table_error(circuit: Circuit, episodes: MDPEpisodes = EPISODES, **rollout: Any) -> np.ndarray:
    """Largest error of the Q-table after each step; infinite where a run ends in NaN, which is refused."""
    model = circuits.compile_circuit(circuit)
    try:
        run = interp.rollout(model, episodes, **rollout)
    except interp.InputError as error:
        assert "is not a number" in str(error)
        return np.full(episodes.n_rounds, np.inf)
    tables = episodes.q_tables[:, : run.latents.shape[1]]
    errors = np.abs(model.read_state(run.latents).numpy() - tables)
    return errors.max((0, 2, 3))[1:]


def build(**arguments: Any) -> Circuit:
    return circuits.build("qlearning-handwired", n_states=4, n_actions=4, **arguments)


def without_sink(circuit: Circuit, number: str) -> Circuit:
    """The content chooser as printed: its last score term, the sink, is gone."""
    return edit_head(circuit, number, scores=circuit.head(number).scores[:-1])


@pytest.fixture(scope="module")
def ours() -> Circuit:
    return build()


@pytest.fixture(autouse=True, scope="module")
def corrections_hold(ours: Circuit) -> None:
    """What every test compares with."""
    assert table_error(ours).max() < 1e-14
    assert table_error(build(variant="lin")).max() < 1e-14


DISPLAYED = "<BOS> c* | Qcurr s a r Qnext s' (s'_i a_i)* Select | a* Update"
"""The displayed sequence of section 4, one word a token; a star stands for one token, or one pair, an action."""


def test_q1_the_displayed_sequence_has_one_token_more_than_its_stated_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``3 |A| + 10`` tokens, stated are ``3 |A| + 9``; without the stand-alone s' it has that many, and is as exact."""
    for n_actions in (3, 4, 7):
        fixed = [word for word in DISPLAYED.split() if word not in ("|", "c*", "(s'_i", "a_i)*")]
        displayed = len(fixed) + n_actions + 2 * n_actions
        stated = 3 * n_actions + 9
        assert displayed == stated + 1
        assert displayed == QLearningRound(4, n_actions).n_positions
    monkeypatch.setattr(construction, "QLearningRound", WithoutNextState)
    # Their table names the position of s'.
    monkeypatch.setattr(circuits.circuit, "make_edges", lambda *given: ())
    for variant in ("mlp", "lin"):
        shorter = build(variant=variant)
        assert shorter.layout.n_positions == 3 * 4 + 9
        assert table_error(shorter, n_rounds=12).max() < 1e-14


class WithoutNextState(QLearningRound):
    """The round of the stated length: s' stands in the pairs only."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for label in super().labels if label != "s'")

    def encode(self, episodes: MDPEpisodes) -> EncodedRounds:
        whole = QLearningRound(self.n_states, self.n_actions)
        encoded = whole.encode(episodes)
        keep = [i for i, label in enumerate(whole.labels) if label != "s'"]
        return replace(encoded, tokens=encoded.tokens[..., keep], values=encoded.values[..., keep])


def test_q2_six_special_tokens_are_listed_and_needed_and_seven_are_stated(ours: Circuit) -> None:
    """The stated size is ``2 + S + A + 5``. The six listed do; without the embedding of one the table is wrong."""
    listed = ("<BOS>", "r", "Select", "Qcurr", "Qnext", "Update")
    assert set(ours.layout.vocabulary) == {*listed, *STATES, *ACTIONS}
    size = len(ours.layout.vocabulary)
    assert size == 6 + 4 + 4
    stated = 2 + 4 + 4 + 5
    assert size != stated
    for token in listed:
        missing = replace(ours, tokens={**ours.tokens, token: ours.basis.zero})
        assert table_error(missing, n_rounds=12).max() > 1e-3, f"{token} is idle"


def test_q3_a_linear_head_sums_over_the_past_instead_of_multiplying(ours: Circuit) -> None:
    basis = ours.basis
    ids, buf2 = basis["id"], basis["buf2"]
    moves = ((ids["Qnext"], buf2["Qnext"]), (ids["Qcurr"], -buf2["Qcurr"]))
    head = Head("2.2 as printed", 1, "linear", match(basis, STATES, "id", "buf1"), moves)
    error = table_error(replace(ours, neurons=(), heads=(*ours.heads, head)))
    assert error[4] > 0.01
    assert error[19] > 0.1
    assert error[39] > 0.5


@pytest.mark.parametrize(
    ("number", "step", "least"), [("1.6", 39, 0.03), ("2.1", 0, 0.3), ("3.3", 39, 0.05)]
)
def test_q4_choosers_without_a_sink_average(
    ours: Circuit, number: str, step: int, least: float
) -> None:
    assert table_error(without_sink(ours, number))[step] > least


def test_q4_a_tag_without_a_sink_leaks_into_the_latents(ours: Circuit) -> None:
    wrong = without_sink(ours, "1.5")
    latents = interp.rollout(circuits.compile_circuit(wrong), EPISODES).latents.numpy()
    assert table_error(wrong).max() < 1e-13
    tag = ours.basis["id"]["Qnext"].vector()
    assert np.abs(latents @ tag).max() > 0.01


def test_q5_without_a_gate_all_tokens_tie_at_zero(ours: Circuit) -> None:
    """In the first round every Q is 0: attention goes to all tokens alike and the policy does not even sum to 1."""
    ids, buf2 = ours.basis["id"], ours.basis["buf2"]
    printed = ((ids["Select"], buf2["Qnext"]),)
    wrong = edit_head(edit_head(ours, "3.1", scores=printed), "3.2", scores=printed)
    policy = interp.rollout(circuits.compile_circuit(wrong), EPISODES).predictions
    assert policy[:, 0].sum(-1).max() < 0.6
    right = interp.rollout(circuits.compile_circuit(ours), EPISODES).predictions[:, 0]
    first_action = torch.eye(4, dtype=right.dtype)[[0] * 6]
    assert torch.equal(right, first_action)


def test_q6_averaging_over_ties_gives_no_one_hot_choice() -> None:
    """Without the tie slope the table is still exact: tied values agree."""
    averaging = build(tau=0.0)
    assert table_error(averaging).max() < 1e-14
    policy = interp.rollout(circuits.compile_circuit(averaging), EPISODES).predictions
    assert policy[:, 0].max() == 0.25
    least_certain = policy.max(-1).values.min()
    assert least_certain == 0.25


@pytest.mark.long
def test_q7_a_soft_choice_that_shares_its_keys_backs_up_the_mean() -> None:
    for beta, tolerance in ((1.0, 0.1), (100.0, 1e-4)):
        circuit = build(beta=beta)
        choice = circuit.head("3.1")
        sharing = edit_head(circuit, "3.2", scores=choice.scores, rule=choice.rule)
        assert table_error(sharing)[39] > tolerance
        assert table_error(circuit).max() < 1e-14


@pytest.mark.parametrize("rule", ["softmax", "hard"])
def test_q8_the_td_heads_must_be_linear(ours: Circuit, rule: str) -> None:
    wrong = ours
    for number in ("4.1", "4.2", "4.3"):
        wrong = edit_head(wrong, number, rule=rule)
    error = table_error(wrong)
    assert error[0] > 0.05
    assert error[19] > 0.5


def test_q9_the_state_must_go_to_id_because_buf1_holds_the_column(ours: Circuit) -> None:
    """The proof sketch routes states to buf1, the appendix to id; on buf1 they collide with the columns.

    Every reader of a state is moved along with it, so that nothing is wrong but the collision: on the axes of buf2,
    which are free, the same circuit is exact.
    """
    assert table_error(with_states_in(ours, "buf2")).max() < 1e-14
    assert table_error(with_states_in(ours, "buf1"), n_rounds=1).item() > 0.05
    assert table_error(with_states_in(ours, "buf1")).max() > 1


def with_states_in(circuit: Circuit, block: str) -> Circuit:
    """The circuit whose heads 1.1 to 1.3 write states to another block, and whose later parts read them there."""
    ids, there = circuit.basis["id"], circuit.basis[block]
    changed = circuit
    for number in ("1.1", "1.2", "1.3"):
        changed = edit_head(changed, number, moves=copy(circuit.basis, STATES, "id", block))
    for number in ("2.1", "4.1", "4.2"):
        writes = [write for _, write in circuit.head(number).moves]
        reads = [there[state] for state in STATES]
        changed = edit_head(changed, number, moves=tuple(zip(reads, writes, strict=True)))

    def moved(neuron: Neuron) -> Neuron:
        (state,) = [s for s in STATES if ("id", s) in neuron.read.coefficients]
        weight = neuron.read.coefficients["id", state]
        without_state = neuron.read - weight * ids[state]
        return replace(neuron, read=without_state + weight * there[state])

    return replace(changed, neurons=tuple(map(moved, circuit.neurons)))


def test_q10_the_latent_is_an_action_and_an_update_and_doubles_itself(ours: Circuit) -> None:
    """Printed head 1.6 lets c_a match itself: inert in "mlp", which reads columns of c_a once; fatal in "lin"."""
    for circuit, fatal in ((ours, False), (build(variant="lin"), True)):
        basis_ids = circuit.basis["id"]
        head = circuit.head("1.6")
        acting = basis_ids.sum(ACTIONS)
        *others, _, sink = head.scores
        update_matches_itself = (acting, basis_ids["Update"])
        wrong = edit_head(circuit, "1.6", scores=(*others, update_matches_itself, sink))
        error = table_error(wrong).max()
        assert error > 0.1 if fatal else error < 1e-13


def test_q11_layer_1_also_fires_on_the_committed_choice_which_reaches_nothing(
    ours: Circuit,
) -> None:
    """a* gets a phase and a column like a candidate; whichever a* is committed, the update is bitwise the same."""
    model = circuits.compile_circuit(ours)
    hook = "blocks.0.hook_resid_post"
    committed = model.layout.position("a*")
    run = interp.rollout(model, EPISODES, names_filter=[hook])
    attended = run.cache[hook][:, 30, committed].numpy()
    phase = ours.basis["id"]["Qnext"].vector()
    assert np.array_equal(attended @ phase, np.ones(6))
    column = ours.basis["buf1"].sum(STATES).vector()
    assert np.abs(attended @ column).max() > 0.1
    tokens, updates = run.tokens[:, 30].clone(), []
    for action in ACTIONS:
        tokens[:, committed] = model.layout.token_ids[action]
        updates.append(model(tokens, run.latents[:, 30], run.values[:, 30]).update)
    assert all(torch.equal(update, updates[0]) for update in updates)


@pytest.mark.long
def test_q12_an_action_half_matches_its_earlier_twin() -> None:
    """A candidate scores 1 against the a_t of its own kind and 2 against its column: hard attention is exact, softmax
    leaks no more than a chooser's (N - 1) e^{-eta/2}."""
    for eta in (None, 10.0, 40.0):
        model = circuits.compile_circuit(build(variant="softmlp", eta=eta))
        hook = "blocks.0.attn.hook_pattern"
        run = interp.rollout(model, EPISODES, names_filter=[hook], n_rounds=21)
        head = model.config.head_names[0].index("1.6 context fetch")
        position_of = model.layout.position
        for episode, action in enumerate(EPISODES.actions[:, 20]):
            name = ACTIONS[action]
            pattern = run.cache[hook][episode, 20, head, position_of(name)]
            own_weight = float(pattern[position_of(f"c_{action + 1}")])
            twin = float(pattern[position_of("a")])
            if eta is None:
                assert (own_weight, twin) == (1.0, 0.0)
            else:
                assert 0 < twin <= 1.1 * np.exp(-eta)
                leak_of_a_chooser = (model.layout.n_positions - 1) * np.exp(-eta / 2)
                assert 1 - own_weight <= leak_of_a_chooser


def test_q13_the_target_uses_the_table_after_the_update_the_choice_the_one_before() -> None:
    """They differ only where s_{t+1} = s_t, and there they do differ now and then."""
    differ = EPISODES.greedy != EPISODES.next_values_before.argmax(-1)
    moves_on = EPISODES.states != EPISODES.next_states
    assert not (differ & moves_on).any()
    many = mdp.sample(60, 300, 4, 4, seed=1)
    greedy_before = many.next_values_before.argmax(-1)
    assert (many.greedy != greedy_before).any()


def without_residual_path(circuit: Circuit) -> np.ndarray:
    """The error of the table where each layer's stream is its MLP's output alone."""
    hooks: list[Any] = []
    for layer in range(circuit.n_layers):
        written: list[torch.Tensor] = []

        def keep(out: torch.Tensor, hook: Any, written: list[torch.Tensor] = written) -> None:
            written.append(out)

        def only(
            resid: torch.Tensor, hook: Any, written: list[torch.Tensor] = written
        ) -> torch.Tensor:
            return written.pop()

        hooks += [(f"blocks.{layer}.hook_mlp_out", keep), (f"blocks.{layer}.hook_resid_post", only)]
    return table_error(circuit, fwd_hooks=hooks)


@pytest.mark.long
def test_q14_an_mlp_without_a_residual_path_loses_the_stream_unless_its_neurons_carry_it(
    ours: Circuit,
) -> None:
    """``x = relu(x) - relu(-x)``: two neurons an axis and layer carry what the residual path carries here."""
    assert without_residual_path(ours)[0] > 1e-2
    carrying = []
    for layer in range(ours.n_layers):
        for block, label in ours.basis.index:
            axis = ours.basis[block][label]
            carrying.append(Neuron("carry", layer, axis, 0.0, axis))
            carrying.append(Neuron("carry", layer, -axis, 0.0, -axis))
    with_carriers = replace(ours, neurons=(*ours.neurons, *carrying))
    assert without_residual_path(with_carriers).max() < 1e-14


def test_q14_layer_norm_after_every_layer_breaks_the_update(ours: Circuit) -> None:
    def layer_norm(resid: torch.Tensor, hook: Any) -> torch.Tensor:
        return torch.nn.functional.layer_norm(resid, resid.shape[-1:])

    hooks = [(f"blocks.{layer}.hook_resid_post", layer_norm) for layer in range(4)]
    assert table_error(ours, fwd_hooks=hooks)[0] > 1


@pytest.mark.long
def test_q15_the_neurons_clip_negative_values(ours: Circuit) -> None:
    mdps = MDPs(EPISODES.mdps.transitions, EPISODES.mdps.rewards - 0.5)
    steps = EPISODES.states, EPISODES.actions, EPISODES.rewards - 0.5, EPISODES.next_states
    lowered = MDPEpisodes.from_transitions(mdps, *steps, alpha=0.1, gamma=0.9)
    assert table_error(replace(ours, payload_range=None), lowered).max() > 1e-3
    assert table_error(build(variant="lin"), lowered).max() < 1e-14
    assert table_error(build(signed=True, rewards=(-0.5, 0.5)), lowered).max() < 1e-14
