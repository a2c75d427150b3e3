"""Interventions on machines that are no transformers: known answers of patches, interchange, moves and steering."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import interp
from interp.interventions import causal_tables
from interp.interventions.experiment import run_on
from interp.interventions.interchange import Claim, carriers, interchange, list_placebos
from interp.interventions.moves import Writer, decodable, move, transition
from interp.interventions.pairs import paired_runs, prepare
from interp.interventions.patching import patch_pair, round_map, sweep
from interp.interventions.sites import (
    Place,
    Site,
    carried_mask,
    resolve_places,
    resolve_site,
    sites,
)
from interp.interventions.steering import (
    Doses,
    fitted_direction,
    state_direction,
    steer,
    write_state,
)
from interp.tasks import experts
from interp.tasks.experts.algorithms import bayes, weighted_majority
from interp.tasks.experts.families import fading_majority
from tests.handmade import DECAY, GAIN, intervened, leaky
from tests.interventions.test_causal_tables import make_tables
from tests.machines import N_EXPERTS, adapted, gru, loop, lstm
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")

MACHINES = [gru, lstm, loop]
AT = 4


class Remembering(nn.Module):
    """Every round's hits side by side in a cache, added up when it votes: Weighted Majority."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Linear(N_EXPERTS, N_EXPERTS, bias=False).double()
        nn.init.eye_(self.weigh.weight)


def remembering():
    """A machine whose one channel grows by a row a round."""

    def step(m, carried, fed):
        advice = fed.tokens[:, 3 : 3 + 2 * N_EXPERTS : 2] - 3
        truth = fed.tokens[:, -2:-1] - 3
        n_hits = carried["cache"].sum(1)
        weights = m.weigh(n_hits).softmax(-1)
        p = (weights * advice).sum(-1)
        hits = (advice == truth).to(p)
        return torch.stack([1 - p, p], -1), {"cache": hits.unsqueeze(1)}

    channels = [interp.Channel("cache", (8, N_EXPERTS), grows=1)]
    options = {
        "output": "probability",
        "name": "remembering",
        "read": lambda carried: carried["cache"].sum(-2),
    }
    return adapted(Remembering(), step, channels=channels, **options)


@pytest.fixture(scope="module")
def histories():
    """Episodes that share every round from AT on, and not those before."""
    episodes = experts.sample(12, 8, N_EXPERTS, seed=0)
    return experts.TASK.corruption("exchange-history").build(episodes, AT)


@pytest.fixture(scope="module")
def others():
    return [experts.sample(12, 8, N_EXPERTS, seed=seed) for seed in (1, 2)]


@pytest.mark.parametrize(
    ("make", "inside"), [(gru, "update"), (lstm, "forget"), (loop, "block[1]")]
)
def test_the_whole_carried_state_is_the_whole_difference(make, inside, histories):
    """Patched at a round, it gives fraction 1 there and at every later round: nothing else passes. A gate is a part."""
    machine = make()
    for read in (AT, AT + 2):
        whole, part = (
            sweep(machine, *histories, AT, sites=["latent", inside], read_round=read)
            .fractions()
            .tolist()
        )
        assert whole == pytest.approx(1, abs=1e-5)
        assert abs(part - 1) > 0.05
        assert (abs(part) < 1e-6) == (read == AT)  # it is computed after the prediction
    rows = round_map(machine, *histories, "latent", round=[AT, AT + 1, AT + 2]).to_frame()
    assert len(rows) == 6
    assert np.allclose(rows["effect"] / rows["gap"], 1, atol=1e-4)
    restored = patch_pair(prepare(machine, *histories, AT, AT + 1), sites="latent", propagate=False)
    assert float(restored.effects.abs().max()) == 0


def test_each_channel_is_a_part(histories):
    """An LSTM predicts from h: c does nothing in its own round and a part of it later, and both together are all."""
    channels = ["latent@h", "latent@c", "latent@h+c"]
    now = sweep(lstm(), *histories, AT, sites=channels, read_round=AT)
    later = sweep(lstm(), *histories, AT, sites=channels, read_round=AT + 1)
    fractions = now.fractions().tolist()
    assert fractions == pytest.approx([1, 0, 1], abs=1e-5)
    h, c, joint = later.fractions().tolist()
    assert joint == pytest.approx(1, abs=1e-5)
    assert abs(h) > 0.01
    assert abs(c) > 0.01
    assert abs(h - 1) > 0.01
    assert abs(c - 1) > 0.01
    every = sweep(lstm(), *histories, AT)
    assert [str(site) for site in every.sites] == ["latent@h", "latent@c", "forget", "output"]
    assert every.grid("latent").shape == (1, 2)


