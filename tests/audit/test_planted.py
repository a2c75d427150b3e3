"""What is planted is named: machines that use their state, that carry an idle one, pauses, shortcuts, known maps.

Thresholds were chosen with those that are seen; no word about one that was held out may be wrong. "Undecided" is no
wrong word, and no right one: how many must be right is the count that was measured when they were first run.
"""

import pytest

from interp.audit import audit
from tests.audit.planted import PLANTED, SMALL, said

LONG = {"search", "Q-learning"}
"""Those that take more than ten seconds of one core."""
UNSURE = {("majority vote", "in time"), ("undirected search", "side")}
"""Where 48 episodes are too few, and where a machine holds both candidates in the end, and takes neither side."""


def judged(key: str) -> None:
    found = audit(PLANTED[key].make(), effort=SMALL)
    words = {question: said(found, question) for question in PLANTED[key].right}
    expected = {q: "undecided" if (key, q) in UNSURE else word for q, word in PLANTED[key].right.items()}
    assert words == expected


@pytest.mark.parametrize("key", [key for key in PLANTED if key not in LONG])
def test_what_is_planted_is_named(key):
    judged(key)


@pytest.mark.slow(reason="the Jacobians and adversarial graphs of transformers: 15 seconds of one core each")
@pytest.mark.parametrize("key", sorted(LONG))
def test_handwired_machines_score_as_built(key):
    judged(key)


def test_at_least_five_were_held_out():
    assert sum(one.held_out for one in PLANTED.values()) >= 5
    assert sum(not one.held_out for one in PLANTED.values()) >= 5
