"""Which algorithm explains choices: players whose algorithm is known, on few instances."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from interp.choices.explain import (
    _LAPSE,
    _LEFT,
    _OTHERWISE,
    _SURELY_UNLIKE,
    _UNKNOWN,
    _UNLIKE,
    _WORTH,
    ChoicePart,
    _Beside,
    _best_switch,
    _ChoiceScore,
    _decided,
    _Game,
    _Own,
    _own,
    _profiles,
    _scored,
    _simplest,
    _switched,
    _unfitted,
    explain_choices,
)
from interp.choices.fitting import predictor
from interp.choices.link import _CHI2, _STEPS, Link, fitted_link, own_players, profile_ends
from interp.core.algorithm import Searched
from interp.stats.intervals import Interval
from interp.support.errors import InputError
from interp.tasks.experts import sample
from interp.tasks.experts.players import player_families
from lab.players import SEEN, UNSEEN, Player, choices, is_right, judged, leader, noisy
from tests.cases import by_cases

EPISODES = sample(10, 60, 4, regime="flat", seed=7)
KNOWN = {family.key: family for family in player_families(4)}
EVEN = np.arange(10) % 2 == 0
NONE = Interval(float("nan"), float("nan"), float("nan"))
MORE, LESS, PERHAPS = (
    Interval(0.1, 0.05, 0.2),
    Interval(-0.1, -0.2, -0.05),
    Interval(0.0, -0.1, 0.1),
)


def within(most: float) -> tuple[Interval, Interval, Interval]:
    """What lies below a threshold, on both sides of it, and above it."""
    return (
        Interval(most / 3, 0.0, most),
        Interval(most / 2, 0.0, most + 0.01),
        Interval(most + 0.1, most + 0.01, 1.0),
    )


NAMED = {
    **dict(zip(("near", "some", "far"), within(_OTHERWISE), strict=True)),
    **dict(zip(("like", "unsure", "unlike"), within(_UNLIKE), strict=True)),
    **dict(zip(("seldom", "at times", "mostly"), within(_LAPSE), strict=True)),
    "none": NONE,
    "more": MORE,
    "less": LESS,
    "perhaps": PERHAPS,
    "to 0": Interval(-0.1, -0.2, 0.0),
    "from 0": Interval(0.1, 0.0, 0.2),
    "little": Interval(0.0, -0.01, _LEFT),
    "from the threshold": Interval(0.1, _LEFT, 0.2),
    "across the threshold": Interval(0.1, -0.1, _LEFT + 0.01),
    "surely": Interval(_UNLIKE - 0.01, _SURELY_UNLIKE + 0.01, _UNLIKE),
    "much": Interval(0.1, _LEFT + 0.01, 0.2),
}
"""The intervals of the tables of cases."""


@by_cases("alone, own, lead, floor, word")
def test_what_explains_choices(alone: bool, own: Any, lead: Any, floor: Any, word: str) -> None:
    scores = {key: SimpleNamespace(name=key.title(), memoryless=False) for key in ("one", "other")}
    otherwise, unlike, lapse = (NAMED[name] for name in own)
    given = {
        "own": _Own(NAMED["near"], otherwise, unlike, "Other", lapse),
        "lead": NAMED[lead],
        "over_floor": NAMED[floor],
    }
    rest = dict.fromkeys(
        ("parameters", "intervals", "nats", "floor", "floor_nats", "agreement", "telling")
    )
    found = ChoicePart(
        closest="one", alone=alone, runner_up="other", scores=scores, **given, **rest
    )
    assert (found.measure.verdict, found.family) == (word, "one" if word == "yes" else None)
    reason = "there is no number" if otherwise is NONE else "the interval spans the threshold"
    assert not alone or word != "undecided" or found.measure.reason == reason
    assert {"yes": "One", "no": "none; closest One"}.get(
        word, "undecided; closest One"
    ) == found.answer


MEMORY = 0.2
SURE, DOUBTFUL = _WORTH * MEMORY, _UNKNOWN * MEMORY


def meant(saved: Any, luck: bool = False, memory: float = MEMORY) -> tuple[str, bool]:
    """Which of some families is meant, the largest first, and whether it alone is, by what one saves over another."""
    group = [
        SimpleNamespace(key=key, size=-i) for i, key in enumerate(dict.fromkeys(sum(saved, ())))
    ]

    def less(one: Any, other: Any) -> Interval:
        low, high = saved.get((one.key, other.key), (0.0, 0.0))
        return Interval((low + high) / 2, low, high)

    closest, alone = _simplest(group, less, lambda one, other: luck, memory)
    return closest.key, alone


@pytest.mark.parametrize(
    ("low", "high", "family", "alone"),
    [
        (-0.001, 0.001, "small", True),
        (SURE, DOUBTFUL, "small", True),
        (SURE, DOUBTFUL + 1e-6, "small", False),
        (SURE + 1e-6, DOUBTFUL, "large", True),
        (SURE + 1e-6, 0.1, "large", True),
    ],
)
def test_the_family_that_is_meant(low: float, high: float, family: str, alone: bool) -> None:
    """What a larger family saves over one of fewer parameters, by its interval, as a share of the memory's worth."""
    saved = {("large", "small"): (low, high)}
    assert meant(saved) == (family, alone) and meant(saved, luck=True)[0] == "small"
    noisier = meant(saved, memory=MEMORY / 100)[0]
    assert noisier == ("small" if low < 0 else "large"), (
        "a hundredth of the worth, a hundredth of the threshold"
    )


