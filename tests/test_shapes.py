"""Shapes in signatures are checked while tests run: were the plugin off, every annotation could be wrong unseen."""

import ast

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from probes import estimators, linear
from tests.shapes import Shaped, shape_names


@pytest.mark.parametrize(
    ("y", "folds"), [(np.zeros((4, 2), int), 4), (np.zeros((4, 3)), 4), (np.zeros((4, 3), int), 5)]
)
def test_another_shape_or_kind_is_refused(y, folds):
    """A number of rounds or of episodes that differs between arguments, and floats where classes are expected."""
    with pytest.raises(TypeCheckError):
        estimators.cross_validate(np.zeros((4, 3, 2)), np.zeros(folds, int), [(y, 2)])


def test_what_says_shapes_is_wrapped_and_nothing_else():
    """Results, aliases and dataclasses count; plain types do not."""
    assert {"Float", "_EdgeMask"} <= shape_names()
    source = (
        "from __future__ import annotations\n"
        "def plain(n: int) -> str: ...\n"
        "def given(x: Float[Array, 'a'] | None): ...\n"
        "def gives() -> list[_EdgeMask]: ...\n"
        "class Held:\n    x: Int[Array, 'a']\n"
        "class Plain:\n    n: int\n"
    )
    module = Shaped(shape_names()).visit(ast.parse(source))
    assert isinstance(module.body[0], ast.ImportFrom)
    wrapped = {node.name for node in module.body[2:] if node.decorator_list}
    assert wrapped == {"given", "gives", "Held"}


def test_the_packages_are_loaded_by_the_plugin():
    assert type(linear.__loader__).__name__ == "Loader"
    assert linear.__cached__ is not None
