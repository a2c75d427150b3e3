"""Let a model's rounds make new tensors in its dtype, without a change that other threads notice.

A step may make tensors, as by ``torch.zeros(3)``. They have PyTorch's default dtype, which all
threads share. A model in float64 needs float64 ones, so its rounds run in :class:`NewTensorDtype`.
"""

from __future__ import annotations

from typing import Any

import torch
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


class NewTensorDtype(TorchFunctionMode):
    """Context in which the functions of PyTorch that make a tensor, called by this thread, make it
    in ``dtype`` where they would make it in PyTorch's default dtype.

        >>> with NewTensorDtype(torch.float64):
        ...     torch.zeros(3).dtype, torch.tensor([1, 2]).dtype, torch.zeros(3, dtype=torch.int32).dtype
        (torch.float64, torch.int64, torch.int32)

    Arithmetic is as outside of the context: ``torch.tensor([1, 2]) / 2`` has the default dtype.

    Args:
        dtype: the dtype of new tensors.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch, with ``dtype=`` if it would make a tensor in the default
        dtype.

        Args:
            function: the function.
            types: not used; PyTorch passes the types of the arguments.
            args, kwargs: arguments of the function.
        """
        options = kwargs or {}
        makes_default = function in _MAKE_REAL
        if function in _MAKE_LIKE_ARGUMENT:
            tensor = function(*args, **options)
            makes_default = tensor.dtype == torch.get_default_dtype()
        if makes_default and options.get("dtype") is None:
            options = {**options, "dtype": self.dtype}
        return function(*args, **options)