def test_a_larger_family_is_not_meant_where_the_best_alone_is_surely_better_than_a_smaller_one() -> (
    None
):
    """The best is larger still, and what it saves over the smallest says nothing of the one between."""
    saved = {
        ("largest", "between"): (-0.001, 0.002),
        ("largest", "small"): (0.01, 0.03),
        ("between", "small"): (0, 0.03),
    }
    assert meant(saved) == ("between", False)
    saved["between", "small"] = 0.001, 0.03
    assert meant(saved) == ("between", True)
    saved["largest", "between"] = -0.001, DOUBTFUL + 1e-6
    assert meant(saved) == ("between", False)


@by_cases("case")
def test_whether_a_player_chooses_as_a_machine(case: tuple[str, ...]) -> None:
    otherwise, floor, untrained, left = (NAMED[name] for name in case[:4])
    found = _Beside(
        NAMED["near"],
        floor,
        untrained,
        left,
        _Own(NAMED["near"], otherwise, NAMED["like"], "Other", NAMED["seldom"]),
    ).measure
    word, reason = case[4], "a control was not run: give" if untrained is NONE else ""
    assert found.verdict == word and found.reason.startswith(reason)


def test_a_player_is_held_against_a_machine() -> None:
    """One that chooses what the machine holds likeliest is as it is, one that never does is not; without an untrained
    copy nothing is the same. The machine is Bayes by its algorithm, the copy says .5 and a little."""
    known = {family.key: family for family in player_families(4)}
    bayes = predictor(known["bayes"].make(low=0.0, room=1.0))(EPISODES)
    blank = (
        np.full_like(bayes, 0.5)
        + 0.1 * np.stack([EPISODES.advice[..., 0], 1 - EPISODES.advice[..., 0]], -1)
        - 0.05
    )
    asked = [known["majority_vote"], known["follow_the_leader"]]
    likeliest = (bayes[..., 1] > 0.5).astype(float)
    both = {"with": (bayes, blank), "without": (bayes, None)}
    found = explain_choices(EPISODES, likeliest, families=asked, beside=both).beside
    assert found["with"].measure.verdict == "yes" and found["with"].telling.low > 0.9, str(
        found["with"]
    )
    assert found["without"].measure.verdict == "undecided" and np.isnan(
        found["without"].over_untrained.low
    )
    found = explain_choices(
        EPISODES, choices(SEEN["majority"], EPISODES), families=asked, beside=both
    ).beside
    assert (
        found["with"].measure.verdict == "no" and found["with"].telling.high < 0.1
    )  # where it differs from the vote
    with pytest.raises(InputError, match="probabilities that sum to 1"):
        explain_choices(EPISODES, likeliest, families=asked, beside={"odd": (2 * bayes, None)})
    with pytest.raises(InputError, match="'none' has no predictions"):
        explain_choices(EPISODES, likeliest, families=asked, beside={"none": (None, blank)})


