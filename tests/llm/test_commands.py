"""The commands end to end, as a user types them: dry run, run, score, report; exit codes and sentences."""

import asyncio
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from interp.llm.backend import AGENTS, PLAYERS
from interp.llm.runner import RunSummary, play_demo
from tests.shell import invoked, printed, refusal

SMALL = ["--episodes", "2", "--rounds", "6", "--regime", "flat"]
SMALL += ["--conditions", "online-note-only", "weather-no-note"]


@pytest.mark.long
def test_run_score_report(serve: Callable[..., Any], tmp_path: Path) -> None:
    """A newcomer's path: play, score, page; a second run finds everything done."""
    server = serve(lambda number, body: AGENTS["counter"](body["messages"]))
    command = ["run", "tester", "--base-url", server.url, *SMALL, "--out", tmp_path / "traces"]
    shown = printed("llm", *command, "--prices", 1, 0.1, 2)
    assert "4 episodes, 36 calls" in shown
    assert "4 of 4 episodes" in shown
    assert "cost" in shown
    assert len(server.requests) == 36
    shown = printed("llm", *command)
    assert "0 calls now and 36 before" in shown
    assert len(server.requests) == 36
    sent = server.requests[0]
    assert (sent["temperature"], sent["max_tokens"]) == (0, 2048)
    nothing_sent = [
        "--max-tokens",
        "none",
        "--temperature",
        "none",
        "--budget",
        "9000",
        "--extra-body",
    ]
    elsewhere = ["--out", tmp_path / "other"]
    invoked("llm", *command, *elsewhere, *nothing_sent, '{"max_completion_tokens": 99}')
    sent = server.requests[-1]
    assert not {"temperature", "max_tokens"} & sent.keys()
    assert sent["max_completion_tokens"] == 99
    beside = ["--models", "wma-handwired", "--out", tmp_path / "scores"]
    shown = printed("llm", "score", tmp_path / "traces", *beside)
    assert "tester" in shown
    assert "oracle" in shown
    final = pd.read_csv(tmp_path / "scores" / "final.csv")
    assert {"follow the leader", "tester"} <= set(final["model"])
    names = {path.stem for path in (tmp_path / "scores").iterdir()}
    notes = {"note_rounds", "note_summary", "notes"}
    assert names == {"final", "curves", "behaviour", "read", "provenance"} | notes
    assert len(pd.read_csv(tmp_path / "scores" / "notes.csv")) == 12
    assert "tester, online-note-only, flat: undecided: fewer than 8" in shown
    shown = printed("llm", "report", tmp_path / "traces", "--out", tmp_path)
    assert shown.startswith(str(tmp_path / "llm.html"))
    assert (tmp_path / "llm.html").stat().st_size > 50_000


@pytest.mark.parametrize("name", ["random", "last-step"])
def test_a_scripted_agent_plays_without_a_server_and_its_notes_are_shown(
    name: str, tmp_path: Path
) -> None:
    """The default that needs nothing: the same traces, resumed, and their notes as tables."""
    run = ["run", "--agent", name, *SMALL, "--out", tmp_path / "traces"]
    shown = printed("llm", *run)
    assert "4 of 4 episodes" in shown
    assert "36 calls now and 0 before" in shown
    assert "0 calls now and 36 before" in printed("llm", *run)
    refused = refusal("llm", *run, "--rounds", 8)
    assert "has 6 rounds, and 8 were asked for" in " ".join(refused.split())
    shown = printed("llm", "score", tmp_path / "traces", "--out", tmp_path / "scores")
    assert "online-note-only" in shown
    by_round = pd.read_csv(tmp_path / "scores" / "note_rounds.csv")
    assert by_round["round"].tolist() == list(range(1, 7))
    notes = pd.read_csv(tmp_path / "scores" / "notes.csv")
    assert notes["note"].str.contains("A").all()
    assert (notes["exact"] == (name == "random")).all()


@pytest.mark.long
def test_what_is_set_aside_is_told(tmp_path: Path) -> None:
    """A foreign result that cannot be read: told on standard error, in a table, on the page; copies, too."""
    printed("llm", "run", "--agent", "counter", *SMALL, "--out", tmp_path / "in" / "a")
    (tmp_path / "in" / "result.json").write_text("{}")
    shown = printed("llm", "score", tmp_path / "in", "--out", tmp_path / "scores")
    assert "set aside 1 times: result.json" in " ".join(shown.split())
    assert "lacks the field 'meta'" in shown
    assert pd.read_csv(tmp_path / "scores" / "read.csv")["status"].value_counts().to_dict() == {
        "read": 4,
        "set aside": 1,
    }
    printed("llm", "report", tmp_path / "in", "--out", tmp_path)
    assert "Files that were not read" in (tmp_path / "llm.html").read_text()
    shutil.copytree(tmp_path / "in" / "a", tmp_path / "in" / "b")
    shown = printed("llm", "score", tmp_path / "in", "--out", tmp_path / "scores")
    assert "a copy of" in " ".join(shown.split())
    assert "4 episodes read, 5 files or parts of files set aside" in " ".join(shown.split())


def test_the_demo_plays_every_agent(tmp_path: Path) -> None:
    """Every player, the paper's regimes, with a note and without; a second time, in a cell of a notebook, nothing is
    played again."""
    done = play_demo(tmp_path, n_instances=1, n_rounds=2)
    assert list(done) == list(PLAYERS)
    assert all(player_run.complete for player_run in done.values())
    assert {player_run.episodes for player_run in done.values()} == {6}
    again = play_within_a_loop(tmp_path)
    assert list(again) == list(PLAYERS)
    assert sum(player_run.calls for player_run in again.values()) == 0


def play_within_a_loop(folder: Path) -> dict[str, RunSummary]:
    """Play the demo in a loop, as a cell of a notebook does: a browser's tests leave one in the main thread."""

    async def cell() -> dict[str, RunSummary]:
        return play_demo(folder, n_instances=1, n_rounds=2)

    with ThreadPoolExecutor(1) as other_thread:
        return other_thread.submit(asyncio.run, cell()).result()


@pytest.mark.slow  # 80 s of one core: the whole demo with its report
def test_the_demo_command(tmp_path: Path) -> None:
    """Scores and a page, offline; the agents keep their order: counting beats the last step, which beats a coin."""
    shown = printed("llm", "demo", "--out", tmp_path)
    assert (tmp_path / "llm.html").stat().st_size > 100_000
    assert "random: tosses a coin" in shown
    final = pd.read_csv(tmp_path / "scores" / "final.csv").query(
        "regime == 'stratified' and missing == 'wrong'"
    )
    regret = final.groupby("model")["mean"].mean()
    assert regret["counter"] < regret["last-step"] < regret["random"]


def test_a_dry_run_asks_nothing(tmp_path: Path) -> None:
    """Calls, tokens and cost without a server, and without a file."""
    nowhere = ["--base-url", "http://127.0.0.1:1/v1"]
    shown = printed("llm", "run", "m", *nowhere, *SMALL, "--out", tmp_path / "t", "--dry-run")
    assert "4 episodes, 36 calls" in shown
    assert "nothing was asked" in shown
    assert not (tmp_path / "t").exists()
