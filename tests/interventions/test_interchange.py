"""Interchange interventions: exact at the circuit's own places, chance elsewhere, and sums on a napkin."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

import interp
from circuits.compiler import activation_sites as places_at
from interp.interventions.interchange import Claim, carriers, interchange
from interp.interventions.sites import Place, Site
from interp.tasks import mdp
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.mdp import MDPEpisodes
from interp.tasks.qlearning.algorithms import q_learning
from tests.cases import cases
from tests.handmade import intervened
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")

WMA = cases(__file__, "interchange WMA")


def axes_of(circuit, block, labels):
    """Axes of a block, one a row."""
    axes = [circuit.basis[block][label].vector() for label in labels]
    return torch.as_tensor(np.stack(axes))


def is_exact(result):
    """Every pair is the algorithm's, and moves as far; on the many in which that differs, doing nothing scores 0."""
    moves_all = result.score().low == pytest.approx(1, abs=1e-6)
    moves_as_far = result.slope().low == pytest.approx(1, abs=1e-6)
    many_differ = result.informative.sum() >= 20
    right_by_itself = result.unpatched & result.informative
    is_the_algorithms = result.iia == 1.0 and result.error.max() < 1e-12
    differs = many_differ and not right_by_itself.any()
    return differs and moves_all and moves_as_far and is_the_algorithms


@pytest.mark.parametrize(("variable", "where", "outcome"), WMA)
def test_wma_every_variable_is_where_the_circuit_says(wma, pair, variable, where, outcome):
    """Accuracy 1.00 at the right site, equal to the algorithm's counterfactual to rounding; doing nothing scores 0."""
    circuit, model = wma
    places = places_at(circuit, circuit.location(variable, where))
    result = interchange(model, *pair, circuit.algorithm, variable, places, outcome=outcome)
    assert is_exact(result)
    assert result.iia_informative == 1.0
    assert result.error.max() < 1e-14
    placebos = [place.placebo(model.config.d_model, seed=0) for place in places]
    if None not in placebos:
        instead = interchange(model, *pair, circuit.algorithm, variable, placebos, outcome=outcome)
        assert instead.score().estimate <= 0.05


def test_the_seed_of_carriers_is_that_of_its_intervals(wma, untrained, pair):
    algorithm, claim = wma[0].algorithm, Claim.at("log_weights", ["latent"])
    row = carriers(untrained, *pair, algorithm, [claim], round=[4, 5], seed=7).iloc[0]
    result = interchange(untrained, *pair, algorithm, "log_weights", "latent", round=[4, 5])
    assert row.low == result.interval(7).low
    assert row.score_low == result.score(7).low
    assert row.slope_high == result.slope(7).high
    assert row.score_low != result.score(0).low


def test_wma_binding_is_a_constant_that_flips_nothing(wma, pair):
    """Each vote's knowledge of its expert, taken from another episode, changes no bit; another expert's does."""
    circuit, model = wma
    places = places_at(circuit, circuit.location("binding", "votes"))
    base, source = (interp.rollout(model, episodes) for episodes in pair)
    plain = intervened(model, base, base, [], range(12))
    for patched, plain_values in zip(
        intervened(model, base, source, places, range(12)), plain, strict=True
    ):
        assert torch.equal(patched, plain_values)

    def exchanged(activation, hook):
        vote_places = [model.layout.position(f"p_{i}") for i in (1, 2, 3)]
        order = [1, 2, 0]
        block = axes_of(circuit, "buf1", ("e_1", "e_2", "e_3"))
        names = activation[:, vote_places] @ block.T
        changed = activation.clone()
        changed[:, vote_places] += (names[:, order] - names) @ block
        return changed

    hooks = [(circuit.location("binding", "votes").hook, exchanged)]
    run = interp.rollout(
        model, pair[0], fwd_hooks={8: hooks}
    )  # in every round it would be a renaming
    change = run.predictions - base.predictions
    assert change[:, 8].abs().max() > 0.1


Q = cases(__file__, "interchange Q")


@pytest.fixture(scope="module")
def q_pair():
    return [mdp.sample(12, 14, 3, 2, seed=seed) for seed in (0, 1)]


@pytest.mark.parametrize(("variable", "held_as", "where", "outcome"), Q)
def test_q_learning_every_variable_is_where_the_circuit_says(
    qlearning, q_pair, variable, held_as, where, outcome
):
    """As for Weighted Majority; the table's columns at a-tokens of the suffix drive the choice only in part."""
    circuit, model = qlearning
    places = [
        place for name in where for place in places_at(circuit, circuit.location(held_as, name))
    ]
    assert is_exact(
        interchange(
            model, *q_pair, q_learning(), variable, places, outcome=outcome, round=slice(5, 14)
        )
    )
    placebos = [place.placebo(model.config.d_model, seed=0) for place in places]
    instead = interchange(
        model, *q_pair, q_learning(), variable, placebos, outcome=outcome, round=slice(5, 14)
    )
    assert (
        instead.score().low <= 0.05
    )  # choices change when names are disturbed: single draws score -.13 to .10


