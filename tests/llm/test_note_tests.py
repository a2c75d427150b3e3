"""Edits of notes say what they mean, and what is said of a player's notes is right where their use is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from interp.cli import app
from interp.errors import InputError
from interp.llm.agents import AGENTS, evidence_in
from interp.llm.backend import AgentBackend, Settings
from interp.llm.loading import load, read
from interp.llm.note_edits import CONTROLS, EDITS, edited, renamed, same_state, says_anything
from interp.llm.note_tests import HALF, UNUSED, _verdict, try_edits
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import Condition, built_in_prompts
from interp.statistics import Interval, exact_share

NOTE, NOTE_ONLY = Condition("weather", "note"), Condition("online", "note-only")
COUNTER = "A:5/9, B:3/9, C:8/9, D:2/9"


def test_every_edit_of_a_counter_on_a_napkin() -> None:
    assert edited(COUNTER, 4, "A:1/2, B:0/2, C:1/2, D:0/2") == {
        "swap two players": "A:5/9, B:3/9, D:8/9, C:2/9",
        "permute names": "B:5/9, C:3/9, D:8/9, A:2/9",
        "edit one count": "A:5/9, B:3/9, C:8/9, D:9/9",
        "delete the best": "A:5/9, B:3/9, D:2/9",
        "counts that never happened": "A:4/9, B:6/9, C:1/9, D:7/9",
        "an earlier note": "A:1/2, B:0/2, C:1/2, D:0/2",
        "the same note": COUNTER,
        "paraphrase": "Expert A was right 5 times out of 9; Expert B was right 3 times out of 9; "
        "Expert C was right 8 times out of 9; Expert D was right 2 times out of 9",
        "reorder": "D:2/9, C:8/9, B:3/9, A:5/9",
        "an irrelevant sentence": f"{COUNTER}. The office moves to another building next month.",
    }


def test_edits_and_controls_at_their_bounds() -> None:
    """A raised count is one more than the best has, out of as many; a control that would say something else, or an
    order that cannot be turned round, is left out; empty parts are no parts."""
    texts = edited("A:5/9; B:3/9; C:6/9; D:2/9;", 4)
    assert texts["edit one count"] == "A:5/9; B:3/9; C:6/9; D:7/9;"
    assert texts["reorder"] == "D:2/9; C:6/9; B:3/9; A:5/9"
    assert "reorder" not in edited("A:5/9 B:3/9 C:6/9 D:2/9", 4)


def test_what_two_notes_say_is_compared() -> None:
    counts, others, last, first = (
        evidence_in(note, 4) for note in (COUNTER, "A:5/9, B:3/9, C:7/9, D:2/9", "A,B correct", "A correct")
    )
    assert same_state(counts, counts) and not same_state(counts, others) and not same_state(counts, last)
    assert same_state(last, last) and not same_state(last, first)
    assert says_anything(COUNTER, 4) and says_anything("A,B correct; C,D wrong", 4)
    assert not any(says_anything(note, 4) for note in ("", "A,B,C,D correct", "A:2/9, B:2/9, C:2/9, D:2/9"))


@pytest.mark.parametrize(
    ("note", "missing"),
    [
        ("A,B correct; C,D wrong", {"edit one count", "counts that never happened", "paraphrase", "an earlier note"}),
        (
            "Round1: A=1,B=0,C=1,D=0,label=1; B,D wrong. Round2: A=1,B=1,C=0,D=0,label=1; C,D wrong.",
            {"edit one count", "paraphrase", "an earlier note"},
        ),
        (
            "Expert_A was right 3 of 4; Expert_B and C were right 1 of 4. Expert D never, 0/4.",
            {"an earlier note"},
        ),
    ],
)
def test_other_forms_of_notes_are_edited_or_left_out(note: str, missing: set[str]) -> None:
    """A swap changes who leads and nothing else; a control says the same; what would say anything else is left out."""
    texts = edited(note, 4)
    assert {*EDITS, *CONTROLS} - texts.keys() == missing
    before = evidence_in(note, 4)
    after = evidence_in(texts["swap two players"], 4)
    order = before.correct if before.correct.any() else before.last
    swapped = order.copy()
    swapped[[order.argmax(), order.argmin()]] = order[[order.argmin(), order.argmax()]]
    assert np.array_equal(after.correct if before.correct.any() else after.last, swapped)
    for name in CONTROLS.keys() & texts.keys():
        said = evidence_in(texts[name], 4)
        assert np.array_equal(said.correct, before.correct)
    assert renamed(renamed(note, {"A": "B", "B": "A"}, 4), {"A": "B", "B": "A"}, 4) == note


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for name in ("counter", "random"):
        work = plan(Settings(name), built_in_prompts(), instances(("stratified",), 11, 9, 4, seed=5), [NOTE, NOTE_ONLY])
        run(work, folder, AgentBackend(name, AGENTS[name]))
    return folder


def test_the_counter_uses_its_note_and_a_player_with_its_history_needs_none(traces: Path, tmp_path: Path) -> None:
    """Without a history the counter follows every edit in every telling round, also later; a coin that falls by what
    the note says uses it in another way; with its history the counter's note moves nothing."""
    found = {(one.model, one.condition): one for one in try_edits(traces / "counter", tmp_path, 2)}
    found |= {(one.model, one.condition): one for one in try_edits(traces / "random", tmp_path, 1)}
    assert {key: one.verdict for key, one in found.items()} == {
        ("counter", "online-note-only"): "the note carries the state",
        ("counter", "weather-note"): "the note is not used",
        ("random", "online-note-only"): "the note is used in another way",
        ("random", "weather-note"): "the note is not used",
    }
    table = found["counter", "online-note-only"].to_frame()
    edits, controls = table[table.kind == "edit"], table[table.kind == "control"]
    assert (edits.follows.dropna() == 1).all() and set(edits["round"]) == {1, 2} and edits.telling.sum() > 60
    assert (controls.moved == 0).all() and set(controls.change) == set(CONTROLS)
    unused = found["counter", "weather-note"].to_frame()
    assert (unused.moved.dropna() == 0).all() and (unused[unused.kind == "edit"].telling > 0).any()
    calls = found["counter", "weather-note"].settings["calls"]
    again = try_edits(traces / "counter" / NOTE.name, tmp_path, 2)[0]
    assert calls > 0 and again.settings["calls"] == 0, "a second time nothing is asked"
    with pytest.raises(InputError, match="no trace"):
        load(tmp_path)
    assert set(read(traces).table["status"]) == {"read"}


