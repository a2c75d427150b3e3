"""Circuits compared: the right answer where it is known, the controls, and look-alike heads."""

from types import SimpleNamespace

import numpy as np
import pytest

import interp
from circuits.benchmark.known_machine import rotated, with_distractors
from circuits.compare import circuit
from circuits.compare.circuit import CircuitPart, _match, _Matched, _Path, _Profile, _profile, _Role
from circuits.compare.question import Budget, Compared, Participant, Samples
from interp.interventions.experiment import Outcome, Rows, passed
from interp.interventions.mediation import Split, mediate, paths
from interp.interventions.sites import Site
from interp.model.transformer import untrained
from interp.stats.intervals import NO_NUMBER, Interval
from interp.support.session import session
from interp.tasks import experts
from lab.variants import noisy
from tests.refusals import refuses

SMALL = Budget(known=16, test=8, rounds=14, starts=4, horizon=2, battery=12, untrained=2)


def handwired(**arguments):
    return interp.load("wma-handwired", n_experts=3, **arguments)


@pytest.fixture(scope="module")
def samples():
    return Samples.draw(handwired(), SMALL, {"n_experts": 3})


def compared(model, reference, samples):
    fresh = [
        [Participant(untrained(m, i), samples) for i in range(n)]
        for m, n in ((model, 2), (reference, 1))
    ]
    return circuit._circuits(
        Compared(Participant(model, samples), Participant(reference, samples), *fresh, SMALL, {})
    )


@pytest.fixture(scope="module")
def turned(samples):
    return compared(rotated(handwired(), 1), handwired(), samples)


class Crossed:
    """A soft circuit of variant P against variant R with distractors: nothing of the two is alike, sizes included.

    The first claims an input that the second does not; ``calls`` are the options of everything that is mediated.
    """

    def __init__(self, samples):
        class Claiming(Participant):
            def causes(self, algorithm):
                return [("embed@v_1",), *super().causes(algorithm)]

        models = handwired(variant="P", eta=3.0), with_distractors(handwired(eta=60.0), 1, 0)
        self.pair = Claiming(models[0], samples), Participant(models[1], samples)
        self.fresh = [
            [Participant(untrained(m, i), samples) for i in range(n)]
            for m, n in zip(models, (2, 1), strict=True)
        ]
        self.calls = []
        with session(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                circuit, "mediate", lambda *a, **k: (self.calls.append(k), mediate(*a, **k))[1]
            )
            self.part = circuit._circuits(Compared(*self.pair, *self.fresh, SMALL, {}))


@pytest.fixture(scope="module")
def crossed(samples):
    return Crossed(samples)


@pytest.fixture(scope="module")
def hand_profile(samples):
    return _profile(Participant(handwired(), samples), None, SMALL)


def test_a_rotated_circuit_is_the_same_one(turned):
    """Every path, and every head that matters matched with itself; no untrained model comes near."""
    assert [(p.cause, p.outcome, p.at) for p in turned.paths] == [
        ("latent", "prediction", "p?"),
        ("embed@y", "state", "w?"),
    ]
    for path in turned.paths:
        for share in (share for both in path.shares.values() for share in both):
            assert share.estimate == pytest.approx(1, abs=1e-6)
    assert (turned.matched.alike.estimate, turned.matched.composed.estimate) == pytest.approx(
        (1, 1), abs=2e-4
    )
    assert max(score for *_, several in turned.alike() for score in several) < 0.5
    assert len(turned.untrained) == 2  # copies of the model alone
    assert all(role.head == role.reference for role in turned.matched.roles if role.weight > 0.01)
    assert sum(role.weight for role in turned.matched.roles) == pytest.approx(1)
    assert turned.measure.verdict == "yes"


def test_distractors_play_no_role_and_r_and_p_are_told_by_what_heads_hand_on(samples):
    """Heads that nobody reads have no weight; R and P read much the same, in another order of heads."""
    hand, state = Participant(handwired(), samples), lambda s: s.model.read_state
    one = _profile(hand, state(hand), SMALL)
    more = Participant(with_distractors(handwired(), 2, 1), samples)
    matched = _match(_profile(more, state(more), SMALL), one)
    assert (matched.alike.estimate, matched.composed.estimate) == pytest.approx((1, 1), abs=1e-6)
    assert all(role.weight == 0 for role in matched.roles if "distractor" in role.head)
    other = Participant(handwired(variant="P"), samples)
    matched = _match(_profile(other, state(other), SMALL), one)
    assert 0.5 < matched.alike.low <= matched.alike.estimate < 0.95
    assert matched.composed.high < 0.45
    assert {("2.0 3.1 predict",) * 2, ("2.1 3.2 update",) * 2} <= {
        (r.head, r.reference) for r in matched.roles
    }


