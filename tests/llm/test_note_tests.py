"""Edits of notes say what they mean, and what is said of a player's notes is right where their use is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from interp.llm import note_tests
from interp.llm.backend import AGENTS, AgentBackend, Settings, evidence_in
from interp.llm.loading import load, read
from interp.llm.note_tests import (
    _CONTROLS,
    _EDITS,
    _HALF,
    _UNUSED,
    _Asked,
    _edited,
    _judged,
    _renamed,
    _same_state,
    _says_anything,
    try_edits,
)
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import Condition, built_in_prompts
from interp.results.measure import FEW
from interp.stats.intervals import Interval, exact_share
from tests.cases import by_cases
from tests.llm.conftest import jobs
from tests.refusals import refuses
from tests.shell import printed

NOTE, NOTE_ONLY = Condition("weather", "note"), Condition("online", "note-only")
COUNTER = "A:5/9, B:3/9, C:8/9, D:2/9"


def test_every_edit_of_a_counter_on_a_napkin() -> None:
    assert _edited(COUNTER, 4, "A:1/2, B:0/2, C:1/2, D:0/2") == {
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
    texts = _edited("A:5/9; B:3/9; C:6/9; D:2/9;", 4)
    assert texts["edit one count"] == "A:5/9; B:3/9; C:6/9; D:7/9;"
    assert texts["reorder"] == "D:2/9; C:6/9; B:3/9; A:5/9"
    assert "reorder" not in _edited("A:5/9 B:3/9 C:6/9 D:2/9", 4)


def test_what_two_notes_say_is_compared() -> None:
    counts, others, last, first = (
        evidence_in(note, 4)
        for note in (COUNTER, "A:5/9, B:3/9, C:7/9, D:2/9", "A,B correct", "A correct")
    )
    assert (
        _same_state(counts, counts)
        and not _same_state(counts, others)
        and not _same_state(counts, last)
    )
    assert _same_state(last, last) and not _same_state(last, first)
    assert _says_anything(COUNTER, 4) and _says_anything("A,B correct; C,D wrong", 4)
    assert not any(
        _says_anything(note, 4) for note in ("", "A,B,C,D correct", "A:2/9, B:2/9, C:2/9, D:2/9")
    )


@by_cases("note, missing")
def test_other_forms_of_notes_are_edited_or_left_out(note: str, missing: tuple[str, ...]) -> None:
    """A swap changes who leads and nothing else; a control says the same; what would say anything else is left out."""
    texts = _edited(note, 4)
    assert {*_EDITS, *_CONTROLS} - texts.keys() == set(missing)
    before = evidence_in(note, 4)
    after = evidence_in(texts["swap two players"], 4)
    order = before.correct if before.correct.any() else before.last
    swapped = order.copy()
    swapped[[order.argmax(), order.argmin()]] = order[[order.argmin(), order.argmax()]]
    assert np.array_equal(after.correct if before.correct.any() else after.last, swapped)
    for name in _CONTROLS.keys() & texts.keys():
        assert np.array_equal(evidence_in(texts[name], 4).correct, before.correct)
    assert _renamed(_renamed(note, {"A": "B", "B": "A"}, 4), {"A": "B", "B": "A"}, 4) == note


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for name in ("counter", "random"):
        work = plan(
            Settings(name),
            built_in_prompts(),
            instances(("stratified",), 11, 6, 4, seed=5),
            [NOTE, NOTE_ONLY],
        )
        run(work, folder, AgentBackend(name, AGENTS[name]))
    return folder


def test_the_counter_uses_its_note_and_a_player_with_its_history_needs_none(
    traces: Path, tmp_path: Path
) -> None:
    """Without a history the counter follows every edit in every telling round, also later; a coin that falls by what
    the note says uses it, but not as its state; with its history the counter's note moves nothing."""
    found = {(one.model, one.condition): one for one in try_edits(traces / "counter", tmp_path, 2)}
    found |= {(one.model, one.condition): one for one in try_edits(traces / "random", tmp_path, 1)}
    assert {key: (one["carries"].verdict, one["used"].verdict) for key, one in found.items()} == {
        ("counter", "online-note-only"): ("yes", "yes"),
        ("counter", "weather-note"): ("no", "no"),
        ("random", "online-note-only"): ("no", "yes"),
        ("random", "weather-note"): ("no", "no"),
    }
    carries = found["counter", "online-note-only"]
    assert (
        carries.sentence
        == "counter (online-note-only) keeps its state in its note and uses its note."
    )
    assert set(carries["carries"].controls) == set(_CONTROLS)
    table = carries.table
    edits, controls = table[table.kind == "edit"], table[table.kind == "control"]
    assert (
        (edits.follows.dropna() == 1).all()
        and set(edits["round"]) == {1, 2}
        and edits.telling.sum() > 60
    )
    assert (controls.moved == 0).all() and set(controls.change) == set(_CONTROLS)
    unused = found["counter", "weather-note"].table
    assert (unused.moved.dropna() == 0).all() and (unused[unused.kind == "edit"].telling > 0).any()
    calls = found["counter", "weather-note"].settings["calls"]
    again = try_edits(traces / "counter" / NOTE.name, tmp_path, 2)[0]
    assert calls > 0 and again.settings["calls"] == 0, "a second time nothing is asked"
    refuses("no trace", load, tmp_path)
    assert set(read(traces).table["status"]) == {"read"}


