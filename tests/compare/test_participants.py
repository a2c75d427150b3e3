"""Participants one by one: planted families and rates come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from circuits.compare.participants import explain_each
from interp.errors import InputError
from interp.tasks import bandit
from interp.tasks.bandit.algorithms import choice_kernel, families, rescorla_wagner


def test_each_participant_is_closest_to_the_family_that_it_was_drawn_from(few_steps: None) -> None:
    """Two learners of different rates and two with a habit, 300 choices each."""
    players = (rescorla_wagner(0.2, 6.0), rescorla_wagner(0.8, 6.0), choice_kernel(0.3, 3.0), choice_kernel(0.3, 3.0))
    drawn = [bandit.sample(2, 150, 2, "reversal", seed, player=one) for seed, one in enumerate(players)]
    arrays = {name: np.concatenate([getattr(one, name) for one in drawn]) for name in ("choices", "rewards")}
    played = replace(drawn[0], **arrays, participants=["a", "a", "b", "b", "c", "c", "d", "d"])
    asked = [one for one in families() if one.key in ("rescorla_wagner", "choice_kernel", "fixed_bias")]
    found = explain_each(played, played.choices, families=asked)
    table = found.to_frame()
    assert table["closest"].tolist() == ["rescorla_wagner"] * 2 + ["choice_kernel"] * 2
    assert table["rate_low"][1] > table["rate_high"][0] and (table["saved_low"] > 0).all()
    pooled = found.pooled().set_index(["family", "parameter"])
    assert pooled["participants"].tolist() == [2] * 4
    assert pooled.loc[("rescorla_wagner", "rate"), "spread"] > 0.15 and "of 4 participants" in found.sentence.lower()
    assert found.plot() is not None
    with pytest.raises(InputError, match="name no participants"):
        explain_each(replace(played, participants=None), played.choices, families=asked)
