"""A whole comparison: the paper's question answered for wma-learned, as verdicts, tables, JSON and a page."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

import interp
from circuits import compare
from circuits.compare import driver
from circuits.compare.question import in_words
from interp.cli.compare import told
from interp.errors import InputError
from interp.files import json_values
from interp.finished import Finished
from interp.tasks import experts
from reports import comparison
from reports.build import write
from reports.parts import compared, overview
from tests.conftest import early
from tests.test_json import SCHEMA, check

SMALL = compare.Effort(known=24, test=12, rounds=14, starts=2, horizon=4, battery=8, untrained=1)


@pytest.fixture(scope="module")
def found():
    with early():
        return compare.run(interp.load("wma-learned"), "wma-handwired", effort=SMALL)


def test_the_learned_machine_has_the_handwired_state_and_update_another_output_and_another_circuit(found):
    """The README's sentence on wma-learned, at a small size: Bayes by Weighted Majority's state plus the round."""
    assert found.algorithm.closest == "bayes"
    words = {question: verdict.word for question, verdict in found.verdicts.items()}
    assert words["behaviour"] == "different" and words["update"] == "same" and words["circuit"] == "different"
    assert words["state"] in ("same", "undecided")  # memories of 14 rounds are worth little
    assert found.failures[0].nats >= found.failures[-1].nats > 0.1


def test_a_failure_can_be_replayed(found):
    """The set, the episode and the round that it names give the prediction that it quotes."""
    worst = found.failures[0]
    sets = experts.TASK.sets_for(
        interp.load("wma-handwired", n_experts=4).layout, SMALL.battery, SMALL.rounds, 0, SMALL.scored
    )
    run = interp.rollout(interp.load("wma-learned"), sets[worst.set][1])
    assert float(run.predictions[worst.episode, worst.round]) == pytest.approx(worst.model[1], abs=1e-5)


def test_tables_json_and_page_hold_the_verdicts(found, tmp_path):
    """One JSON that parses without NaN, a CSV a part, a page that says each answer."""
    paths = found.save(tmp_path)
    read = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert [v["question"] for v in read["verdicts"]] == ["behaviour", "state", "update", "circuit"]
    assert set(read) == {
        "format",
        "model",
        "reference",
        "sentence",
        "verdicts",
        "algorithm",
        "parts",
        "failures",
        "settings",
    }
    assert set(read["parts"]) == {
        "algorithm",
        "behaviour",
        "state",
        "response",
        "update",
        "effects",
        "circuit",
        "where",
    }
    for part, rows in read["parts"].items():
        assert rows and all({"name", "value", "low", "high"} <= set(row) for row in rows), part
    assert {path.name for path in paths} >= {"verdicts.csv", "state.csv", "circuit.csv"}
    page = comparison.write(found, tmp_path).read_text()
    for verdict in found.verdicts.values():
        assert f"same {in_words(verdict.question)}?" in page and verdict.decided_by.replace(">", "&gt;") in page


def test_a_part_without_a_drawing_is_a_table_of_the_page(found):
    """A new question needs no edit of the page; what has a drawing keeps it."""
    page = comparison.page(replace(found, parts={**found.parts, "new_question": found.effects}))
    titles = [section.title for section in page.sections]
    assert titles[1:4] == ["Which algorithm", "Behaviour", "State"] and titles[-2:] == ["Where", "New question"]
    (table,) = page.sections[-1].blocks
    pd.testing.assert_frame_equal(table.frame, found.effects.to_frame())


def test_a_report_shows_the_verdicts_and_links_to_the_page(found, tmp_path):
    """Of either model; without a saved comparison it names the command that makes one."""
    page = {"n_episodes": 5, "n_rounds": 10, "parts": (overview.part(), compared.part())}
    alone = write("wma-learned", tmp_path, **page).path.read_text()
    assert "interp compare wma-learned --report" in alone and "<a href=" not in alone.split("<main")[-1]
    folder = tmp_path / "comparisons" / "one-against-another"
    found.save(folder)
    comparison.write(found, folder)
    for model in ("wma-learned", "wma-handwired"):  # the latter with 4 experts, as in the comparison
        text = write(model, tmp_path, **page).path.read_text()
        assert '<a href="comparisons/one-against-another/comparison.html">The whole comparison</a>' in text
        assert found.sentence in text
        other = {"wma-learned": "wma-handwired", "wma-handwired": "wma-learned"}[model]
        assert all(f"Same {in_words(question)} as {other}" in text for question in found.verdicts)
        assert 'class="badge fail"' not in text  # a difference is a finding, no fault


def test_json_gives_numbers(found):
    """What `interp compare --json` prints keeps docs/schema.json, and its numbers are those of the verdicts."""
    said = json_values(told(found))
    check(said, SCHEMA["$defs"]["compare"])
    state = next(verdict for verdict in said["verdicts"] if verdict["question"] == "state")
    assert (state["value"], state["threshold"]) == (found.verdicts["state"].bound.estimate, 0.95)
    assert said["algorithm"]["parameters"] == dict(found.algorithm.parameters) and found.sentence == said["sentence"]


@pytest.mark.parametrize("name", ["algorithm", "state", "update", "effects", "circuit", "where"])
def test_a_part_that_was_kept_is_the_part(found, name, tmp_path):
    """Through a file and back: the same table, whatever it is made of."""
    part = getattr(found, name)
    finished = Finished(tmp_path, {}, experts.TASK.rivals())
    finished.save(name, type(part), part)
    again = finished.load(name, type(part))
    pd.testing.assert_frame_equal(again.to_frame(), part.to_frame(), check_exact=True)


@pytest.mark.usefixtures("few_steps")
def test_without_a_reference_only_behaviour_and_update_are_judged_and_finished_parts_are_kept(tmp_path, monkeypatch):
    """Against algorithms alone; a run that was stopped goes on from its finished parts, which are gone at its end."""
    model = interp.load("wma-handwired", n_experts=2)

    def stopped(_):
        raise KeyboardInterrupt

    def stopping(*keys):
        stop = [replace(q, compute=stopped) if q.key in keys else q for q in driver.QUESTIONS]
        monkeypatch.setattr(driver, "QUESTIONS", tuple(stop))

    stopping("effects")
    with pytest.raises(KeyboardInterrupt):
        compare.run(model, effort=SMALL, folder=tmp_path)
    kept = sorted((tmp_path / ".parts").iterdir())
    assert [path.name.split("-")[0] for path in kept] == ["algorithm", "behaviour", "response", "update"]
    monkeypatch.undo()
    stopping("algorithm", "behaviour", "response", "update")
    with pytest.raises(KeyboardInterrupt):  # other settings: nothing that was kept counts
        compare.run(model, effort=replace(SMALL, seed=1), folder=tmp_path)
    found = compare.run(model, effort=SMALL, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    assert set(found.verdicts) == {"behaviour", "update"} and found.algorithm.family == "weighted_majority"


def test_a_handwired_reference_is_built_with_what_is_asked_for_beside_what_the_model_says():
    learned = interp.load("qlearning-learned")
    arguments = driver._loaded(learned, "qlearning-handwired", {"beta": 10.0, "n_actions": 2}).origin["arguments"]
    assert [arguments[name] for name in ("beta", "n_states", "n_actions", "gamma")] == [10.0, 4, 2, 0.9]


def test_what_cannot_be_compared_is_refused_before_any_work():
    with pytest.raises(InputError, match="'qlearning-handwired' is a model of qlearning, 'wma-learned' of experts"):
        compare.run(interp.load("wma-learned"), "qlearning-handwired")
