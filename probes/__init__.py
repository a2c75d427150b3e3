"""Linear probes with controls: what can be decoded from activations, where, and how sure that is.

In this room: :mod:`probes.targets` (what to decode), :func:`fit` (one probe with its controls). Not in this room:
interventions (``interp.interventions``), and causal variables of handwired circuits (``circuits``).
"""

from probes import targets
from probes.fit import Control, ProbeResult, fit
from probes.scores import Score
from probes.targets import Target, TargetValues

__all__ = ["Control", "ProbeResult", "Score", "Target", "TargetValues", "fit", "targets"]
