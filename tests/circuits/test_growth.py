"""How the work of ``wma-handwired`` grows with the number of experts, by operations counted."""

from functools import cache
from math import log2
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import interp
from interp.tasks import experts

N_EPISODES, N_ROUNDS = 2, 2


class MultiplyAdds(TorchDispatchMode):
    """Counts the multiply-adds of matrix products; zeros that a sparse matrix omits are free."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm", "_sparse_addmm"):
            tensors = [argument for argument in args if isinstance(argument, Tensor)]
            first, second = tensors[-2:]
            if first.is_sparse:
                self.total += first._nnz() * second.shape[-1]
            else:
                self.total += result.numel() * first.shape[-1]
        return result


def test_a_product_that_fits_on_a_napkin() -> None:
    """2 x 3 times 3 x 5 takes 30 multiply-adds; with two entries in a sparse first matrix, 10."""
    first, second = torch.zeros(2, 3), torch.ones(3, 5)
    first[0, 0] = first[1, 2] = 1.0
    with MultiplyAdds() as dense:
        first @ second
    with MultiplyAdds() as sparse:
        torch.sparse.mm(first.to_sparse(), second)
    assert (dense.total, sparse.total) == (30, 10)


@cache
def count_multiply_adds(n_experts: int) -> int:
    """Count the multiply-adds of a rollout."""
    model = interp.load("wma-handwired", n_experts=n_experts)
    episodes = experts.sample(N_EPISODES, N_ROUNDS, n_experts, seed=0)
    with torch.no_grad(), MultiplyAdds() as counter:
        interp.rollout(model, episodes)
    return counter.total


def test_work_grows_with_a_power_of_at_most_1_6_from_16_to_64_experts() -> None:
    """The power is .8. At 16 experts weights are stored as dense matrices, from 32 on as sparse ones."""
    ratio = count_multiply_adds(64) / count_multiply_adds(16)
    assert log2(ratio) / 2 <= 1.6


def test_work_grows_with_a_power_of_at_most_3_from_32_to_64_experts() -> None:
    """The power is 2.8: attention compares all pairs of positions in one column per position."""
    ratio = count_multiply_adds(64) / count_multiply_adds(32)
    assert log2(ratio) <= 3.0