def planted(
    key: str, nats: float, size: int = 0, *, of: str = "", q: Any = 0.58, odd: float = 0.0
) -> Any:
    """It loses ``nats`` a round, ``odd`` more in even episodes, less in odd ones; outcome 0 has probability ``q``.

    A guess prefers outcome 1 in the first 30 rounds; the others prefer 0, and none in the first two."""
    losses, right = (
        nats + odd * np.where(EVEN, 1, -1)[:, None] * np.ones((10, 60)),
        np.broadcast_to(q, (10, 60)),
    )
    p, guess, rounds = np.stack([right, 1 - right], -1), key.startswith("guess"), np.arange(60)
    prefers = np.tile(rounds < 30 if guess else -(rounds < 2).astype(int), (10, 1)).astype(int)
    return _ChoiceScore(
        key, key, of or key, guess, size, {}, Link(0.1, 0.0, p[0, 0]), p, p, losses, prefers
    )


GAME = _Game(EPISODES, np.arange(60) >= np.full((10, 1), 39.0), 0)
"""Outcome 0 is chosen in the first 39 of 60 rounds."""
LARGE, RIVAL, GUESS = (
    planted("large", 0.3, 1, of="small", q=0.8),
    planted("rival", 0.5),
    planted("guess", 0.7),
)


@pytest.mark.parametrize(
    ("scores", "closest", "runner_up", "lead", "over_floor"),
    [
        ([GUESS, RIVAL, LARGE], "large", "rival", 0.2, 0.4),
        (
            [GUESS, planted("rival", 0.301), LARGE],
            "large",
            "rival",
            0.001,
            0.4,
        ),  # simpler, but of another group
        (
            [planted("guess", 0.4), planted("guess 2", 0.45), RIVAL, LARGE],
            "large",
            "rival",
            0.2,
            0.1,
        ),
        (
            [planted("guess 2", 0.8), GUESS, LARGE],
            "large",
            "guess",
            0.4,
            0.4,
        ),  # no other one has a memory
        (
            [RIVAL, planted("guess", 0.5), planted("worse", 0.6)],
            "guess",
            "rival",
            0.0,
            0.0,
        ),  # a tie is the guess's
        (
            [GUESS, RIVAL, planted("small", 0.304 - 1e-9), LARGE],
            "small",
            "rival",
            0.196,
            0.396,
        ),  # .01 of the worth
        ([GUESS, RIVAL, planted("small", 0.305), LARGE], "large", "rival", 0.2, 0.4),
        (
            [GUESS, RIVAL, planted("small", 0.31, q=0.6), LARGE],
            "small",
            "rival",
            0.19,
            0.39,
        ),  # it may be luck: .65 of
        (
            [GUESS, RIVAL, planted("small", 0.31, q=0.9), LARGE],
            "large",
            "rival",
            0.2,
            0.4,
        ),  # the choices are 0
        (
            [GUESS, RIVAL, planted("small", 0.31, q=0.8), LARGE],
            "small",
            "rival",
            0.19,
            0.39,
        ),  # both predict alike
        (
            [planted("guess", 0.7, odd=0.3), RIVAL, planted("small", 0.303), LARGE],
            "small",
            "rival",
            0.197,
            0.397,
        ),
    ],
)
def test_which_family_is_meant_of_planted_ones_and_beside_what(
    scores: list[Any], closest: str, runner_up: str, lead: float, over_floor: float
) -> None:
    """Own players of ``q`` are ``1.96 (q (1 - q) / n)^.5`` about q."""
    part = _decided(GAME, scores, {})
    assert (part.closest, part.runner_up, part.floor) == (closest, runner_up, "guess")
    assert (part.lead.estimate, part.over_floor.estimate) == pytest.approx(
        (lead, over_floor), abs=1e-6
    )
    assert (part.own.lapse, part.intervals, part.algorithm) == (Interval(0.1, 0.1, 0.1), {}, None)
    odds = {key: one.q[0, 0, 0] / one.q[0, 0, 1] for key, one in part.scores.items()}
    q, apart = (
        odds[closest] / (1 + odds[closest]),
        [odds[closest] / x for key, x in odds.items() if key != closest],
    )
    gap, half = abs(0.65 - q), 1.96 * (q * (1 - q) / 600) ** 0.5
    worth = np.abs(np.log([odds[closest], *apart])).max() / max(over_floor, 1e-9)
    assert [*vars(part.own.unlike).values()] == pytest.approx(
        [gap * worth, max(gap - half, 0) * worth, (gap + half) * worth]
    )
    if closest != "guess":  # it plays 0 in the 280 rounds that tell it from the guess
        half *= (600 / 280) ** 0.5
        assert [*vars(part.own.telling).values()] == pytest.approx([q, q - half, q + half])
        assert [*vars(part.own.otherwise).values()] == pytest.approx(
            [1 - q, 1 - q - half, 1 - q + half]
        )


