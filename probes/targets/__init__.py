"""What can be decoded: every variable of every algorithm of every registered task, by its key.

    >>> from probes import targets
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=8, n_rounds=20, n_experts=3, seed=0)
    >>> after = targets.log_weights(episodes, gain=0.5)
    >>> after.values.shape, after.outputs, after.when
    ((8, 20, 3), ('e_1', 'e_2', 'e_3'), 'after')
    >>> targets.log_weights(episodes, when="before").key
    'log_weights:before'
    >>> targets.get("bayes.prediction")(episodes, low=0.1, high=0.9).outputs
    ('P(y=1)',)

``targets.<key>`` and :func:`get` look a target up, :func:`parse` reads ``key:before``, :func:`every` lists those of a
task with their meaning, symbol, units, role and moments. What the variables are is written once, in the ``algorithms``
of each task (``interp.tasks``); a target of your own needs no name: :meth:`TargetValues.of` takes an array.
"""

from interp.errors import InputError
from probes.targets.target import Target, every, get, parse
from probes.targets.values import TargetValues

__all__ = ["Target", "TargetValues", "every", "get", "parse"]


def __getattr__(name: str) -> Target:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return get(name)
    except InputError as error:
        raise AttributeError(str(error)) from None


def __dir__() -> list[str]:
    from interp import tasks

    return sorted({*__all__, *(t.key for task in tasks.every() for t in every(task) if t.key.isidentifier())})
