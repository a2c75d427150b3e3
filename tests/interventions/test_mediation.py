"""Mediation: shares worked out on a napkin, the handwired circuit's own routes, and mediators that cannot be."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import interp
from interp.interventions import experiment
from interp.interventions.experiment import Outcome, Rows, run_one_round
from interp.interventions.mediation import Routes, Split, mediate, paths
from interp.interventions.sites import Place, Site, sites
from interp.stats.decoder import Decoder
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")


def both(model, pair):
    return interp.rollout(model, pair[0]), interp.rollout(model, pair[1])


@pytest.fixture(scope="module")
def through_patterns(untrained, pair):
    """The untrained softmax model: latents -> prediction through every pattern at p?, with random ones."""
    through = paths(untrained, "pattern", "p?")
    options = {"round": [3, 6], "split": Split(n_random=3)}
    return mediate(untrained, *pair, "latent@<z>", through, **options)


@pytest.mark.parametrize(
    ("through", "frozen", "alone"),
    [
        # the vote falls from v = 3 to 2 (P: 117 to 62), and P = 6 (2 v^2 + 3) - v^2
        ("L0H0@p?", 6 * (18 + 3) - 4, 6 * (8 + 3) - 9),
        (
            "L1H1@p?",
            6 * (8 + 3) - 9,
            6 * (18 + 3) - 4,
        ),  # it works against the rest: shares below 0
        (["L0H0@p?", "L1H1@p?"], 117, 62),  # all routes
        (
            "pattern[0.0]@p?",
            6 * (2 * 3 * 2 + 3) - 4,
            6 * (2 * 2 * 3 + 3) - 9,
        ),  # interaction: score v times value v
        ("pattern[1.0]@p?", 11 + 5 * 21 - 4, 21 + 5 * 11 - 9),
        ("attn_out[0]@p?", 6 * (18 + 3) - 4, 6 * (8 + 3) - 9),
        ("L0H1@p?", 62, 117),  # reads the latent, which is the same
        ("L0H0", 6 * (18 + 3) - 4, 6 * (8 + 3) - 9),  # everywhere: other positions do not count
    ],
)
def test_shares_on_a_napkin(napkin, napkin_pair, through, frozen, alone):
    """Both shares, of one mediator and of several at once, equal those of P with the mediators set by hand."""
    result = mediate(napkin, *napkin_pair, "embed@p_1", through, round=0, split=Split(n_random=0))
    total = 62 - 117
    share_left = (frozen - 117) / total
    assert result.blocked().estimate == pytest.approx(1 - share_left, abs=1e-12)
    brought = (alone - 117) / total
    assert result.carried().estimate == pytest.approx(brought, abs=1e-12)
    effects = result.to_frame()["effect"]
    assert len(effects) == len(result.mediators)
    assert effects.to_numpy() == pytest.approx(np.sqrt(2) * 55)


def test_a_subspace_is_swapped_and_the_state_is_read(napkin, napkin_pair):
    """Only the direction of the vote is the cause; at w? head 1.1 writes v^2 + y^2 to the latent, and no other."""
    cause = Place.of("embed@p_1", [[0, 1, 0, 0, 0]])
    state = Outcome("state", lambda x: x[..., 0, 2:3])
    options = {"outcome": state, "round": 0, "split": Split(n_random=0)}
    result = mediate(napkin, *napkin_pair, cause, paths(napkin, "z", "w?"), **options)
    shares = {name: result.blocked(name).estimate for name in result.mediators}
    assert shares == pytest.approx(
        {"L0H0@w?": 0, "L0H1@w?": 0, "L1H0@w?": 0, "L1H1@w?": 1, "all": 1}
    )
    none = Place.of("embed@p_1", [[1.0, 0, 0, 0, 0]])
    assert mediate(napkin, *napkin_pair, none, "L1H1@w?", **options).reason


@pytest.mark.parametrize(
    ("cause", "position", "outcome", "head"),
    [
        ("latent@<z>", "p?", "prediction", "2.0"),
        ("embed@y", "w?", "state", "2.1"),
    ],
)
def test_handwired_effects_pass_through_one_pattern(wma, pair, cause, position, outcome, head):
    """Latents act on P, and the label on the state, wholly through one head's attention; the controls carry nothing."""
    _, model = wma
    result = mediate(
        model, *pair, cause, paths(model, "pattern", position), outcome=outcome, round=[4, 7]
    )
    frame = result.to_frame().set_index("mediator")
    single = result.mediators[:-1]
    (route,) = [name for name in single if abs(frame.blocked[name]) > 1e-9]
    assert route == f"pattern[{head}]@{position}"
    for name in (route, "all"):
        for kind in ("blocked", "carried"):
            row = frame.loc[name, [kind, f"{kind}_low", f"{kind}_high"]]
            assert row.astype(float).tolist() == pytest.approx([1.0, 1.0, 1.0], abs=1e-9)
    assert (frame["random_blocked"].abs() < 1e-9).all()
    assert (frame["random_carried"].abs() < 1e-9).all()
    assert frame.n_random_sites["all"] >= 1


