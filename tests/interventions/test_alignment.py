"""Learned subspaces: found where the circuit holds the variable, not elsewhere, and refused where nothing can be said.

The full table, at 64 episodes and several seeds, is a slow test; the same claims run here on less.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import circuits
import interp
from interp.interventions.alignment import AlignmentError, Search, align
from interp.interventions.alignment.subspace import identified_rank, make_pairs
from interp.interventions.interchange import interchange
from interp.interventions.sites import Place
from interp.tasks import experts, mdp
from interp.tasks.experts.algorithms import bayes, weighted_majority
from interp.tasks.qlearning.algorithms import q_learning
from tests.cases import cases
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")

CONDITIONS = ["learned", "arbitrary labels", "untrained model", "norm-matched random", "nothing"]


@pytest.fixture(scope="module")
def found(wma, pair):
    options = {"round": slice(3, 12), "search": Search(steps=60, restarts=1)}
    return align(
        wma[1], *pair, weighted_majority(0.5), "log_weights", "resid_post[1]@p?", **options
    )


@pytest.mark.long
def test_the_log_weights_are_found_and_beat_every_control(found):
    """DAS on the handwired model: all but perfect on new episodes, far above each control."""
    frame = found.to_frame().set_index("condition")
    assert list(frame.index) == CONDITIONS
    assert frame.loc["learned", "iia_informative"] > 0.97
    controls = frame.drop("learned")
    assert controls.high.max() < frame.loc["learned", "iia"]
    assert found.accuracy("nothing") == 0.0
    assert np.isnan(frame.loc["arbitrary labels", "iia_informative"])


@pytest.mark.long
def test_the_learned_basis_is_the_circuits_own_without_its_unidentified_direction(wma, found):
    """Two orthonormal directions, in the span of the three that hold log-weights, that see no common shift of them."""
    circuit, _ = wma
    directions = circuit.location("log_weights", "p?").directions
    vectors = np.stack([direction.vector() for direction in directions])
    circuit_basis = torch.from_numpy(vectors)
    assert found.rank == 2
    assert found.basis.shape == (circuit_basis.shape[1], 2)
    learned = found.basis.T
    gram = learned @ learned.T
    assert_close(gram, torch.eye(2).double(), atol=1e-6, rtol=0)
    projected = learned @ circuit_basis.T @ circuit_basis
    assert_close(projected, learned, atol=1e-6, rtol=0)
    common_shift = circuit_basis.sum(0)
    assert (learned @ common_shift).norm() < 0.05


def test_a_learned_basis_is_a_place_to_interchange(wma, pair, found):
    """What was learned from some pairs gives the counterfactual's choice in an ordinary interchange, too."""
    place = Place.of(found.site, found.basis.T)
    result = interchange(
        wma[1], *pair, weighted_majority(0.5), "log_weights", place, round=slice(3, 12)
    )
    assert result.iia_informative > 0.95


def test_a_place_where_nothing_differs_carries_nothing(wma, pair):
    result = align(
        wma[1], *pair, weighted_majority(0.5), "log_weights", "embed@<w>", round=slice(3, 12)
    )
    assert result.accuracy() == 0.0
    assert result.fits["learned"].steps == (0,)


@pytest.mark.long
def test_training_is_the_same_for_the_same_seed_and_leaves_the_model_alone(wma, pair):
    _, model = wma
    before, state = model.digest(), torch.random.get_rng_state()
    options = {"round": slice(3, 12), "search": Search(steps=4, restarts=1, seed=3)}
    first, second = (
        align(model, *pair, weighted_majority(0.5), "log_weights", "resid_post[1]@p?", **options)
        for _ in range(2)
    )
    assert torch.equal(first.basis, second.basis)
    assert model.digest() == before
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("algorithm", "variable", "rank"),
    [
        (weighted_majority(0.5), "log_weights", 4),
        (weighted_majority(0.5), "weights", 5),
        (weighted_majority(0.5), "votes", 5),
        (weighted_majority(0.5), "prediction", 1),
        (bayes(), "log_odds", 5),
        (q_learning(), "next_values", 2),
        (q_learning(), "table", 8),
        (q_learning(hardness=10.0), "next_values", 2),
        (q_learning(), "choice", 2),
    ],
)
def test_rank_is_what_choices_identify(algorithm, variable, rank):
    """n - 1 of n log-weights and of n values of a state; log-odds count each on its own."""
    if algorithm.task == "experts":
        episodes = [experts.sample(12, 16, 5, seed=seed) for seed in (0, 1)]
    else:
        episodes = [mdp.sample(12, 16, 4, 3, seed=seed) for seed in (0, 1)]
    base_values, source_values = (algorithm.run(batch) for batch in episodes)
    pairs = make_pairs(algorithm, base_values, source_values, variable, np.arange(12))
    assert identified_rank(algorithm, base_values, source_values, variable, pairs) == rank


