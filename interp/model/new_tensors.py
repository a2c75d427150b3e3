"""Let a model's rounds make new tensors in its dtype, without a change that other threads notice.

A step may make tensors, as by ``torch.zeros(3)`` or ``2.0 * tokens``. They have PyTorch's default
dtype, which all threads share. A model in float64 needs float64 ones, so its rounds run in
:class:`NewTensorDtype`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MAKE_REAL = {
    torch.empty,
    torch.eye,
    torch.linspace,
    torch.logspace,
    torch.normal,
    torch.ones,
    torch.rand,
    torch.randn,
    torch.zeros,
}
"""Functions that make tensors of the default dtype."""
_MAKE_LIKE_ARGUMENT = {torch.arange, torch.full, torch.tensor}
"""Functions that do so unless their argument has another dtype, such as integers."""
_NO_ARITHMETIC = {torch.Tensor.float, torch.Tensor.to, torch.Tensor.type, torch.where}
"""Functions that name the dtype of their result, or that take truth values as a condition."""


class NewTensorDtype(TorchFunctionMode):
    """Context in which functions of PyTorch, called by this thread, make tensors in ``dtype`` where
    they would make them in PyTorch's default dtype. This holds for functions that make tensors, and
    for arithmetic with integers.

        >>> with NewTensorDtype(torch.float64):
        ...     torch.zeros(3).dtype, torch.zeros(3, dtype=torch.int32).dtype, (torch.tensor([1, 2]) / 3).dtype
        (torch.float64, torch.int32, torch.float64)

    Args:
        dtype: the dtype of new tensors.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch. If its result would have the default dtype, although no
        argument has, the function is called with ``dtype=``, or with its integers in that dtype.

        Args:
            function: the function.
            types: not used; PyTorch passes the types of the arguments.
            args, kwargs: arguments of the function.
        """
        options = kwargs or {}
        if options.get("dtype") is not None:  # the caller names the dtype
            return function(*args, **options)
        with_dtype = {**options, "dtype": self.dtype}
        if function in _MAKE_REAL:
            return function(*args, **with_dtype)  # called once, since some draw random numbers
        result = function(*args, **options)
        if getattr(result, "dtype", None) != torch.get_default_dtype():  # None: not a tensor
            return result
        if function in _MAKE_LIKE_ARGUMENT:
            return function(*args, **with_dtype)
        if _is_arithmetic_of_integers(function, args):
            converted = [
                value.to(self.dtype) if isinstance(value, Tensor) else value for value in args
            ]
            return function(*converted, **options)
        return result


def _is_arithmetic_of_integers(function: Any, args: Sequence[Any]) -> bool:
    """Return whether a function computes with integers or truth values only, and leaves the dtype
    of its result to PyTorch.

    Args:
        function: a function of PyTorch whose result has the default dtype.
        args: its arguments.
    """
    operands = [value for value in args if isinstance(value, Tensor)]
    are_whole = all(torch.can_cast(operand.dtype, torch.int64) for operand in operands)
    return bool(operands) and are_whole and function not in _NO_ARITHMETIC