def test_a_profile_says_what_a_head_reads_where(hand_profile):
    """The predicting head reads votes where the prediction is read, and is worth all of it; other heads are not."""
    weights = np.full((1, SMALL.test), 1 / SMALL.test)
    head, places = hand_profile.heads.index("2.0 3.1 predict"), circuit._kinds(handwired().layout)
    assert {kind: len(at) for kind, at in places.items()} == {
        "<w>": 1, "<z>": 1, "e": 3, "p": 3, "p?": 1, "y": 1, "w?": 1,
    }  # fmt: skip
    at = list(places).index("p?")
    effects = hand_profile.effects(weights)[0, head]
    assert effects[0, at] == pytest.approx(1, abs=1e-3) and effects.sum() == pytest.approx(
        effects[0, at], abs=1e-9
    )
    read = hand_profile.of(weights)[0, head].reshape(2, len(places), -1)
    assert read[0, at, places["p"]].sum() == pytest.approx(read.sum(), abs=1e-9)
    assert hand_profile.of(weights).sum() == pytest.approx(1)


def test_what_heads_hand_on_is_who_reads_whom(samples):
    """In R the latent's fetcher hands on to the prediction, the label's to the update; that is all that varies."""
    hand_profile = _profile(Participant(handwired(), samples), handwired().read_state, SMALL)
    handed = hand_profile.composed(np.full((1, SMALL.test), 1 / SMALL.test))[0].sum(0)
    edges = {
        (hand_profile.heads[i], hand_profile.heads[j]): handed[i, j]
        for i, j in zip(*np.nonzero(handed > 1e-9), strict=True)
    }
    assert edges == pytest.approx(
        {("1.0 2.1 fetch z", "2.0 3.1 predict"): 0.5, ("1.1 2.2 fetch y", "2.1 3.2 update"): 0.5}
    )


class Direct:
    """A learned model's profile by plain hooks on whole rounds, one head and one kind of position at a time."""

    def __init__(self):
        model = interp.load("wma-learned-additive")
        samples = Samples.draw(model, SMALL, {"n_experts": 4})
        self.subject = Participant(model, samples)
        self.run = self.subject.run(samples.test)
        self.rows = Rows.of(self.run, circuit._rounds(SMALL))
        self.places = circuit._kinds(self.run.layout)
        self.profile = _profile(self.subject, None, SMALL)
        every = [Site(kind, layer) for kind in ("z", "pattern", "v") for layer in range(4)]
        self.done, self.kept = self.without(every)

    def without(self, watched=(), layer=None, head=None, at=None):
        edits = []
        if layer is not None:

            def average(z):
                z[:, at, head] = z[:, at, head].mean(0)
                return z

            edits = [(Site("z", layer), lambda z: average(z.clone()))]
        return passed(self.subject.model, self.rows, self.run.layout, edits, watched)

    def by_episode(self, x):
        return x.double().unflatten(-1, (self.run.n_episodes, -1)).sum(-1).numpy()

    def written(self, layer, head, z):
        return z.double() @ self.subject.model.blocks[layer].attn.W_O[head].detach().double()


@pytest.fixture(scope="module")
def direct():
    return Direct()


