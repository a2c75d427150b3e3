"""The commands end to end, as a user types them: dry run, run, score, report; exit codes and sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from interp.cli import app
from interp.llm.agents import AGENTS
from interp.llm.plan import Prices, estimate, instances, plan
from interp.llm.prompts import built_in_prompts
from interp.llm.schemes import CONDITIONS
from interp.llm.settings import Settings

SMALL = [
    "--instances",
    "2",
    "--rounds",
    "6",
    "--regimes",
    "flat",
    "--conditions",
    "online-note-only",
    "weather-no-note",
]


def interp(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["llm", *map(str, arguments)])
    return result.exit_code, result.output


def test_run_score_report(serve: Callable[..., Any], tmp_path: Path) -> None:
    """A newcomer's path: play, score, page; a second run finds everything done."""
    server = serve(lambda number, body: AGENTS["counter"](body["messages"]))
    command = ["run", "tester", "--base-url", server.url, *SMALL, "--out", tmp_path / "traces"]
    code, said = interp(*command, "--prices", 1, 0.1, 2)
    assert code == 0 and "4 episodes, 36 calls" in said and "4 of 4 episodes" in said and "cost" in said
    assert len(server.requests) == 36
    code, said = interp(*command)
    assert code == 0 and "0 calls now and 36 before" in said and len(server.requests) == 36
    code, said = interp("score", tmp_path / "traces", "--out", tmp_path / "scores")
    assert code == 0 and "tester" in said and "oracle" in said
    final = pd.read_csv(tmp_path / "scores" / "final.csv")
    assert {"follow the leader", "tester"} <= set(final["model"])
    names = {path.name for path in (tmp_path / "scores").iterdir()}
    assert names == {"final.csv", "curves.csv", "behaviour.csv", "agreement.csv", "notes.csv"} | {
        "note_formats.csv",
        "note_summary.csv",
        "provenance.json",
    }
    assert (pd.read_csv(tmp_path / "scores" / "notes.csv")["format"] == "counter").sum() == 12
    code, said = interp("report", tmp_path / "traces", "--out", tmp_path)
    assert code == 0 and said.strip() == str(tmp_path / "llm.html") and (tmp_path / "llm.html").stat().st_size > 50_000


def test_a_dry_run_asks_nothing(tmp_path: Path) -> None:
    """Calls, tokens and cost without a server, and without a file."""
    code, said = interp("run", "m", "--base-url", "http://127.0.0.1:1/v1", *SMALL, "--out", tmp_path / "t", "--dry-run")
    assert code == 0 and "4 episodes, 36 calls" in said and "nothing was asked" in said
    assert not (tmp_path / "t").exists()


def test_the_estimate_of_every_condition_is_named_whole_and_costs_only_where_there_are_prices() -> None:
    jobs = plan(Settings("m"), built_in_prompts(4), instances(["flat"], 1, 3, 4))
    free, paid = estimate(jobs).readable(), estimate(jobs, Prices(1.0, 0.1, 2.0)).readable()
    assert free["condition"].tolist() == [condition.name for condition in CONDITIONS]
    assert "cost" not in free and "cost" in paid


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "m", "--base-url", "ftp://x"], "base_url must be an address"),
        (["run", "m", "--base-url", "http://x/v1", "--conditions", "online"], "unknown condition 'online'"),
        (
            ["run", "m", "--base-url", "http://x/v1", "--regimes", "flatt"],
            "unknown regime 'flatt'; did you mean 'flat'",
        ),
        (["run", "m", "--base-url", "http://x/v1", "--temperature", "3"], "temperature must be in [0, 2], got 3.0"),
        (["run", "m", "--base-url", "http://x/v1", "--response-format", "xml"], "unknown response format 'xml'"),
        (["run", "m", "--base-url", "http://x/v1", "--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["run", "m", "--base-url", "http://x/v1", "--prices", "1", "2"], "--prices takes three numbers"),
        (["run", "m", "--base-url", "http://x/v1", "--prompts", "nowhere"], "no prompt folder 'nowhere'"),
        (
            ["run", "m", "--base-url", "http://x/v1", "--key-env", "NO_KEY_X"],
            "environment variable NO_KEY_X is not set",
        ),
        (["score", "nowhere"], "no such file or folder 'nowhere'"),
    ],
)
def test_bad_input_exits_with_2_and_a_sentence(arguments: list[str], message: str, tmp_path: Path) -> None:
    small = [*SMALL[:4], "--out", str(tmp_path)] if arguments[0] == "run" else []
    code, said = interp(*arguments, *small)
    assert code == 2 and message in " ".join(said.split()) and "Traceback" not in said