def test_head_outputs_at_the_place_read_mediate_everything(untrained, pair):
    """What other positions do to p? comes through its heads' outputs: jointly 1 in any model, singly less."""
    result = mediate(
        untrained,
        *pair,
        "latent@<z>",
        paths(untrained, "z", "p?"),
        round=[3, 6],
        split=Split(n_random=0),
    )
    assert result.blocked().estimate == pytest.approx(1.0, abs=1e-9)
    assert result.carried().estimate == pytest.approx(1.0, abs=1e-9)
    single = result.mediators[:-1]
    assert max(result.blocked(name).estimate for name in single) < 0.99


@pytest.mark.long
def test_pairs_are_kept_apart(untrained, pair, through_patterns, monkeypatch):
    """Sums by episode equal those of each episode, and each round, on its own, in chunks of any size."""
    monkeypatch.setattr(experiment, "CHUNK", 5)
    through, runs = paths(untrained, "pattern", "p?"), both(untrained, pair)
    no_controls = Split(n_random=0)
    chunked = mediate(untrained, *runs, "latent@<z>", through, round=[3, 6], split=no_controls)
    first_pair = [episodes.select([0]) for episodes in pair]
    first = mediate(untrained, *first_pair, "latent@<z>", through, round=[3, 6], split=no_controls)
    third = mediate(untrained, *runs, "latent@<z>", through, round=3, split=no_controls)
    sixth = mediate(untrained, *runs, "latent@<z>", through, round=6, split=no_controls)
    for key in ("total", "lost", "brought"):
        whole = getattr(through_patterns, key)
        assert_allclose(getattr(third, key) + getattr(sixth, key), whole, rtol=1e-9, atol=1e-14)
        assert_allclose(getattr(chunked, key), whole, rtol=1e-9, atol=1e-14)
        assert_allclose(getattr(first, key)[..., 0], whole[..., 0], rtol=1e-9, atol=1e-14)
    all_moved = [1.0] * len(chunked.mediators)
    assert through_patterns.moved.tolist() == all_moved
    assert chunked.moved.tolist() == all_moved


def test_controls(untrained, pair, through_patterns):
    """Draws repeat with the seed, and say how many."""
    frame, through = through_patterns.to_frame(), paths(untrained, "pattern", "p?")
    for share in ("blocked", "carried"):
        assert frame[f"random_{share}"].notna().all()
    assert sorted(frame.n_random_sites) == [1, 1, 1, 1, 4]
    routes = Routes(untrained, untrained.layout, [Site.parse("latent@<z>")], "prediction")
    drawn = [routes.draw_others(tuple(through), tuple(through), (0, i)) for i in range(8)]
    assert drawn == [routes.draw_others(tuple(through), tuple(through), (0, i)) for i in range(8)]
    assert len(set(drawn)) > 1
    for draw in drawn:
        assert set(draw).isdisjoint(through)


@pytest.mark.long
def test_routes_are_those_that_a_generic_model_has(untrained, pair):
    """In a model of random weights a site changes with the cause, and the outcome with it, just where routes say so."""
    layout, cause = untrained.layout, Site.parse("resid_mid[0]@e_2")
    base, source = (Rows.of(interp.rollout(untrained, episodes), [5]) for episodes in pair)
    kinds = ("q", "k", "pattern", "z", "mlp_out")
    every = [site for site in sites(untrained, components=kinds) if site.head != 1]
    every += [
        Site.parse(text)
        for text in ("embed@e_1", "resid_post[0]@e_2", "latent", "z[1]", "pattern[1.0]")
    ]
    _, after_source = run_one_round(untrained, source, layout, watched=[cause, *every])
    out, before = run_one_round(untrained, base, layout, watched=every)
    _, after = run_one_round(
        untrained, base, layout, [(cause, lambda own: after_source[cause])], every
    )
    routes = Routes(untrained, layout, [cause], "prediction")

    def exchange_and_stretch(own):
        return own.roll(1, 0) * 1.5

    for site in every:
        if "<w>" not in str(site):  # its content is constant
            is_changed = not torch.allclose(after[site], before[site])
            assert is_changed == routes.is_downstream(site), str(site)
            changed, _ = run_one_round(untrained, base, layout, [(site, exchange_and_stretch)])
            moves_outcome = not torch.equal(changed.prediction, out.prediction)
            assert moves_outcome == routes.is_upstream(site), str(site)


