"""The findings of docs/howto/explore.md: the numbers on the page are those that its links compute."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import interp
from reports.explore import Answer, Explorer, View

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "explore.md").read_text("utf-8")


@cache
def explorer(name: str) -> Explorer:
    return Explorer(interp.load(name))


def seen(name: str, query: str) -> Answer:
    """What a link shows; links of findings stand on the page."""
    return explorer(name).answer(View.of(query))[0]


def said(words: str) -> list[float]:
    """The numbers of the paragraph that begins with these words."""
    paragraph = PAGE[PAGE.index(words) :].split("\n\n")[0]
    return [float(number) for number in re.findall(r"(?<![\w.])\.\d+", paragraph)]


@pytest.mark.long
def test_a_round_count_that_never_was() -> None:
    shown = {
        name: seen(name, "round=6&edit=move+5+elapsed+10").differences()
        for name in ("wma-learned-additive", "wma-gru")
    }
    learned, gru = shown.values()
    numbers = [learned["algorithm"][6], learned["machine"][6], gru["machine"][6]]
    numbers += [learned["control_high"][6], gru["control_high"][6]]
    assert said("**The transformer believes") == [
        pytest.approx(number, abs=0.005) for number in numbers
    ]
    assert numbers[1] > 0.95 * numbers[0]
    assert 0.5 * numbers[0] < numbers[2] < 0.75 * numbers[0]


@pytest.mark.slow(
    reason="sixteen rounds of search on three kinds of graphs: ten seconds of one core"
)
def test_the_learned_search_does_not_stop_when_edges_repeat() -> None:
    distances = {}
    for regime in ("repeated", "stranded", ""):
        setup = explorer("reachability-learned").answer(View(regime=regime, rounds=16))[0].setup
        expected = np.asarray(setup.algorithm.distribution(setup.values))[:, 6:]
        predicted = setup.layout.distribution(setup.run.predictions).double().numpy()[:, 6:]
        spans = [
            np.abs(x[:, None] - x[:, :, None]).sum(-1).max((1, 2)) / 2
            for x in (predicted, expected)
        ]
        distances[regime] = float(np.median(spans[0]))
        assert spans[1].max() == 0
    assert said("**The learned search") == [pytest.approx(x, abs=0.005) for x in distances.values()]
    assert min(distances["repeated"], distances["stranded"]) > 5 * distances[""]


@pytest.mark.slow(reason="sixteen heads, each set to zero in 25 rounds: two seconds of one core")
def test_one_head_matters_more_than_any_other() -> None:
    shown = {
        (i, j): seen("wma-learned-additive", f"edit=zero+5-+L{i}H{j}+-").differences()
        for i in range(4)
        for j in range(4)
    }
    mean_change = {head: table["machine"].mean() for head, table in shown.items()}
    head, following = sorted(mean_change, key=lambda one: -mean_change[one])[:2]
    numbers = [mean_change[head], mean_change[following], shown[head]["control_mean"].mean()]
    assert (head, following) == ((0, 1), (0, 2))
    assert said("**One head") == [pytest.approx(number, abs=0.0005) for number in numbers]
