"""The labelled basis: names instead of indices, and no mixing of spaces."""

import numpy as np
import pytest

from circuits.basis import Basis, PositionCode
from interp.errors import InputError
from tests.refusals import refused, refuses

LABELS = ("w", "z", "e_1", "p_1", "p?", "y", "w?")


def basis(**settings: object) -> Basis:
    return Basis.of(("id", "buf1"), ("w", "e_1"), PositionCode(LABELS), **settings)  # type: ignore[arg-type]


def test_directions_add_subtract_and_scale_by_name() -> None:
    b = basis()
    direction = 2.0 * b["id"]["w"] - b["buf1"]["e_1"] + b.zero
    assert str(direction) == "2 id[w] - buf1[e_1]"
    assert direction.dot(direction) == 5.0
    assert str(direction - 2.0 * b["id"]["w"]) == "-buf1[e_1]"
    assert b["id"].sum(("w", "e_1")).vector().tolist()[:4] == [1.0, 1.0, 0.0, 0.0]


test_unknown_blocks_and_labels_name_the_nearest = refused(
    (lambda: basis()["buf"], r"unknown block 'buf'; did you mean 'buf1'"),
    (lambda: basis()["id"]["e_2"], r"unknown label of block 'id' 'e_2'; did you mean 'e_1'"),
)


def test_directions_of_two_bases_refuse_each_other() -> None:
    with pytest.raises(InputError, match="two bases"):
        basis()["id"]["w"] + basis(rotation=1)["id"]["w"]
    twice = basis()["id"]["w"] + basis()["id"]["w"]
    assert twice.dot(twice) == 4.0


def test_block_names_must_differ() -> None:
    refuses("block names must differ", Basis.of, ("id", "id"), ("w",), PositionCode(LABELS))


@pytest.mark.parametrize("rotation", [None, 5])
def test_axes_are_orthonormal(rotation: int | None) -> None:
    b = basis(rotation=rotation)
    assert np.allclose(b.axes @ b.axes.T, np.eye(b.d_model), atol=1e-14)
    code = b.code(2).vector() @ b.code(3).vector()
    assert code == pytest.approx(0.0, abs=1e-14)
    assert b.one.vector() @ b.code(2).vector() == pytest.approx(0.0, abs=1e-14)


def test_sinusoidal_codes_have_unit_norm_and_the_stated_margin() -> None:
    code = PositionCode.sinusoidal(LABELS, 3, seed=1)
    b = Basis.of(("id",), ("w",), code)
    gram = np.array([[b.code(i).dot(b.code(j)) for j in range(7)] for i in range(7)])
    assert np.allclose(np.diag(gram), 1.0)
    assert np.max(gram - 2 * np.eye(7)) == pytest.approx(1 - code.margin)
    refuses(r"n_lines must lie in 1 \.\.\. 7", PositionCode.sinusoidal, LABELS, 8, seed=1)