def test_q_learning_td_error(qlearning, q_pair):
    """The TD error alone, between episodes of the same transitions and other rewards; and the whole change."""
    circuit, model = qlearning
    base = q_pair[0]
    other_rewards = (base.rewards + 0.5) % 1
    steps = base.states, base.actions, other_rewards, base.next_states
    richer = MDPEpisodes.from_transitions(base.mdps, *steps, alpha=0.1, gamma=0.9)
    place = Place.of("attn_out[3]@Update", axes_of(circuit, "buf1", ("s_1", "s_2", "s_3")))
    for source, variable in ((richer, "td_error"), (q_pair[1], "change")):
        result = interchange(model, base, source, q_learning(), variable, place, outcome="state")
        assert result.iia == 1.0
        assert result.error.max() < 1e-12
        assert result.informative.sum() > 100


def test_q_learning_action_is_the_token_and_the_name_that_the_update_carries(qlearning, q_pair):
    """From its token the action drives the update; at Update it names the column written, and changes nothing else.

    A column under another action's name is lost to its own: next round its action reads 0, the other one the mean of
    both columns of that name (a hard head averages over ties).
    """
    circuit, model = qlearning
    result = interchange(
        model, *q_pair, q_learning(), "action", "embed@a", outcome="state", round=slice(5, 14)
    )
    assert result.iia == 1.0
    assert result.error.max() < 1e-12
    assert result.informative.sum() >= 20

    base, source = (interp.rollout(model, episodes) for episodes in q_pair)
    policy, latents = intervened(
        model, base, source, places_at(circuit, circuit.location("action", "Update")), [9]
    )
    assert torch.equal(policy[:, 0], base.predictions[:, 9])
    table = model.read_state(base.latents[:, 10])
    assert_close(model.read_state(latents[:, 0]), table, atol=1e-12, rtol=0)
    names = axes_of(circuit, "id", ("a_1", "a_2"))
    base_action, source_action = (torch.as_tensor(episodes.actions[:, 9]) for episodes in q_pair)
    rows = torch.arange(len(base_action))
    written = latents[rows, 0, base_action] @ names.T
    one_hot = torch.eye(2).double()[source_action]
    assert_close(written, one_hot, atol=1e-12, rtol=0)

    following = base.fed.take_round(10)
    _, cache = model.run_with_cache(following.tokens, latents[:, 0], following.values)
    location = circuit.location("next_values", "candidates")
    values = location.reader(circuit)(cache[location.hook])
    expected = table[rows, torch.as_tensor(q_pair[0].next_states[:, 10])]
    renamed = base_action != source_action
    expected[renamed, source_action[renamed]] = expected[renamed].mean(-1)
    expected[renamed, base_action[renamed]] = 0
    assert 4 <= renamed.sum() <= 12
    assert_close(values, expected, atol=1e-12, rtol=0)


def test_q_learning_copies_that_carry_one_part_of_the_update(qlearning, q_pair):
    """s_t at Select says where the bootstrapped value goes, the column at Update what the change is added to."""
    circuit, model = qlearning
    base, source = (interp.rollout(model, episodes) for episodes in q_pair)
    rounds = slice(5, 14)
    mine, theirs = (q_learning().run(episodes) for episodes in q_pair)
    mine = {key: values[:, rounds] for key, values in mine.items()}
    theirs = {key: values[:, rounds] for key, values in theirs.items()}
    other_state = np.eye(3)[theirs["state"]] - np.eye(3)[mine["state"]]
    shift = 0.1 * 0.9 * mine["maximum"][..., None] * other_state
    cases = {
        ("state", "Select"): mine["next_column"] + shift,
        ("column", "Update"): theirs["column"] + mine["change"],
        ("next_state", "Select"): mine["next_column"],  # a copy that nothing reads
    }
    actions = torch.as_tensor(q_pair[0].actions[:, rounds])
    slots = actions[..., None, None].expand(-1, -1, 3, 1)
    for (variable, where), expected in cases.items():
        places = places_at(circuit, circuit.location(variable, where))
        policy, latents = intervened(model, base, source, places, range(5, 14))
        table = model.read_state(latents)
        written = table.gather(-1, slots).squeeze(-1)
        assert_allclose(written, expected, atol=1e-12, err_msg=variable)
        assert torch.equal(policy, base.predictions[:, rounds])


@pytest.mark.parametrize(
    ("variable", "where", "outcome"),
    [
        ("next_values", "embed@<BOS>", "prediction"),
        ("next_values", "resid_post[0]@s", "prediction"),
        ("next_values", "resid_post[1]@r", "prediction"),
        ("next_values", "L3H0@Select", "prediction"),
        ("choice", "resid_post[2]@Update", "prediction"),
        ("next_state", "resid_post[0]@a", "prediction"),
        ("table", "embed@s", "prediction"),
        ("current_value", "resid_post[1]@Select", "state"),
        ("maximum", "resid_post[1]@a", "state"),
        ("td_error", "embed@a*", "state"),
        ("reward", "resid_post[2]@Select", "state"),
        ("column", "resid_post[0]@r", "state"),
        ("state", "embed@Qcurr", "state"),
        ("action", "embed@s", "state"),
    ],
)
def test_q_learning_places_without_the_variable_are_at_chance(
    qlearning, q_pair, variable, where, outcome
):
    _, model = qlearning
    result = interchange(
        model, *q_pair, q_learning(), variable, where, outcome=outcome, round=slice(5, 14)
    )
    assert result.informative.any()
    assert result.iia_informative == 0.0
    assert result.iia <= result.unpatched.mean()


