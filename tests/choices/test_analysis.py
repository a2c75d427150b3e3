"""Scores and behaviour of agents whose behaviour is known; foreign results; overflow and missing predictions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp.choices.behaviour import FEWEST_RUNS, behaviour
from interp.evaluation.experts.regret import regret
from interp.llm.backend import AGENTS, AgentBackend, Connection, Settings
from interp.llm.loading import load
from interp.llm.runner import run
from interp.llm.runs import LLMRun, episodes_of
from interp.llm.schemes import CONDITIONS, Condition, Message
from interp.llm.scores import _run_regret, note_table, references, score
from interp.tasks.experts import predictors as algorithms
from interp.tasks.experts import sample
from interp.tasks.experts.algorithms import follow_the_leader
from tests.llm import server as raw
from tests.llm.conftest import jobs, serve
from tests.refusals import refuses

__all__ = ["serve"]
NOTE_ONLY, NO_NOTE = Condition("online", "note-only"), Condition("weather", "no-note")


def malformed(messages: Sequence[Message]) -> str:
    """Never a usable answer: cycles through the ways in which models fail, by the length of the conversation."""
    ways = (
        "I would say 1.",
        '{"prediction": 2}',
        '{"answer": 1}',
        '{"prediction": ',
        "[1]",
        "",
        '{"note": ["A"]}',
    )
    return ways[sum(len(message["content"]) for message in messages) % len(ways)]


@pytest.fixture
def played(serve: Callable[..., Any], tmp_path: Path) -> Callable[..., list[LLMRun]]:
    """Runs of an agent through runner and trace, without a server or through one."""

    def make(
        name: str,
        conditions: Any = (NOTE_ONLY,),
        n: int = 3,
        rounds: int = 25,
        *,
        over_http: bool = False,
    ) -> list[LLMRun]:
        agent = malformed if name == "malformed" else AGENTS[name]
        work, alone = (
            jobs(n, rounds, conditions, Settings(name), "stratified"),
            AgentBackend(name, agent),
        )
        backend = (
            Connection(serve(lambda number, body: agent(body["messages"])).url)
            if over_http
            else alone
        )
        run(work, tmp_path / name, backend, malformed_limit=0)
        return load(tmp_path / name)

    return make


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: c.name)
def test_ftl_and_weighted_majority_agents_are_their_algorithms(
    condition: Condition, played: Callable[..., list[LLMRun]]
) -> None:
    """Under every protocol, also where only the note carries the counts (two of them end to end over HTTP): the agents'
    regret is exactly their algorithm's, with ties broken as the agents say (the library counts half a mistake)."""
    for name in ("follow-the-leader", "weighted-majority"):
        runs = played(name, [condition], rounds=10, over_http=condition in (NOTE_ONLY, NO_NOTE))
        episodes = episodes_of(runs, "stratified")
        if name == "weighted-majority":
            share = algorithms.weighted_majority(episodes, eta=0.3).predictions
            said = np.where(np.abs(share - 0.5) <= 1e-12, 1.0, share > 0.5)
        else:
            leader = (episodes.correct.cumsum(1) - episodes.correct).argmax(axis=-1)
            said = np.take_along_axis(episodes.advice, leader[..., None], axis=-1)[..., 0].astype(
                float
            )
            library = follow_the_leader().run(episodes)["prediction"]
            sure = np.isin(library, (0, 1))
            assert sure.any() and np.array_equal(said[sure], library[sure])
        assert np.array_equal(np.stack([_run_regret(one) for one in runs]), regret(said, episodes))