@pytest.mark.parametrize("make", [*MACHINES, leaky])
def test_interchanged_whole_it_goes_on_as_the_source(make, histories):
    machine = make()
    base, source = paired_runs(machine, *histories, "interchange")
    rounds = [AT, AT + 1]
    predictions, latents = intervened(
        machine, base, source, resolve_places("latent", machine, base), rounds
    )
    torch.testing.assert_close(predictions, source.predictions[:, rounds])
    torch.testing.assert_close(latents, source.latents[:, [t + 1 for t in rounds]])
    ran = run_on(machine, base, [AT], 3, source.latents[:, [AT]])
    following = source.predictions[:, AT : AT + 3]
    torch.testing.assert_close(ran.predictions[0, :, 0], following)
    last_latent = source.latents[:, AT + 3]
    torch.testing.assert_close(ran.carried[0, :, 0, 0], last_latent)
    difference = base.predictions - source.predictions
    assert difference[:, AT:].abs().max() > 1e-3
    refuses(
        r"put at latent is \[episode, round, ...\] = ",
        run_on,
        machine,
        base,
        [AT],
        1,
        source.latents[:, AT],
    )


def test_a_known_machine_carries_what_it_carries(others):
    """Interchange of h alone is the algorithm's counterfactual, of the clock nothing; a random line is neither."""
    machine, algorithm = leaky(), fading_majority(GAIN, decay=DECAY)
    claims = [
        *Claim.make_for_state(machine, "log_weights"),
        *Claim.make_for_state(machine, "log_weights", "state"),
    ]
    table = carriers(machine, *others, algorithm, claims).set_index(["places", "outcome"])
    for outcome in ("prediction", "state"):
        whole, clock, h = (
            table.loc[(site, outcome)] for site in ("latent", "latent@clock", "latent@h")
        )
        assert whole.score == pytest.approx(1)
        assert h.score == pytest.approx(1)
        assert h.iia_informative == 1
        assert clock.score == pytest.approx(0)
        assert clock.iia_informative == 0
        assert h.random_score < 0.5
        assert pd.isna(h.no_random)
        assert np.isnan(clock.random)
        assert np.isnan(clock.random_score)
        assert clock.no_random == "no other direction"
    assert interchange(machine, *others, bayes(), "counts", "latent").score().high < 0.9


def test_a_known_machine_moves_by_a_known_amount(others):
    """A log-weight set 1 higher moves the outcome as in the algorithm; the update keeps 0.8 of the move."""
    machine, algorithm, (known, episodes) = leaky(), fading_majority(GAIN, decay=DECAY), others
    run, values = interp.rollout(machine, known), algorithm.run(known)
    for site in ("latent", "latent@h"):
        writer = Writer.fit(machine, run, values, ("log_weights",), site)
        assert (
            move(machine, episodes, algorithm, writer, {"log_weights": [1.0, 0, 0, 0]})
            .score()
            .estimate
            > 0.999999
        )
        change = {"log_weights": np.ones((12, 2, N_EXPERTS))}
        exact = transition(machine, episodes, writer, round=[3, 5], horizon=2, by=change)
        assert exact.under(algorithm).r2().estimate > 0.999999
        assert exact.under(weighted_majority(GAIN)).r2().high < 0.9
        plain = transition(machine, episodes, writer, round=[3, 5], horizon=2)
        gap = exact.after["log_weights"] - plain.after["log_weights"]
        assert gap == pytest.approx(np.full(gap.shape, DECAY**2))
    first = Writer.fit(machine, run, {"first": values["log_weights"][..., 0]}, ("first",))
    one_higher = {"first": np.ones((1, 1))}
    step = first.placebo(seed=1).step(one_higher, (1, 1))[0, 0]
    assert step[0, 1:].abs().max() == 0
    assert float(step.norm()) > 0.1  # what pads the clock stays 0
    true_step = first.step(one_higher, (1, 1))[0, 0]
    assert float((step * true_step).sum()) == pytest.approx(0, abs=1e-12)
    assert Writer.of_state(machine, run, algorithm, known, sites="latent@h").shapes == {
        "log_weights": (N_EXPERTS,)
    }
    read = bayes().run(known), ("elapsed", "counts")
    for clock in ("latent@clock", resolve_site("latent@clock", machine, run.layout)):
        assert decodable(run, *read, sites=clock) == ("elapsed",)
    assert decodable(run, *read, sites="latent@clock+h") == ("elapsed", "counts")
    refuses("unknown latent position 'c'", decodable, run, *read, sites="latent@c")


