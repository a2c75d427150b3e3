"""What an experiment gives, on the napkin machine of conftest: every number is worked out by hand.

With v the vote (2 or 3), y = 2 the label and z the latent, a round predicts ``P = 6 (2 v^2 + 3 z^2) - v^2``, and head 1
of layer 1 writes the next z at w?, ``v^2 + y^2``. The first z is 1. Of three rounds:

    base      v = 3, 2, 3      z = 1, 13,  8, 13      P = 117, 3086, 1251
    source    v = 2, 3, 2      z = 1,  8, 13,  8      P =  62, 1251, 3086
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import interp
from interp.interventions import patching
from interp.interventions.experiment import Edit, Experiment, batches, run, run_on
from interp.interventions.sites import Place, Site
from interp.model.rollout import run_round
from interp.tasks.experts import ExpertEpisodes
from tests.interventions.conftest import VALUE
from tests.refusals import refuses

NEXT_Z = "L1H1@w?"  # what it puts out is the next latent
BASE_P, SOURCE_P = [117, 3086, 1251], [62, 1251, 3086]


def played(*votes, missing=None):
    """Episodes of the expert's votes, one row an episode; all labels are 0."""
    advice = np.array(votes)[..., None]
    labels = np.zeros(advice.shape[:2], int)
    return ExpertEpisodes(advice, labels, missing=missing)


@pytest.fixture(scope="module")
def base(napkin):
    return interp.rollout(napkin, played([1, 0, 1]))


@pytest.fixture(scope="module")
def source(napkin):
    return interp.rollout(napkin, played([0, 1, 0]))


def predicted(outputs):
    """Predictions ``[edit, episode, (round edited, round read), 1]`` of a single start."""
    return outputs.predictions[:, :, 0, :, None]


def carried(outputs):
    """The latent z after every round, ``[edit, episode, (round edited, round read), 1]``, of a single start."""
    return outputs.carried[:, :, 0, :, 0, 2:3]


def read(napkin, base, edits, readout, **options):
    """Return the numbers that the edits of round 0 give in rounds 0 to 2, as a list."""
    options = {"rounds": [0], "horizon": 2, "reads": "each", "commit": "target", **options}
    effects = run(Experiment(napkin, base, {"edit": edits}, readout=readout, **options))
    return effects.values.flatten().tolist()


def test_the_runs_are_those_of_the_napkin(base, source):
    assert base.predictions.tolist() == [BASE_P]
    assert source.predictions.tolist() == [SOURCE_P]
    assert base.latents[0, :, 0, 2].tolist() == [1, 13, 8, 13]


def test_the_state_after_every_round_is_kept(napkin, base):
    """Without the head, z after round 0 is 0; the rounds after it write their own."""
    edits = [Edit.of(NEXT_Z, lambda z, rows: 0 * z)]
    assert read(napkin, base, edits, carried) == [0, 8, 13]
    assert read(napkin, base, edits, predicted) == [117, 6 * 8 - 4, 1251]


def test_held_rounds_predict_and_leave_what_they_did_in_the_run(napkin, base):
    edits = [Edit.of(NEXT_Z, lambda z, rows: 0 * z)]
    options = {"propagate": False}
    assert read(napkin, base, edits, predicted, **options) == BASE_P
    assert read(napkin, base, edits, carried, **options) == [0, 8, 13]


@pytest.mark.parametrize("propagate", [True, False], ids=["run on", "held"])
def test_a_copied_site_gives_the_same_as_its_values(napkin, base, source, propagate):
    """z after round 0 is the source's 8: copied whole, which only runs what can change, or written as a number."""
    copied = Edit.of(NEXT_Z, source)
    written = Edit.of(NEXT_Z, lambda z, rows: 0 * z + 8)
    p_after_8 = 6 * (8 + 3 * 8**2) - 4
    expected = [117, p_after_8, 1251] if propagate else BASE_P
    for edit in (copied, written):
        carried_values = read(napkin, base, [edit], carried, propagate=propagate, commit="")
        assert carried_values == [8, 8, 13]
        predictions = read(napkin, base, [edit], predicted, propagate=propagate, commit="")
        assert predictions == expected


