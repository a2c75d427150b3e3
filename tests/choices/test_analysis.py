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
from interp.llm.scores import note_table, references, run_regret, score
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
    length = sum(len(message["content"]) for message in messages)
    return ways[length % len(ways)]


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
        work = jobs(n, rounds, conditions, Settings(name), "stratified")
        backend: Any = AgentBackend(name, agent)
        if over_http:
            server = serve(lambda number, body: agent(body["messages"]))
            backend = Connection(server.url)
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
        runs = played(name, [condition], rounds=6, over_http=condition in (NOTE_ONLY, NO_NOTE))
        episodes = episodes_of(runs, "stratified")
        if name == "weighted-majority":
            share = algorithms.weighted_majority(episodes, eta=0.3).predictions
            predictions = np.where(np.abs(share - 0.5) <= 1e-12, 1.0, share > 0.5)
        else:
            earlier_wins = episodes.correct.cumsum(1) - episodes.correct
            leader = earlier_wins.argmax(axis=-1, keepdims=True)
            advice_of_leader = np.take_along_axis(episodes.advice, leader, axis=-1)
            predictions = advice_of_leader[..., 0].astype(float)
            library = follow_the_leader().run(episodes)["prediction"]
            sure = np.isin(library, (0, 1))
            assert sure.any()
            assert np.array_equal(predictions[sure], library[sure])
        assert np.array_equal(
            np.stack([run_regret(llm_run) for llm_run in runs]), regret(predictions, episodes)
        )


def test_scores_have_bands_baselines_and_other_models(played: Callable[..., list[LLMRun]]) -> None:
    """One table for language models, baselines and any model of ours on the same instances."""
    runs = played("weighted-majority", [NOTE_ONLY, NO_NOTE])
    result = score(runs, {"my model": lambda episodes: algorithms.bayes(episodes).predictions})
    final = result.to_frame()
    mine = final[final.kind == "llm"]
    assert set(mine.missing) == {"wrong", "skipped"}
    assert set(mine.condition) == {NOTE_ONLY.name, NO_NOTE.name}
    assert (mine.n == 3).all()
    assert (mine.low <= mine["mean"]).all()
    assert (mine["mean"] <= mine.high).all()
    by_name = final.set_index("model")
    exact = by_name.loc["Bayes predictor, the regime's own prior"]
    assert by_name.loc["my model", "mean"] == exact["mean"]
    assert by_name.loc["my model", "kind"] == "model"
    curves = result.curves[result.curves.missing == "wrong"]
    curve = curves[curves.model == "weighted-majority"]
    ends = curve[curve["round"] == 25].set_index("condition")["mean"]
    wrong = mine[mine.missing == "wrong"]
    for condition, group in wrong.groupby("condition"):
        assert ends[condition] == group["mean"].iloc[0]
    regrets = np.stack([run_regret(llm_run) for llm_run in runs if llm_run.condition == NOTE_ONLY])
    row = wrong[wrong.condition == NOTE_ONLY.name].iloc[0]
    assert row["std"] == regrets[:, -1].std()
    assert row["mean"] == regrets[:, -1].mean()
    assert result.settings["wording"] == ["built-in wording, version 1"]
    assert "git" in result.settings


def test_missing_predictions_are_scored_both_ways_and_never_as_zero(
    played: Callable[..., list[LLMRun]],
) -> None:
    """On a napkin: two missing rounds cost two mistakes, or are left out on both sides; a 0 is neither."""
    llm_run = played("majority", [NO_NOTE], n=1, rounds=4)[0]
    napkin = replace(
        llm_run,
        advice=np.array([[0, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0], [0, 1, 1, 1]]),
        labels=np.array([0, 0, 0, 1]),
        predictions=np.array([np.nan, 0.0, np.nan, 1.0]),
    )
    # Losses: A 0 0 1 1, others 1 1 0 0. Wrong: own 1 1 2 2 against 0 0 1 2; skipped: own 0 0 0 0 against 0 0 0 1.
    assert run_regret(napkin, "wrong").tolist() == [1, 1, 1, 0]
    assert run_regret(napkin, "skipped").tolist() == [0, 0, 0, -1]
    refuses("unknown treatment of missing predictions 'zero'", run_regret, napkin, "zero")


