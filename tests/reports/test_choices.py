"""From a table of choices to one page, by the command."""

import re
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest

from interp.choices import players
from interp.choices.explain import explain_choices
from interp.choices.recorded import fit_cell
from interp.choices.recovery import recovery_of_design
from interp.model.checkpoints import save_checkpoint
from interp.tasks import bandit
from interp.tasks.bandit import algorithms
from reports import choices
from tests.llm.test_transcripts import write_chats
from tests.shell import answer, printed, refusal


@pytest.fixture
def few(monkeypatch):
    """Three families, two simulated players of each, and cells of five training steps are enough."""
    monkeypatch.setattr(choices, "recovery_of_design", partial(recovery_of_design, n_players=2))
    monkeypatch.setattr(choices, "fit_cell", partial(fit_cell, steps=5))
    known = [
        family
        for family in algorithms.families()
        if family.key in ("rescorla_wagner", "win_stay", "fixed_bias")
    ]
    monkeypatch.setattr(algorithms, "families", lambda: tuple(known))


@pytest.fixture
def table(tmp_path):
    played = bandit.sample(10, 30, 2, "reversal", 1, algorithms.rescorla_wagner(0.6, 6.0))
    rows = [
        (who, t, c, 100 * r)
        for who in range(10)
        for t, (c, r) in enumerate(zip(played.choices[who], played.rewards[who], strict=True))
    ]
    pd.DataFrame(rows, columns=["who", "trial", "choice", "outcome"]).to_csv(
        tmp_path / "people.csv", index=False
    )
    return tmp_path / "people.csv"


@pytest.mark.long
def test_a_table_becomes_a_page(table, few, tmp_path):
    command = ["choices", table, "--participant", "who", "--quick", "--out", tmp_path / "pages"]
    explained = answer(*command)
    assert explained["closest"] == "rescorla_wagner"
    assert abs(explained["parameters"]["rate"] - 0.6) < 0.2
    assert explained["families"][0]["family"] == "rescorla_wagner"
    assert len(explained["files"]) == 1
    page = (tmp_path / "pages" / "people.html").read_text("utf-8")
    for expected in (
        "Participants",
        "Phase portrait",
        "300 of 300, in 10 episodes",
        "--participant who",
    ):
        assert expected in page, expected


def play_in_chats(path, player, n_chats=10):
    """Let a scripted player choose J or F in chats, by an algorithm that is known."""
    played = bandit.sample(n_chats, 30, 2, "reversal", 2, player)
    chats = []
    for choices_made, rewards in zip(played.choices, played.rewards, strict=True):
        chat = [("user", "Choose J or F, as JSON.")]
        for choice, reward in zip(choices_made, rewards, strict=True):
            chat.append(("assistant", f'My choice: {{"choice": "{"FJ"[choice]}"}}'))
            chat.append(("user", {"points": int(reward)}))
        chats.append(chat)
    return write_chats(path, *chats)


@pytest.mark.long
def test_people_a_network_and_a_language_model_on_one_page(table, few, tmp_path):
    """Each column has the family that its player follows; a network's is that of those it was fitted to."""
    habit = algorithms.win_stay(stays=0.9, shifts=0.8)
    chats = play_in_chats(tmp_path / "chats.jsonl", habit)
    people = bandit.read(table, participant="who")
    network = save_checkpoint(fit_cell(people, n_folds=2, steps=60).machine, tmp_path / "gru")
    beside = [f"network={network}", f"model={chats}", "reward=points", "choice=choice"]
    command = ["choices", table, "--participant", "who", "--quick", "--beside", *beside]
    output = answer(*command, "--out", tmp_path / "pages")
    assert output["closest"] == "rescorla_wagner"
    assert output["beside"]["model"] == ["win_stay"]
    assert output["beside"]["network"][0] == "rescorla_wagner"
    page = (tmp_path / "pages" / "people.html").read_text("utf-8")
    assert "Side by side" in page
    assert "participants: Rescorla-Wagner" in page
    assert f"model: {habit.name}" in page
    assert f"--beside network={network}" in page


