"""The source has one cap as a whole, which only falls: what is added replaces something.

``python -m tests.census`` prints where the lines are.
"""

from tests.census import PACKAGES, Count, whole

CAP = Count(code=33877, functions=2791, names=1245, modules=237)
"""The most that the packages may hold together. No reason beside a number raises it."""


def test_the_source_keeps_to_its_cap() -> None:
    counted = whole(*PACKAGES)
    assert {name: n for name, n in counted._asdict().items() if n > getattr(CAP, name)} == {}
