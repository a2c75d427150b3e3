"""The report shows a probe's verdict as a badge: green, red, or neutral where nothing could be decided."""

from dataclasses import replace

import numpy as np

import probes
from reports.blocks import Verdict
from reports.parts import probing


def test_badges_follow_the_verdict() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 8, 3))
    target = x[..., :1] + 0.5 * rng.normal(size=(24, 8, 1))
    held = probes.fit(x, target, inputs=np.zeros((24, 8, 1)))
    bare = probes.fit(x, target)
    exact = replace(held, controls=held.controls | {"untrained": replace(held.controls["round"], score=held.score)})
    exact.controls["untrained"] = replace(exact.controls["untrained"], difference=held.score.minus(held.score))
    table = probing._verdicts([held, bare, exact])
    assert list(table["verdict"]) == [
        Verdict(True, "represented"),
        Verdict(None, "undecided"),
        Verdict(None, "uninformative"),
    ]
    assert table["would have shown"].between(0, 1).all()
    assert probing._represented(bare).text.endswith(", undecided") and probing._represented(held).passed