def test_pairs_are_informative_half_of_the_time_and_come_from_every_round():
    algorithm = weighted_majority(0.5)
    base_values, source_values = (
        algorithm.run(experts.sample(16, 12, 4, seed=seed)) for seed in (0, 1)
    )
    pairs = make_pairs(algorithm, base_values, source_values, "log_weights", np.arange(16))
    drawn = pairs.draw_pairs(20_000, seed=0)
    counts = torch.bincount(drawn, minlength=len(pairs)).double()
    assert counts[pairs.tied].sum() == 0
    assert pairs.tied.any()
    share_informative = pairs.informative[drawn].double().mean()
    assert share_informative.item() == pytest.approx(0.5, abs=0.02)
    for kind in (pairs.informative, ~pairs.informative & ~pairs.tied):
        rounds = pairs.rounds[kind].unique()
        counts_of_rounds = [counts[kind & (pairs.rounds == t)].sum() for t in rounds]
        shares = torch.stack(counts_of_rounds) / sum(counts_of_rounds)
        equal_shares = torch.full_like(shares, 1 / len(shares))
        assert_close(shares, equal_shares, rtol=0, atol=0.02)


@pytest.mark.long
def test_hard_attention_needs_a_smooth_stand_in():
    """At what a hard head chooses by, no gradient arrives: the message names the remedy."""
    model = interp.load("qlearning-handwired", n_states=2, n_actions=2, variant="lin")
    episodes = [mdp.sample(20, 10, 2, 2, seed=seed) for seed in (0, 1)]
    with pytest.raises(
        AlignmentError,
        match=r"no gradient reaches 'blocks.1.hook_resid_post'.*give smooth=circuits",
    ):
        align(
            model,
            *episodes,
            q_learning(),
            "next_values",
            "resid_post[1]@Select",
            round=slice(4, 10),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sites": "resid_post[1]@w?"},
            r"'w\?' comes after 'p\?', where the prediction is read, and cannot change it",
        ),
        (
            {"variable": "match"},
            r"0 of the 576 pairs that train are informative \(setting 'match' .* 100 are needed",
        ),
        (
            {"round": 0},
            r"0 of the 64 pairs that train .* give more episodes, more or later rounds",
        ),
        ({"sites": "resid_post[1]"}, "aligning needs one vector"),
        ({"search": Search(rank=99)}, "rank must be an integer from 1 to d_model = 44, got 99"),
        ({"search": Search(held_out=0.98)}, "held_out 0.98 of 24 episodes leaves none"),
        ({"variable": "weigths"}, "unknown variable of 'weighted_majority' 'weigths'"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_the_reason(wma, pair, options, message):
    arguments = {
        "variable": "log_weights",
        "sites": "resid_post[1]@p?",
        "round": slice(3, 12),
        **options,
    }
    refuses(message, align, wma[1], *pair, weighted_majority(0.5), **arguments)


def test_a_search_is_checked():
    refuses("steps must be an integer >= 1, got 0", Search, steps=0)


MACHINES = cases(__file__, "alignment MACHINES")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "arguments", "variable", "true", "wrong"), MACHINES)
def test_both_machines_at_full_size(name, arguments, variable, true, wrong, seed):
    """Slow: 48 episodes, up to three starts each. Found at every true site, and nowhere else."""
    model = interp.load(name, **arguments)
    task, smooth = interp.tasks.of(model), circuits.differentiable(model)
    episodes = [task.sample_for(model, 48, 16, 2 * seed + i) for i in (0, 1)]
    options = {"round": slice(1, 16), "search": Search(smooth=smooth, seed=seed)}
    for site in (*true, *wrong):
        result = align(model, *episodes, task.explains(model), variable, site, **options)
        if site in true:
            assert result.accuracy() >= 0.97
        else:
            assert result.accuracy() <= result.accuracy("untrained model") + 0.05