@pytest.mark.parametrize(("odd", "alone"), [(0.001, True), (0.03, False)])
def test_a_name_is_undecided_where_a_family_of_as_many_parameters_may_save_more(
    odd: float, alone: bool
) -> None:
    """Twins: the other one loses .005 more, and by the interval of the wide difference might lose .013 less."""
    twin = planted("twin", 0.305, 1, of="small", odd=odd)
    assert _decided(GAME, [LARGE, twin, RIVAL, GUESS], {}).alone is alone


def test_a_player_is_most_unlike_beside_a_family_beside_which_it_surely_is() -> None:
    """By [.18, .31], [.16, .72] and [0, 1.04] of the memory's worth."""
    turns = {
        "sure": 0.6,
        "more": np.where(np.arange(60) % 2, 0.25, 0.9),
        "wide": np.where(np.arange(60) % 2, 0.01, 0.99),
    }
    others = [planted(key, 0.5, q=q) for key, q in turns.items()]
    assert _own(GAME, planted("player", 0.3, q=0.5), NONE, others, GUESS, 0.25).family == "more"


def test_a_family_that_is_meant_has_a_lapse_intervals_of_its_parameters_and_an_algorithm() -> None:
    """Beside a guess that prefers outcome 1 in the first half of the rounds; the player departs in one round of ten."""
    game = _Game(EPISODES, choices(Player(noisy(leader, 0.1)), EPISODES), 0)
    vote, guess = _scored(game, KNOWN["sigmoid_vote"], None), planted("guess", 0.7)
    part, gain = _decided(game, [vote, guess], KNOWN), vote.searched["gain"]
    low, high = part.intervals["gain"].low, part.intervals["gain"].high
    assert (
        0.5 * gain < low < gain < high < 2 * gain
        and part.algorithm
        and part.algorithm.parameters == vote.searched
    )
    telling = (vote.prefers != guess.prefers) & (vote.prefers >= 0)
    assert part.telling.estimate == pytest.approx((vote.prefers == game.choices)[telling].mean())
    assert part.agreement.estimate == pytest.approx(
        (vote.prefers == game.choices)[vote.prefers >= 0].mean()
    )
    best = _scored(game, KNOWN["follow_the_leader"], {})
    lapse = _decided(game, [best, guess], KNOWN).own.lapse
    assert lapse.low == best.link.lapse == 0 < lapse.high < 0.1  # a soft chooser explains as much


def test_intervals_cover_where_a_parameter_moves_choices_one_by_one() -> None:
    """A walk of one step a choice on both sides of the truth, up log((1 - r) / r) where the player departs: the truth
    is within _STEPS of the best in 95 % and more, within half of chi-squared's 3.84 in (1 - r / (1 - r))^2."""
    assert (1 - np.exp(-_STEPS)) ** 2 == pytest.approx(0.95, abs=1e-3)
    rng = np.random.default_rng(0)
    for rate in (0.05, 0.1, 0.2):
        steps = np.where(rng.random((4000, 2, 200)) < rate, 1, -1) * np.log((1 - rate) / rate)
        best = np.maximum(steps.cumsum(-1).max(-1), 0).max(-1)
        assert (best <= _STEPS).mean() > 0.945
        if rate < 0.13:
            # One choice, or two: there is nothing between .90 and .99 where one round in twenty departs.
            assert (best <= _CHI2).mean() == pytest.approx((1 - rate / (1 - rate)) ** 2, abs=0.02)
            assert (best <= _STEPS).mean() == pytest.approx(
                (1 - (rate / (1 - rate)) ** 2) ** 2, abs=0.01
            )


def drawn(q: Any, seed: int = 0) -> Any:
    """Choices among two outcomes, of which the second has probability ``q``."""
    return (np.random.default_rng(seed).random(q.shape) < q).astype(np.int64)


