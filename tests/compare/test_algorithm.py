"""Which algorithm explains predictions: known machines are named, mixtures and noise are not, and fits are exact."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon

from circuits.compare import explain
from circuits.compare.algorithm import (
    _compare_with_untrained,
    _differentiate_by_update,
    _judge_responses,
    _list_directions,
    _measure_gain_from_memory,
    _measure_remainder,
)
from circuits.compare.question import ARRIVES
from circuits.compare.response import Edits, compare_responses, measure_responses
from interp import tasks
from interp.choices.fitting import Distributions, divergence, predictor, select_scored_rounds
from interp.core.algorithm import Family, Searched
from interp.core.task import Algorithms
from interp.tasks.experts import TASK, sample
from interp.tasks.experts import algorithms as experts
from interp.tasks.qlearning import algorithms as q
from interp.tasks.qlearning import families as q_rivals
from interp.tasks.reachability import algorithms as search
from tests.conftest import FEW
from tests.refusals import refuses

SIZES = {
    "bandit": {"n_arms": 3},
    "experts": {"n_experts": 3},
    "qlearning": {"n_states": 3, "n_actions": 2},
    "reachability": {"n_nodes": 16, "n_edges": 24},
}
COARSE = {"low": (0.0, 0.3), "room": (0.6, 1.0), "gain": (0.1, 1.0), "decay": (0.8, 0.98), "accuracy": (0.5, 0.6),
          "alpha": (0.1, 0.3), "gamma": (0.5, 0.9), "temperature": (0.0, 0.05)}  # fmt: skip
"""Grids that a test can afford, of values that are chosen from and not refined."""


def asked(task: str, *keys: str, coarse: bool = True) -> list[Family]:
    rivals = tasks.get(task).rivals()
    families = [family for key, family in rivals.items() if key in keys]
    if not coarse:
        return families

    def narrowed(s: Searched) -> Searched:
        return replace(s, grid=COARSE.get(s.name, s.grid), kind="choice")

    return [replace(family, searched=tuple(map(narrowed, family.searched))) for family in families]


def blend(first, second, weight=0.5):
    """A predictor that is no single algorithm: ``weight`` of the first one's distribution, the rest of the second's."""
    first_predictor, second_predictor = predictor(first), predictor(second)

    def predict(episodes):
        first_part = weight * first_predictor(episodes)
        return first_part + (1 - weight) * second_predictor(episodes)

    return predict


def drawn(episodes):
    """Predictions that have nothing to do with the episodes."""
    chance = np.random.default_rng(0).random((len(episodes), episodes.n_rounds))
    return np.stack([1 - chance, chance], -1)


def uneven(by):
    """Weighted Majority of gain .5, ``by`` more where the truth is 1, and as much less where it is 0."""

    def step(values):
        sign = 2 * values["label"][..., None] - 1
        gain = 0.5 + by * sign
        return values["log_weights"] + gain * values["match"]

    changes = {"next_log_weights": (("log_weights", "label", "match"), step)}
    return experts.weighted_majority(0.5).make_variant("uneven", "uneven", {}, changes)


@pytest.fixture(scope="module")
def sets():
    every = TASK.sets_for(8, 20, seed=0, n_experts=4)
    return {key: every[key] for key in ("uniform", "graded")}


@given(arrays(np.float64, (2, 1, 1, 3), elements=st.floats(1e-3, 1)))
def test_the_divergence_is_the_square_of_scipys_distance(pair):
    p, q = pair / pair.sum(-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # scipy takes the root of rounding below 0
        distance = jensenshannon(p[0, 0], q[0, 0])
    expected = np.nan_to_num(distance) ** 2
    assert divergence(p, q) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("subject", "family", "parameters"),
    [
        (experts.weighted_majority(0.35), "weighted_majority", {"gain": 0.35}),
        (experts.bayes(0.35, 0.8), "bayes", {"low": 0.35, "high": 0.8}),
        (experts.follow_the_leader(), "follow_the_leader", {}),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_an_algorithm_is_explained_by_its_own_family_with_its_parameters(
    sets, subject, family, parameters
):
    families = asked("experts", family, "follow_the_leader", "majority_vote", coarse=False)
    part = explain(subject, TASK, sets, seed=0, families=families)
    assert part.family == part.closest == family
    assert part.parameters == pytest.approx(parameters, abs=0.01)
    assert part.explained.low > 0.9999
    assert part.ratio.high < 1e-3


def test_a_mixture_of_two_algorithms_is_none_of_these(sets):
    mixture = blend(experts.weighted_majority(1.0), experts.bayes())
    part = explain(mixture, TASK, sets, seed=0, families=asked("experts", *FEW))
    assert part.family is None
    assert part.closest == "bayes"
    assert part.ratio.high > 0.25
    assert "No family fits" in str(part)


@pytest.mark.parametrize(("lapses", "family"), [(0, "weighted_majority"), (3, None)])
def test_nothing_is_named_that_is_plainly_wrong_in_a_few_rounds(lapses, family):
    """Three inverted predictions of 1,800 change the average by less than a name allows."""
    majority = predictor(experts.weighted_majority(1.0))
    sets = {"uniform": TASK.sets_for(8, 20, seed=0, n_scored=90, n_experts=4)["uniform"]}

    def lapsing(episodes):
        predictions = majority(episodes)
        if len(episodes) == 90:
            is_sure = np.abs(predictions[:, 10, 0] - 0.5) > 0.4
            inverted = np.flatnonzero(is_sure)[:lapses]
            predictions[inverted, 10] = predictions[inverted, 10, ::-1]
        return predictions

    families = asked(
        "experts", "weighted_majority", "follow_the_leader", "majority_vote", coarse=False
    )
    none = Edits(sets["uniform"][1], (), ())  # what responds otherwise is another question
    part = explain(lapsing, TASK, sets, seed=0, families=families, edits=none)
    assert part.closest == "weighted_majority"
    assert part.family == family
    if lapses:  # by the whole interval
        assert part.apart.low < 0.001 < part.apart.high
    assert part.explained.low > 0.95
    assert part.ratio.high < 0.25
    assert part.apart.estimate == pytest.approx(lapses / 1800)


@pytest.mark.parametrize(("gain", "named"), [(0.5, True), (0.4, True), (0.22, False), (0.2, False)])
def test_a_name_needs_the_whole_interval_of_the_worst_response(sets, gain, named):
    """Weighted Majority of gain .2 responds .7 like that of .5, of gain .22 .78 [.73, .88]: lower ends decide."""
    family = asked("experts", "weighted_majority", coarse=False)
    part = explain(experts.weighted_majority(0.5), TASK, sets, seed=0, families=family)
    edits = Edits.of(TASK, sample(24, 12, 3, seed=0), 24 * 44)
    judged = _judge_responses(part, experts.weighted_majority(gain), edits)
    worst = judged.response.alike
    assert (judged.family == "weighted_majority") == named
    assert (worst.low >= ARRIVES) == named
    ours = measure_responses(experts.weighted_majority(gain), edits)
    theirs = measure_responses(experts.weighted_majority(0.5), edits)
    lows = [cell.alike.low for cell in compare_responses(edits, ours, theirs)]
    assert worst.low == min(lows)


@pytest.mark.parametrize(
    ("subject", "named"), [(uneven(0.1), False), (blend(uneven(0), drawn, 0.95), True)]
)
def test_no_name_is_given_where_small_changes_of_its_update_say_what_it_misses(
    sets, subject, named
):
    """A gain that depends on the truth is explained by .99; what noise adds is no change of an update."""
    families = asked(
        "experts", "weighted_majority", "follow_the_leader", "majority_vote", coarse=False
    )
    part = explain(subject, TASK, sets, seed=0, families=families)
    assert part.closest == "weighted_majority"
    assert part.explained.low > 0.95
    assert part.ratio.high < 0.25
    assert part.family == ("weighted_majority" if named else None)
    assert (part.left.low > 0.65) == named
    assert (part.left, part.change) == _measure_remainder(
        predictor(subject), part.algorithm, sets, 0
    )
    fitted_on, scored_on = zip(*sets.values(), strict=True)
    missed, slopes = weighed_misses(subject, part.algorithm, fitted_on)
    coefficients = np.linalg.pinv(slopes, 0.001) @ missed
    missed, slopes = weighed_misses(subject, part.algorithm, scored_on)
    residual = missed - slopes @ coefficients
    share_left = (residual @ residual) / (missed @ missed)
    assert part.left.estimate == pytest.approx(share_left, rel=1e-6)


def weighed_misses(subject, algorithm, batches):
    """What an algorithm misses of a subject in all batches together, and its slopes, both in units of rounding."""
    missed, slopes_of_all = [], []
    for episodes in batches:
        p = predictor(subject)(episodes)
        q, slopes, _ = _differentiate_by_update(algorithm, episodes)
        scale = np.sqrt(p + q + 0.001)
        missed.append(((p - q) / scale).ravel())
        slopes_of_all.append((slopes / scale[..., None]).reshape(-1, 20))
    return np.concatenate(missed), np.concatenate(slopes_of_all)


def test_how_fast_a_change_moves_predictions_is_the_slope_of_machines_that_are_changed(sets):
    """Of a thousandth more of a step, in proportion to the label, or not; what counts rounds stays as it is."""
    faster = {"next_counts": (("counts", "match"), lambda v: v["counts"] + 1.0005 * v["match"])}
    count = experts.bayes().make_variant("more", "more", {}, faster)
    cases = (
        (experts.weighted_majority(0.5), experts.weighted_majority(0.50025)),
        (experts.bayes(), count),
    )
    episodes, _ = sets["graded"]
    for plain, changed in cases:
        p, slopes, names = _differentiate_by_update(plain, episodes)
        larger = slopes[..., names.index("a larger step")]
        assert len(names) == 20
        assert np.array_equal(p, predictor(plain)(episodes))
        assert slopes.shape == (*p.shape, 20)
        slope = (predictor(changed)(episodes) - p) / 0.0005
        assert larger == pytest.approx(slope, abs=1e-2)
        largest_slopes = np.abs(slopes).max((0, 1, 2))
        assert largest_slopes.min() > 0.01
        if plain.key == "weighted_majority":
            more_for_ones = predictor(uneven(0.00025))(episodes)
            more_for_zeros = predictor(uneven(-0.00025))(episodes)
            slope = (more_for_ones - more_for_zeros) / 0.001
            by_label = slopes[..., names.index("steps that depend on label")]
            assert 2 * by_label - larger == pytest.approx(slope, abs=1e-2)
    none = _differentiate_by_update(experts.majority_vote(), episodes)[1]
    assert none.shape == (*p.shape, 1)
    assert not none.any()


def test_what_a_round_could_leave_beside_its_step():
    """By hand, in the first and the sixth of six rounds of two episodes, for four numbers each."""
    state, after, votes = np.random.default_rng(0).normal(size=(3, 2, 6, 4))
    label = np.tile([[2.0], [3.0]], 6)
    other_values = np.ones((2, 6, 5))
    step = after - state
    directions = _list_directions(
        state, after, {"votes": votes, "label": label, "other": other_values}
    )
    of_rounds = np.stack(list(directions.values()))
    no_step, sine_of_60_degrees = np.zeros((2, 4)), 3**0.5 / 2
    for t, last, turns in (
        (0, no_step, (1, 1, 0, 1, 0)),
        (5, step[:, 4], (-1, -0.5, -sine_of_60_degrees, 0, 1)),
    ):
        mine, here = step[:, t], state[:, t]
        gap = np.array([[x - max(row) for x in row] for row in here])
        alternating, period_3, period_3_shifted, period_4, period_4_shifted = turns
        factors = {
            "a larger step": 1,
            "steps that follow the last one": last,
            "steps that grow with the round": t,
            "steps that alternate": alternating,
            "steps of period 3": period_3,
            "steps of period 3, shifted": period_3_shifted,
            "steps of period 4": period_4,
            "steps of period 4, shifted": period_4_shifted,
            "steps that grow with the state": here,
            "steps that follow the others'": mine.mean(1)[:, None],
            "steps that differ by element": [[0, 1, 2, 3]],
            "steps that depend on votes": votes[:, t],
            "steps that depend on label": label[:, t, None],
            "steps that depend on other": 0,
        }
        wanted = {name: mine * factor for name, factor in factors.items()}
        wanted |= {
            "the last step once more": last,
            "a leak": here,
            "a leak that grows": here**2,
            "a leak below the largest": gap,
            "a leak that grows below the largest": gap**2,
            "a clipped state": np.exp(gap),
            "steps of a neighbour": mine[:, [3, 0, 1, 2]],
        }
        assert list(directions) == list(wanted)
        expected = np.stack(list(wanted.values()))
        assert of_rounds[:, :, t] == pytest.approx(expected, abs=1e-12)


def test_an_untrained_copy_is_as_far_from_a_model_as_the_model_from_it(sets):
    """By what the memories of both are worth."""
    first = predictor(experts.bayes(0.0, 1.0))
    second = predictor(experts.weighted_majority(0.2))
    first_is_the_copy, second_is_the_copy = (
        SimpleNamespace(sets=sets, untrained=[SimpleNamespace(model=untrained, task=TASK)])
        for untrained in (first, second)
    )
    (there,) = _compare_with_untrained(first_is_the_copy, second)
    (back,) = _compare_with_untrained(second_is_the_copy, first)
    assert there == pytest.approx(back, abs=1e-9)
    assert there < 0.95


def test_a_machine_without_a_memory_is_none_of_these(sets):
    part = explain(experts.majority_vote(), TASK, sets, seed=0, families=asked("experts", *FEW))
    assert part.family is None
    assert part.closest == part.baseline == "majority_vote"
    share = _measure_gain_from_memory(
        SimpleNamespace(sets=sets), predictor(experts.majority_vote())
    )
    assert max(nats.max() for nats in share.values()) < 1e-6


def test_an_algorithm_of_ones_own_is_among_the_families_while_it_is_in_use(sets):
    """It is the only memoryless algorithm that predicts like itself, so that its memory gains nothing."""

    def vote_against(values):
        share_of_votes = values["votes"].mean(-1)
        return np.stack([share_of_votes, 1 - share_of_votes], -1)

    contrarian = replace(
        experts.majority_vote(), key="contrarian", name="contrarian", distribution=vote_against
    )
    with tasks.using(None, contrarian) as task:
        gain = _measure_gain_from_memory(SimpleNamespace(sets=sets), predictor(contrarian))
    assert task.rivals()["contrarian"].memoryless
    assert "contrarian" in task.update_families()
    assert max(nats.max() for nats in gain.values()) < 1e-6
    assert "contrarian" not in TASK.rivals()


def test_predictions_that_have_nothing_to_do_with_the_episodes_are_none_of_these(sets):
    part = explain(drawn, TASK, sets, seed=0, families=asked("experts", *FEW))
    assert part.family is None
    assert part.explained.high < 0.1


@pytest.mark.parametrize(
    ("subject", "family"),
    [
        (q.q_learning(0.1, 0.5), "q_learning"),
        (q.no_bootstrap(0.1), "no_bootstrap"),
        (q_rivals.sarsa(0.1, 0.9), "sarsa"),
        (q_rivals.visit_counts(), None),
    ],
    ids=lambda value: getattr(value, "key", None),
)
def test_learners_are_told_apart_by_their_choices(subject, family):
    """Off- and on-policy, with and without bootstrapping; one that counts visits is not in the list."""
    task = tasks.get("qlearning")
    every = task.sets_for(3, 30, seed=0, n_states=4, n_actions=3)
    few = asked("qlearning", "q_learning", "no_bootstrap", "sarsa")
    part = explain(subject, task, {"delayed": every["delayed"]}, seed=0, families=few)
    assert part.family == family
    if family == "q_learning":
        assert part.parameters["gamma"] == 0.5
        assert not part.parameters["after"]
        assert not part.parameters["shared_ties"]


def test_a_search_is_breadth_first_whatever_its_spread():
    task = tasks.get("reachability")
    sets = task.sets_for(4, 5, seed=0, **SIZES["reachability"])
    families = asked(
        "reachability",
        "breadth_first",
        "depth_limited",
        "depth_first",
        "more_ancestors",
        coarse=False,
    )
    part = explain(
        search.breadth_first(0.5), task, {"prosqa": sets["prosqa"]}, seed=0, families=families
    )
    assert part.family == "breadth_first"
    assert part.parameters["spread"] == pytest.approx(0.5, abs=0.01)


def test_a_round_that_asks_for_nothing_does_not_count():
    """Reachability asks from its second round on; expert advice from the first."""

    def but_for_the_first_round(algorithm):
        def predict(episodes):
            distributions = predictor(algorithm)(episodes).copy()
            distributions[:, 0] = np.eye(distributions.shape[-1])[0]
            return distributions

        return predict

    explained = {}
    for key, algorithm, named in (
        (
            "reachability",
            search.breadth_first(0.5),
            ("breadth_first", "more_ancestors", "depth_first"),
        ),
        (
            "experts",
            experts.weighted_majority(0.5),
            ("weighted_majority", "majority_vote", "follow_the_leader"),
        ),
    ):
        task = tasks.get(key)
        name, pair = next(iter(task.sets_for(4, 5, seed=0, **SIZES[key]).items()))
        families = asked(key, *named, coarse=False)
        part = explain(
            but_for_the_first_round(algorithm), task, {name: pair}, seed=0, families=families
        )
        explained[key] = part.explained.estimate
    assert explained["reachability"] > 0.999
    assert explained["experts"] < 0.9


def test_episodes_that_end_before_anything_is_asked_are_refused():
    task = tasks.get("reachability")
    refuses(
        r"no prediction before round 2.*have 1",
        explain,
        search.breadth_first(),
        task,
        task.sets_for(4, 1, seed=0, **SIZES["reachability"]),
        seed=0,
    )


def list_families() -> list[tuple[str, Family]]:
    families = []
    for task in tasks.list_tasks():
        families += [(task.key, family) for family in task.rivals().values()]
    return families


EVERY_FAMILY = list_families()


@pytest.mark.parametrize(
    ("task", "family"), EVERY_FAMILY, ids=[f"{task}-{f.key}" for task, f in EVERY_FAMILY]
)
def test_what_a_fit_keeps_between_parameters_changes_no_prediction(task, family):
    """A fit computes again only what changed parameters enter: each step equals a run from the start."""
    (episodes, _), *_ = tasks.get(task).sets_for(4, 5, seed=1, **SIZES[task]).values()
    members, rng = Distributions(family, [episodes]), np.random.default_rng(0)
    parameters = {s.name: s.grid[0] for s in family.searched}
    for searched in (*family.searched, *family.searched[::-1], None):
        if searched is not None:
            value = searched.grid[rng.integers(len(searched.grid))]
            parameters = {**parameters, searched.name: value}
        member = family.make(**parameters)
        whole = select_scored_rounds(predictor(member)(episodes), episodes)
        assert np.allclose(members(member, parameters), whole, atol=1e-12)
        assert np.allclose(whole.sum(-1), 1)
        assert (whole >= 0).all()


def test_a_result_says_itself_in_a_table_and_in_json(sets):
    part = explain(
        experts.bayes(0.0, 1.0),
        TASK,
        sets,
        seed=3,
        families=asked("experts", "bayes", "weighted_majority"),
    )
    frame = part.to_frame()
    record = json.loads(json.dumps(part.to_dict(), allow_nan=False))
    assert list(frame.columns) == ["name", "set", "family", "number", "number_low", "number_high"]
    assert set(frame["set"]) == {*sets, "all"}
    assert set(frame["family"]) == {"bayes", "weighted_majority", "evenly"}
    of_all_sets = frame[frame["set"] == "all"]
    whole = of_all_sets[of_all_sets["family"] == "bayes"].set_index("name")["number"]
    assert whole["explained"] == part.explained.estimate
    assert whole["ratio"] == part.ratio.estimate
    assert record["family"] == "bayes"
    assert record["settings"]["seed"] == 3


def test_the_answer_depends_on_the_seed_of_the_bootstrap_alone(sets):
    families = asked("experts", "weighted_majority", "follow_the_leader")
    first, same, second = (
        explain(experts.bayes(), TASK, sets, seed=s, families=families) for s in (0, 0, 1)
    )
    assert first.explained == same.explained
    assert first.explained.low != second.explained.low
    assert first.explained.estimate == second.explained.estimate


def test_a_task_without_families_is_asked_for_its_algorithms():
    bare = replace(TASK, algorithms=replace(TASK.algorithms, families=None, battery=None))
    memoryless = [key for key, family in bare.rivals().items() if family.memoryless]
    assert memoryless == ["majority_vote"]
    sets = bare.sets_for(4, 10, seed=0, n_experts=4)
    assert list(sets) == ["default"]
    assert explain(experts.follow_the_leader(), bare, sets, seed=0).family == "follow_the_leader"


def test_a_family_must_extend_one_that_is_there():
    families = (Family("a", "A", experts.majority_vote, extends="nothing"),)
    orphan = replace(TASK, algorithms=Algorithms(families=lambda: families))
    refuses("family that 'a' extends 'nothing'", orphan.rivals)


def test_a_grid_ascends():
    refuses(
        r"the grid of 'gain' must be ascending numbers, got \(1\.0, 0\.5\)",
        Searched,
        "gain",
        (1.0, 0.5),
    )


def test_bad_input_is_refused_before_work(sets):
    refuses(
        "these episodes are of 'experts', not of 'qlearning'",
        explain,
        experts.bayes(),
        tasks.get("qlearning"),
        sets,
        seed=0,
    )
    refuses("no set of episodes", explain, experts.bayes(), TASK, {}, seed=0)
    refuses(
        "a model, an Algorithm or a function of episodes, got int", explain, 3, TASK, sets, seed=0
    )
    refuses(
        "must be probabilities that sum to 1, got one of 1 and a sum of 2",
        explain,
        lambda e: np.ones((len(e), e.n_rounds, 2)),
        TASK,
        sets,
        seed=0,
    )
    small = {"one": (sample(2, 5, 4), sample(2, 5, 4))}
    refuses(
        r"must be \[episode, round, outcome\]", explain, lambda e: np.ones(3), TASK, small, seed=0
    )


def test_sets_of_unequal_sizes_are_refused(sets):
    """Their i-th episodes are resampled together."""
    fitted_on, scored_on = sets["graded"]
    unequal = sets | {"graded": (fitted_on, scored_on.select(slice(0, 6)))}
    message = r"the sets must have equally many episodes .*'graded': \(8, 6\)"
    refuses(message, explain, experts.bayes(), TASK, unequal, seed=0)
