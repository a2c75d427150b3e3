"""Mediation, alignment and edges on machines that are no transformers: known answers, and what they lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import interp
import probes
from interp.core.display import describe_lacking
from interp.interventions import sites
from interp.interventions.ablation import CircuitScorer
from interp.interventions.alignment import AlignmentError, Search, align
from interp.interventions.alignment.subspace import RoundsWithSite
from interp.interventions.edge_graph import EdgeGraph, attribute
from interp.interventions.experiment import Outcome
from interp.interventions.mediation import Split, mediate, paths
from interp.interventions.pairs import corruption, prepare
from interp.support.errors import InputError
from interp.tasks import experts, mdp
from interp.tasks.experts.algorithms import weighted_majority
from tests.machines import adapted, gru, lstm
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")

GAIN = 0.5


@pytest.fixture(scope="module")
def pair():
    return [experts.sample(8, 6, 4, seed=seed) for seed in (0, 1)]


def share(result, mediator="all"):
    """Both shares of a mediator."""
    return result.blocked(mediator).estimate, result.carried(mediator).estimate


def test_all_of_what_a_cell_carries_goes_through_the_cell(pair):
    """Swapping what is carried changes what a GRU carries next through its cell alone, and its gates hold parts."""
    options = {"outcome": "latents", "round": [3, 5]}
    result = mediate(gru(), *pair, "latent", ["reset", "update", "new", "cell"], **options)
    assert share(result, "cell") == pytest.approx((1.0, 1.0), abs=1e-6)
    assert share(result) == pytest.approx((1.0, 1.0), abs=1e-6)
    assert all(
        abs(value) < 0.5 for gate in ("reset", "update", "new") for value in share(result, gate)
    )
    assert result.moved.tolist() == [1.0] * 5


def test_nothing_goes_through_what_runs_after_the_prediction_is_read(pair):
    """The GRU predicts from what it carries before its cell runs: the cell moves, and no share passes through it."""
    result = mediate(gru(), *pair, "latent", "cell", round=[3, 5], split=Split(n_random=0))
    assert share(result) == (0.0, 0.0)
    assert result.moved.tolist() == [1.0, 1.0]
    assert not result.reason


def test_channels_are_causes_of_their_own(pair):
    """An LSTM's output gate is computed from h alone; c passes it by."""
    options = {"outcome": "latents", "round": slice(1, 6), "split": Split(n_random=0)}
    of_h, of_c = (
        mediate(lstm(), *pair, f"latent@{channel}", "output", **options) for channel in "hc"
    )
    assert of_h.moved.min() == 1.0
    assert abs(share(of_h)[1]) > 1e-3
    assert share(of_c) == (0.0, 0.0)
    assert of_c.moved.max() == 0.0