def test_a_link_is_the_one_that_players_chose_by() -> None:
    """Departures over chance are lapses, and none are a lapse of exactly 0; a temperature of any size is found; what
    is certain everywhere has none, and what has its own gets no second one."""
    sure, every = np.tile([1.0, 0.0], (1, 100, 1)), np.ones((1, 100), bool)
    _, link = fitted_link(sure, (np.arange(100) < 30).astype(int)[None], every, False)
    assert (link.lapse, link.temperature) == (pytest.approx(0.6, abs=1e-3), 0)
    assert fitted_link(sure, np.zeros((1, 100), int), every, False)[1].lapse == 0
    right = np.random.default_rng(1).uniform(0.01, 0.99, (40, 200))
    p, every = np.stack([1 - right, right], -1), np.ones(right.shape, bool)
    for temperature in (0.3, 1.0, 2.0, 3.0, 5.0):
        choices = drawn(1 / (1 + (1 / right - 1) ** (1 / temperature)))
        found = fitted_link(p, choices, every, False)[1]
        assert found.lapse < 0.05 and found.temperature == pytest.approx(temperature, rel=0.1)
        assert fitted_link(p, choices, every, True)[1].temperature == 1
    lapsed = np.where(
        np.random.default_rng(2).random(right.shape) < 0.2,
        drawn(np.full(right.shape, 0.5)),
        drawn(right),
    )
    found = fitted_link(p, lapsed, every, True)[1]
    assert found.lapse == pytest.approx(0.2, abs=0.05) and found.spread(98).lapse == found.lapse
    assert Link(0.0, 1.0, found.tied).spread(98).lapse == 0.01


def test_own_players_are_those_that_are_simulated() -> None:
    """The mean and the spread over players are those of a thousand players that draw their choices."""
    rng = np.random.default_rng(3)
    q, use = rng.dirichlet(np.ones(3), (4, 25)), rng.random((4, 25)) < 0.8
    x, luck = np.log(q), rng.random((1000, 4, 25, 1))
    players = (luck > q.cumsum(-1)[..., :-1]).sum(-1)
    seen = np.array([own_players(q, x, one, use)[0] for one in players])
    _, mean, spread = own_players(q, x, players[0], use)
    assert (seen.mean(), seen.std()) == (
        pytest.approx(mean, abs=spread / 8),
        pytest.approx(spread, rel=0.1),
    )


def test_what_is_lost_is_lost_in_the_half_that_was_not_fitted() -> None:
    """Halves that always say 1, and 0, and halves that say what the first expert says, and the second one."""
    said = np.where(EVEN[:, None], 1.0, 0.0) * np.ones((10, 60))
    even = _unfitted(_Game(EPISODES, said, 0), "even", "even", np.full((10, 60, 2), 0.5), True)
    assert even.losses.sum() / said.size > 3  # a guess fitted to all loses log 2
    first, second = EPISODES.advice[..., 0], EPISODES.advice[..., 1]
    game = _Game(EPISODES, np.where(EVEN[:, None], first, second).astype(float), 0)
    right = _scored(game, KNOWN["one_expert"], None).prefers == game.choices
    assert (right[EVEN].mean(), right[~EVEN].mean()) == pytest.approx(
        (np.mean(first == second),) * 2, abs=0.15
    )


def test_a_switch_is_found_at_its_round_and_held_out_by_halves() -> None:
    """From the vote to the first expert: at round 20 of all episodes, or at 20 of one half and 40 of the other."""
    vote = predictor(KNOWN["majority_vote"].make())(EPISODES).argmax(-1)
    first, rounds = EPISODES.advice[..., 0], np.arange(60)
    simple = [KNOWN[key] for key in ("majority_vote", "one_expert", "follow_the_leader")]
    game = _Game(EPISODES, np.where(rounds < 20, vote, first).astype(float), 0)
    _, at, *two = _best_switch(game, simple, game.known)
    assert abs(at - 20) <= 2 and [family.key for family in two] == ["majority_vote", "one_expert"]
    by_half = np.where(EVEN[:, None], rounds < 20, rounds < 40)
    game = _Game(EPISODES, np.where(by_half, vote, first).astype(float), 0)
    (switched,) = _switched(
        game,
        [SimpleNamespace(size=0, key=family.key, q=np.zeros((10, 60, 2))) for family in simple],
        KNOWN,
        9.0,
    )
    between = (vote != first) & (rounds >= 22) & (rounds < 38)
    assert (switched.prefers == game.choices)[
        between
    ].mean() < 0.1 and switched.losses.sum() > 4 * between.sum()


