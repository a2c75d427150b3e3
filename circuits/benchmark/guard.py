"""What a method may not do to the others: change the subject that all are asked about, raise, or give no answer.

A method is somebody's function. Whatever it does, the work of the other methods is kept, and a sentence says what
happened in the place of its scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from numbers import Real
from typing import Any

import torch

from circuits.benchmark.question import Answer, Truth
from interp.errors import InputError, require
from interp.machine import Machine
from interp.model.saved import content_of

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_N_NAMED = 3
"""So many items are named in a sentence."""


class RefusedError(Exception):
    """Why a method has no scores, in a sentence; ``kept`` where it would refuse again, and is not asked again."""

    def __init__(self, sentence: str, kept: bool = False) -> None:
        super().__init__(sentence)
        self.kept = kept


class _Untouched:
    """A model as it was: its weights, hooks, modes and gradients, to be held against what a method leaves."""

    def __init__(self, model: Machine) -> None:
        assert isinstance(model, torch.nn.Module)
        self.model: torch.nn.Module = model
        self._held = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self._modules = [(module, module.training) for module in model.modules()]
        self._hooks = [(module, name, dict(getattr(module, name))) for module, _ in self._modules for name in _HOOKS]
        self._learned = [(one, one.requires_grad) for one in model.parameters()]

    def restore(self) -> list[str]:
        """Undo what was changed, and say what that was."""
        now = self.model.state_dict()
        changed = [
            name
            for name, tensor in self._held.items()
            if name not in now or content_of(name, now[name].cpu()) != content_of(name, tensor.cpu())
        ]
        said = [f"weights ({', '.join(changed[:_N_NAMED])})"] if changed or now.keys() - self._held.keys() else []
        if said:
            require(
                list(self.model.modules()) == [module for module, _ in self._modules],
                "a method put other modules into subject.model, which cannot be undone; give methods a copy to change",
            )
            self.model.load_state_dict(self._held)
        for module, name, hooks in self._hooks:
            held = getattr(module, name)
            if dict(held) != hooks:
                held.clear()
                held.update(hooks)
                said = list(dict.fromkeys([*said, "hooks"]))
        for module, training in self._modules:
            if module.training != training:
                module.training = training
                said = list(dict.fromkeys([*said, "training mode"]))
        for parameter, learned in self._learned:
            parameter.grad = None
            if parameter.requires_grad != learned:
                parameter.requires_grad_(learned)
                said = list(dict.fromkeys([*said, "requires_grad"]))
        return said


def asked(ask: Callable[[], tuple[Any, float]], truth: Truth, model: Machine) -> tuple[Answer, float]:
    """What a method answers and the seconds that it took, or a refusal; the model is as it was afterwards."""
    before = _Untouched(model)
    try:
        answer, seconds = ask()
    except InputError as error:
        raise RefusedError(str(error), kept=True) from error
    except Exception as error:
        raise RefusedError(f"raised {type(error).__name__}: {error}") from error
    finally:
        changed = before.restore()
    if changed:
        raise RefusedError(f"changed subject.model in place ({', '.join(changed)}), which was undone; change a copy")
    if problem := _problem(answer, truth):
        raise RefusedError(problem)
    return answer, seconds


def _problem(answer: Any, truth: Truth) -> str:
    """What is wrong with an answer; empty where nothing is."""
    if not isinstance(answer, Answer):
        return f"gave {type(answer).__name__}, and must give an Answer"
    if not isinstance(answer.scores, Mapping):
        return f"scores must map items to numbers, got {type(answer.scores).__name__}"
    if not isinstance(answer.chosen, Set | None):
        return f"chosen must be a set of items or None, got {type(answer.chosen).__name__}"
    # A method may score more than was asked, such as algorithms that extend the true one; not instead of it.
    surplus = [str(item) for item in answer.scores if item not in truth]
    if surplus and not truth.keys() <= answer.scores.keys():
        named = ", ".join(surplus[:_N_NAMED])
        return f"scores hold {len(surplus)} items that were not asked about ({named}), and lack some that were"
    unknown = [str(item) for item in answer.chosen or () if item not in truth and item not in answer.scores]
    if unknown:
        return f"chosen hold {len(unknown)} items that were not asked about ({', '.join(unknown[:_N_NAMED])})"
    for name, numbers in (("scores", answer.scores), ("measured", answer.measured)):
        if not isinstance(numbers, Mapping):
            return f"{name} must map names to numbers, got {type(numbers).__name__}"
        none = [f"{item}: {number!r}"[:80] for item, number in numbers.items() if not _is_number(number)]
        if none:
            return f"{name} must be numbers; {len(none)} are not ({', '.join(none[:_N_NAMED])})"
    return ""


def _is_number(value: Any) -> bool:
    """One real number, which may be infinite: NaN has no place in a ranking."""
    if isinstance(value, torch.Tensor) and value.ndim == 0:
        value = value.item()
    return isinstance(value, Real) and not math.isnan(value)
