"""The ledger says of each claim of the paper what is true of a model whose answer is known."""

import json
import re

import numpy as np
import pytest

import interp
from interp.results.measure import Control, Measure
from interp.stats.intervals import Interval
from interp.support.session import Finished
from interp.tasks import experts
from interp.tasks.experts.predictors import PREDICTORS, weighted_majority
from reports import ledger
from reports.ledger import book
from reports.ledger import experts as of_experts
from reports.ledger.claims import CLAIMS, HANDWIRED, LEARNED
from reports.ledger.sizes import Sizes, measure_exactness
from tests import handmade
from tests.refusals import refuses

SIZES = Sizes(n_episodes=32, n_exact_rounds=16, seed=3)


def test_every_claim_is_measured_and_every_measurement_is_a_claim():
    assert {claim.key for claim in CLAIMS} == set(book.MEASUREMENTS)
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
    assert {claim.of for claim in CLAIMS} == {HANDWIRED, LEARNED}


def final_regret(predictions: np.ndarray, episodes: experts.ExpertEpisodes) -> np.ndarray:
    """Mistakes of a threshold at one half, ties counted half, less those of the best expert."""
    chosen = np.where(np.abs(predictions - 0.5) < 1e-9, 0.5, predictions > 0.5)
    mistakes = np.abs(chosen - episodes.labels).sum(axis=1)
    of_experts = (episodes.advice != episodes.labels[..., None]).sum(axis=1)
    return mistakes - of_experts.min(axis=1)


@pytest.mark.long
def test_regret_beside_weighted_majority_is_the_difference_counted_by_hand():
    model = interp.load("wma-handwired", n_experts=4)
    (measure,) = of_experts.regret_like_weighted_majority(model, SIZES)

    episodes = experts.sample(32, 100, 4, regime="uniform", seed=3)
    model_regret = final_regret(interp.rollout(model, episodes).predictions.numpy(), episodes)
    rivals = [
        final_regret(weighted_majority(episodes, eta=eta).predictions, episodes)
        for eta in np.geomspace(0.02, 5.0, 24)
    ]
    best = min(rivals, key=np.mean)
    majority = final_regret(PREDICTORS["majority_vote"].run(episodes).predictions, episodes)
    assert measure.number.estimate == pytest.approx((model_regret - best).mean())
    (control,) = measure.controls.values()
    assert control.number == pytest.approx((majority - best).mean())


@pytest.mark.long
def test_a_majority_vote_is_no_weighted_majority_and_needs_no_latent():
    machine = handmade.majority(log_gamma=0.0)
    (regret,) = of_experts.regret_like_weighted_majority(machine, SIZES)
    (needs,) = of_experts.needs_latent(machine, SIZES)
    assert regret.verdict == "no"
    assert needs.verdict == "no"


@pytest.mark.long
def test_growth_is_the_second_regime_less_the_first():
    model = interp.load("wma-handwired", n_experts=4)
    (growth,) = of_experts.three_good_experts(model, SIZES)
    with_one, with_three = map(float, re.findall(r": ([+-]\d+\.\d+) ?", growth.note))
    assert growth.number.estimate == pytest.approx(with_three - with_one, abs=0.01)
    assert growth.note.startswith("1-high-quality")


def test_finished_parts_are_read_and_those_of_another_size_are_not(tmp_path, monkeypatch):
    model = interp.load("wma-handwired", n_experts=4)
    first = ledger.make([model], tmp_path, sizes=SIZES, claims=["exact weights"])
    (read,) = first.measures
    assert read.verdict == "yes"
    assert read.number.estimate < 1e-12

    sizes_measured = []

    def measure(model, sizes):
        sizes_measured.append(sizes)
        return measure_exactness(model, sizes, key="exact weights")

    monkeypatch.setitem(book.MEASUREMENTS, "exact weights", measure)
    again = ledger.make([model], tmp_path, sizes=SIZES, claims=["exact weights"])
    assert again.measures == [read]
    assert sizes_measured == []

    longer = Sizes(n_episodes=32, n_exact_rounds=17, seed=3)
    anew = ledger.make([model], tmp_path, sizes=longer, claims=["exact weights"])
    assert sizes_measured == [longer]
    assert anew.measures[0].unit == "largest error over 17 rounds"


def test_the_page_names_each_claim_where_the_paper_makes_it(tmp_path):
    claims = ["exact weights"]
    model = interp.load("wma-handwired", n_experts=4)
    result = ledger.make([model], tmp_path, sizes=SIZES, claims=claims)
    page, table, settings = ledger.write(result, tmp_path)

    text = page.read_text()
    for claim in CLAIMS[:1]:
        assert claim.place in text
        assert claim.command in text
    assert list(result.to_frame()["key"]) == claims
    assert table.read_text().count("\n") == 2
    assert json.loads(settings.read_text())["settings"]["sizes"]["n_episodes"] == 32


def test_a_page_holds_every_claim_though_several_stand_in_one_place(tmp_path):
    measure = Measure("any", "Any claim", lacking="not measured in this test")
    result = ledger.Ledger({claim.key: [measure] for claim in CLAIMS}, {"seed": 0})
    page, *_ = ledger.write(result, tmp_path)
    text = page.read_text()
    assert all(f"{claim.place}: {claim.key}" in text for claim in CLAIMS)


def test_what_cannot_be_measured_is_refused(tmp_path):
    model = interp.load("wma-handwired", n_experts=4)
    refuses("unknown claim 'regrets'", ledger.make, [model], tmp_path, claims=["regrets"])
    refuses("none of these claims is about", ledger.make, [model], tmp_path, claims=["agreement"])
    refuses("n_episodes must be 16 or more, got 4", Sizes, n_episodes=4)


def test_a_measure_survives_its_file(tmp_path):
    measure = Measure(
        "a",
        "A claim",
        Interval(0.9, 0.8, 1.0),
        threshold=0.5,
        no_threshold=0.4,
        controls={"chance": Control(0.1, counts=False)},
        unless={"no": "few episodes"},
        rests_on=("table",),
    )
    finished = Finished(tmp_path, {})
    finished.save("part", list[Measure], [measure])
    assert finished.load("part", list[Measure]) == [measure]


def test_two_models_of_one_name_are_refused(tmp_path):
    """One result would replace the other."""
    models = [interp.load("wma-gru"), interp.load("wma-gru").untrained(0)]
    models[1].name = models[0].name
    refuses("two different models are called 'wma-gru'", ledger.make, models, tmp_path)