def test_a_known_machine_steers_as_its_algorithm(others):
    machine, algorithm, episodes = leaky(), fading_majority(GAIN, decay=DECAY), others[0]
    direction = torch.zeros(2, N_EXPERTS, dtype=torch.float64)
    direction[1, 0] = 1
    known = steer(machine, episodes, algorithm, Doses([1.0, 0, 0, 0], direction=direction), round=5)
    assert known.table.max_error.max() < 1e-9
    beside_the_algorithm = known.random - known.algorithm[:, None]
    assert np.abs(beside_the_algorithm).max() > 0.01
    fitted = fitted_direction(machine, episodes, algorithm, [1.0, 0, 0, 0], sites="latent@h")
    assert fitted[0].abs().max() == 0
    assert fitted[1].tolist() == pytest.approx([1, 0, 0, 0], abs=1e-2)
    by_itself = steer(machine, episodes, algorithm, Doses("log_weights[e_1]"), round=5)
    assert by_itself.algorithm == pytest.approx(known.algorithm)
    assert by_itself.model == pytest.approx(known.model, abs=1e-2)
    refuses(
        "not how it is written",
        write_state,
        machine,
        interp.rollout(machine, episodes).latents,
        torch.zeros(N_EXPERTS),
    )
    refuses("pass a probe's direction", state_direction, gru(), [1.0, 0, 0, 0])
    refuses(
        r"unknown number of the memory 'log_weights\[p_1\]'.*Valid: log_weights\[e_1\]",
        steer,
        machine,
        episodes,
        algorithm,
        Doses("log_weights[p_1]"),
        round=5,
    )
    refuses(
        r"a direction must be \[row, width\] = \(2, 4\)",
        steer,
        machine,
        episodes,
        algorithm,
        Doses([1.0, 0, 0, 0], direction=torch.zeros(4)),
        round=5,
    )


def test_controls_are_as_wide_as_the_place(others):
    """A random line moves the numbers that channels and points have, and none that pads them."""
    machine = leaky()
    run = interp.rollout(machine, others[0])
    places = resolve_places(["latent", "latent@h", "hits", "latent@clock"], machine, run)
    lines = [place.control_basis for place in list_placebos(machine, run, places, seed=0)]
    n_moved = [line.count_nonzero().item() for line in lines]
    assert n_moved == [N_EXPERTS] * 3  # one number has no other direction
    assert carried_mask(machine).sum(1).tolist() == [1, N_EXPERTS]
    part = Place.of("hits", [[1.0, 0, 0, 0]], machine)
    (control,) = list_placebos(machine, run, resolve_places(part, machine, run), seed=0)
    overlap = control.control_basis.T @ part.basis
    assert overlap.abs().max() < 1e-9


def test_a_cache_is_a_channel_of_many_rows(histories, others):
    """All of its rows are one site, each is a part, and how far it is written is nothing that moves."""
    machine, sites = (
        remembering(),
        ["latent@cache", "latent@cache_1", "latent@cache_length", "latent@cache_8"],
    )
    whole, row, length, empty = (
        sweep(machine, *histories, AT, sites=sites, read_round=AT + 1).fractions().tolist()
    )
    assert whole == pytest.approx(1)
    assert 0.01 < abs(row) < 0.99
    assert length == empty == 0
    table = carriers(
        machine, *others, weighted_majority(1.0), Claim.make_for_state(machine, "log_weights")
    )
    scores = table.set_index("places").score
    assert scores["latent"] == pytest.approx(1)
    assert scores["latent@cache"] == pytest.approx(1)
    run = interp.rollout(machine, others[0])
    lines = [
        place.control_basis
        for place in list_placebos(machine, run, resolve_places(sites, machine, run), seed=0)
    ]
    n_moved = [line.count_nonzero().item() for line in lines]
    assert n_moved == [N_EXPERTS] * 3  # none of the length


def test_other_tasks_claim_what_is_carried():
    """Claims and alignments of Q-learning and reachability name places that such a machine has, and are tested."""

    def step(m, carried, fed):
        before = carried["h"]
        nothing = fed.values.new_zeros(len(fed.tokens), 1)
        return m.read(before), {"h": m.cell(nothing, before)}

    for task, width in (("qlearning", 6), ("reachability", 4)):
        record, module = interp.tasks.get(task), nn.Module()
        layout = record.layout(**{size.name: size.default for size in record.sizes})
        module.cell, module.read = nn.GRUCell(1, width), nn.Linear(width, layout.n_outputs)
        machine = interp.adapt(
            module, layout, step=step, channels=[interp.Channel("h", (width,))], name="idle"
        )
        claims = Claim.of(machine)
        assert {str(place) for claim in claims for place in claim.places} == {"latent"}
        assert len(claims) == 2
        pairs = [record.sample_for(machine, 8, record.cap_rounds(6), seed) for seed in (0, 1)]
        of_predictions = [claim for claim in claims if claim.outcome == "prediction"]
        table = carriers(machine, *pairs, record.explains(machine), of_predictions)
        assert not table.score.max() > 0.01  # it is told nothing
        for _, site in record.analysis.aligned(machine):
            assert str(resolve_site(site, machine, layout)) == "latent"


