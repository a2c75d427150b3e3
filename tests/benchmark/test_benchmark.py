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

from circuits import benchmark
from circuits.benchmark import Answer, Material, Method, Workload, build
from circuits.benchmark.methods import METHODS, register, select
from circuits.benchmark.question import QUESTIONS, ranking
from interp.interventions.interchange import interchange
from interp.stats.intervals import mean_interval
from interp.support.errors import InputError
from tests.refusals import refused
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
    ranked = {
        name: value
        for name, value in graded.items()
        if name not in ("cpr", "1-cmd") and not np.isnan(value)
    }
    assert {"auroc", "ap", "recall", "chosen_precision", "chosen_recall"} <= set(ranked)
    assert set(ranked.values()) == {1}


def test_chance_is_at_chance(material):
    """The mean AUROC over draws has an interval that holds .5; precision is the share of edges that are true."""
    known = material.truth("edges")
    drawn, second_material = [], copy(material)
    for second_material.seed in range(60):
        drawn.append(
            ranking(known, QUESTIONS["edges"].drawn(second_material.subject, second_material))
        )
    interval = mean_interval([material_drawn["auroc"] for material_drawn in drawn])
    assert interval.low < 0.5 < interval.high
    kinds = list(known.values())
    content = kinds.count("content") / (kinds.count("content") + kinds.count(""))
    assert np.mean([material_drawn["recall"] for material_drawn in drawn]) == pytest.approx(
        content, abs=0.04
    )


@pytest.mark.parametrize("ablation", ["zero", "mean", "resample"])
def test_cuts_in_batches_are_those_of_one_edge_at_a_time(material, ablation):
    case = material.case("state")
    dropped, scorer = material.drops(case, ablation), material.scorer(case, ablation)
    for i in np.random.default_rng(0).choice(len(material.candidates), 6, replace=False):
        keep = scorer.graph.mask()
        keep[material.candidates[i]] = False
        np.testing.assert_allclose(
            dropped[i], (scorer.full - scorer.values(keep)) / case.scale, atol=1e-9
        )


def test_resampling_sees_no_constant_wiring_and_each_metric_its_own_exit(material):
    resampled, zeroed = (scores(material, "edges", f"{how}:joined") for how in ("resample", "zero"))
    assert resampled["auroc constant"] == 0.5
    assert zeroed["auroc constant"] > 0.9
    single, joint = (
        scores(material, "edges", "zero:prediction"),
        scores(material, "edges", "zero:joined"),
    )
    assert joint["auroc"] > single["auroc"] + 0.2


def test_only_the_raw_latents_show_clean_up(material):
    everything, joined = (
        scores(material, "edges", f"zero:{what}") for what in ("everything", "joined")
    )
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
    assert sum(map(bool, Material(subject, SMALL).truth("edges").values())) == len(subject.edges)
    claim = subject.claims[0]
    pair = [subject.task.sample_for(subject.model, 6, 4, seed) for seed in (0, 1)]
    scored = interchange(
        subject.model,
        *pair,
        subject.algorithm,
        claim.variable,
        list(claim.places),
        outcome=claim.outcome,
    ).score()
    assert scored.estimate == pytest.approx(1, abs=1e-6)


def heads_first(subject, material):
    """A method of one's own: edges that leave heads."""
    return Answer({edge: float(edge[0] != "embed") for edge in material.items("edges")})


def never(subject, material):
    raise AssertionError("what a part holds is not computed again")


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
    assert set(order["method"]) == {
        "oracle",
        "random",
        "heads-first",
    }
    assert result.table("edges").loc["heads-first", "auroc"] != 0.5
    attention = Method("attention", "attention", "edges", METHODS["edges", "attention"].answer)
    again = run([Method("heads-first", "edges that leave heads", "edges", never), attention])
    frame = again.to_frame()
    assert len(frame) > len(result.rows)
    assert frame[frame["method"] != "attention"].reset_index(drop=True).equals(result.to_frame())
    again.save(tmp_path)
    saved = json.loads((tmp_path / "benchmark.json").read_text())
    assert len(saved["rows"]) == len(frame)
    assert saved["settings"]["effort"]["episodes"] == SMALL.episodes


