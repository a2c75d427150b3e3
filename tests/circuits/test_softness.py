"""The page's table of errors by inverse temperature: within the bound, and a soft choice alone costs no value."""

import pandas as pd
import pytest

from lab.softness import BETA, HARDNESS, PAGE, SIZES, bound, errors


@pytest.mark.parametrize("hardness", [10.0, 1e3])
def test_a_soft_maximum_misses_no_more_than_its_bound_and_not_nothing(hardness: float) -> None:
    missed, _ = errors((2, 2), n_rounds=60, n_episodes=4, eta=120.0, hardness=hardness)
    assert 1e-8 < missed <= bound(2, hardness)


def test_a_soft_choice_alone_leaves_the_table_exact() -> None:
    assert max(errors((2, 2), n_rounds=60, n_episodes=4, beta=5.0)) < 1e-12


def test_the_page_has_every_cell_and_none_is_beyond_its_bound() -> None:
    page = pd.read_csv(PAGE)
    assert page.shape == (len(HARDNESS) + len(BETA), 1 + len(SIZES))
    for row in page.head(len(HARDNESS)).itertuples(index=False):
        for cell in row[1:]:
            missed, most = cell.rstrip(")").split(" (at most ")
            assert float(missed) <= float(most)
    for row in page.tail(len(BETA)).itertuples(index=False):
        assert all(float(part.split()[-1]) < 1e-11 for cell in row[1:] for part in cell.split(","))