def test_states_of_learned_models_are_decoded(untrained, pair):
    """Where the map is linear, so are effects: decoding a doubled state gives the same shares, and the map is used."""
    runs = both(untrained, pair)
    latents = runs[0].latents
    decoder = Decoder.fit(latents, latents[:, :, 0, :2].numpy())
    through = paths(untrained, "pattern", "w?")

    def effects(outcome):
        options = {"outcome": outcome, "round": [3, 6], "split": Split(n_random=0)}
        mediated = mediate(untrained, *runs, "embed@y", through, **options)
        return mediated.to_frame().sort_values("mediator", ignore_index=True)

    decoded = effects(Outcome("state", decoder))
    doubled = effects(Outcome("state", lambda latents: 2 * decoder(latents)))
    flattened = effects(Outcome("state", lambda latents: latents.flatten(-2)))
    whole = effects("latents")
    blocked_of_state, blocked_of_latents = decoded.blocked.tolist(), whole.blocked.tolist()
    assert doubled.blocked.tolist() == pytest.approx(blocked_of_state, abs=1e-9)
    twice_the_effect = 2 * decoded.effect[0]
    assert doubled.effect[0] == pytest.approx(twice_the_effect)
    assert flattened.blocked.tolist() == pytest.approx(blocked_of_latents, abs=1e-9)
    assert blocked_of_state != pytest.approx(blocked_of_latents, abs=1e-3)


def test_without_an_effect_there_is_no_share(wma, pair):
    """A cause that is the same in base and source has nothing to mediate: NaN with the reason, no noise over noise."""
    _, model = wma
    result = mediate(model, *pair, "embed@e_1", paths(model, "pattern", "p?"), round=[4])
    frame = result.to_frame()
    assert frame.blocked.isna().all()
    assert frame.random_carried.isna().all()
    assert set(frame.reason) == {
        "there is no effect to mediate: the total effect of the cause is 0"
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"sites": "embed@y"},
            "'L0H0@p\\?' is not downstream of the cause 'embed@y', which acts on later",
        ),
        ({"sites": "resid_post[1]@p_1"}, "is not downstream of the cause 'resid_post\\[1\\]@p_1'"),
        (
            {"mediators": "L0H0@w?"},
            "'L0H0@w\\?' cannot act on the prediction, which is read at 'p\\?' after the",
        ),
        ({"mediators": "L1H0@p_1"}, "cannot act on the prediction"),
        (
            {"sites": ("latent", "z[0]")},
            "'L0H0@p\\?' is a cause \\(latent \\+ z\\[0\\]\\) and cannot mediate its",
        ),
        ({"mediators": ()}, "no mediators were given; mediation.paths"),
        ({"mediators": "L0H0@p?#3"}, "is not a site; write component"),
        ({"mediators": "L0H7@p?"}, "has heads 0 to 1"),
        ({"mediators": "paths[0.0]"}, "unknown component 'paths'"),
        ({"outcome": "predictions"}, "unknown outcome 'predictions'; did you mean 'prediction'\\?"),
        ({"outcome": "state"}, "no exact readout; give outcome=.* or ask for outcome='latents'"),
        ({"round": 12}, "round 12 is out of range"),
    ],
)
def test_errors_teach(untrained, pair, options, told):
    arguments = {"sites": "latent@<z>", "mediators": "L0H0@p?", **options}
    refuses(told, mediate, untrained, *pair, **arguments)


def test_a_split_is_checked():
    refuses("n_random must be an integer >= 0, got -1", Split, n_random=-1)


def test_results_name_their_mediators(untrained, pair, through_patterns):
    refuses(
        r"unknown mediator 'pattern\[0.0\]@p'; did you mean 'pattern\[0.0\]@p\?'",
        through_patterns.blocked,
        "pattern[0.0]@p",
    )
    refuses(
        "base and source must pair up",
        mediate,
        untrained,
        pair[0],
        pair[1].select([0, 1, 2]),
        "latent@<z>",
        "L0H0@p?",
    )
    assert {"model", "digest", "rounds", "seed", "versions"} <= through_patterns.settings.keys()