@pytest.mark.parametrize("expert", range(3))
def test_wma_one_experts_log_weight(wma, pair, expert):
    """lambda_i alone, along its own direction, in prediction and state."""
    circuit, model = wma
    place = Place.of("embed@<z>", axes_of(circuit, "id", (f"e_{expert + 1}",)))
    for outcome in ("prediction", "state"):
        result = interchange(
            model, *pair, weighted_majority(0.5), f"log_weights[{expert}]", place, outcome=outcome
        )
        assert result.iia == 1.0
        assert result.error.max() < 1e-14


@pytest.mark.parametrize(
    ("variable", "where", "outcome"),
    [
        ("log_weights", "embed@<w>", "prediction"),
        ("log_weights", "resid_post[0]@e_1", "prediction"),
        ("log_weights", "resid_post[1]@y", "prediction"),
        ("log_weights", "L0H0@p?", "prediction"),
        ("log_weights", "resid_pre[1]@w?", "prediction"),
        ("votes", "embed@p?", "prediction"),
        ("votes", "embed@e_1", "state"),
        ("label", "resid_post[1]@p?", "state"),
        ("match", "resid_post[1]@y", "state"),
        ("prediction", "resid_post[2]@w?", "prediction"),
        ("next_log_weights", "resid_post[2]@p?", "state"),
    ],
)
def test_wma_places_without_the_variable_are_at_chance(wma, pair, variable, where, outcome):
    """No informative pair comes out right at a place that does not hold the variable."""
    _, model = wma
    result = interchange(model, *pair, weighted_majority(0.5), variable, where, outcome=outcome)
    assert result.informative.any()
    assert result.iia_informative == 0.0
    assert result.iia <= result.unpatched.mean()


def test_wma_driving_only_one_outcome(wma, pair):
    """The copy of z at p? drives the prediction only, the one at w? the update only, as the table says."""
    circuit, model = wma
    at_prediction, at_update = (
        places_at(circuit, circuit.location("log_weights", place)) for place in ("p?", "w?")
    )
    for places, still in ((at_prediction, "state"), (at_update, "prediction")):
        result = interchange(
            model, *pair, weighted_majority(0.5), "log_weights", places, outcome=still
        )
        assert result.iia_informative == 0.0


def test_an_algorithm_that_does_not_say_what_a_round_writes_has_no_state_outcome(wma, pair):
    silent = replace(weighted_majority(0.5), written="")
    refuses(
        r"give the algorithm written=\.\.\.",
        interchange,
        wma[1],
        *pair,
        silent,
        "label",
        "embed@y",
        outcome="state",
    )
    assert interchange(wma[1], *pair, silent, "votes[0]", "embed@p_1").iia_informative == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"variable": "weigths"},
            "unknown variable of 'weighted_majority' 'weigths'; did you mean 'weights'",
        ),
        ({"sites": "embed@z"}, "unknown position label 'z'"),
        ({"outcome": "choice"}, "unknown outcome 'choice'"),
        ({"algorithm": q_learning()}, "is an algorithm of qlearning, not of experts rounds"),
    ],
)
def test_bad_input(wma, pair, options, message):
    _, model = wma
    arguments = {
        "algorithm": weighted_majority(0.5),
        "variable": "log_weights",
        "sites": "embed@<z>",
        **options,
    }
    refuses(message, interchange, model, *pair, **arguments)


def test_place_texts():
    assert Site.at_hook("blocks.2.attn.hook_attn_scores", 1, "w?") == Site.parse("scores[2.1]@w?")


@pytest.mark.parametrize("whole", [True, False])
def test_a_swap_and_its_control_are_those_of_transformer_lens(whole: bool) -> None:
    """Bit for bit, without its import, which takes two seconds."""
    from transformer_lens.tools.analysis.interchange import (
        NormMatchedPlacebo,
        SubspaceInterchange,
        random_basis,
    )

    generator = torch.Generator().manual_seed(0)
    base, source = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64)
    every_axis = torch.eye(6).double()
    place = Place.of("resid_pre[0]@p?", None if whole else every_axis[:2])
    control = place.placebo(6, seed=3)
    assert control is not None
    assert control.control_basis is not None
    if whole:
        assert torch.equal(control.control_basis, random_basis(6, 1, 3))
    theirs = SubspaceInterchange(every_axis if place.basis is None else place.basis)
    assert torch.equal(place(base, source), source if whole else theirs(base, source))
    assert torch.equal(
        control(base, source), NormMatchedPlacebo(theirs, control.control_basis)(base, source)
    )
    assert (
        Place.of("scores[2.1]@w?").placebo(8, seed=0) is None
    )  # attention scores have no direction
