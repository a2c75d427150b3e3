"""Linear probes with controls: what can be decoded from activations, where, and with what
confidence.

    >>> import interp, probes
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=32, n_rounds=10, n_experts=2, seed=0)
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> (result,) = probes.probe(model, episodes, ["log_weights_centred"], sites="resid_post[2]@w?")
    >>> round(result.r2, 6), result.verdict, list(result.controls)
    (1.0, 'yes', ['shuffled', 'untrained', 'inputs', 'round', 'control_task'])

:func:`fit` takes a rollout or activations, :func:`probe` a model, and :func:`sweep` reads every
site of a model. Interventions are in ``interp.interventions``, and the algorithms' variables in
``interp.tasks``.
"""

from interp.support.lazy import facade

__getattr__, __dir__, __all__ = facade(__name__)