def test_the_command_tells_and_writes(traces: Path, tmp_path: Path) -> None:
    options = ["--test", "--rounds", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["llm", "notes", str(traces / "counter" / "online-note-only"), *options])
    assert result.exit_code == 0 and "counter, online-note-only: the note carries the state" in result.output
    assert set(pd.read_csv(tmp_path / "note_edits.csv")["change"]) == {*EDITS, *CONTROLS}


def _table(follows: int, moved: int, control: int, n: int = 12) -> pd.DataFrame:
    rows = []
    for kind, name, hits in (
        ("edit", "swap two players", moved),
        ("edit", "permute names", n),
        ("control", "reorder", control),
    ):
        row = {"kind": kind, "change": name, "round": 1, "notes": n, "telling": n if kind == "edit" else 0}
        row |= exact_share(np.arange(n) < (follows if name == "swap two players" else n)).columns("follows")
        rows.append(row | exact_share(np.arange(n) < hits).columns("moved"))
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("follows", "moved", "control", "n", "said"),
    [
        (12, 12, 0, 12, "the note carries the state"),
        (10, 10, 2, 12, "the note carries the state"),
        (9, 9, 2, 12, "undecided"),
        (12, 12, 3, 12, "undecided"),
        (12, 12, 12, 12, "undecided"),
        (6, 6, 0, 6, "the note carries the state"),
        (5, 5, 0, 5, "undecided"),
        (0, 0, 0, 11, "the note is not used"),
        (0, 0, 0, 10, "undecided"),
        (0, 1, 0, 12, "undecided"),
        (2, 12, 0, 12, "the note is used in another way"),
        (3, 12, 0, 12, "undecided"),
        (2, 7, 5, 12, "undecided"),
    ],
)
def test_the_rule_of_the_verdict(follows: int, moved: int, control: int, n: int, said: str) -> None:
    """The worst edit and the worst control decide, by exact intervals: on each side of every bound."""
    table = _table(follows, moved, control, n)
    stirred = {"edit": exact_share(np.arange(n) < moved), "control": exact_share(np.arange(n) < control)}
    if said == "the note is not used" or moved <= 1:
        table.loc[table["change"] == "permute names", ["follows", "follows_low", "follows_high"]] = [0.0, 0.0, 0.3]
    assert _verdict(table, stirred) == said
    assert _verdict(table[table["kind"] == "edit"], stirred) == "undecided", "no control, no verdict"
    assert _verdict(table[table["kind"] == "control"], stirred) == "undecided"


def test_a_share_has_its_exact_interval() -> None:
    """0 of 11 leaves at most .285 (1 - .025^(1/11)), the fewest below :data:`UNUSED`; 6 of 6 is more than half."""
    none, fewer = exact_share(np.zeros(11, bool)), exact_share(np.zeros(10, bool))
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 11)) and none.high < UNUSED <= fewer.high
    assert exact_share(np.ones(6, bool)).low > HALF > exact_share(np.ones(5, bool)).low
    assert isinstance(none, Interval) and np.isnan(exact_share(np.zeros(0, bool)).low)