@pytest.mark.parametrize("commit", ["own", "target"])
def test_every_round_of_an_edited_run_commits_the_same_choices(untrained_q, mdp_episodes, commit):
    """Those of the edited model, or those of the run, however the run was made."""
    (commit_of_run,) = {"own", "target"} - {commit}
    base = interp.rollout(untrained_q, mdp_episodes, commit=commit_of_run)
    state = 3 * base.latents[:, [2]].flip(0)
    edits = {"state": [Edit.of("latent", state, untrained_q)]}
    options = {"horizon": 3, "reads": "each", "readout": "latents", "commit": commit}
    values = run(Experiment(untrained_q, base, edits, [2], **options)).values[0]
    latents = state[:, 0]
    for lag in range(4):
        latents = run_round(
            untrained_q, base.fed.take_round(2 + lag), latents, base.layout, commit
        ).latents.detach()
        assert_close(values[:, lag], latents.flatten(1), rtol=0, atol=1e-12)


def test_a_state_is_changed_again_after_a_copied_site(napkin, base, source):
    """The first state is the source's, which is the same; rounds 1 and 2 read z = 0: P = 6 (2 v^2) - v^2."""

    def clear(start, t, state):
        return 0 * state

    edit = Edit(Place.of("latent"), source, rewrite_state=clear)
    numbers = read(napkin, base, [edit], predicted, commit="")
    assert numbers == [117, 6 * 8 - 4, 6 * 18 - 9]


def test_a_known_stream_is_not_one_of_another_state(napkin, base):
    """With z = 2 in place of 1 the prediction is 6 (18 + 12) - 9, from the stream before layer 0 as from the tokens."""
    first = Site("resid_pre", 0)
    options = {"rounds": [0], "commit": "target"}
    seen = next(batches(Experiment(napkin, base, {"": []}, watched=[first], **options))).activations
    state = 2 * base.latents[:, [0]]
    edits = {"z": [Edit.of("latent", state)]}
    outputs = next(batches(Experiment(napkin, base, edits, known=seen, **options)))
    assert outputs.predictions.item() == 171


@pytest.mark.parametrize("outcome", ["latents", "state"])
def test_a_state_that_is_not_computed_is_not_read(napkin, base, source, outcome):
    experiment = Experiment(
        napkin, base, {"z": [Edit.of("latent", source)]}, 0, readout=outcome, update=False
    )
    refuses("update=False does not compute it", run, experiment)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1j])
def test_only_finite_real_numbers_are_put(napkin, base, number):
    """An effect of NaN would be reported as "moves outcome q0 most: by +nan"."""
    edit = Edit.of(NEXT_Z, torch.full((1, 3, 1), number))
    refuses("finite real numbers", Experiment, napkin, base, {"edit": [edit]}, rounds=[0])


def test_a_round_that_is_missing_in_what_is_put_counts_nowhere(napkin):
    """Of two episodes, the source of the second has no round 0: there, round 0 has only the first episode."""
    votes = [1, 0, 1], [1, 0, 1]
    base = interp.rollout(napkin, played(*votes))
    missing = np.array([[False, False, False], [True, False, False]])
    source = interp.rollout(napkin, played([0, 1, 0], [0, 1, 0], missing=missing))
    effects = run(Experiment(napkin, base, {"z": [Edit.of("latent", source)]}, rounds=[0, 1]))
    assert effects.counted is not None
    assert effects.counted.tolist() == [[True, True], [False, True]]
    assert torch.isnan(effects.values[0, 1, 0]).all()
    assert not torch.isnan(effects.values[0, 0]).any()
    assert not torch.isnan(effects.values[0, 1, 1]).any()


