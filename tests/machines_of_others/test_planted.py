"""What is planted is found: which channel of a thinking model is used, and what a GRU of known weights computes."""

from dataclasses import replace

import pytest

import interp
from circuits import compare
from interp.interventions import mediation
from tests import handmade
from tests.machines_of_others.kinds import coconut, pair

pytestmark = pytest.mark.usefixtures("one_session")


@pytest.mark.parametrize(
    ("uses", "through", "beside"),
    [
        (("thought",), "thought", "cache"),
        (("cache",), "cache", "thought"),
    ],
)
def test_mediation_between_channels_tells_which_of_the_two_is_used(uses, through, beside):
    """All that is carried comes from another episode: its whole effect passes one channel, and nothing the other."""
    machine = coconut(uses=uses)
    mediated = mediation.mediate(
        machine,
        *pair(machine, 16, 6),
        "latent",
        [through, beside],
        round=[2, 5],
        split=mediation.Split(n_random=0),
    )
    assert mediated.reason == ""
    for share in (mediated.blocked, mediated.carried):
        assert share(through).low > 0.999
        assert share(beside).low == share(beside).high == 0
    # Something is carried in both: a probe, or a look at what moves, would not tell.
    assert mediated.moved[0] == mediated.moved[1] == 1


def test_a_model_that_uses_both_shows_both():
    """Of random weights: how much each carries is the draw's; that both together carry all is not."""
    machine = coconut().untrained(2)
    mediated = mediation.mediate(
        machine,
        *pair(machine, 32, 6),
        "latent",
        ["thought", "cache"],
        round=[2, 5],
        split=mediation.Split(n_random=0),
    )
    thought, cache = mediated.carried("thought"), mediated.carried("cache")
    assert 0 < thought.low < thought.high < 1
    assert 0 < cache.low < cache.high < 1
    assert mediated.carried("all").low > 0.999


@pytest.mark.long
def test_the_shipped_model_that_thinks_remembers_by_its_cache():
    """What architectures.md says: nearly all that one episode's state does to another's predictions passes it."""
    machine = interp.load("wma-thoughts")
    mediated = mediation.mediate(
        machine,
        *pair(machine, 48, 12),
        "latent",
        ["thought", "cache"],
        round=[5, 10],
        split=mediation.Split(n_random=0),
    )
    assert mediated.carried("cache").low > 0.95
    assert mediated.blocked("cache").low > 0.95
    assert mediated.carried("thought").high < 0.05
    assert mediated.blocked("thought").high < 0.05


@pytest.mark.slow(reason="a comparison with all its controls: 10 seconds of one core")
def test_what_fades_is_another_update_of_a_state_that_is_as_good():
    """By 5 % a round (.974 stitched); ``tests/compare/test_machines.py`` has the machine that does not fade."""
    budget = replace(
        compare.Budget.quick(), test=64
    )  # so many that its memory, of .013 nats a round, is surely worth .01
    comparison = compare.machines(handmade.majority(decay=0.95), "wma-handwired", budget=budget)
    words = {measure.key: measure.verdict for measure in comparison}
    assert [words[key] for key in ("state", "update", "circuit")] == ["yes", "no", "not applicable"]
    assert words["behaviour"] != "yes"  # .951 [.946, .955], where .95 is asked