def test_scores_have_bands_baselines_and_other_models(played: Callable[..., list[LLMRun]]) -> None:
    """One table for language models, baselines and any model of ours on the same instances."""
    runs = played("weighted-majority", [NOTE_ONLY, NO_NOTE])
    result = score(runs, {"my model": lambda episodes: algorithms.bayes(episodes).predictions})
    final = result.to_frame()
    mine = final[final.kind == "llm"]
    assert set(mine.missing) == {"wrong", "skipped"} and set(mine.condition) == {
        NOTE_ONLY.name,
        NO_NOTE.name,
    }
    assert (
        (mine.n == 3).all()
        and (mine.low <= mine["mean"]).all()
        and (mine["mean"] <= mine.high).all()
    )
    by_name = final.set_index("model")
    exact = by_name.loc["Bayes predictor, the regime's own prior"]
    assert (
        by_name.loc["my model", "mean"] == exact["mean"]
        and by_name.loc["my model", "kind"] == "model"
    )
    curve = result.curves[
        (result.curves.model == "weighted-majority") & (result.curves.missing == "wrong")
    ]
    ends = curve[curve["round"] == 25].set_index("condition")["mean"]
    for condition, group in mine[mine.missing == "wrong"].groupby("condition"):
        assert ends[condition] == group["mean"].iloc[0]
    regrets = np.stack([_run_regret(one) for one in runs if one.condition == NOTE_ONLY])
    row = mine[(mine.condition == NOTE_ONLY.name) & (mine.missing == "wrong")].iloc[0]
    assert row["std"] == regrets[:, -1].std() and row["mean"] == regrets[:, -1].mean()
    assert (
        result.settings["wording"] == ["built-in wording, version 1"] and "git" in result.settings
    )


def test_missing_predictions_are_scored_both_ways_and_never_as_zero(
    played: Callable[..., list[LLMRun]],
) -> None:
    """On a napkin: two missing rounds cost two mistakes, or are left out on both sides; a 0 is neither."""
    one = played("majority", [NO_NOTE], n=1, rounds=4)[0]
    napkin = replace(
        one,
        advice=np.array([[0, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0], [0, 1, 1, 1]]),
        labels=np.array([0, 0, 0, 1]),
        predictions=np.array([np.nan, 0.0, np.nan, 1.0]),
    )
    # Losses: A 0 0 1 1, others 1 1 0 0. Wrong: own 1 1 2 2 against 0 0 1 2; skipped: own 0 0 0 0 against 0 0 0 1.
    assert _run_regret(napkin, "wrong").tolist() == [1, 1, 1, 0]
    assert _run_regret(napkin, "skipped").tolist() == [0, 0, 0, -1]
    refuses("unknown treatment of missing predictions 'zero'", _run_regret, napkin, "zero")


def test_an_agent_that_is_always_malformed_is_all_missing(
    played: Callable[..., list[LLMRun]],
) -> None:
    runs = played("malformed", [NOTE_ONLY, NO_NOTE], n=1, rounds=3)
    assert all(one.missing.all() and one.malformed == one.calls for one in runs)
    result = score(runs)
    assert result.settings["wording"] == ["built-in wording, version 1"]
    final = result.to_frame()
    mine = final[final.kind == "llm"]
    assert (mine.missing_predictions == 3).all() and (mine.malformed_share == 1).all()
    assert (mine[mine.missing == "skipped"]["mean"] == 0).all()
    best = (~episodes_of(runs, "stratified").correct).sum(1).min()
    assert (mine[mine.missing == "wrong"]["mean"] == 3 - best).all()
    assert behaviour(runs) == []