@pytest.mark.parametrize(
    "put", [lambda z, rows: 0 * z, lambda z, rows: z.zero_()], ids=["new", "in place"]
)
def test_a_function_that_writes_in_place_changes_the_subspace_alone(napkin, base, put):
    """Of the vote, the latent and out at p?, only out becomes 0 before layer 1: P = 0 - v^2."""
    place = Place.of("resid_pre[1]@p?", [[0, 0, 0, 1, 0]])
    assert read(napkin, base, [Edit(place, put)], predicted) == [-9, 3086, 1251]


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([8.0]),
        torch.full((1, 1, 1), 8.0),
        np.array([8.0]),
        8.0,
        8,
        lambda z: 0 * z + 8,
        lambda z, rows: 0 * z + 8,
    ],
    ids=["vector", "tensor", "array", "number", "whole number", "function", "function of rows"],
)
def test_a_value_is_spread_over_episodes_and_rounds(napkin, base, value):
    """z after round 0 becomes 8."""
    assert read(napkin, base, [Edit.of(NEXT_Z, value)], carried) == [8, 8, 13]


def test_a_vector_is_added_to_every_episode_and_round(napkin):
    """Of the carried z, 1 and 13 (or 1 and 8), whole or at its only position."""
    base = interp.rollout(napkin, played([1, 0, 1], [0, 0, 1]))
    direction = torch.tensor([0.0, 0, 2, 0, 0])
    for site in ("latent", "latent@<z>"):
        edits = {site: [Edit.of(site, direction, add=True)]}
        seen = run(Experiment(napkin, base, edits, rounds=[0, 1], watched=[Site("latent")]))
        assert seen.activations[0][Site("latent")][..., 2].flatten().tolist() == [3, 15, 3, 10]


def test_a_function_of_pytorch_without_a_signature_is_one_of_the_activation(napkin, base):
    assert read(napkin, base, [Edit.of(NEXT_Z, torch.zeros_like)], carried) == [0, 8, 13]


def test_a_tensor_that_lacks_either_episodes_or_rounds_is_refused(napkin):
    """Two rounds of two episodes: the axis of 2 could be either."""
    base = interp.rollout(napkin, played([1, 0, 1], [0, 0, 1]))
    edits = {"z": [Edit.of("latent", torch.zeros(2, 1, 5))]}
    experiment = Experiment(napkin, base, edits, rounds=[0, 1])
    refuses(r"one activation without the first two axes; got shape \(2, 1, 5\)", run, experiment)


# Edits of several rounds together.


@pytest.mark.parametrize(
    ("site", "rounds", "expected"),
    [
        (NEXT_Z, None, [117, 6 * (8 + 3 * 8**2) - 4, 1251]),  # round 1 writes 8 again
        (NEXT_Z, [0, 1], [117, 6 * (8 + 3 * 8**2) - 4, 6 * (18 + 3 * 13**2) - 9]),
        (NEXT_Z, slice(2), [117, 1196, 3141]),
        ("L0H0@p?", [0, 2], [6 * (8 + 3) - 9, 3086, 6 * (8 + 3 * 8**2) - 9]),
        ("L0H0@p?", "all", [57, 6 * (18 + 3 * 13**2) - 4, 1191]),
        ("latent", slice(0, None), [117, 6 * (8 + 3 * 8**2) - 4, 6 * (18 + 3 * 13**2) - 9]),
    ],
)
def test_an_edit_of_several_rounds_is_made_in_all_of_them(
    napkin, base, source, site, rounds, expected
):
    edits = [Edit.of(site, source, rounds=rounds)]
    assert read(napkin, base, edits, predicted) == expected


def test_a_tensor_of_several_rounds(napkin, base):
    """Add 1 to z after round 0, and 2 after round 1: 14, then 10."""
    additions = torch.tensor([[[1.0], [2.0]]])
    edits = [Edit.of(NEXT_Z, additions, add=True, rounds=[0, 1])]
    assert read(napkin, base, edits, carried) == [14, 10, 13]
    z = torch.zeros(1, 3, *base.latents.shape[2:], dtype=torch.float64)
    z[0, :, 0, 2] = torch.tensor([2.0, 3.0, 4.0])
    edits = [Edit.of("latent", z, rounds="all")]
    first, second, third = read(napkin, base, edits, predicted)
    assert first == 6 * (18 + 12) - 9
    assert second == 6 * (8 + 27) - 4
    assert third == 6 * (18 + 48) - 9


