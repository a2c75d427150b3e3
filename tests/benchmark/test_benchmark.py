"""The benchmark: its bounds bound, its truths are true, its cuts are exact, and what it says of methods is so."""

import json
import re
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_equal

from circuits import benchmark
from circuits.benchmark import Answer, Material, Method, Workload, build
from circuits.benchmark.methods import METHODS, register, select
from circuits.benchmark.question import QUESTIONS, ranking
from interp.interventions.interchange import interchange
from interp.stats.intervals import mean_interval
from tests.refusals import refuses
from tests.shell import printed

PAGE = Path(__file__).parents[2] / "docs" / "results" / "which-method.md"
SMALL = Workload(episodes=4, rounds=5, round=4, early=2)


@pytest.fixture(scope="module")
def material():
    return Material(build("wma-handwired", "R", "plain"), SMALL)


def scores(material, question, key):
    answer = METHODS[question, key].answer(material.subject, material)
    return QUESTIONS[question].grade(material.subject, material, answer)


@pytest.mark.parametrize("question", ["edges", "nodes"])
def test_an_oracle_is_right(material, question):
    graded = scores(material, question, "oracle")
    of_circuits = {"cpr", "1-cmd"}
    ranked = {
        name: graded[name] for name in graded.keys() - of_circuits if not np.isnan(graded[name])
    }
    assert {"auroc", "ap", "recall", "chosen_precision", "chosen_recall"} <= set(ranked)
    assert set(ranked.values()) == {1}


def test_chance_is_at_chance(material):
    """The mean AUROC over draws has an interval that holds .5; precision is the share of edges that are true."""
    known = material.truth("edges")
    rankings = []
    reseeded = copy(material)
    for seed in range(60):
        reseeded.seed = seed
        answer = QUESTIONS["edges"].draw_answer(reseeded.subject, reseeded)
        rankings.append(ranking(known, answer))
    interval = mean_interval([graded["auroc"] for graded in rankings])
    assert interval.low < 0.5 < interval.high
    kinds = list(known.values())
    n_content, n_false = kinds.count("content"), kinds.count("")
    share = n_content / (n_content + n_false)
    recalls = [graded["recall"] for graded in rankings]
    assert np.mean(recalls) == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("ablation", ["zero", "mean", "resample"])
def test_cuts_in_batches_are_those_of_one_edge_at_a_time(material, ablation):
    case = material.case("state")
    dropped, scorer = material.measure_drops(case, ablation), material.scorer(case, ablation)
    rng = np.random.default_rng(0)
    for i in rng.choice(len(material.candidates), 6, replace=False):
        keep = scorer.graph.mask()
        keep[material.candidates[i]] = False
        dropped_by_hand = (scorer.full - scorer.values(keep)) / case.scale
        assert_allclose(dropped[i], dropped_by_hand, atol=1e-9)


def test_resampling_sees_no_constant_wiring_and_each_metric_its_own_exit(material):
    resampled = scores(material, "edges", "resample:joined")
    zeroed = scores(material, "edges", "zero:joined")
    assert resampled["auroc constant"] == 0.5
    assert zeroed["auroc constant"] > 0.9
    single = scores(material, "edges", "zero:prediction")
    assert zeroed["auroc"] > single["auroc"] + 0.2


def test_only_the_raw_latents_show_clean_up(material):
    everything = scores(material, "edges", "zero:everything")
    joined = scores(material, "edges", "zero:joined")
    assert joined["auroc clean-up"] == 0.5
    assert everything["auroc clean-up"] > 0.95


@pytest.mark.parametrize(
    ("machine", "form", "variant"),
    [
        ("wma-handwired", "P", "rotated"),
        ("reachability-handwired", "sum", "distractors"),
        ("wma-handwired", "R, softmax", "superposed"),
        ("wma-handwired", "P", "simplex"),
    ],
)
def test_places_hold_their_variables_in_every_variant(machine, form, variant):
    """Exchanged, they have the whole effect that the algorithm asks for; true edges are among the candidates."""
    subject = build(machine, form, variant, seed=3)
    kinds = Material(subject, SMALL).truth("edges").values()
    assert sum(map(bool, kinds)) == len(subject.edges)
    claim = subject.claims[0]
    pair = [subject.task.sample_for(subject.model, 6, 4, seed) for seed in (0, 1)]
    exchanged = interchange(
        subject.model,
        *pair,
        subject.algorithm,
        claim.variable,
        list(claim.places),
        outcome=claim.outcome,
    )
    assert exchanged.score().estimate == pytest.approx(1, abs=1e-6)


def heads_first(subject, material):
    """A method of one's own: edges that leave heads."""
    edge_scores = {}
    for edge in material.items("edges"):
        writer = edge[0]
        edge_scores[edge] = 0.0 if writer == "embed" else 1.0
    return Answer(edge_scores)


def never(subject, material):
    raise AssertionError("what a part holds is not computed again")