def test_overflowed_episodes_count_as_far_as_they_go(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    """Their curve goes on to where they stopped; the final table is of complete runs, and says how many."""
    full = {"error": {"code": "context_length_exceeded", "message": "full"}}

    def answer(number: int, body: dict[str, Any]) -> Any:
        first = json.loads(body["messages"][1]["content"])
        long = len(body["messages"]) > 11 and first == short
        return raw.Status(400, full) if long else AGENTS["majority"](body["messages"])

    work = jobs(3, 9, [NO_NOTE], Settings("m"))
    short = json.loads(work[1].session().next().messages[1]["content"])  # type: ignore[union-attr]
    run(work, tmp_path, Connection(serve(answer).url))
    runs = load(tmp_path)
    assert sorted(one.rounds for one in runs) == [4, 9, 9]
    result = score(runs)
    row = result.final[(result.final.kind == "llm") & (result.final.missing == "wrong")].iloc[0]
    assert (row.n, row.runs, row.overflowed) == (2, 3, 1)
    curve = result.curves[(result.curves.kind == "llm") & (result.curves.missing == "wrong")]
    assert curve["n"].tolist() == [3] * 4 + [2] * 5


def test_few_instances_are_not_named(played: Callable[..., list[LLMRun]]) -> None:
    """Fewer than :data:`FEWEST_RUNS` have no fit, no score and no interval: the answer says so."""
    found = behaviour(played("counter", n=FEWEST_RUNS - 1, rounds=8))[0]
    assert found.found is None and "fewer than" in found.answer and len(found.to_frame()) == 1


def test_repeated_plays_bound_what_any_algorithm_can_agree(
    played: Callable[..., list[LLMRun]],
) -> None:
    """Two plays that each depart in one round of ten agree in .82 of the rounds, so nothing agrees in more than .9."""
    rng, runs = np.random.default_rng(0), played("majority", n=FEWEST_RUNS - 1, rounds=100)
    noisy = [np.abs(one.predictions - (rng.random((2, 100)) < 0.1)) for one in runs]
    noisy[0][0, 3] = np.nan
    twice = [
        replace(one, predictions=a, again=(b[:70],))
        for one, (a, b) in zip(runs, noisy, strict=True)
    ]
    (found,) = behaviour(twice)
    assert (
        found.repeated.low <= 0.82 <= found.repeated.high
        and found.repeated.high - found.repeated.low < 0.1
    )
    assert found.ceiling.estimate == pytest.approx(
        (1 + (2 * found.repeated.estimate - 1) ** 0.5) / 2
    )
    assert found.ceiling.low <= 0.9 <= found.ceiling.high and "repeated" in found.to_frame()
    assert found.to_frame()["ceiling"].item() == found.ceiling.estimate
    same = [
        replace(one, predictions=a, again=(a, 1 - a))
        for one, (a, _) in zip(runs, noisy, strict=True)
    ]
    assert behaviour(same)[0].repeated.estimate == 0.5 and behaviour(same)[0].ceiling.high == 0.5
    (once,) = behaviour(runs)
    assert (
        np.isnan(once.repeated.estimate)
        and "repeated" not in once.to_frame()
        and "repeated" not in str(once)
    )


def test_notes_of_the_agents_are_read_as_what_they_are(played: Callable[..., list[LLMRun]]) -> None:
    """Counter notes count exactly and name the best; last-step notes hold no counts; round lists grow."""
    both = [Condition("weather", "note"), NOTE_ONLY]
    counter = note_table(played("counter", both, n=2, rounds=10, over_http=True))
    assert (counter.final()["exact"] == 1).all() and (counter.final()["readable"] == 2).all()
    assert set(counter.over_rounds()["round"]) == set(range(1, 11))
    assert (counter.over_rounds()["prompt_tokens"] > 0).all()
    last = note_table(played("last-step", both, n=2, rounds=10))
    assert (last.final()["readable"] == 0).all()
    listed = note_table(played("full-history", both, n=2, rounds=10)).over_rounds()
    words = listed[listed.condition == "weather-note"].sort_values("round")["words"].to_numpy()
    assert (np.diff(words) > 0).all()
    none = note_table(played("majority", [NO_NOTE], n=1, rounds=3))
    assert none.over_rounds().empty and none.final().empty


def test_nothing_to_load_is_told(tmp_path: Path) -> None:
    refuses("holds no trace", load, tmp_path)
    refuses("no such file or folder", load, tmp_path / "nowhere")
    refuses("no runs to score", score, [])


def test_baselines_on_fresh_instances_are_near_the_papers() -> None:
    """Fresh instances, drawn as the paper draws them, give baselines near the paper's: within three standard errors of
    its published 30-instance means for follow the leader, majority vote and random."""
    others = {"ours": lambda episodes: algorithms.bayes(episodes).predictions}
    played = {
        (name, regime): regret[:, -1]
        for regime in ("stratified", "flat", "anti-signal")
        for _, name, regret, _ in references(sample(60, 100, 4, regime=regime, seed=0), others)
    }
    published = {
        "follow the leader": (1.3, 3.4, 2.6),
        "majority vote": (14.2, 8.5, 25.2),
        "random guessing": (44.7, 15.3, 15.2),
    }
    for name, values in published.items():
        for regime, value in zip(("stratified", "flat", "anti-signal"), values, strict=True):
            ends = played[name, regime]
            assert abs(ends.mean() - value) <= 3 * ends.std() * (1 / 30 + 1 / 60) ** 0.5, (
                name,
                regime,
                ends.mean(),
            )
    assert np.array_equal(
        played["ours", "flat"], played["Bayes predictor, the regime's own prior", "flat"]
    )