def test_an_agent_that_is_always_malformed_is_all_missing(
    played: Callable[..., list[LLMRun]],
) -> None:
    runs = played("malformed", [NOTE_ONLY, NO_NOTE], n=1, rounds=3)
    for llm_run in runs:
        assert llm_run.missing.all()
        assert llm_run.malformed == llm_run.calls
    result = score(runs)
    assert result.settings["wording"] == ["built-in wording, version 1"]
    final = result.to_frame()
    mine = final[final.kind == "llm"]
    assert (mine.missing_predictions == 3).all()
    assert (mine.malformed_share == 1).all()
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
    messages = work[1].session().next().messages  # type: ignore[union-attr]
    short = json.loads(messages[1]["content"])
    run(work, tmp_path, Connection(serve(answer).url))
    runs = load(tmp_path)
    assert sorted(llm_run.rounds for llm_run in runs) == [4, 9, 9]
    result = score(runs)
    final = result.final[result.final.missing == "wrong"]
    row = final[final.kind == "llm"].iloc[0]
    assert (row.n, row.runs, row.overflowed) == (2, 3, 1)
    curves = result.curves[result.curves.missing == "wrong"]
    n_at_each_round = curves[curves.kind == "llm"]["n"].tolist()
    assert n_at_each_round == [3] * 4 + [2] * 5


def test_repeated_plays_bound_what_any_algorithm_can_agree(
    played: Callable[..., list[LLMRun]],
) -> None:
    """Two plays that each depart in one round of ten agree in .82 of the rounds, so nothing agrees in more than .9."""
    rng = np.random.default_rng(0)
    runs = []
    for llm_run in played("majority", [NO_NOTE], n=FEWEST_RUNS - 1, rounds=4):
        labels = llm_run.labels[:1].repeat(100)
        longer = {"advice": llm_run.advice[:1].repeat(100, axis=0), "labels": labels}
        longer |= {"notes": (None,) * 100, "prompt_tokens": np.zeros(100)}
        runs.append(replace(llm_run, predictions=1.0 * labels, **longer))
    noisy = []
    for llm_run in runs:
        departs = rng.random((2, 100)) < 0.1
        noisy.append(np.abs(llm_run.predictions - departs))
    noisy[0][0, 3] = np.nan
    twice = [
        replace(llm_run, predictions=a, again=(b[:70],))
        for llm_run, (a, b) in zip(runs, noisy, strict=True)
    ]
    (result,) = behaviour(twice)
    assert result.repeated.low <= 0.82 <= result.repeated.high
    assert result.repeated.high - result.repeated.low < 0.1
    repeated = result.repeated.estimate
    assert result.ceiling.estimate == pytest.approx((1 + (2 * repeated - 1) ** 0.5) / 2)
    assert result.ceiling.low <= 0.9 <= result.ceiling.high
    assert "repeated" in result.to_frame()
    assert result.to_frame()["ceiling"].item() == result.ceiling.estimate
    same = [
        replace(llm_run, predictions=a, again=(a, 1 - a))
        for llm_run, (a, _) in zip(runs, noisy, strict=True)
    ]
    (of_same,) = behaviour(same)
    assert of_same.repeated.estimate == 0.5
    assert of_same.ceiling.high == 0.5
    (once,) = behaviour(runs)
    assert np.isnan(once.repeated.estimate)
    assert "repeated" not in once.to_frame()
    assert "repeated" not in str(once)


def test_notes_of_the_agents_are_read_as_what_they_are(played: Callable[..., list[LLMRun]]) -> None:
    """Counter notes count exactly and name the best; last-step notes hold no counts; round lists grow."""
    conditions = [Condition("weather", "note"), NOTE_ONLY]
    counter = note_table(played("counter", conditions, n=2, rounds=6, over_http=True))
    assert (counter.final()["exact"] == 1).all()
    assert (counter.final()["readable"] == 2).all()
    assert set(counter.over_rounds()["round"]) == set(range(1, 7))
    assert (counter.over_rounds()["prompt_tokens"] > 0).all()
    last = note_table(played("last-step", conditions, n=2, rounds=6))
    assert (last.final()["readable"] == 0).all()
    listed = note_table(played("full-history", conditions, n=2, rounds=6)).over_rounds()
    by_round = listed[listed.condition == "weather-note"].sort_values("round")
    words = by_round["words"].to_numpy()
    assert (np.diff(words) > 0).all()
    none = note_table(played("majority", [NO_NOTE], n=1, rounds=3))
    assert none.over_rounds().empty
    assert none.final().empty


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
            standard_error = ends.std() * (1 / 30 + 1 / 60) ** 0.5
            difference = ends.mean() - value
            assert abs(difference) <= 3 * standard_error, (name, regime, ends.mean())
    assert np.array_equal(
        played["ours", "flat"], played["Bayes predictor, the regime's own prior", "flat"]
    )
