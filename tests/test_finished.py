"""Finished parts come back as they were, under their own settings alone, and never from a file that was changed."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.stats.intervals import Interval
from interp.support.session import Finished


@dataclass(frozen=True)
class Rule:
    """What no file can hold: it has a function."""

    key: str
    of: Any = print


@dataclass(frozen=True)
class Part:
    """Everything that a part may hold."""

    score: Interval | None
    scores: tuple[Interval, ...]
    pair: tuple[int, Interval]
    named: dict[str, Interval]
    rule: Rule | None
    values: np.ndarray
    table: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)


RULE = Rule("first")
TABLE = pd.DataFrame({"b": [0.1, math.nan], "a": ["x", None], "n": [1, 2], "is": [True, False]})
NO_NUMBERS = np.zeros((2, 0, 3), np.float32)
INTERVALS = (Interval(0.1 + 0.2, math.nan, math.inf), Interval(1e-300, 0.0, 1.0))
PART = Part(
    score=None,
    scores=INTERVALS,
    pair=(3, Interval(0.0, 0.0, 0.0)),
    named={"z": Interval(1.0, 1.0, 1.0), "a": Interval(2.0, 2.0, 2.0)},
    rule=RULE,
    values=NO_NUMBERS,
    table=TABLE,
    settings={"sizes": (2, 3), 4: ["x", None], "flag": np.bool_(True)},
)


@pytest.fixture
def finished(tmp_path):
    return Finished(tmp_path / "parts", {"seed": 0, "sizes": (1, 2)}, {"first": RULE})


def never():
    raise AssertionError("a finished part is not computed again")


def test_a_part_comes_back_as_it_was(finished):
    """To the last bit, in its order, with tuples, NaN, dtypes and shapes."""
    finished.part("the part", Part, lambda: PART)
    again = finished.part("the part", Part, never)
    assert repr(again.scores) == repr(PART.scores)
    assert again.score is None
    assert again.pair == PART.pair
    assert list(again.named) == ["z", "a"]
    assert again.named == PART.named
    assert again.rule is RULE
    assert again.values.dtype == np.float32
    assert again.values.shape == (2, 0, 3)
    assert again.settings == {"sizes": (2, 3), 4: ["x", None], "flag": True}
    pd.testing.assert_frame_equal(again.table, TABLE, check_exact=True)


def test_a_part_of_other_settings_another_name_or_another_class_is_not_read(finished):
    finished.save("the part", Part, PART)
    assert finished.load("the-part", Part) is None
    assert finished.load("the part", Interval) is None
    assert (
        Finished(finished.folder, {"seed": 1, "sizes": (1, 2)}, finished.named).load(
            "the part", Part
        )
        is None
    )
    assert Finished(None, {}).load("the part", Part) is None


def test_a_damaged_or_edited_file_is_computed_again_and_said_so(finished, caplog):
    """Every byte of the file counts: no change of one is believed."""
    values = (1.5, 2.5)
    finished.save("values", tuple[float, ...], values)
    (path,) = finished.folder.iterdir()
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        assert finished.load("values", tuple[float, ...]) in (None, values)
    path.write_text(path.read_text(errors="replace")[:20])
    assert finished.part("values", tuple[float, ...], lambda: values) == values
    assert "is damaged or was edited" in caplog.text
    edited = content.decode().replace("1.5", "9.5")
    path.write_text(edited)
    assert edited != content.decode()
    assert finished.load("values", tuple[float, ...]) is None


def test_finished_work_leaves_nothing_behind(finished):
    finished.save("a", int, 1)
    finished.clear()
    assert not finished.folder.exists()
    finished.clear()
