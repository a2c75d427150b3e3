"""Circuits compared: the table of heads by napkin numbers and plain hooks, its matching, and answers that are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import interp
from circuits.benchmark.known_machine import rotate_residual_stream, with_distractors
from circuits.compare.circuit import (
    CircuitPart,
    HeadTable,
    compare_circuits,
    compare_tables,
    describe_heads,
    group_positions,
    match_heads,
    tabulate_heads,
)
from circuits.compare.question import Budget, Compared, Participant, Samples
from interp.interventions.experiment import Outcome, Rows, run_one_round
from interp.interventions.sites import Site
from interp.model.transformer import untrained
from interp.results.measure import NOT_RUN, NOTHING, SPANS, TOO_NEAR, UNTRAINED
from interp.stats.intervals import NO_NUMBER, Interval
from tests.refusals import refuses

SMALL = Budget(known=16, test=8, rounds=14, starts=4, horizon=2, battery=12, untrained=2)
EVEN = np.full(2, 0.5)


def handwired(**arguments):
    return interp.load("wma-handwired", n_experts=3, **arguments)


@pytest.fixture(scope="module")
def samples():
    return Samples.draw(handwired(), SMALL, {"n_experts": 3})


def tabulate(model, samples):
    """The table of a handwired machine, whose state is read by its own weights."""
    outcomes = Outcome("prediction"), Outcome("state", model.read_state)
    return tabulate_heads(Participant(model, samples), outcomes, SMALL)


@pytest.fixture(scope="module")
def reference_table(samples):
    return tabulate(handwired(), samples)


# Napkin numbers: three heads, one kind of position "a", two episodes that count alike.


def make_table(lost, changed, n_episodes=2):
    """Each head reads a position of its own; ``lost`` is [head, outcome], ``changed`` is [earlier, later]."""
    read = np.zeros((n_episodes, 3, 1, 3))
    read[:, range(3), 0, range(3)] = 1.0
    lost_for_the_kind = np.array(lost, float)[:, None]
    changed_for_the_kind = np.array(changed, float)[:, :, None]
    return HeadTable(
        heads=("L0H0", "L1H0", "L2H0"),
        positions=("a_1", "a_2", "a_3"),
        kinds=("a",),
        read=read,
        lost=np.stack([lost_for_the_kind] * n_episodes),
        changed=np.stack([changed_for_the_kind] * n_episodes),
        varied=np.ones((n_episodes, 3, 1)),
    )


NOTHING_HANDED_ON = np.zeros((3, 3))
FIRST_FEEDS_SECOND = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]])
CHAIN = np.array([[0, 0.5, 0], [0, 0, 0.5], [0, 0, 0]])


def test_worth_is_the_root_of_what_is_lost_and_half_of_it_is_for_each_outcome():
    """Lost for the prediction 4 and 1: a third and two thirds of a half; for the update 9 alone: a half."""
    shares = make_table([[4, 0], [1, 0], [0, 9]], NOTHING_HANDED_ON).compute_shares(EVEN)
    worth = shares.reads.sum((1, 2))
    for_prediction, for_update = worth.T
    assert for_prediction == pytest.approx([1 / 3, 1 / 6, 0])
    assert for_update == pytest.approx([0, 0, 1 / 2])


def test_a_head_counts_at_what_it_reads():
    """Head 0 reads a_1 for 3 parts and a_2 for 1, and is all that the prediction needs."""
    table = make_table([[1, 0], [0, 0], [0, 0]], NOTHING_HANDED_ON)
    table.read[:, 0, 0] = [3, 1, 0]
    reads = table.compute_shares(EVEN).reads
    assert reads[0, 0, :, 0] == pytest.approx([3 / 8, 1 / 8, 0])


def test_what_hangs_on_an_earlier_head_counts_by_what_the_later_head_is_worth():
    """Half of head 1 hangs on head 0, all of head 2 on head 1 (a change of 4 of 1 counts as all).

    On the prediction head 2 is worth three times head 1: .5 x 1 against 1 x 3, of a half.
    """
    changed = [[0, 0.5, 0], [0, 0, 4.0], [0, 0, 0]]
    table = make_table([[0, 0], [1, 0], [9, 0]], changed)
    feeds = table.compute_shares(EVEN).feeds
    assert feeds[0, 1, 0] == pytest.approx(0.5 * 0.5 / 3.5)
    assert feeds[1, 2, 0] == pytest.approx(0.5 * 3 / 3.5)
    assert feeds.sum() == pytest.approx(0.5)


def test_weights_say_how_much_an_episode_counts():
    table = make_table([[1, 0], [1, 0], [0, 0]], NOTHING_HANDED_ON)
    table.lost[1, 0] = 0
    reads = table.compute_shares(np.array([0.0, 1.0])).reads
    worth = reads.sum((1, 2))
    assert worth[:, 0] == pytest.approx([0, 0.5, 0])


def test_similarity_is_one_number_of_what_heads_read_and_hand_on():
    """Reading: .75 of 1 in common. Handing on: of the update's half, half is in common; nothing of the prediction's.

    The minima are .5 + .25 of reading and .25 of handing on; the first table sums to 1.5, the second to 1.5.
    """
    first = make_table([[1, 0], [0, 1], [0, 0]], FIRST_FEEDS_SECOND).compute_shares(EVEN)
    second = make_table([[1, 0], [0, 1], [0, 1]], CHAIN).compute_shares(EVEN)
    assert match_heads(first, second).similarity == pytest.approx(1 / (3 - 1))
    assert match_heads(second, first).similarity == pytest.approx(1 / (3 - 1))


def test_another_order_of_heads_is_the_same_table():
    table = make_table([[1, 0], [0, 4], [0, 1]], CHAIN)
    order = [2, 0, 1]
    changed_by_first = table.changed[:, order]
    turned = replace(
        table,
        read=table.read[:, order],
        lost=table.lost[:, order],
        changed=changed_by_first[:, :, order],
        varied=table.varied[:, order],
    )
    matching = match_heads(table.compute_shares(EVEN), turned.compute_shares(EVEN))
    assert matching.similarity == pytest.approx(1)
    assert matching.pairs == {0: 1, 1: 2, 2: 0}


def test_the_same_reading_with_another_order_of_handing_on_is_not_the_same():
    lost = np.ones((3, 2))
    first = make_table(lost, FIRST_FEEDS_SECOND).compute_shares(EVEN)
    backwards = make_table(lost, FIRST_FEEDS_SECOND.T).compute_shares(EVEN)
    assert match_heads(first, backwards).similarity == pytest.approx(1 / 3)


def test_heads_that_change_nothing_have_no_similarity():
    idle = make_table(np.zeros((3, 2)), CHAIN)
    matching, similarity = compare_tables(idle, idle)
    assert np.isnan(matching.similarity)
    assert np.isnan(similarity.low)
    busy = make_table([[1, 1], [0, 0], [0, 0]], CHAIN)
    assert compare_tables(idle, busy)[1].estimate == 0


def test_the_interval_is_over_episodes():
    """One episode of each kind: in resamples of one alone the tables are the same, or have nothing in common."""
    table = make_table([[1, 0], [0, 0], [0, 0]], NOTHING_HANDED_ON)
    second_table = make_table([[1, 0], [0, 0], [0, 0]], NOTHING_HANDED_ON)
    second_table.lost[1, :, 0] = [[0, 0], [1, 0], [0, 0]]
    similarity = compare_tables(table, second_table)[1]
    assert (similarity.low, similarity.high) == (0, 1)
    assert similarity.estimate == pytest.approx(1 / 3)
    same_player = compare_tables(table, second_table, participants=np.array(["a", "a"]))[1]
    assert same_player.low == pytest.approx(1 / 3)


def test_tables_of_other_positions_are_refused(samples, reference_table):
    table = make_table(np.ones((3, 2)), CHAIN)
    refuses("same positions", compare_tables, reference_table, table)


def test_rows_name_what_a_head_reads_is_needed_for_and_feeds():
    table = make_table([[4, 0], [1, 9], [0, 0]], FIRST_FEEDS_SECOND)
    first, second = describe_heads("m", table, {1: "L3H3"})
    assert (first.head, first.reads, first.feeds, first.match) == ("L1H0", "a_2 at a", "", "L3H3")
    assert first.prediction == pytest.approx(1 / 3)
    assert first.update == pytest.approx(1)
    assert first.weight == pytest.approx(2 / 3)
    expected = ("L0H0", "a_1 at a", "L1H0", "")
    assert (second.head, second.reads, second.feeds, second.match) == expected


# Measured tables.


def test_the_predicting_head_reads_votes_where_the_prediction_is_read(reference_table):
    """It is needed for the prediction at p? alone, and for no update."""
    head = reference_table.heads.index("L2H0 3.1 predict")
    reads = reference_table.compute_shares(np.ones(SMALL.test)).reads[head]
    position = reference_table.kinds.index("p?")
    votes = [i for i, label in enumerate(reference_table.positions) if label.startswith("p_")]
    reads_votes = reads[position, votes, 0]
    assert reads_votes.sum() == pytest.approx(reads.sum(), rel=1e-6)


def test_in_variant_r_two_heads_fetch_for_two_others(reference_table):
    """The latent's fetcher hands on to the prediction, the label's to the update; that is all that varies."""
    shares = reference_table.compute_shares(np.ones(SMALL.test))
    feeds = shares.feeds.sum(-1)
    heads = reference_table.heads
    edges = {(heads[i], heads[j]): feeds[i, j] for i, j in np.argwhere(feeds > 1e-3)}
    assert edges == pytest.approx(
        {
            ("L1H0 2.1 fetch z", "L2H0 3.1 predict"): 0.5,
            ("L1H1 2.2 fetch y", "L2H1 3.2 update"): 0.5,
        },
        abs=1e-3,
    )


def test_noise_that_a_hook_draws_is_no_effect_of_a_head(samples):
    """Heads of a handwired machine that change nothing change nothing beside noise, too."""
    model = handwired()

    def add_noise(update, hook):
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(update.shape, generator=generator, dtype=update.dtype)
        return update + 0.1 * noise

    model.hook_update.add_hook(add_noise, is_permanent=True)
    table = tabulate(model, samples)
    idle = [i for i, head in enumerate(table.heads) if "-" in head or "tag" in head]
    assert len(idle) == 2
    assert table.lost[:, idle].max() < 1e-12


class Direct:
    """A learned model's table by plain hooks on whole rounds, one head and one kind of position at a time."""

    def __init__(self):
        self.model = interp.load("wma-learned-additive")
        samples = Samples.draw(self.model, SMALL, {"n_experts": 4})
        subject = Participant(self.model, samples)
        self.run = subject.run(samples.test)
        self.rows = Rows.of(self.run, SMALL.at[::2])
        self.by_kind = group_positions(self.run.layout.labels).to_numpy()
        outcomes = Outcome("prediction"), Outcome("latents")
        self.table = tabulate_heads(subject, outcomes, SMALL)
        watched = [Site(kind, layer) for kind in ("z", "pattern", "v") for layer in range(4)]
        self.done, self.seen = self.ablate(watched)

    def ablate(self, watched=(), layer=None, head=None, at=None):
        """One round of every row, without a head at some positions."""
        edits = []
        if layer is not None:

            def average(z):
                ablated = z.clone()
                ablated[:, at, head] = z[:, at, head].mean(0)
                return ablated

            edits = [(Site("z", layer), average)]
        return run_one_round(self.model, self.rows, self.run.layout, edits, watched)

    def by_episode(self, sizes):
        """Sum ``[row, ...]`` over the rounds of each episode."""
        of_rounds = sizes.double().unflatten(0, (self.run.n_episodes, -1))
        return of_rounds.sum(1).numpy(force=True)

    def written(self, layer, head, z):
        W_O = self.model.blocks[layer].attn.W_O[head].detach()
        return z.double() @ W_O.double()