@pytest.mark.parametrize("head", [(0, 1), (2, 3), (3, 0)])
def test_what_is_lost_and_changed_without_a_head_is_what_plain_hooks_give(direct, head):
    """Early, late and last layer; with MLPs; kinds of several positions, before and behind where outcomes are read."""
    layer, number = head
    row, layout = 4 * layer + number, direct.run.layout
    for kind, at in enumerate(direct.places.values()):
        done, _ = direct.without((), layer, number, at)
        outcomes = [
            (layout.distribution(d.prediction), d.latents.flatten(1)) for d in (done, direct.done)
        ]
        lost = [
            direct.by_episode((a - b).double().pow(2).sum(1))
            for a, b in zip(*outcomes, strict=True)
        ]
        assert direct.profile.lost[row, :, kind] == pytest.approx(
            np.array(lost), rel=1e-3, abs=1e-7
        )
    later = [Site("z", i) for i in range(4)]
    _, kept = direct.without(later, layer, number, slice(None))
    for other in range(16):
        z, plain = (of[Site("z", other // 4)][:, :, other % 4] for of in (kept, direct.kept))
        moved = direct.written(other // 4, other % 4, z - plain).pow(2).sum(-1) * (
            other // 4 > layer
        )
        spread = direct.written(other // 4, other % 4, plain - plain.mean(0)).pow(2).sum(-1)
        for kind, at in enumerate(direct.places.values()):
            changed = direct.profile.changed[row, other, kind]
            assert changed == pytest.approx(
                direct.by_episode(moved[:, at].sum(1)), rel=1e-3, abs=1e-6
            )
            expected = direct.by_episode(spread[:, at].sum(1))
            assert direct.profile.spread[other, kind] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    if layer:
        assert not direct.profile.changed[row, : 4 * layer + 4].any()


def test_what_a_head_reads_is_what_varies_of_what_it_moves_from_each_key(direct):
    """Keys with the query's own number are counted by their kind, and not at their place."""
    labels = direct.run.layout.labels
    for layer, head in ((0, 1), (2, 3)):
        pattern, v = (direct.kept[Site(kind, layer)] for kind in ("pattern", "v"))
        moved = direct.written(layer, head, pattern[:, head, :, :, None] * v[:, None, :, head])
        sizes = (moved - moved.mean(0)).pow(2).sum(-1)  # [row, query, key]
        for kind, at in enumerate(direct.places.values()):
            expected = np.zeros((len(labels) + len(direct.places), direct.run.n_episodes))
            for query in at:
                for key, label in enumerate(labels):
                    own = "_" in label and label.split("_")[-1] == labels[query].split("_")[-1]
                    column = (
                        len(labels) + list(direct.places).index(label.split("_")[0]) if own else key
                    )
                    expected[column] += direct.by_episode(sizes[:, query, key])
            assert direct.profile.read[4 * layer + head, kind] == pytest.approx(
                expected, rel=1e-3, abs=1e-6
            )


def made(lost, changed, spread=1.0):
    """Three heads, one kind of position, two episodes that count alike; each head reads a position of its own."""
    lost, changed = np.array(lost, float), np.array(changed, float)
    read = np.zeros((3, 1, 4, 2))
    read[range(3), 0, range(3)] = 1.0
    return _Profile(
        ("0.0", "1.0", "2.0"), ("a", "b", "c"), np.tile(lost[:, :, None, None], (1, 1, 1, 2)), np.ones((2, 2)), read,
        np.tile(changed[:, :, None, None], (1, 1, 1, 2)), np.full((3, 1, 2), spread),
    )  # fmt: skip


def test_half_of_a_profile_and_of_its_composition_is_for_each_outcome():
    """A head that is needed for the update alone, one for both; shares are at most 1, and an outcome without is 0."""
    weights = np.full((1, 2), 0.5)
    of = made([[0, 0], [2.0, 0.3], [0, 0.1]], [[0, 0.5, 4.0], [0, 0, 0.25], [0, 0, 0]])
    assert of.effects(weights)[0, :, :, 0] == pytest.approx(np.array([[0, 0], [1, 0.3], [0, 0.1]]))
    worth = of.of(weights)[0].reshape(3, 2, 4).sum(-1)
    assert worth == pytest.approx(np.array([[0, 0], [0.5, 0.375], [0, 0.125]]))
    handed = of.composed(weights)[0].sum(0)
    # On the prediction only head 1 counts, of which .5 hangs on head 0; on the update .375 x .5, .125 x 1, .125 x .25.
    whole = 0.375 * 0.5 + 0.125 * 1 + 0.125 * 0.25
    expected = np.zeros((3, 3))
    expected[0, 1], expected[0, 2], expected[1, 2] = (
        0.5 + 0.5 * 0.375 * 0.5 / whole,
        0.5 * 0.125 / whole,
        0.5 * 0.125 * 0.25 / whole,
    )
    assert handed == pytest.approx(expected)
    nothing = made(np.zeros((3, 2)), np.ones((3, 3)))
    assert not nothing.of(weights).any() and not nothing.composed(weights).any()


def test_what_is_handed_on_is_compared_between_matched_heads():
    """Heads in another order hand on the same; another order of handing on is none of it; without any it is None."""
    edge = np.zeros((3, 3))
    edge[0, 1] = 1.0
    one = made([[1, 0], [0, 1], [0, 0]], edge)
    assert (_match(one, one).alike.estimate, _match(one, one).composed.estimate) == (1, 1)
    half = np.zeros((3, 3))
    half[0, 1] = half[1, 2] = 0.5
    other = made([[1, 0], [0, 1], [0, 1]], half)
    found = _match(one, other)
    assert found.alike.estimate == pytest.approx(0.75 / 1.25)
    # On the prediction head 1 does not count, and nothing hangs on another; on the update two edges against one.
    assert found.composed.estimate == pytest.approx(0.25 / 0.75)
    by = {name: value.estimate for name, value in found.by_outcome.items()}
    assert by == pytest.approx(
        {
            "attention similarity for the prediction": 1,
            "attention similarity for the update": 0.25 / 0.75,
            "wiring similarity for the update": 1 / 3,
        }
    )
    assert _match(made([[1, 0], [0, 1], [0, 0]], 0 * edge), one).composed.estimate == 0
    alone = made([[1, 0], [0, 1], [0, 0]], 0 * edge)
    assert (
        np.isnan(_match(alone, alone).composed.estimate)
        and _match(alone, alone).alike.estimate == 1
    )


def test_matching_ignores_the_order_of_heads_and_is_symmetric(hand_profile, samples):
    other = _profile(Participant(handwired(variant="P"), samples), None, SMALL)
    forth, back = _match(hand_profile, other), _match(other, hand_profile)
    assert forth.alike.estimate == pytest.approx(back.alike.estimate)
    assert forth.composed.estimate == pytest.approx(back.composed.estimate)
    itself = _match(hand_profile, hand_profile)
    assert (itself.alike.low, itself.composed.low) == pytest.approx((1, 1))


def test_noise_that_a_hook_draws_is_no_effect_of_a_head(samples):
    """Heads of a handwired machine that change nothing change nothing beside noise, too."""
    subject = Participant(noisy(handwired(), 0.1), samples)
    found = _profile(subject, subject.model.read_state, SMALL)
    idle = [i for i, head in enumerate(found.heads) if "-" in head or "tag" in head]
    assert len(idle) == 2 and found.lost[idle].max() < 1e-12


def test_profiles_of_other_rounds_are_refused(hand_profile):
    episodes = Samples.draw(handwired(), SMALL, {"n_experts": 3})
    two = Samples(
        *(experts.sample(len(e), SMALL.rounds, 2, seed=1) for e in vars(episodes).values())
    )
    other = _profile(Participant(interp.load("wma-handwired", n_experts=2), two), None, SMALL)
    refuses("same episodes", _match, hand_profile, other)


def _part(composed=Interval(0.7, 0.6, 0.8)):  # noqa: B008
    shares = {
        "blocked": (Interval(0.5, 0.4, 0.6), Interval(0.2, 0.1, 0.3)),
        "carried": (Interval(0.7, 0.65, 0.75), Interval(0.25, 0.22, 0.28)),
    }
    path = _Path("latent", "state", "w?", shares, ((0.8, 0.9), (0.15, 0.35)))
    roles = (_Role("0.1 x", "2.0 y", 0.3, 0.4, 0.7),)
    matched = _Matched(
        Interval(0.6, 0.55, 0.65),
        composed,
        roles,
        {"attention similarity for the update": Interval(0.4, 0.3, 0.45)},
    )
    fresh = tuple(
        _Matched(Interval(x, x, x), Interval(y, y, y), (), {})
        for x, y in ((0.2, 0.61), (np.nan, np.nan), (0.5, 0.3))
    )
    return CircuitPart("a", "b", (path,), matched, fresh)


def test_the_table_says_every_measurement_with_its_bounds_and_controls():
    records = _part().to_frame().fillna({"share": ""}).to_dict("records")
    rows = {(row["name"], row["share"] or row["what"]): row for row in records}
    blocked, carried = rows["mediated share", "blocked"], rows["mediated share", "carried"]
    assert (blocked["what"], blocked["at"]) == ("latent -> state", "w?")
    assert [*numbers(blocked), *numbers(blocked, "reference")] == [0.5, 0.4, 0.6, 0.2, 0.1, 0.3]
    assert [blocked[f"{k}untrained {b}"] for k in ("", "reference ") for b in ("low", "high")] == [
        0.8,
        0.9,
        0.15,
        0.35,
    ]
    assert [*numbers(carried), *numbers(carried, "reference")] == [
        0.7,
        0.65,
        0.75,
        0.25,
        0.22,
        0.28,
    ]
    for name, expected in (
        ("attention similarity", [0.6, 0.55, 0.65, 0.2, 0.5]),
        ("wiring similarity", [0.7, 0.6, 0.8, 0.3, 0.61]),
    ):
        alike = next(row for (of, _), row in rows.items() if of == name)
        assert [*numbers(alike), alike["untrained low"], alike["untrained high"]] == expected
    side = next(row for (of, _), row in rows.items() if of == "attention similarity for the update")
    assert numbers(side) == [0.4, 0.3, 0.45]
    role = rows["role", "0.1 x ~ 2.0 y"]
    assert [role[k] for k in ("number", "weight", "reference weight")] == [0.7, 0.3, 0.4]
    assert "wiring similarity" not in set(_part(composed=NO_NUMBER).to_frame()["name"])


def numbers(row, name="number"):
    return [row[f"{name}{end}"] for end in ("", "_low", "_high")]


def test_controls_are_measured_like_the_models_in_fewer_rounds(turned, samples):
    """Each path's untrained shares are those of the model's own shape, then of the reference's."""
    assert [tuple(map(len, p.untrained)) for p in turned.paths] == [(2, 1), (2, 1)]
    fresh, (latents, label) = untrained(handwired(), 0), turned.paths
    options = {"round": SMALL.at[::3], "split": Split(each=False, n_random=0, seed=SMALL.seed)}
    for path, outcome in ((latents, {}), (label, {"outcome": "latents"})):
        through = paths(fresh, "pattern", path.at)
        cause = path.cause if path is latents else [path.cause]
        result = mediate(fresh, samples.test, samples.other, cause, through, **options, **outcome)
        assert path.untrained[1] == (result.blocked().estimate,)


def test_each_model_has_its_own_paths(crossed, samples):
    """Of the inputs that both claim to act on the state."""
    part, algorithm = crossed.part, crossed.pair[1].task.explains(crossed.pair[1].model)
    assert [(path.cause, path.outcome, path.at) for path in part.paths] == [
        ("latent", "prediction", "p?"),
        ("embed@y", "state", "w?"),
    ]
    shares = (
        [(p.shares["blocked"][i], p.shares["carried"][i]) for p in part.paths] for i in range(2)
    )
    for subject, found in zip(crossed.pair, shares, strict=True):
        split = Split(each=False, n_random=0, seed=SMALL.seed)
        decode = subject.decoder(algorithm, "log_weights")
        latents = mediate(subject.model, samples.test, samples.other, "latent",
                          paths(subject.model, "pattern", "p?"), round=SMALL.at, split=split)  # fmt: skip
        label = mediate(subject.model, samples.test, samples.other, ["embed@y"], paths(subject.model, "pattern", "w?"),
                        outcome=Outcome("state", decode), round=SMALL.at,
                        split=split)  # fmt: skip
        assert found == [(result.blocked(), result.carried()) for result in (latents, label)]
    assert part.paths[0].shares["blocked"][0].high < 0.9 < part.paths[0].shares["blocked"][1].low
    assert [(len(c["round"]), c["split"].n_random, c["split"].each) for c in crossed.calls] == [
        *[(4, 0, False)] * 4,
        *[(2, 0, False)] * 6,
    ]


def test_heads_are_matched_with_the_references_beside_every_untrained_copy(crossed):
    """By their effect on the carried state, where there is one."""
    part, algorithm = crossed.part, crossed.pair[1].task.explains(crossed.pair[1].model)
    every = [*crossed.pair, *crossed.fresh[0]]
    profiles = [_profile(s, s.decoder(algorithm, "log_weights"), SMALL) for s in every]
    found = [_match(p, profiles[1], SMALL.seed) for p in profiles]
    assert (part.matched, *part.untrained) == (found[0], *found[2:])
    assert len({matched.alike for matched in found}) == 4


def test_without_a_state_that_differs_the_latents_stand_for_it(samples, monkeypatch):
    """An algorithm that carries nothing of the kind gives no decoder, of heads or of paths."""
    monkeypatch.setattr(circuit, "_state", lambda reference, algorithm: "")
    subject = Participant(handwired(), samples)
    part = circuit._circuits(
        Compared(subject, subject, [Participant(untrained(handwired(), 0), samples)], [], SMALL, {})
    )
    assert [path.outcome for path in part.paths] == ["prediction", "latents"]
    assert part.matched.roles == _match(*[_profile(subject, None, SMALL)] * 2, SMALL.seed).roles


def test_the_state_is_the_first_carried_variable_that_differs_between_episodes():
    rounds = np.tile(np.arange(4.0), (3, 1))
    values = {"elapsed": rounds, "q": rounds * np.arange(3)[:, None]}
    subject = SimpleNamespace(samples=SimpleNamespace(known=None))

    def state(*keys):
        return circuit._state(subject, SimpleNamespace(state=keys, run=lambda episodes: values))

    assert (state("elapsed", "q"), state("q", "elapsed"), state("elapsed"), state()) == (
        "q",
        "q",
        "",
        "",
    )
    assert circuit._state(subject, None) == ""