def test_the_method_that_the_docs_show_is_graded():
    """It is short, and better than chance."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 40
    scope: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), scope)
    del METHODS["edges", scope["mine"].key]
    table = scope["found"].table("edges")
    assert table.loc[scope["mine"].key, "ap"] - table.loc["random", "ap"] > 0.3


test_unknown_names_are_refused = refused(
    (lambda: select(["zero:joint"]), "did you mean 'zero:joined'"),
    (lambda: select(questions=["edge"]), "unknown question 'edge'"),
    (
        lambda: register(Method("oracle", "mine", "edges", heads_first)),
        "a method 'oracle' of 'edges' exists",
    ),
    (lambda: build("wma-handwired", "lin"), "unknown form of 'wma-handwired' 'lin'"),
    (
        lambda: build("reachability-handwired", "sum", "simplex"),
        "cannot be simplex; take plain, rotated",
    ),
)
test_bad_runs_are_refused = refused(
    (lambda: benchmark.run(["wma-handwired R, plane"]), "did you mean 'wma-handwired R, plain'"),
    (lambda: benchmark.run(seeds=[-1]), "seeds must be an integer >= 0, got -1"),
)
test_bad_builders_are_refused = refused(
    (
        lambda: benchmark.run({"x": lambda: 1 / 0}),
        "the builder of 'x' raised ZeroDivisionError: division by zero",
    ),
    (
        lambda: benchmark.run({"x": lambda: None}),
        "the builder of 'x' must give a KnownMachine, got None",
    ),
)


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
    subject.model.blocks[0].register_forward_hook(lambda module, given, gives: gives * 0)
    subject.model.train()
    return Answer(dict.fromkeys(material.items("edges"), 0.5))


def _scored(value):
    return lambda subject, material: Answer(dict.fromkeys(material.items("edges"), value))


NO_ANSWERS = {
    "raises": (lambda subject, material: 1 / 0, "raised ZeroDivisionError"),
    "raises KeyError": (lambda subject, material: {}["x"], "raised KeyError"),
    "gives None": (lambda subject, material: None, "gave NoneType, and must give an Answer"),
    "gives a dict": (lambda subject, material: {}, "gave dict"),
}
NO_RECORDS = {
    "gives a text": (lambda subject, material: "yes", "gave str"),
}
NO_SCORES = {
    "NaN": (_scored(float("nan")), "scores must be numbers"),
    "text scores": (_scored("high"), "scores must be numbers"),
    "arrays": (_scored(np.zeros(3)), "scores must be numbers"),
    "no mapping": (
        lambda subject, material: Answer([1.0]),
        "scores must map items to numbers, got list",
    ),
}
OTHER_ITEMS = {
    "unknown items": (
        lambda subject, material: Answer({"x": 1.0}),
        "scores hold 1 items that were not asked about",
    ),
    "chosen beyond": (
        lambda subject, material: Answer({}, frozenset({"x"})),
        "chosen hold 1 items that were not asked about",
    ),
}
NO_MEASURES = {
    "measured NaN": (
        lambda subject, material: Answer({}, measured={"x": np.zeros(2)}),
        "measured must be numbers",
    ),
}
HOSTILE = {**NO_ANSWERS, **NO_RECORDS, **NO_SCORES, **OTHER_ITEMS, **NO_MEASURES}


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
        return frame[frame["method"] == key].set_index("score")["value"].to_dict()

    np.testing.assert_equal(values(second_result, honest.key), values(alone, honest.key))
    assert values(second_result, "oracle")
    assert values(second_result, "random")
    assert values(second_result, "changes weights")["auroc"] == 0.5
    assert values(second_result, "leaves a hook")["auroc"] == 0.5
    # What failed is asked again once it is mended; what was done is not.
    mended = [Method("raises", "raises", "edges", _scored(0.5)), honest]
    again = benchmark.run(subject, mended, effort=SMALL, out=tmp_path)
    assert not again.refusals
    assert values(again, "raises")["auroc"] == 0.5
    np.testing.assert_equal(values(again, honest.key), values(alone, honest.key))


@pytest.mark.parametrize("keys", [("a", "a"), ("oracle",), ("random",)])
def test_two_methods_of_one_key_are_refused(keys):
    mine = [Method(key, f"{key} {i}", "edges", _scored(0.5)) for i, key in enumerate(keys)]
    with pytest.raises(InputError, match="two methods of one question are called"):
        benchmark.run({"one": partial(build, "wma-handwired", "R", "plain")}, mine, effort=SMALL)