@pytest.fixture(scope="module")
def direct():
    return Direct()


@pytest.mark.parametrize("head", [(0, 1), (2, 3), (3, 0)], ids=["first", "third", "last"])
def test_what_is_lost_without_a_head_is_what_plain_hooks_give(direct, head):
    """With MLPs; kinds of several positions, before and behind where outcomes are read."""
    layer, number = head
    layout = direct.run.layout
    for kind, is_of_kind in enumerate(direct.by_kind.T):
        without, _ = direct.ablate((), layer, number, np.flatnonzero(is_of_kind))
        intact = direct.done
        predictions = layout.distribution(without.prediction)
        prediction_change = predictions - layout.distribution(intact.prediction)
        latent_change = (without.latents - intact.latents).flatten(1)
        lost_predictions, lost_latents = direct.table.lost[:, 4 * layer + number, kind].T
        expected = direct.by_episode(prediction_change.double().pow(2).sum(1))
        assert lost_predictions == pytest.approx(expected, rel=1e-3, abs=1e-7)
        expected = direct.by_episode(latent_change.double().pow(2).sum(1))
        assert lost_latents == pytest.approx(expected, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("head", [(0, 1), (2, 3), (3, 0)], ids=["first", "third", "last"])
def test_what_changes_of_later_heads_is_what_plain_hooks_give(direct, head):
    layer, number = head
    later_sites = [Site("z", i) for i in range(4)]
    _, seen = direct.ablate(later_sites, layer, number, slice(None))
    for later in range(16):
        later_layer, later_number = divmod(later, 4)
        site = Site("z", later_layer)
        z = seen[site][:, :, later_number]
        plain = direct.seen[site][:, :, later_number]
        changed = direct.written(later_layer, later_number, z - plain).pow(2).sum(-1)
        deviation = plain - plain.mean(0)
        varied = direct.written(later_layer, later_number, deviation).pow(2).sum(-1)
        is_later = later_layer > layer
        expected = direct.by_episode(changed) @ direct.by_kind * is_later
        measured = direct.table.changed[:, 4 * layer + number, later]
        assert measured == pytest.approx(expected, rel=1e-3, abs=1e-6)
        expected = direct.by_episode(varied) @ direct.by_kind
        assert direct.table.varied[:, later] == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("head", [(0, 1), (2, 3)], ids=["first", "third"])
def test_what_a_head_reads_is_what_varies_of_what_it_moves_from_each_key(direct, head):
    layer, number = head
    pattern = direct.seen[Site("pattern", layer)][:, number, :, :, None]
    values = direct.seen[Site("v", layer)][:, None, :, number]
    effect = direct.written(layer, number, pattern * values)
    deviation = effect - effect.mean(0)
    sizes = direct.by_episode(deviation.pow(2).sum(-1))  # [episode, query, key]
    expected = np.einsum("eqk,qc->eck", sizes, direct.by_kind)
    measured = direct.table.read[:, 4 * layer + number]
    assert measured == pytest.approx(expected, rel=1e-3, abs=1e-6)


# Answers that are known.


def compare(model, reference, samples):
    copies = [Participant(untrained(model, 0), samples)]
    pair = Participant(model, samples), Participant(reference, samples)
    return compare_circuits(Compared(*pair, copies, SMALL, {}))


@pytest.mark.long
def test_a_rotated_circuit_is_the_same_one(samples):
    """Every head that matters is matched with itself; no untrained model comes near."""
    part = compare(rotate_residual_stream(handwired(), 1), handwired(), samples)
    assert part.measure.verdict == "yes"
    assert part.similarity.estimate == pytest.approx(1, abs=1e-3)
    assert max(part.untrained) < 0.2
    matched_roles = [role for role in part.heads if role.match and role.weight > 0.01]
    assert len(matched_roles) == 5
    assert all(role.head == role.match for role in matched_roles)


@pytest.mark.long
def test_heads_that_nobody_reads_have_no_weight(samples, reference_table):
    table = tabulate(with_distractors(handwired(), 2, 1), samples)
    _, similarity = compare_tables(table, reference_table)
    assert similarity.estimate == pytest.approx(1, abs=1e-3)


@pytest.mark.long
def test_variants_that_read_alike_are_told_by_which_head_depends_on_which(samples, reference_table):
    """R and P read much the same, in another order of heads."""
    table = tabulate(handwired(variant="P"), samples)
    _, similarity = compare_tables(table, reference_table)
    assert similarity.high < 0.5


@pytest.mark.parametrize(
    ("similarity", "copies", "verdict", "reason"),
    [
        (Interval(0.8, 0.75, 0.85), (0.1, 0.5), "yes", ""),
        (Interval(0.8, 0.75, 0.85), (0.1, 0.51), "undecided", TOO_NEAR),  # odds of 3 and 1.04
        (Interval(0.8, 0.75, 0.85), (), "undecided", NOT_RUN),
        (Interval(0.8, 0.75, 0.85), (np.nan, 0.1), "yes", ""),
        (Interval(0.5, 0.49, 0.6), (0.1,), "undecided", SPANS),
        (Interval(0.4, 0.3, 0.499), (0.1,), "no", ""),
        (Interval(0.4, 0.3, 0.499), (), "no", ""),
        (NO_NUMBER, (0.1,), "undecided", NOTHING),
    ],
)
def test_one_number_decides_beside_the_best_untrained_copy(similarity, copies, verdict, reason):
    measure = CircuitPart(similarity, (), copies).measure
    assert measure.verdict == verdict
    assert reason in measure.reason
    assert measure.threshold == 0.5


def test_the_table_has_the_number_its_control_and_a_row_for_every_head():
    roles = describe_heads("m", make_table([[4, 0], [1, 9], [0, 0]], CHAIN), {})
    part = CircuitPart(Interval(0.6, 0.55, 0.65), tuple(roles), (0.2, 0.3))
    number, *heads = part.to_frame().to_dict("records")
    assert (number["number"], number["number_low"], number["number_high"]) == (0.6, 0.55, 0.65)
    assert number["untrained"] == 0.3
    assert [row["head"] for row in heads] == ["L1H0", "L0H0"]
    assert part.measure.controls[UNTRAINED].number == 0.3


def test_without_a_carried_state_the_latents_stand_for_it(samples, monkeypatch):
    """An algorithm that carries nothing has no state to decode."""
    reference = Participant(handwired(), samples)
    algorithm = reference.task.explains(reference.model)
    read_of_state = []

    def record(subject, outcomes, budget):
        read_of_state.append(outcomes[1].key)
        return make_table(np.eye(3, 2), CHAIN, SMALL.test)

    monkeypatch.setattr(type(algorithm), "state", ())
    monkeypatch.setattr("circuits.compare.circuit.tabulate_heads", record)
    compare_circuits(Compared(reference, reference, [], SMALL, {}))
    assert read_of_state == ["latents", "latents"]