@pytest.mark.parametrize(("temperature", "half"), [(0.0, _STEPS), (1.0, _CHI2)])
def test_an_interval_reaches_as_far_as_the_loss_allows(temperature: float, half: float) -> None:
    """A loss that rises by a nat for each unit of a parameter."""
    some = [Searched("x", (-10.0, 0.0, 6.0)), Searched("y", (-10.0, 10.0)), Searched("z", (0.0,))]
    found = SimpleNamespace(
        searched=dict.fromkeys("xyz", 0.0), link=Link(0.0, temperature, np.array([0.5, 0.5]))
    )
    for loss, ends in ((lambda at: abs(at["x"]), (-half, half)), (lambda at: 0.0, (-10, 6))):
        interval = _profiles(loss, some[:1], found)["x"]  # type: ignore[arg-type]
        assert (interval.low, interval.high) == pytest.approx(ends, abs=0.05)
    ridge, wide = (
        (lambda at: (at["x"] ** 2 + at["y"] ** 2 - 1.2 * at["x"] * at["y"]) / 2),
        (2 * half) ** 0.5 / 0.8,
    )
    for interval in _profiles(ridge, some, found).values():  # type: ignore[arg-type]
        assert (interval.low, interval.high) == pytest.approx(
            (-wide, wide), rel=0.05
        )  # without the .8 where y is held
    ends = profile_ends(
        np.arange(7.0), 7 + half * np.array([9, 4, 0.25, 0, 0.25, 2.25, 9]), temperature
    )
    assert ends == pytest.approx(
        (5 / 3, 4.5)
    )  # by the root, between those of the grid; open at its ends
    assert profile_ends(np.arange(3.0), 7 + half * np.array([0.25, 0, 0.25]), temperature) == (0, 2)


def test_hostile_choices_are_told() -> None:
    some = player_families(4)
    said = choices(Player(lambda v, y, now, u: 1), EPISODES)
    for wrong, sentence in (
        (said[:, :5], "choices must be"),
        (said + 0.5, "choices must be outcomes"),
        (said * np.nan, "choices must be outcomes"),
        (said + 3, "choices must be outcomes 0 to 1, got 4"),
        (np.where(np.arange(60) < 3, said, np.nan), "a fit needs at least 32 choices, got 30"),
    ):
        with pytest.raises(InputError, match=sentence):
            explain_choices(EPISODES, wrong, families=some)


@pytest.mark.parametrize("name", ["WM .5", "FPW", "ignores 2", "majority"])
def test_players_are_named_rightly_or_none(name: str, few_steps: None) -> None:
    """One algorithm, one limit of it, one that misses an expert, one without a memory (which has no name to get)."""
    found = judged(SEEN[name], EPISODES)
    assert is_right(SEEN[name], found) == "right", str(found)
    assert found.algorithm is not None and dict(found.algorithm.parameters) == pytest.approx(
        found.parameters
    )
    eta = SEEN[name].eta
    if eta is not None and name == "WM .5":
        assert found.intervals["gain"].low <= eta <= found.intervals["gain"].high
        assert found.nats.estimate < 0.2 * found.floor_nats.estimate and found.telling.low > 0.9


def test_a_player_that_departs_in_one_round_of_five_is_not_named(few_steps: None) -> None:
    """A lapse of .4 names nobody, whatever explains the other rounds: it may be departures, or another algorithm."""
    found = judged(UNSEEN["WM .5, one round of five wrong"], EPISODES)
    assert found.measure.verdict in ("no", "undecided") and found.family is None
    assert found.own.lapse.low > 0.25 and found.own.lapse.high > _LAPSE
    assert (
        found.telling.estimate != found.agreement.estimate
    )  # of the rounds that tell it from a guess alone


def test_what_a_steep_player_tells_apart_is_no_tie_and_rounding_is():
    """Counted as ties, probabilities 1e-10 from even made intervals of an eta above 1 miss it."""
    link = Link(0.0, 0.0, np.array([0.5, 0.5]))
    told = [[0.5 + apart, 0.5 - apart] for apart in (1e-10, -1e-10, 1e-14, 0.0)]
    assert link.preferred(np.array(told)).tolist() == [0, 1, -1, -1]
