"""The tasks that models learn online; each folder holds one task.

``experts`` (prediction with expert advice), ``qlearning`` (tabular Q-learning), ``reachability``
(search in a graph) and ``bandit`` (choices among arms) come with the package. ``mdp`` has the
episodes and samplers of Q-learning. :func:`get` looks a task up by key, and :func:`of` by its
episodes, layout or model. :func:`register` adds a task, and :func:`list_tasks` lists them. :func:`using`
replaces a task's sampler by recorded episodes.

    >>> import interp.tasks
    >>> [task.key for task in interp.tasks.list_tasks()]
    ['bandit', 'experts', 'qlearning', 'reachability']
    >>> [size.name for size in interp.tasks.get("qlearning").sizes]
    ['n_states', 'n_actions']
    >>> interp.tasks.of(interp.tasks.get("experts").sample(n_episodes=1, n_rounds=2, n_experts=3)).key
    'experts'

A package in this folder that defines ``TASK`` is found automatically.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
