"""Variants: the same predictions where they must be the same, and noise of the size asked for."""

import pytest
import torch

import interp
from circuits.benchmark.known_machine import (
    remove_directions,
    rotate_residual_stream,
    with_distractors,
)
from lab.variants import rescaled, widened
from tests.cases import cases
from tests.refusals import refuses

MODELS = cases(__file__, "variants MODELS")


@pytest.mark.parametrize(("name", "arguments", "tolerance"), MODELS)
@pytest.mark.parametrize("variant", [rotate_residual_stream, with_distractors])
def test_the_same_machine_predicts_the_same(name, arguments, tolerance, variant):
    """In another basis, or beside heads and neurons that nobody reads; a handwired one reads out the same state."""
    model = interp.load(name, **arguments)
    changed = variant(model, seed=1)
    episodes = interp.tasks.of(model).sample_for(model, 4, 6, 0)
    here, there = interp.rollout(model, episodes), interp.rollout(changed, episodes)
    assert largest_difference(here.predictions, there.predictions) < tolerance
    assert changed.digest() != model.digest()
    if model.is_handwired:
        here_state, there_state = model.read_state(here.latents), changed.read_state(there.latents)
        assert largest_difference(here_state, there_state) < tolerance


def largest_difference(first, second):
    return (first - second).abs().max()


@pytest.mark.parametrize(("name", "arguments", "tolerance"), MODELS[:2])
def test_a_wider_or_rescaled_machine_predicts_the_same_and_reads_out_the_same_state(
    name, arguments, tolerance
):
    model = interp.load(name, **arguments)
    episodes = interp.tasks.of(model).sample_for(model, 4, 6, 0)
    first = model.config.d_model
    here = interp.rollout(model, episodes)
    state = model.read_state(here.latents)
    wider_model, scaled_model = widened(model, 2), rescaled(model, -4.0)
    wider = interp.rollout(wider_model, episodes)
    scaled = interp.rollout(scaled_model, episodes)
    assert wider.latents.shape[-1] == first + 2
    assert not wider.latents[..., first:].any()
    for changed, run in ((wider_model, wider), (scaled_model, scaled)):
        assert largest_difference(here.predictions, run.predictions) < tolerance
        assert largest_difference(state, changed.read_state(run.latents)) < tolerance
    assert state.any()
    assert torch.allclose(model.read_state(scaled.latents), -4 * state)


def test_what_cannot_be_rescaled_or_widened_is_refused():
    learned, wired = interp.load("wma-learned-additive"), interp.load("wma-handwired", n_experts=2)
    refuses("'wma-learned-additive' is a learned model", rescaled, learned, 2.0)
    refuses("'wma-learned-additive' has LayerNorm", widened, learned, 1)
    refuses("other than 0", rescaled, wired, 0.0)
    refuses("n must be an integer >= 1, got 0", widened, wired, 0)


def test_a_rotation_changes_every_coordinate_and_cannot_be_rebuilt_by_name():
    from circuits.registry import from_origin

    model = interp.load("wma-handwired", n_experts=2)
    rotation = rotate_residual_stream(model, seed=3)
    assert largest_difference(model.W_E, rotation.W_E) > 0.1
    lengths, rotated_lengths = model.W_E.norm(dim=1), rotation.W_E.norm(dim=1)
    assert torch.allclose(lengths, rotated_lengths)
    refuses("rotated, seed 3", from_origin, rotation.config.origin)


def test_a_machine_that_reads_differences_keeps_its_predictions_when_their_sum_is_lost():
    """Three log-weights in two dimensions, at angles of 120 degrees; what it does read cannot be taken out."""
    model = interp.load("wma-handwired", n_experts=3)
    episodes = interp.tasks.of(model).sample_for(model, 4, 6, 0)
    blinded = remove_directions(model, model.state_map.sum(0, keepdim=True))
    here, there = interp.rollout(model, episodes), interp.rollout(blinded, episodes)
    assert largest_difference(here.predictions, there.predictions) < 1e-9
    whole_state = model.read_state(here.latents)
    centred = whole_state - whole_state.mean(-1, keepdim=True)
    assert largest_difference(blinded.read_state(there.latents), centred) < 1e-9
    directions = torch.nn.functional.normalize(blinded.state_map, dim=1)
    assert torch.linalg.matrix_rank(blinded.state_map) == 2
    cosines = torch.full((3, 3), -0.5).to(directions).fill_diagonal_(1.0)
    assert torch.allclose(directions @ directions.T, cosines)
    without_first = interp.rollout(remove_directions(model, model.state_map[:1]), episodes)
    assert largest_difference(here.predictions, without_first.predictions) > 0.01
    refuses("LayerNorm", remove_directions, interp.load("wma-learned-additive"), torch.zeros(1, 64))


def test_distractors_compute_something_that_the_latents_hold():
    model = interp.load("wma-handwired", n_experts=2)
    distracted = with_distractors(model, 3, seed=0)
    assert distracted.config.n_heads == model.config.n_heads + 3
    assert distracted.config.head_names[0][-1] == "distractor 3"
    run = interp.rollout(distracted, interp.tasks.of(model).sample_for(model, 4, 6, 0))
    of_distractors = run.latents[:, 1:, :, model.config.d_model :]
    assert (of_distractors.std((0, 1)) > 1e-3).all()
    refuses("n must be", with_distractors, model, 0)