@pytest.mark.long
def test_each_player_is_analysed_as_alone(few, tmp_path):
    """The column of a second table has the numbers of that table; the page has its participants and its recovery."""
    played = bandit.sample(3, 40, 2, "reversal", 3, algorithms.rescorla_wagner(0.3, 5.0))
    people = replace(played, participants=["a", "b", "c"])
    known = choices.players_of(people, {"others": people.select([1, 2])})
    page, explanations = choices.write("people.csv", tmp_path, players=known)
    alone = explain_choices(known["others"].episodes, known["others"].choices)
    pd.testing.assert_frame_equal(explanations["others"].to_frame(), alone.to_frame())
    text = page.read_text("utf-8")
    for column in ("participants, nats", "others, nats", "others, in set", "others, sets"):
        assert column in text
    side_by_side = text[text.index("Side by side</h2>") :]
    assert side_by_side.count("4 simulated players") + side_by_side.count("6 simulated players") > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["participants=wma-gru"], "give another name"),
        (["x=nowhere"], "nowhere"),
        (["x=wma-gru", "x=wma-gru"], "twice"),
        (["choice=answer", "x=wma-gru"], "answer"),
    ],
    ids=["the table's own", "no such model", "a name that stands twice", "a column of no player"],
)
def test_players_beside_are_named(words, message, table, tmp_path):
    command = ["choices", table, "--participant", "who", "--beside", *words, "--out", tmp_path]
    assert message in refusal(*command)


def test_a_column_that_is_not_named_is_asked_for(table, tmp_path):
    refused = refusal("choices", table, "--out", tmp_path)
    assert "participant=NAME, one of who, trial, choice, outcome" in refused


@pytest.mark.long
def test_a_page_says_how_many_of_a_cohort_are_fitted_as_one(table, tmp_path, monkeypatch):
    monkeypatch.setattr(players, "MOST_TOGETHER", 100)
    shown = printed("choices", table, "--participant", "who", "--quick", "--out", tmp_path)
    (drawn,) = re.findall(r"\d+ of \d+ participants, drawn at random, are fitted as one\.", shown)
    assert drawn in (tmp_path / "people.html").read_text()


@pytest.mark.long
def test_two_shares_give_the_bytes_of_one_command(table, few, tmp_path, monkeypatch):
    """A share of another table or seed is refused by the name of what differs; --quick has nothing to divide."""
    monkeypatch.setattr(players, "CHOICES_A_PART", 60)
    people = pd.read_csv(table)
    three = people[people["who"] < 3]
    twice = [three.assign(trial=three["trial"] + 30 * i) for i in range(2)]
    pd.concat(twice).to_csv(table, index=False)
    command = ["choices", table, "--participant", "who"]
    together = [*command, "--out", tmp_path / "together"]
    planned = printed(*together, "--plan")
    assert "1 of 3 parts are in" in planned
    assert "sbatch --array=1-2 " in planned
    for shard in ("1/2", "2/2"):
        printed(*together, "--shard", shard)
    status = answer("status", tmp_path / "together/parts")
    assert {part["state"] for part in status["parts"]} == {"done"}
    assert "this command has seed=1" in refusal(*together, "--seed", "1")
    assert "made with table=" in refusal(*together, "--scale", "50", "--shard", "1/2")
    assert "nothing is left to divide" in refusal(*together, "--quick", "--shard", "1/2")
    printed(*command, "--out", tmp_path / "alone")
    monkeypatch.setattr(choices, "explain_part", _refuse_to_fit)
    printed(*together)
    pages = [(tmp_path / name / "people.html").read_bytes() for name in ("alone", "together")]
    assert pages[0] == pages[1]


def _refuse_to_fit(*arguments):
    raise AssertionError("a participant was fitted again")


def test_a_page_names_the_command_that_makes_it_again_and_counts_what_is_scored(
    table, few, tmp_path
):
    rows = pd.read_csv(table)
    is_forced = (rows["trial"] % 10 == 0).astype(int)
    rows.assign(forced=is_forced).to_csv(table, index=False)
    columns = {"participant": "who", "forced": "forced"}
    page, _ = choices.write(table, tmp_path / "pages", quick=True, seed=3, units=4, **columns)
    html = page.read_text("utf-8")
    options = "--participant who --forced forced --units 4 --seed 3 --quick"
    assert f"interp choices {table} {options}" in html
    assert "explain_choices(played, played.choices, seed=3)" in html
    assert "270 of 300, in 10 episodes" in html
