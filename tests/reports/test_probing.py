"""What a probe says becomes a finding, red only where the latents should hold what they do not."""

from dataclasses import replace

import numpy as np

import probes
from interp.statistics import Interval
from reports.parts import probing


def test_badges_follow_the_verdict() -> None:
    """An expected negative (the last: nothing claims that the latents hold it) is not red."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 8, 3))
    target = x[..., :1] + 0.5 * rng.normal(size=(24, 8, 1))
    held = probes.fit(x, target, inputs=np.zeros((24, 8, 1)))
    bare = probes.fit(x, target)
    exact = replace(held, controls=held.controls | {"untrained": replace(held.controls["round"], score=held.score)})
    exact.controls["untrained"] = replace(exact.controls["untrained"], difference=held.score.minus(held.score))
    worse = replace(held.controls["inputs"], difference=Interval(-0.2, -0.3, -0.1))
    absent = replace(held, controls=held.controls | {"inputs": worse})
    unclaimed = replace(absent, target=replace(absent.target, key="unclaimed"))
    table = probing._verdicts([held, bare, exact, absent, unclaimed], claimed=[held.target.key])
    words = ["represented", "undecided", "uninformative", "not represented", "not represented"]
    assert [verdict.text for verdict in table["verdict"]] == words
    assert [verdict.kind for verdict in table["verdict"]] == ["pass", "neutral", "neutral", "fail", "neutral"]
    assert table["would have shown"].between(0, 1).all()
    assert [probing._finding(result).word for result in (held, bare, exact)] == ["pass", "cannot tell", "uninformative"]
