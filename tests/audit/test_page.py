"""The shell's one JSON object and the page hold every measure of an audit, with number, control and threshold."""

import json
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest

from interp import audit as room
from interp.audit import Budget
from interp.tasks import experts
from tests.audit import shipped
from tests.refusals import refuses
from tests.shell import answer, printed

TINY = Budget(episodes=12, rounds=5, writes=2, copies=1)


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What the command says of a small model, at little budget."""
    monkeypatch.setattr("interp.audit.trial.Budget.quick", lambda: TINY)
    words = [
        "audit",
        "wma-handwired",
        "--experts",
        "2",
        "--quick",
        "--report",
        "--out",
        tmp_path,
    ]
    return answer(*words), tmp_path / "wma-handwired"


@pytest.mark.long
def test_the_command_tells_every_claim_and_writes_tables_and_a_page(told):
    printed, folder = told
    measures = {claim["key"]: claim for claim in printed["measures"]}
    assert list(measures) == ["used", "content", "side", "lasts", "decoded", "directions"]
    decided = [claim for claim in measures.values() if claim["verdict"] in ("yes", "no")]
    assert decided
    assert all(claim["low"] <= claim["number"] <= claim["high"] for claim in decided)
    assert all("an untrained copy" in claim["controls"] for claim in decided)
    assert all(claim["control"] and claim["control_number"] is not None for claim in decided)
    assert printed["settings"]["thresholds"]["worth"] == room.THRESHOLDS["worth"].value
    tables = {name for claim in decided for name in claim["rests_on"]}
    assert all((folder / f"{name}.csv").is_file() for name in (*tables, "measures"))
    (page,) = folder.glob("wma-handwired*.html")
    text = unescape(page.read_text("utf-8"))
    assert "Robustness checks" in text
    assert "Not computed" not in text
    assert '"run": "12 episodes of 5 rounds, ' in text
    assert all(claim["claim"] in text for claim in measures.values())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:there are only 14 participants")
def test_the_page_counts_the_recorded_episodes_of_the_audit(monkeypatch, tmp_path):
    """An audit of recorded data has one episode of each of the 14 participants, more than asked for."""
    monkeypatch.setattr("interp.audit.trial.Budget.quick", lambda: TINY)
    episodes = experts.sample(14, 5, 2, seed=0)
    rounds = pd.DataFrame(episodes.advice.reshape(-1, 2), columns=["advice_1", "advice_2"])
    rounds["outcome"] = episodes.labels.ravel()
    rounds["participant"] = np.repeat(np.arange(14), 5)
    table = tmp_path / "people.csv"
    rounds.to_csv(table, index=False)
    command = ["audit", "wma-handwired", "--experts", "2", "--quick", "--report"]
    printed(*command, "--recorded", table, "--out", tmp_path)
    (page,) = (tmp_path / "wma-handwired").glob("wma-handwired*.html")
    assert '"run": "14 episodes of 5 rounds, ' in unescape(page.read_text("utf-8"))
    settings = json.loads((tmp_path / "wma-handwired" / "audit.json").read_text())["settings"]
    assert (settings["episodes"], settings["rounds"]) == (14, 5)


def test_bad_efforts_are_refused_before_any_work():
    for name, value in (("episodes", 3), ("rounds", 1), ("writes", 0), ("episodes", "many")):
        refuses(name, replace, TINY, **{name: value})
    refuses("wma-lerned", room.audit, "wma-lerned")


def test_the_curves_over_a_training_say_what_the_page_says():
    """``examples/over_training.py`` of commit 60ecfaea made them; here nothing is run."""
    folder = shipped.TABLE.parent
    table = pd.read_csv(folder / "over_training.csv")
    text = (folder.parent / "audit.md").read_text("utf-8").replace("\n", " ")
    numbers = {key: line.groupby("step").first() for key, line in table.groupby("key")}

    def told(key, step):
        row = numbers[key].loc[step]
        return "{number:.2f} [{low:.2f}, {high:.2f}]".format(**row).replace("0.", ".")

    words = [numbers[key]["verdict"] for key in ("used", "decoded", "side")]
    first = [line.index[line == "yes"][0] for line in words]
    assert first == [200, 300, 400]
    assert told("used", 200) in text
    for step in (200, 400, 800):
        assert told("decoded", step) in text
    right = table[(table["key"] == "behaviour") & (table["about"] == "accuracy")].set_index("step")[
        "number"
    ]
    assert f"{right[200]:.2f}".lstrip("0") in text
    assert (right[right.index >= 400] == 1).all()
    arrivals = pd.read_csv(folder / "arrivals.csv").set_index("check")
    since = arrivals["training step from which the verdict stays the same"]
    assert (since["used"], since["decoded"]) == (200, 300)