def test_each_start_is_apart_from_the_others(napkin, base, source):
    """From round 0 on z is the source's 8 and 13; from round 1 on only the second of them is put."""
    edits = {"edit": [Edit.of(NEXT_Z, source, rounds=[0, 1])]}
    experiment = Experiment(
        napkin, base, edits, rounds=[0, 1], horizon=2, reads="each", readout="latents"
    )
    effects = run(experiment)
    assert effects.rounds == ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2))
    assert effects.values[0, 0, :, 2].tolist() == [8, 13, 13, 13, 13]
    (outputs,) = batches(experiment)
    assert outputs.predictions[0, 0, 0].tolist() == [117, 1196, 3141]
    assert outputs.predictions[0, 0, 1, :2].tolist() == [3086, 3141]


def test_an_edit_of_several_rounds_that_cannot_be_made_is_refused(napkin, base, source):
    def made(rounds, **options):
        edits = {"edit": [Edit.of("latent", source, rounds=rounds)]}
        return Experiment(napkin, base, edits, **{"rounds": [0], "horizon": 2, **options})

    refuses(r"rounds 1, 2 is not made in round 0, .*rounds=1\)", made, slice(1, None))
    refuses("propagate=False holds later rounds", made, "all", propagate=False)
    refuses("horizon is 0; give horizon=2", made, "all", horizon=0)
    refuses("round 3 is out of range", made, [0, 3])
    edits = [Edit.of("latent", torch.zeros(1, 3, 1, 5), rounds=[0, 1])]
    refuses(
        r"\[episode, round, ...\] = \[1, 2, 1, 5\], .*; got shape \(1, 3, 1, 5\)",
        lambda: run(Experiment(napkin, base, {"edit": edits}, rounds=0, horizon=1)),
    )


def test_a_control_of_the_whole_state_moves_it_along_its_own_direction(untrained_q, mdp_episodes):
    base = interp.rollout(untrained_q, mdp_episodes)
    place = Place.of("latent").placebo(base.latents.shape[-1], seed=0)
    state = 3 * base.latents[:, [2]].flip(0)
    experiment = Experiment(untrained_q, base, {"control": [Edit(place, state)]}, rounds=[2])
    expected = run_on(untrained_q, base, [2], 1, place(base.latents[:, [2]], state))
    assert_close(next(batches(experiment)).predictions, expected.predictions)


def test_a_source_whose_activations_are_not_computed_again_is_refused(untrained_q, mdp_episodes):
    """A source is replayed without its hooks, in the model of the experiment: it would be another run's activation."""
    base = interp.rollout(untrained_q, mdp_episodes)
    hooks = [("blocks.1.attn.hook_z", lambda z, hook: 0 * z)]
    hooked = interp.rollout(untrained_q, mdp_episodes, fwd_hooks=hooks)
    anothers = interp.rollout(untrained_q.untrained(1), mdp_episodes)

    def put(site, source):
        edits = {site: [Edit.of(site, source, untrained_q)]}
        return run(Experiment(untrained_q, base, edits, rounds=[0]))

    refuses("hooks acted in this rollout", put, "L1H0", hooked)
    refuses("a rollout of another model", put, "L1H0", anothers)
    put("latent", hooked)


def test_a_tensor_with_axes_in_another_order_is_not_put(untrained_q, mdp_episodes):
    base = interp.rollout(untrained_q, mdp_episodes)
    z = torch.zeros(base.n_episodes, 2, base.layout.n_positions, untrained_q.cfg.d_head)

    def put(values):
        edits = {"z": [Edit.of("L1H0", values, untrained_q)]}
        return run(Experiment(untrained_q, base, edits, rounds=[0, 1]))

    put(z)
    refuses(r"put at L1H0 is \[episode, round, ...\] = ", put, z.transpose(0, 1))
    refuses("a tensor that is put at L1H0 is", put, z.transpose(2, 3))


