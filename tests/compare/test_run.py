"""A whole comparison, that of the README: what it says of wma-learned-additive, in words, tables, JSON and a page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import interp
from circuits import compare
from circuits.compare import driver
from interp.results.measure import Control, Measure
from interp.stats.intervals import Interval
from interp.support.session import Finished
from interp.tasks import experts
from reports import comparison
from tests.compare.planted import prepared
from tests.conftest import early
from tests.refusals import refuses
from tests.test_json import SCHEMA, check

SMALL = compare.Budget(
    known=16, test=12, rounds=14, starts=2, horizon=4, battery=4, scored=16, edits=120, untrained=1
)


@pytest.fixture(scope="module")
def readme():
    """What the README's Python makes, as it stands but for the size of its comparison."""
    size, readme = (
        "rounds=20, starts=2, battery=4, scored=24, edits=200",
        Path(__file__).parents[2] / "README.md",
    )
    start, end = readme.read_text("utf-8").split(size)
    text = f"{start}rounds=12, horizon=3, starts=2, battery=2, scored=16, edits=80{end}"
    blocks, scope = re.findall(r"```python\n(.*?)```", text, re.DOTALL), {}
    assert len(blocks) >= 2
    with early(few=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr("circuits.compare.update._fit_updates", lambda *of: [])
        patch.setattr("probes.fitting.PLATEAU", 32)
        for block in blocks:
            exec(compile(block, "README.md", "exec"), scope)
    return scope


@pytest.fixture(scope="module")
def found(readme):
    return readme["found"]


@pytest.mark.long
def test_the_learned_machine_has_the_handwired_state_and_update_another_output_and_another_circuit(
    found,
):
    """The README's sentence by its own code: Bayes by Weighted Majority's state plus the round."""
    assert found.algorithm.closest == "bayes"
    words = {measure.key: measure.verdict for measure in found}
    assert words["behaviour"] == "no"
    assert words["update"] == "yes"
    assert words["circuit"] == "no"
    assert words["state"] in ("yes", "undecided")  # memories of 20 rounds are worth little
    assert found.failures[0].nats >= found.failures[-1].nats > 0.1


@pytest.mark.long
def test_a_failure_can_be_replayed(found, readme):
    """The set, the episode and the round that it names give the prediction that it quotes."""
    worst, small = found.failures[0], readme["small"]
    sets = experts.TASK.sets_for(small.battery, small.rounds, 0, small.scored, n_experts=4)
    run = interp.rollout(interp.load("wma-learned-additive"), sets[worst.set][1])
    assert float(run.predictions[worst.episode, worst.round]) == pytest.approx(
        worst.model[1], abs=1e-5
    )


def test_tables_and_json_hold_the_measures(found, tmp_path):
    """One JSON that keeps docs/schema.json and parses without NaN, a CSV a part."""
    paths = found.save(tmp_path)
    read = json.loads(
        (tmp_path / "comparison.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    check(read, SCHEMA["$defs"]["compare"])
    assert [item["key"] for item in read["measures"]] == ["behaviour", "state", "update", "circuit"]
    for record, measure in zip(read["measures"], found, strict=True):
        assert (record["verdict"], record["number"], record["rests_on"]) == (
            measure.verdict, measure.number.estimate, [measure.key],
        )  # fmt: skip
    assert read["algorithm"]["parameters"] == dict(found.algorithm.parameters)
    assert read["sentence"] == found.sentence
    assert set(read["tables"]) == {question.key for question in driver.QUESTIONS}
    for part, rows in read["tables"].items():
        assert rows, part
        assert all({"name", "number", "number_low", "number_high"} <= set(row) for row in rows), (
            part
        )
    assert {path.name for path in paths} >= {"measures.csv", "state.csv", "circuit.csv"}
    assert list(found.to_frame()["verdict"]) == [measure.verdict for measure in found]


def test_the_sentence_names_the_reference_once_and_the_condition(found):
    """In at most twenty words; what differs is said of it, too; where nothing is true the difference names it."""
    options = {
        "threshold": 0.5,
        "controls": {"an untrained copy": Control(0.1)},
        "number": Interval(0.9, 0.9, 0.9),
    }
    measures = {
        "behaviour": Measure(
            "behaviour", "", **options, yes="predicts the same", no="predicts differently"
        ),
        "state": Measure(
            "state", "", **options, yes="has the same state", condition="given the round number"
        ),
        "update": Measure(
            "update",
            "",
            **options,
            yes="updates its state likewise",
            no="updates its state differently",
        ),
    }
    away = {"behaviour": replace(measures["behaviour"], number=Interval(0.1, 0.1, 0.1))}
    sentence = replace(found, measures=tuple((measures | away).values())).sentence
    assert sentence == (
        "wma-learned-additive has the same state as wma-handwired (given the round number) "
        "and updates its state likewise, "
        "but predicts differently."
    )
    assert len(sentence.split()) <= 20
    alone = replace(found, measures=(measures["update"],)).sentence
    assert alone == "wma-learned-additive updates its state as wma-handwired."
    alone = replace(found, measures=(away["behaviour"],)).sentence
    assert alone == "wma-learned-additive predicts differently than wma-handwired."


def test_a_part_without_a_picture_is_a_table(found):
    """A new question needs no edit of the page."""
    page = comparison.page(
        replace(found, parts={"algorithm": found.algorithm, "new_question": found.response})
    )
    assert page.sections[-1].title == "New question"
    assert [type(block).__name__ for block in page.sections[-1].blocks][-1] == "Table"


def test_the_page_shows_every_claim(found, tmp_path):
    """Every measure and a section for each part, in order."""
    text = comparison.write(found, tmp_path).read_text()
    assert found.sentence in text
    assert all(measure.claim in text for measure in found)
    titles = ("Which algorithm", "Behaviour", "State", "Update", "Circuit")
    places = [text.index(f">{title}</h2>") for title in titles]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["algorithm", "behaviour", "state", "update", "circuit"])
def test_a_part_that_was_kept_is_the_part(found, name, tmp_path):
    """Through a file and back: the same table, whatever it is made of. It draws its numbers and says which they are."""
    part = getattr(found, name)
    assert part.plot().axes[0].get_yticklabels()
    assert re.search(r"0?\.\d+ \[.*\]", repr(part))
    finished = Finished(tmp_path, {}, experts.TASK.rivals())
    finished.save(name, type(part), part)
    pd.testing.assert_frame_equal(
        finished.load(name, type(part)).to_frame(), part.to_frame(), check_exact=True
    )


@pytest.mark.long
@pytest.mark.usefixtures("few_fits", "no_rules")
def test_a_machine_is_the_same_as_itself_in_everything_that_applies():
    """Of one digest nothing has to be measured: a GRU's decoded steps alone would make its update another one's."""
    first, second = (interp.load("wma-gru") for _ in range(2))
    tiny = replace(
        SMALL, known=8, test=8, rounds=8, starts=1, horizon=2, battery=2, scored=8, edits=20
    )
    comparison = compare.machines(first, second, budget=tiny)
    words = {measure.key: measure.verdict for measure in comparison}
    assert words == {
        "behaviour": "yes",
        "state": "yes",
        "update": "yes",
        "circuit": "not applicable",
    }
    assert max(comparison.tables["update"]["number_low"]) < 0.95
    assert comparison["update"].note.startswith("the two are one")


@pytest.mark.long
@pytest.mark.usefixtures("few_fits")
def test_without_a_reference_only_behaviour_and_update_are_judged_and_finished_parts_are_kept(
    tmp_path, monkeypatch
):
    """Against algorithms alone; a run that was stopped goes on from its finished parts, which are gone at its end."""
    model = interp.load("wma-handwired", n_experts=2)

    def stopped(_):
        raise KeyboardInterrupt

    def stopping(*keys):
        stop = [replace(q, compute=stopped) if q.key in keys else q for q in driver.QUESTIONS]
        monkeypatch.setattr(driver, "QUESTIONS", tuple(stop))

    stopping("update")
    with pytest.raises(KeyboardInterrupt):
        compare.machines(model, budget=SMALL, folder=tmp_path)
    part_files = sorted((tmp_path / ".parts").iterdir())
    assert [path.name.split("-")[0] for path in part_files] == [
        "algorithm",
        "behaviour",
        "response",
    ]
    monkeypatch.undo()
    stopping("algorithm", "behaviour", "response")
    with pytest.raises(KeyboardInterrupt):  # other settings: nothing that was kept counts
        compare.machines(model, budget=replace(SMALL, seed=1), folder=tmp_path)
    comparison = compare.machines(model, budget=SMALL, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    assert [measure.key for measure in comparison] == [
        "behaviour",
        "update",
    ]
    assert comparison.algorithm.family == "weighted_majority"
    assert comparison["update"].claim == "It updates its state as Weighted Majority does"


def test_a_handwired_reference_is_built_with_what_is_asked_for_beside_what_the_model_says(
    monkeypatch,
):
    learned = interp.load("qlearning-learned")
    options = {"beta": 10.0, "n_actions": 2}
    compared = prepared(
        monkeypatch, learned, "qlearning-handwired", budget=SMALL, arguments=options
    )
    arguments = compared.reference.model.origin["arguments"]
    assert [arguments[name] for name in ("beta", "n_states", "n_actions", "gamma")] == [
        10.0,
        4,
        2,
        0.9,
    ]


def test_what_cannot_be_compared_is_refused_before_any_work():
    refuses(
        "'qlearning-handwired' is a model of qlearning, 'wma-learned-additive' of experts",
        compare.machines,
        interp.load("wma-learned-additive"),
        "qlearning-handwired",
    )
    refuses(
        "wma-gru on meta and wma-handwired on cpu: put both on one device",
        compare.machines,
        interp.load("wma-gru").to("meta"),
        interp.load("wma-handwired"),
    )