class Doubling(nn.Module):
    """Twice in a round: ``a`` doubles what is carried, and ``b`` takes one from it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Identity()
        self.aside = nn.Identity()

    @staticmethod
    def round(
        m: Doubling, carried: Mapping[str, Tensor], fed: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        h = carried["h"]
        for _ in range(2):
            h = m.b(2 * m.a(h) - 1)
        truth = fed.tokens[:, -2:-1]
        outcome = (2.0 * truth - 7).to(h.dtype)  # -1 or 1
        before = carried["h"]
        scores = torch.cat([torch.zeros_like(before), before], 1)
        return scores, {"h": h + m.aside(before) + outcome}


@pytest.fixture(scope="module")
def doubling():
    """Handmade: what is carried next is 4 h - 3 through the loop, and 1 h beside it."""
    module = Doubling()
    nn.init.ones_(module.a.weight)
    points = {
        "b": interp.Point("b", times=2),
        "aside": "aside",
        "a": interp.Point("a", times=2),
    }  # in no order
    channels = [interp.Channel("h", (1,))]
    return adapted(module.double(), Doubling.round, points, name="doubling", channels=channels)


def test_shares_on_a_napkin(doubling, pair):
    """The loop carries 4 of 5 parts of the effect, at whatever cycle it is asked; the copy beside it, 1."""
    assert [str(site) for site in paths(doubling, "b")] == ["b[0]", "b[1]"]
    points = {"b[0]": 0.8, "b[1]": 0.8, "aside": 0.2, "a[0]": 0.8, "a[1]": 0.8}
    options = {"outcome": "latents", "round": [3]}
    alone = mediate(doubling, *pair, "latent", list(points), **options)
    carried = [alone.carried(name).estimate for name in points]
    assert carried == pytest.approx(list(points.values()), abs=1e-12)
    result = mediate(
        doubling,
        *pair,
        "latent",
        ["b[1]", "aside"],
        outcome="latents",
        round=[3],
        split=Split(n_random=1),
    )
    assert share(result, "b[1]") == pytest.approx((0.8, 0.8))
    assert share(result) == pytest.approx((1, 1))
    of_the_loop, beside_it, *_ = result.random[:, 0]
    assert of_the_loop == pytest.approx([0.8, 0.8])
    assert result.n_random_sites.tolist() == [1, 1, 2]
    assert beside_it == pytest.approx([0.8, 0.8])  # of the loop, which is all that is beside it


def test_a_vector_has_other_points_as_its_control(doubling, pair):
    """A gate is the only site of its component: other points between stand in for it, and the settings say so."""
    options = {"outcome": "latents", "round": [3], "split": Split(n_random=2)}
    result = mediate(gru(), *pair, "latent", ["reset", "update"], **options)
    assert result.n_random_sites.tolist() == [1, 1, 2]
    assert np.isfinite(result.random).all()
    assert result.settings["random_of_any_point"] == ["reset", "update", "all"]
    without_controls = options | {"split": Split(n_random=0)}
    shares = []
    for point in ("new", "cell"):
        shares.append(share(mediate(gru(), *pair, "latent", point, **without_controls)))
    for draw in result.random[0]:
        errors = abs(draw - np.array(shares)).max(-1)
        assert errors.min() < 1e-9
    of_loop = mediate(doubling, *pair, "latent", "b[1]", **options)
    assert "random_of_any_point" not in of_loop.settings
    assert of_loop.n_random_sites.tolist() == [
        1,
        1,
    ]
    every = mediate(gru(), *pair, "latent", ["reset", "update", "new", "cell"], **options)
    assert every.n_random_sites.max() == 0
    assert np.isnan(every.random).all()  # no point is left


def test_what_is_computed_later_is_seen_in_a_round_and_not_in_the_order_of_a_table(doubling, pair):
    """Cycles of two points alternate: a[1] reads b[0], and b[1] reads a[1]."""
    options = {"outcome": "latents", "round": [3], "split": Split(n_random=0)}
    assert share(mediate(doubling, *pair, "b[0]", "a[1]", **options)) == pytest.approx((1, 1))
    refuses(
        r"'b\[0\]' is not downstream of the cause 'a\[1\]'.* after it: b\[1\], aside$",
        mediate,
        doubling,
        *pair,
        "a[1]",
        "b[0]",
        **options,
    )


class Tokens(nn.Module):
    """What is carried is added at every position of a round, weighed by it, and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Identity()
        self.weights = nn.Parameter(torch.arange(11.0))

    @staticmethod
    def round(
        m: Tokens, carried: Mapping[str, Tensor], fed: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        at_positions = carried["h"][:, None] + fed.tokens[..., None]
        weighted = m.mixed(m.weights[:, None] * at_positions)
        score = weighted[:, :9].sum(1)
        return torch.cat([score, -score], 1), {"h": weighted.sum(1) / 55}


def test_points_with_positions_have_a_share_at_each(pair):
    """Handmade: position i carries i of the 1 + ... + 10 = 55 parts of the effect, and none is before another."""
    channels = [interp.Channel("h", (1,))]
    points = {"mixed": interp.Point("mixed", axes="pos")}
    machine = adapted(
        Tokens(), Tokens.round, points, sizes={"n_experts": 3}, channels=channels
    ).double()
    episodes = [experts.sample(4, 5, 3, seed=seed) for seed in (0, 1)]
    places = [f"mixed@{label}" for label in machine.layout.labels]
    options = {"outcome": "latents", "round": [3]}
    every = mediate(machine, *episodes, "latent", places, **options)
    carried = [every.carried(name).estimate for name in places]
    assert carried == pytest.approx([i / 55 for i in range(11)], abs=1e-12)
    result = mediate(
        machine, *episodes, "latent", ["mixed@w?", "mixed@<w>"], outcome="latents", round=[3]
    )
    blocked = [share(result, name)[0] for name in result.mediators]
    assert blocked == pytest.approx([10 / 55, 0, 10 / 55], abs=1e-12)


def test_what_is_written_into_a_state_is_decoded(pair):
    """Where a state is decoded from what is carried, shares are those of its numbers."""
    options = {"round": [3, 5], "split": Split(n_random=0)}
    first_two = Outcome("state", lambda x: x[..., 0, :2])
    of_state = mediate(gru(), *pair, "latent", ["new", "cell"], outcome=first_two, **options)
    assert share(of_state, "cell") == pytest.approx((1, 1), abs=1e-6)
    assert abs(share(of_state, "new")[0]) < 0.9
    refuses(
        "'gru' is a learned model: its state has no exact readout; give outcome=",
        mediate,
        gru(),
        *pair,
        "latent",
        "cell",
        outcome="state",
    )


def test_several_latents_of_a_transformer_are_one_cause(untrained_q):
    """The latents of all states, named as one or by none, act on the same sites."""
    pair = [mdp.sample(6, 6, 3, 2, seed=seed) for seed in (0, 1)]
    options = {"round": [3], "split": Split(n_random=0)}
    labels = untrained_q.layout.labels
    joined = "latent@" + "+".join(labels[i] for i in untrained_q.layout.latent_positions)
    whole, named = (
        mediate(untrained_q, *pair, cause, paths(untrained_q, "z", "Select"), **options)
        for cause in ("latent", joined)
    )
    assert share(whole) == pytest.approx((1, 1)) == share(named)


@pytest.mark.parametrize("what", [EdgeGraph, attribute, CircuitScorer])
def test_what_needs_heads_says_so(pair, what):
    """A direct call is an error that says what is missing and what to use; tables get the sentence from ``lacks``."""
    machine = gru()
    assert describe_lacking(machine, "pattern") == "not applicable: gru has no attention heads"
    with pytest.raises(
        InputError,
        match=r"^not applicable: gru has no attention heads, .* use interp.*patching.sweep",
    ):
        if what is EdgeGraph:
            what(machine)
        else:
            what(prepare(machine, *corruption(machine).build(pair[0], 3), 3))


def test_a_point_with_the_name_of_a_transformer_s_component_makes_no_transformer(pair):
    """The gates of a GRU may be called what a transformer's components are called."""
    points = {"embed": "cell.reset", "resid_pre": "cell.update", "resid_post": "cell.new"}
    machine = gru(points=points)
    assert describe_lacking(machine, "embed") == "not applicable: gru has no token embeddings"
    assert describe_lacking(machine, "resid_post") == "not applicable: gru has no layers"
    keys = ["latent", "embed", "resid_pre", "resid_post"]
    assert [site.component for site in sites.sites(machine)] == keys
    swept_sites = probes.sweep(machine, pair[0], ["label"], n_untrained=1).to_frame()["site"]
    assert set(swept_sites) == {"latent@h", "embed", "resid_pre", "resid_post"}
    for key in ("mlp_out", "attn_out"):
        refuses(
            "; its points are latent, embed, resid_pre, resid_po", sites.component, key, machine
        )
    refuses(
        "its points are latent, embed, resid_pre, resid_post", sites.sites, machine, components="z"
    )


# Alignment.


class Vote(nn.Module):
    """Weighted Majority of two experts, whose log-weights are two directions of a vector; others hold the last round.

    ``read`` and ``write`` are the directions, one the transpose of the other.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.read, self.write = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.shown = nn.Identity()

    @staticmethod
    def round(m: Vote, carried: Mapping[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        advice = fed.tokens[:, 3:7:2] - 3
        truth = fed.tokens[:, -2:-1] - 3
        weights_read = m.read(carried["h"])
        weights = m.shown(weights_read[:, :2]).softmax(1)
        p_one = (weights * advice).sum(1)
        log_weights = weights_read[:, :2] + GAIN * (advice == truth)
        rest = torch.cat([advice, advice * truth, truth, 1 - truth], 1).to(weights_read)
        after = m.write(torch.cat([log_weights, rest], 1))
        return torch.stack([1 - p_one, p_one], 1), {"h": after}


@pytest.fixture(scope="module")
def vote():
    """The machine with directions that are known: the columns of a random rotation."""
    module = Vote().double()
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(8, 8, generator=generator).double())
    with torch.no_grad():
        module.write.weight.copy_(rotation)
        module.read.weight.copy_(rotation.T)
    options = {"output": "probability", "name": "vote", "channels": [interp.Channel("h", (8,))]}
    return adapted(
        module,
        Vote.round,
        {key: key for key in ("shown", "write")},
        sizes={"n_experts": 2},
        **options,
    )


@pytest.fixture(scope="module")
def votes():
    return [experts.sample(30, 12, 2, seed=seed) for seed in (0, 1)]


OPTIONS = {"round": slice(2, 12), "search": Search(steps=100, restarts=1)}


@pytest.mark.long
def test_the_direction_that_a_machine_holds_its_variable_in_is_found(vote, votes):
    """One direction decides: the difference of the log-weights. It is found, and beats every control."""
    result = align(vote, *votes, weighted_majority(GAIN), "log_weights", "latent@h", **OPTIONS)
    assert result.rank == 1
    assert result.basis.shape == (8, 1)
    assert cosine_with_the_difference(result, vote) > 0.99
    frame = result.to_frame().set_index("condition")
    assert result.accuracy() > 0.97
    assert result.accuracy("nothing") == 0.0
    controls, learned = frame.drop("learned"), frame.loc["learned"]
    assert controls.high.max() < learned.iia


@pytest.mark.long
def test_an_untrained_copy_does_not_hold_it(vote, votes):
    """The same machine with fresh weights: what is learned there does not beat its controls."""
    result = align(
        vote.untrained(1), *votes, weighted_majority(GAIN), "log_weights", "latent", **OPTIONS
    )
    frame = result.to_frame().set_index("condition")
    controls, learned = frame.drop("learned"), frame.loc["learned"]
    assert controls.iia_informative.max() > learned.low_informative
    assert result.accuracy() < 0.9
    assert cosine_with_the_difference(result, vote) < 0.8


def cosine_with_the_difference(result, vote):
    """Of the direction that is found with the difference of the log-weights, without its sign."""
    first, second, *_ = vote.module.write.weight.detach().T
    known = (first - second) / (first - second).norm()
    return abs(float(result.basis[:, 0] @ known))


@pytest.mark.long
def test_a_point_is_a_site(vote, votes):
    """At a point of two coordinates the basis is their difference."""
    result = align(vote, *votes, weighted_majority(GAIN), "log_weights", "shown", **OPTIONS)
    assert result.basis.shape == (2, 1)
    assert result.accuracy() > 0.97
    first, second = result.basis[:, 0].tolist()
    assert abs(first - second) == pytest.approx(2**0.5, abs=0.02)


def test_channels_are_sites_and_so_is_all_that_is_carried():
    """Gradients pass the step of an LSTM: of all rows at once, and of one."""
    machine, episodes = lstm(), [experts.sample(48, 10, 4, seed=seed) for seed in (0, 1)]
    options = {"round": slice(2, 10), "search": Search(steps=4, restarts=1)}
    widths = []
    for site in ("latent", "latent@h"):
        state = torch.random.get_rng_state()
        result = align(machine, *episodes, weighted_majority(GAIN), "log_weights", site, **options)
        widths.append(len(result.basis))
        assert torch.equal(torch.random.get_rng_state(), state)
        assert np.isfinite(result.fits["learned"].loss)
        assert result.fits["learned"].steps[0] > 0
    assert widths == [32, 16]
    assert all(p.requires_grad for p in machine.parameters())


def test_controls_move_what_a_channel_holds_and_not_what_pads_it():
    """A channel of 3 beside one of 8: the padding is in no random basis, and counts for no rank."""

    def step(m: Any, carried: Mapping[str, Tensor], fed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        scores, h = Vote.round(m, {"h": carried["h"]}, fed)
        return scores, h | {"last": carried["last"] + 1}

    channels = [interp.Channel("last", (3,)), interp.Channel("h", (8,))]
    machine = adapted(Vote(), step, sizes={"n_experts": 2}, output="probability", channels=channels)
    runs = tuple(interp.rollout(machine, experts.sample(3, 5, 2, seed=seed)) for seed in (0, 1))
    rounds = {
        site: RoundsWithSite(
            machine, runs, [2, 3], sites.resolve_site(site, machine, runs[0].layout)
        )
        for site in SITES
    }
    widths = [round_moves.base.shape[1] for round_moves in rounds.values()]
    assert widths == [16, 8, 8, 16]
    n_used = [int(round_moves.is_used.sum()) for round_moves in rounds.values()]
    assert n_used == [11, 3, 8, 11]
    basis = rounds["latent"].random_basis(2, seed=0)
    assert basis[3:8].abs().sum() == 0
    assert torch.allclose(basis.T @ basis, torch.eye(2), atol=1e-6)


SITES = ("latent", "latent@last", "latent@h", "latent@last+h")


@pytest.mark.long
def test_a_transformers_latents_are_a_site_too(wma):
    """The whole step and the fast partial one agree: the latent is the embedding at its position."""
    _, model = wma
    pair = [experts.sample(24, 12, 3, seed=seed) for seed in (0, 1)]
    options = {"round": slice(3, 12), "search": Search(steps=3, restarts=1)}
    latent, embed = (
        align(model, *pair, weighted_majority(GAIN), "log_weights", site, **options)
        for site in ("latent@<z>", "embed@<z>")
    )
    torch.testing.assert_close(latent.basis, embed.basis, atol=1e-6, rtol=0)
    assert latent.accuracy() == pytest.approx(embed.accuracy(), abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sites": "write"},
            "no gradient reaches 'write' of 'vote' from its prediction, which is read before this point",
        ),
        (
            {"search": Search(rank=9)},
            "rank must be an integer from 1 to the width of 'latent' = 8, got 9",
        ),
        ({"sites": "latent@c"}, "unknown latent position 'c'"),
        ({"sites": "pattern[0.1]"}, "no attention heads; its points are"),
    ],
)
def test_what_cannot_be_aligned_is_refused(vote, votes, options, message):
    arguments = {"sites": "latent", **OPTIONS, **options}
    with pytest.raises(InputError, match=message) as refused:
        align(vote, *votes, weighted_majority(GAIN), "log_weights", **arguments)
    assert isinstance(refused.value, AlignmentError) == (options.get("sites") == "write")


@pytest.mark.parametrize(("cause", "mediator"), [("h+c", "h"), ("c", "h+c"), ("h+c", "c+h")])
def test_a_channel_of_the_cause_cannot_mediate_its_effect(pair, cause, mediator):
    refuses(
        f"'latent@{mediator}' is a cause".replace("+", "\\+"),
        mediate,
        lstm(),
        *pair,
        f"latent@{cause}",
        f"latent@{mediator}",
    )