def test_the_picture_of_one_start_counts_rounds_from_0(napkin, base, source):
    edits = {"edit": [Edit.of(NEXT_Z, source, rounds=slice(1, None))]}
    figure = run(Experiment(napkin, base, edits, rounds=1, horizon=1, reads="each")).plot()
    axes = figure.axes[0]
    assert axes.get_xlabel() == "round"
    assert figure.axes[1].get_ylabel() == "mean |effect|, summed over outcomes"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]


# Sweeps.


def test_a_sweep_of_several_rounds_patches_each_apart(napkin, napkin_pair):
    """Votes 3, 3 and 2, 3: the vote's head differs in round 0 alone. z is 1, then 8 in the corrupted run."""
    sweep = patching.sweep(napkin, *napkin_pair, [0, 1], sites="L0H0@p?", metric=VALUE)
    assert [result.round for result in sweep.by_round] == [0, 1]
    first, second = (result.values.item() for result in sweep.by_round)
    assert first == 122
    assert second == 6 * (18 + 3 * 8**2) - 9
    assert set(sweep.to_frame()["round"]) == {0, 1}
    fractions = sweep.fractions()[:, 0].tolist()
    assert fractions == [(122 - 62) / (117 - 62), 0]


@pytest.mark.parametrize("round", [-1, 1, [1], slice(1, None)], ids=str)
def test_a_round_means_the_same_however_it_is_written(napkin, napkin_pair, round):
    sweep = patching.sweep(napkin, *napkin_pair, round, sites="latent", metric=VALUE)
    assert set(sweep.to_frame()["round"]) == {1}
    fractions = sweep.fractions().flatten()
    assert fractions.tolist() == [1]


def test_the_picture_of_a_sweep_has_a_panel_for_every_component(napkin, napkin_pair):
    effects = patching.sweep(
        napkin, *napkin_pair, 0, sites=["z", "resid_pre", "latent"], metric=VALUE
    )
    assert panels(effects.plot()) == ["z", "resid_pre", "latent"]
    assert panels(effects.plot("z")) == ["z"]


def panels(figure):
    """Return the last line of every panel's title."""
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    return [title.split("\n")[-1] for title in titles if title]


def test_a_sweep_that_restores_nothing_says_none(napkin, napkin_pair):
    """Head 1 of layer 0 reads the latent, which is the same in both runs."""
    effects = patching.sweep(napkin, *napkin_pair, 0, sites=["L0H1@p?", "embed@y"], metric=VALUE)
    assert effects.sentence == (
        "Patching round 0: none of 2 sites restores more than 1% of the value of the clean run."
    )


def test_a_sweep_of_one_site_compares_it_with_no_other(napkin, napkin_pair):
    """Twice the square of the vote: 122 - 62 of 117 - 62 is restored."""
    effects = patching.sweep(napkin, *napkin_pair, 0, sites="L0H0@p?", metric=VALUE)
    assert effects.sentence == (
        "Patching round 0 at L0H0@p? restores 109% of the value of the clean run."
    )
    nothing = patching.sweep(napkin, *napkin_pair, 0, sites="L0H1@p?", metric=VALUE)
    assert nothing.sentence == (
        "Patching round 0: no patch at L0H1@p? restores more than 1% of the value of the clean run."
    )


def test_the_sentence_of_several_rounds_is_about_the_largest_effect_as_the_table(
    napkin, napkin_pair
):
    """The share is 60 / 55 in round 0, and 1 in round 1, of a far larger difference."""
    sweep = patching.sweep(napkin, *napkin_pair, [0, 1], sites=["L0H0@p?", "latent"], metric=VALUE)
    first = sweep.to_frame().iloc[0]
    assert (first["round"], first["site"]) == (1, "latent")
    assert sweep.fractions().max() > sweep.fractions()[1].max()
    assert sweep.sentence.startswith("Patching round 1 at latent restores 100%")
