"""The round: what stands where, sizes, and what is refused."""

import numpy as np
import pytest

from interp.model.layout import layout_from_dict
from interp.tasks.reachability import ReachabilityEpisodes, sample
from interp.tasks.reachability.layout import ReachabilityRound
from tests.refusals import refuses

EPISODES = ReachabilityEpisodes(np.array([[[0, 1], [1, 2]]]), np.array([0]), np.array([[2, 3]]), 4, 3)


def words(layout: ReachabilityRound) -> list[str]:
    return [layout.vocabulary[i] for i in layout.encode(EPISODES).tokens[0, 1].tolist()]


def test_marked_rounds_read_as_the_construction_does() -> None:
    layout = ReachabilityRound(4, 2, marks=True)
    assert layout.labels == ("<w>", "<z>", "s_1", "t_1", "e_1", "s_2", "t_2", "e_2", "c_1", "c_2", "p?", "r", "w?")
    assert words(layout) == ["<w>", "<w>", "n_1", "n_2", "e", "n_2", "n_3", "e", "n_3", "n_4", "p?", "n_1", "w?"]
    assert (layout.predict_position, layout.update_position) == (10, 12)


def test_rounds_without_marks_are_shorter() -> None:
    layout = ReachabilityRound(4, 2)
    assert words(layout) == ["<w>", "<w>", "n_1", "n_2", "n_2", "n_3", "n_3", "n_4", "p?", "n_1", "w?"]
    assert "e" not in layout.vocabulary and layout.n_positions == 2 * 2 + 7


@pytest.mark.parametrize("marks", [True, False])
def test_a_range_of_lengths(marks: bool) -> None:
    layout = ReachabilityRound(12, 18, (6, 18), marks)
    assert layout_from_dict(layout.to_dict()) == layout
    episodes = sample(3, 4, 12, 9, seed=0, depths=(1,))
    fitted = layout.fit(episodes)
    assert fitted.n_edges == 9 and fitted.encode(episodes).tokens.shape == (3, 4, (3 if marks else 2) * 9 + 7)
    assert [x.n_edges for x in layout.family] == list(range(6, 19))
    assert {x.n_outputs for x in layout.family} == {12}


def test_what_does_not_fit_is_refused() -> None:
    layout = ReachabilityRound(12, 18)
    refuses("sample with n_nodes=12", layout.fit, sample(3, 4, 14, 18, depths=(1,)))
    refuses("serves 18 edges; sample with n_edges=18", layout.fit, sample(3, 4, 12, 17, depths=(1,)))
