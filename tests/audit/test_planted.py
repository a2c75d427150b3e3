"""What is planted is named: machines that use their state, that carry an idle one, pauses, shortcuts.

Thresholds were chosen with those that are seen; no word about one that was held out may be wrong. "Undecided" is no
wrong word, and no right one: how many must be right is the count that was measured when they were first run.
"""

from dataclasses import replace

import pytest

from interp.audit import audit
from tests.audit.planted import PLANTED, SMALL, verdict_of

LONG = {"search", "Q-learning"}
"""Those that take more than ten seconds of one core."""
ALIKE = {
    "undirected search",
    "set in the last rounds only",
    "more ancestors",
    "reads its thought",
    "depth-first",
    "one round late",
}
ALIKE |= {"search from both ends"}
"""Each is another machine of a kind that is judged by default: a search, a shortcut, two channels; late, or ahead."""
SLOW = pytest.mark.slow(reason="adversarial graphs: two to 15 seconds of one core each")
UNSURE = {("undirected search", "side"), ("reads the round number", "used")}
"""Where no word is expected: a machine that holds both candidates in the end takes neither side; and one
that reads only the round number gains next to nothing by it, so that few episodes do not decide."""


SMALLER = replace(SMALL, episodes=32, writes=3)
"""As much as those need that are judged by default."""


@pytest.mark.long
@pytest.mark.parametrize(
    "key", [pytest.param(k, marks=SLOW if k in LONG | ALIKE else ()) for k in PLANTED]
)
def test_what_is_planted_is_named(key):
    verdicts = audit(PLANTED[key].make(), budget=SMALL if key in LONG | ALIKE else SMALLER)
    words = {question: verdict_of(verdicts, question) for question in PLANTED[key].right}
    expected = {
        q: "undecided" if (key, q) in UNSURE else word for q, word in PLANTED[key].right.items()
    }
    assert words == expected


def test_at_least_five_were_held_out():
    assert sum(entry.held_out for entry in PLANTED.values()) >= 5
    assert sum(not entry.held_out for entry in PLANTED.values()) >= 5