@pytest.mark.long
def test_a_method_of_ones_own_is_graded_beside_the_bounds_and_runs_go_on(tmp_path):
    """Saved, loaded and resumed: a second run computes only what the first has not."""
    run = partial(
        benchmark.run,
        {"mine": partial(build, "wma-handwired", "R", "plain")},
        effort=SMALL,
        out=tmp_path,
    )
    result = run([Method("heads-first", "edges that leave heads", "edges", heads_first)])
    order = result.summary("edges")
    assert order.loc[0, "method"] == "oracle"
    assert set(order["method"]) == {"oracle", "random", "heads-first"}
    assert result.table("edges").loc["heads-first", "auroc"] != 0.5
    attention = Method("attention", "attention", "edges", METHODS["edges", "attention"].answer)
    again = run([Method("heads-first", "edges that leave heads", "edges", never), attention])
    frame = again.to_frame()
    assert len(frame) > len(result.rows)
    stored = frame[frame["method"] != "attention"].reset_index(drop=True)
    assert stored.equals(result.to_frame())
    again.save(tmp_path)
    saved = json.loads((tmp_path / "benchmark.json").read_text())
    assert len(saved["rows"]) == len(frame)
    assert saved["settings"]["effort"]["episodes"] == SMALL.episodes


@pytest.mark.long
def test_the_method_that_the_docs_show_is_graded():
    """It is short, and better than chance."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 40
    scope: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), scope)
    key = scope["mine"].key
    del METHODS["edges", key]
    precisions = scope["found"].table("edges")["ap"]
    assert precisions[key] - precisions["random"] > 0.3


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_a_question_without_main_scores_is_left_out_of_the_means(value, tmp_path):
    place = {"subject": "s", "machine": "m", "form": "f", "variant": "v", "seed": 0}
    answer = {"question": "edges", "method": "mine", "score": "auroc", "value": value}
    result = benchmark.BenchmarkResult(({**place, **answer},))
    assert repr(result) == "The best method for each question, with its mean score: none."
    assert result.means.empty
    refuses("there is nothing to draw", result.plot)
    has_table = "edges.csv" in [path.name for path in result.save(tmp_path)]
    assert has_table == (value == 0.5)


def test_unknown_names_are_refused():
    refuses("did you mean 'zero:joined'", select, ["zero:joint"])
    refuses("unknown question 'edge'", select, questions=["edge"])
    refuses("unknown form of 'wma-handwired' 'lin'", build, "wma-handwired", "lin")
    sentence = "cannot be simplex; take plain, rotated"
    refuses(sentence, build, "reachability-handwired", "sum", "simplex")


def test_a_method_of_a_name_that_exists_is_refused():
    oracle = Method("oracle", "mine", "edges", heads_first)
    refuses("a method 'oracle' of 'edges' exists", register, oracle)


def test_methods_that_are_made_for_a_run_answer_its_questions_alone():
    """A method of another question is left out, and an unknown question is refused."""
    subjects = ["wma-handwired R, plain"]
    methods = [Method("mine", "mine", key, lambda *of: Answer({})) for key in ("edges", "nodes")]
    result = benchmark.run(subjects, methods, questions=["nodes"], effort=SMALL)
    assert {row["question"] for row in result.rows} == {"nodes"}
    assert "mine" in result.to_frame()["method"].unique()
    refuses("unknown question 'node'", benchmark.run, subjects, methods, questions=["node"])


def test_a_basis_is_scored_by_what_it_spans(material):
    """Columns of length 3 are no nearer to the truth than those of length 1; no columns are nowhere near."""
    bases = METHODS["subspace", "oracle"].answer(material.subject, material).subspaces
    grade = QUESTIONS["subspace"].grade
    for factor, expected in ((1.0, 1.0), (3.0, 1.0), (0.0, 0.0)):
        scaled = {item: factor * basis for item, basis in bases.items()}
        graded = grade(material.subject, material, Answer({}, subspaces=scaled))
        assert graded["cosine2"] == pytest.approx(expected)
    assert grade(material.subject, material, Answer({}))["cosine2"] == 0


def test_bad_runs_are_refused():
    refuses("did you mean 'wma-handwired R, plain'", benchmark.run, ["wma-handwired R, plane"])
    refuses("seeds must be an integer >= 0, got -1", benchmark.run, seeds=[-1])
    refuses("a share is kept in a folder: give out=", benchmark.run, shard="1/2")


@pytest.mark.parametrize(
    ("builder", "sentence"),
    [
        (lambda: 1 / 0, "the builder of 'x' raised ZeroDivisionError: division by zero"),
        (lambda: None, "the builder of 'x' must give a KnownMachine, got None"),
    ],
    ids=["raises", "gives nothing"],
)
def test_bad_builders_are_refused(builder, sentence):
    refuses(sentence, benchmark.run, {"x": builder})


def test_the_command_writes_tables(tmp_path):
    subject = "wma-handwired R, plain"
    words = [
        "benchmark",
        "--quick",
        "--subject",
        subject,
        "--method",
        "attention",
        "--out",
        tmp_path,
    ]
    words += ["--question", "nodes"]
    printed(*words)
    assert {"benchmark.json", "scores.csv", "nodes.csv"} <= {
        path.name for path in tmp_path.iterdir()
    }
    saved = json.loads((tmp_path / "benchmark.json").read_text())
    seconds = saved["settings"]["cpu_seconds_by_method"]
    assert set(seconds) == {"nodes/oracle", "nodes/random", "nodes/attention"}
    assert "cpu" not in (tmp_path / "scores.csv").read_text()


# ------------------------------------------------------------------------------------------------ methods of others


def _zeroed(subject, material):
    with torch.no_grad():
        for parameter in subject.model.parameters():
            parameter.zero_()
    return Answer(dict.fromkeys(material.items("edges"), 0.5))


def _hooked(subject, material):
    first_block = subject.model.blocks[0]
    first_block.register_forward_hook(lambda module, given, gives: gives * 0)
    subject.model.train()
    return Answer(dict.fromkeys(material.items("edges"), 0.5))


def _scored(value):
    def answer(subject, material):
        return Answer(dict.fromkeys(material.items("edges"), value))

    return answer


def _gives(result):
    return lambda subject, material: result


def _divides_by_zero(subject, material):
    return 1 / 0


def _looks_up_nothing(subject, material):
    return {}["x"]


NO_ANSWERS = {
    "raises": (_divides_by_zero, "raised ZeroDivisionError"),
    "raises KeyError": (_looks_up_nothing, "raised KeyError"),
    "gives None": (_gives(None), "gave NoneType, and must give an Answer"),
    "gives a dict": (_gives({}), "gave dict"),
    "gives a text": (_gives("yes"), "gave str"),
}
UNKNOWN_SCORED = Answer({"x": 1.0})
UNKNOWN_CHOSEN = Answer({}, frozenset({"x"}))
ARRAY_MEASURED = Answer({}, measured={"x": np.zeros(2)})
WRONG_ANSWERS = {
    "NaN": (_scored(np.nan), "scores must be numbers"),
    "text scores": (_scored("high"), "scores must be numbers"),
    "arrays": (_scored(np.zeros(3)), "scores must be numbers"),
    "no mapping": (_gives(Answer([1.0])), "scores must map items to numbers, got list"),
    "unknown items": (_gives(UNKNOWN_SCORED), "scores hold 1 items that were not asked about"),
    "chosen beyond": (_gives(UNKNOWN_CHOSEN), "chosen hold 1 items that were not asked about"),
    "measured NaN": (_gives(ARRAY_MEASURED), "measured must be numbers"),
}
HOSTILE = {**NO_ANSWERS, **WRONG_ANSWERS}


@pytest.mark.long
def test_the_work_of_other_methods_is_kept_whatever_one_does(tmp_path):
    """Zeroed weights took the next method's AUROC from .92 to .14, and one that raised lost all of its part."""
    mine = [Method(key, key, "edges", answer) for key, (answer, _) in HOSTILE.items()]
    mine.append(Method("changes weights", "it zeroes its copy", "edges", _zeroed))
    mine.append(Method("leaves a hook", "in its copy", "edges", _hooked))
    honest = METHODS["edges", "zero:joined"]
    subject = {"one": partial(build, "wma-handwired", "R", "plain")}
    alone = benchmark.run(subject, [honest], effort=SMALL)
    second_result = benchmark.run(subject, [*mine, honest], effort=SMALL, out=tmp_path)
    sentences = {refusal["method"]: refusal["sentence"] for refusal in second_result.refusals}
    assert sentences.keys() == HOSTILE.keys()
    for key, (_, sentence) in HOSTILE.items():
        assert sentence in sentences[key], (key, sentences[key])

    def values(result, key):
        frame = result.to_frame()
        of_method = frame[frame["method"] == key]
        return of_method.set_index("score")["value"].to_dict()

    assert_equal(values(second_result, honest.key), values(alone, honest.key))
    assert values(second_result, "oracle")
    assert values(second_result, "random")
    assert values(second_result, "changes weights")["auroc"] == 0.5
    assert values(second_result, "leaves a hook")["auroc"] == 0.5
    # What failed is asked again once it is mended; what was done is not.
    mended = [Method("raises", "raises", "edges", _scored(0.5)), honest]
    again = benchmark.run(subject, mended, effort=SMALL, out=tmp_path)
    assert not again.refusals
    assert values(again, "raises")["auroc"] == 0.5
    assert_equal(values(again, honest.key), values(alone, honest.key))


@pytest.mark.parametrize("keys", [("a", "a"), ("oracle",), ("random",)])
def test_two_methods_of_one_key_are_refused(keys):
    mine = [Method(key, f"{key} {i}", "edges", _scored(0.5)) for i, key in enumerate(keys)]
    refuses(
        "two methods of one question are called",
        benchmark.run,
        {"one": partial(build, "wma-handwired", "R", "plain")},
        mine,
        effort=SMALL,
    )