def test_the_command_tells_and_writes(traces: Path, tmp_path: Path) -> None:
    options = ["--test", "--rounds", "1", "--out", str(tmp_path)]
    said = printed("llm", "notes", traces / "counter" / "online-note-only", *options)
    assert "counter (online-note-only) keeps its state in its note" in said
    assert set(pd.read_csv(tmp_path / "note_edits.csv")["change"]) == {*_EDITS, *_CONTROLS}
    assert pd.read_csv(tmp_path / "note_measures.csv")["verdict"].tolist() == ["yes", "yes"]


def test_an_edit_is_followed_and_moves_by_hand() -> None:
    """Two agents and four rounds: they say what the edit does, that nothing changes, and twice different things.

    The player does as the first agent in the first round and the third, moves against it in the second, and does not
    answer in the last.
    """
    own, edited, control = (
        replace(jobs(1, 4)[0], variant=name) for name in ("own", "edited", "control")
    )
    before, after = np.array([[1, 0, 1, 1], [1, 0, 0, 1]]), np.array([[0, 0, 0, 1], [0, 0, 0, 0]])
    swap = _Asked("swap two players", True, edited, own, before, after)
    said = {own.place: [1, 0, 1, 1], edited.place: [0, 1, 0, np.nan], control.place: [1, 0, 1, 1]}
    frame = note_tests._outcomes(
        [_Asked("reorder", False, control, own, before, after), swap],
        {k: np.array(v) for k, v in said.items()},
    )
    assert swap.telling.tolist() == [True, False, False, False]
    assert replace(swap, before=before[:1], after=after[:1]).telling.tolist() == [
        True,
        False,
        True,
        False,
    ]
    assert (
        frame["kind"].tolist() == ["edit"] * 4 + ["control"] * 4
        and frame["round"].tolist() == [1, 2, 3, 4] * 2
    )
    edit, beside = frame[:4], frame[4:]
    assert edit["telling"].tolist() == [True, False, False, False]
    assert edit["follows"].tolist() == [True, False, True, False]
    assert edit["moved"].tolist() == [True, True, True, False] and not beside["moved"].any()
    assert edit["usable"].tolist() == [True, True, True, False] and beside["usable"].all()
    assert (
        beside["follows"].tolist() == [False, True, False, True]
        and edit["given"].all() > beside["given"].any()
    )


def _outcomes(n: int, **hits: int) -> pd.DataFrame:
    """Two edits and a control of ``n`` notes: the second edit is always followed, the others as often as ``hits``."""
    rows = []
    for kind, change in (
        ("edit", "swap two players"),
        ("edit", "permute names"),
        ("control", "reorder"),
    ):
        for i in range(n):
            follows = i < hits["follows" if kind == "edit" else kind]
            follows |= change == "permute names" and "moved" not in hits
            moved = i < hits.get("moved", n) if kind == "edit" else follows
            row = {"kind": kind, "change": change, "round": 1, "note": str(i), "telling": True}
            rows.append(row | {"follows": follows, "moved": moved})
    return pd.DataFrame(rows)


@by_cases("hits, n, carries, used")
def test_the_edit_that_is_followed_least_decides(
    hits: dict[str, int], n: int, carries: str, used: str
) -> None:
    """By exact intervals on each side of every bound, and clear of other texts that say the same."""
    outcomes = _outcomes(n, **hits)
    assert [one.verdict for one in _judged(outcomes)] == [carries, used]
    assert _judged(outcomes)[0].reason.startswith(FEW) == (n < 6)
    edits = outcomes[outcomes["kind"] == "edit"]
    assert "yes" not in [one.verdict for one in _judged(edits)], "no control, no yes"


def test_a_share_has_its_exact_interval() -> None:
    """0 of 11 leaves at most .285 (1 - .025^(1/11)), the fewest below :data:`_UNUSED`; 6 of 6 is more than half."""
    none, fewer = exact_share(np.zeros(11, bool)), exact_share(np.zeros(10, bool))
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 11)) and none.high < _UNUSED <= fewer.high
    assert exact_share(np.ones(6, bool)).low > _HALF > exact_share(np.ones(5, bool)).low
    assert isinstance(none, Interval) and np.isnan(exact_share(np.zeros(0, bool)).low)