@pytest.mark.parametrize("make", MACHINES)
def test_an_untrained_machine_holds_no_variable_that_it_uses(make, others):
    """Moves and interchange score near 0 in machines that have learned nothing."""
    machine, (known, episodes) = make(), others
    writer = Writer.of_state(machine, interp.rollout(machine, known), bayes(), known)
    theirs, own_counts = (bayes().run(batch)["counts"] for batch in (known, episodes))
    change = {"counts": theirs - own_counts}
    assert move(machine, episodes, bayes(), writer, change).score().estimate < 0.2
    claim = Claim.make_for_state(machine, "log_odds")
    assert carriers(machine, known, episodes, bayes(), claim).score.max() < 0.2
    site = "block[2]" if make is loop else next(key for key in machine.points if key != "latent")
    inside = Writer.fit(
        machine, interp.rollout(machine, known), bayes().run(known), ("counts",), site, ridge=1e-3
    )
    assert inside.size == (1, 16)
    assert move(machine, episodes, bayes(), inside, {"counts": 1.0}).effect == pytest.approx(
        0, abs=1e-6
    )


@pytest.mark.long
@pytest.mark.parametrize("make", [lstm, loop])
def test_the_command_patches_every_point(make, tmp_path):
    machine = make()
    done = causal_tables.patch(machine, 3, sample=causal_tables.Sample(n_episodes=6, n_map=2))
    first_sweep = done.sweeps[0]
    assert {site.component for site in first_sweep.sites} == set(machine.points)
    names = [path.name for path in causal_tables.write(done, tmp_path)]
    assert {"patching.csv", "rounds.csv", "logit_diff-latent.svg"} <= set(names)
    assert len(causal_tables.summary(done))


@pytest.mark.long
def test_every_table_stands_in_its_place(tmp_path):
    """A machine without heads has no graph of edges, and those tables say so; asked for directly, they are refused."""
    machine = lstm()
    tables = make_tables(machine, 3, sample=causal_tables.Sample(n_episodes=16))
    assert tables["interchange"].places.tolist() == ["latent", "latent@h", "latent@c"] * 2
    assert {"latent@h", "forget"} <= set(tables["patching"].site)
    assert len(tables["steering"])
    aligned_sites = tables["alignment"].site.dropna()
    assert set(aligned_sites) == {"latent"}
    for name in ("edges", "faithfulness", "circuit", "ablation"):
        assert (
            tables[name]
            .note.str.startswith("not applicable: lstm has no attention heads, and")
            .all()
        )
    refuses(
        "lstm has no attention heads, and circuits of edges are of heads; use",
        causal_tables.circuit_tables,
        machine,
        experts.sample(8, 6, N_EXPERTS, seed=0),
        3,
        0,
    )


def test_channels_are_named_in_sites():
    machine = lstm()
    joint_site = resolve_site("latent@h+c", machine, machine.layout)
    assert joint_site.index(machine.layout) == (slice(None), [0, 1])
    assert str(joint_site) == "latent@h+c"
    activation = torch.arange(8.0).reshape(2, 2, 2)
    read = joint_site.read(activation, machine.layout)
    assert read.tolist() == activation.tolist()
    assert [str(site) for site in sites(machine, positions=None)] == ["latent", "forget", "output"]
    assert [str(site) for site in sites(machine, components="latent", positions="c")] == [
        "latent@c"
    ]
    assert [
        str(site) for site in sites(remembering(), components="latent", positions="cache_1")
    ] == ["latent@cache_1"]
    for text, match in (
        ("latent@x", "'x'"),
        ("latent@h+x", "'x'"),
        ("resid_pre[0]", "lstm has no residual stream; its points are latent, forget, output"),
        ("forget@h", "no position"),
    ):
        refuses(match, resolve_site, text, machine, machine.layout)
    kind = interp.core.machine.Component(
        "latent", "hook_latents", "latent", "", labels=("h", "cache_1", "cache_2", "cache_length")
    )
    assert Site("latent", position="cache", kind=kind).index(machine.layout) == (
        slice(None),
        [1, 2],
    )
    assert Site("latent", position="cache+h", kind=kind).index(machine.layout) == (
        slice(None),
        [0, 1, 2],
    )
