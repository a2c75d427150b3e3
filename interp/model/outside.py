"""Find weights that a round reads although they are not part of its model, such as those of a
module in a closure. An untrained copy of the model would still read these trained weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class OutsideReads(TorchDispatchMode):
    """Context in which rounds of a model run. It records the shapes of weights that the rounds read
    although they are not part of the model.

    A tensor that is not part of the model counts as a weight if it is a parameter, or another leaf
    that requires a gradient. A floating-point matrix also counts if two rounds read it at the same
    address in memory, and no operation within the context computed it.

    Args:
        known: the model's weights and buffers.

    Attributes:
        round: index of the round that is running; the caller sets it before each round.
        shapes: shapes of the weights that were found, as text, such as "[4, 8]".
    """

    # Without this, torch would import its compiler, which takes a second.
    _should_skip_dynamo = classmethod(lambda cls: False)

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.round = 0
        self.shapes: set[str] = set()
        self._allowed_addresses: set[int] = set()
        # Tensors are stored, too: a freed one's id or address could be another's later.
        self._computed: dict[int, Any] = {}  # id of a value -> the value
        self._first_reads: dict[int, tuple[int, Tensor]] = {}  # address -> first round, tensor
        self.allow(known)

    def allow(self, tensors: Iterable[Tensor]) -> None:
        """Exempt ``tensors``, such as a round's inputs, from being recorded as weights."""
        self._allowed_addresses.update(tensor.data_ptr() for tensor in tensors)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record the weights among the tensors that an operation reads, and run the operation.
        PyTorch calls this method in place of every operation within the context. Neither the
        model's own weights nor a round's inputs are recorded: their addresses are in
        ``_allowed_addresses``.

        Args:
            function, args, kwargs: the operation and its arguments.
            types: not used; classes of the tensors.
        """
        # All in one function: torch would trace a helper method if a submodule is compiled.
        for tensor in tree_leaves((args, kwargs)):
            if not isinstance(tensor, Tensor):
                continue
            address = tensor.data_ptr()
            if id(tensor) in self._computed or address in self._allowed_addresses:
                continue
            first_round, _ = self._first_reads.setdefault(address, (self.round, tensor))
            is_leaf = tensor.requires_grad and tensor.is_leaf and tensor._base is None
            is_matrix = tensor.ndim > 1 and tensor.is_floating_point()
            # A tensor that was made for one round is not read by another one.
            is_constant = is_matrix and first_round < self.round
            if isinstance(tensor, nn.Parameter) or is_leaf or is_constant:
                self.shapes.add(str(list(tensor.shape)))
        result = function(*args, **kwargs or {})
        for value in tree_leaves(result):  # results of operations are no weights
            self._computed[id(value)] = value
        return result
