"""The figure of a state over time says what a map of enough episodes reads, and says "roughly" where that is so."""

import numpy as np
import pytest

import interp
from interp.tasks import experts
from reports.part import Context
from reports.parts import probing

N_ROUNDS = 20


def make_context(*, quick: bool) -> Context:
    """A GRU whose centred log-weights a linear map reads with an R2 of .97."""
    parts = (
        probing.part(targets=["log_weights_centred"]),
        probing.state(probed="log_weights_centred"),
    )
    model = interp.load("wma-gru")
    return Context(model, "wma-gru", 16, N_ROUNDS, seed=0, parts=parts, quick=quick)


@pytest.fixture(scope="module")
def context() -> Context:
    return make_context(quick=False)


def centred_hits(episodes: experts.ExpertEpisodes) -> np.ndarray:
    """Count each expert's hits after every round, less their mean."""
    hits = (episodes.advice == episodes.labels[..., None]).cumsum(1)
    return hits - hits.mean(-1, keepdims=True)


def add_constant(latents: np.ndarray) -> np.ndarray:
    ones = np.ones((*latents.shape[:-1], 1))
    return np.concatenate([latents, ones], axis=-1)


@pytest.mark.parametrize(("quick", "n_others"), [(False, 256), (True, 64)])
def test_a_rough_state_is_decoded_by_least_squares_on_other_episodes(
    quick: bool, n_others: int
) -> None:
    """By NumPy alone: fitted on other episodes, applied to the episode that is drawn."""
    context = make_context(quick=quick)
    others = context.sample(n_others, N_ROUNDS, seed=2)
    latents_of_others = interp.rollout(context.model, others).latents[:, 1:, 0]
    fitted_on = add_constant(latents_of_others.double().numpy())
    targets = centred_hits(others)
    rows = fitted_on.reshape(-1, fitted_on.shape[-1])
    slopes, *_ = np.linalg.lstsq(rows, targets.reshape(-1, 4), rcond=None)
    latents_shown = context.run.latents[context.drawn_episode, 1:, 0]
    read_from = add_constant(latents_shown.double().numpy())
    trajectory = context.result("state")
    assert trajectory.state == pytest.approx(read_from @ slopes, abs=1e-4)
    hits_shown = centred_hits(context.episodes)[context.drawn_episode]
    assert trajectory.reference == pytest.approx(hits_shown)


@pytest.mark.parametrize(("quick", "n_copies"), [(False, 2), (True, 1)])
def test_a_quick_report_probes_one_untrained_copy(quick: bool, n_copies: int) -> None:
    (result,) = make_context(quick=quick).result("probes")
    assert result.settings["n_untrained"] == n_copies


def test_a_rough_state_is_called_rough_in_the_figure_and_in_the_sentence(context: Context) -> None:
    _, state = context.parts
    (hero,) = state.hero(context.result("state"), context)
    assert "They agree roughly (R² 0.9" in hero.caption
    probes_part, _ = context.parts
    (measure,) = probes_part.summary(context.result("probes"), context)
    assert measure.yes == "lets a linear probe roughly read the centred log-weights"


def test_a_state_that_is_not_decoded_is_not_said_to_agree_roughly() -> None:
    """An untrained model's page said so of an R2 of .06."""
    zeros = np.zeros((3, 1))
    trajectory = probing.Trajectory("the counts", zeros, zeros + 1, ("e_1",), r2=0.06)
    assert trajectory.describe_difference().startswith("agree poorly (R² 0.06")


def test_an_exact_state_is_not_called_rough() -> None:
    parts = (probing.part(targets=["log_weights"]), probing.state())
    model = interp.load("wma-handwired", n_experts=3)
    context = Context(model, "wma-handwired", 8, 10, seed=0, parts=parts)
    assert context.result("state").describe_difference() == "are equal in every bit"
    (measure,) = parts[0].summary(context.result("probes"), context)
    assert measure.yes == "lets a linear probe read the log-weights"


def test_the_variable_that_is_decoded_best_is_claimed_first() -> None:
    """wma-learned: each expert's accuracy as a Bayesian estimates it, before the log-weights."""
    part = probing.part(targets=["log_weights_centred", "accuracies"], n_claimed=2)
    context = Context(
        interp.load("wma-learned"), "wma-learned", 48, N_ROUNDS, seed=0, parts=(part,)
    )
    first, second = part.summary(context.result("probes"), context)
    assert first.yes == "lets a linear probe roughly read the experts' estimated accuracies"
    assert first.verdict == "yes"
    assert second.number.estimate < first.number.estimate


def test_a_handwired_model_claims_only_variables_of_its_own_algorithm() -> None:
    """Weighted Majority has no estimates of accuracies, so failing to decode them is no finding."""
    part = probing.part(targets=["log_weights", "accuracies"], n_claimed=2)
    model = interp.load("wma-handwired", n_experts=3)
    context = Context(model, "wma-handwired", 8, 10, seed=0, parts=(part,))
    results = context.result("probes")
    assert [result.target.key for result in results] == ["log_weights", "accuracies"]
    (claimed,) = part.summary(results, context)
    assert "log-weights" in claimed.yes
