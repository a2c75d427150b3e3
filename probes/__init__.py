"""Linear probes with controls: what can be decoded from activations, where, and how sure that is.

    >>> import interp, probes
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=32, n_rounds=20, n_experts=4, seed=0)
    >>> model = interp.load("wma-handwired", n_experts=4)
    >>> (result,) = probes.probe(model, episodes, ["log_weights_centred"], site="resid_post[2]@w?")
    >>> round(result.r2, 6), result.word, list(result.controls)
    (1.0, 'yes', ['shuffled', 'untrained', 'inputs', 'round', 'control_task'])

:func:`fit` takes a rollout or activations, :func:`probe` a model, :func:`sweep` every place in a model.
Interventions are in ``interp.interventions``, and what the algorithms compute in ``interp.tasks``.
"""

from interp.model.transformer import untrained
from probes import targets
from probes.activations import read
from probes.controls import ControlScore, ProbeScore
from probes.estimators import to_sklearn
from probes.fit import fit, probe
from probes.result import Decoded, ProbeResult
from probes.sweep import SweepResult, sweep
from probes.targets import Target, TargetValues

__all__ = [
    "ControlScore",
    "Decoded",
    "ProbeResult",
    "ProbeScore",
    "SweepResult",
    "Target",
    "TargetValues",
    "fit",
    "probe",
    "read",
    "sweep",
    "targets",
    "to_sklearn",
    "untrained",
]
