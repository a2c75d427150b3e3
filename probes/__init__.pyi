"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from interp.model.transformer import untrained as untrained
from probes import targets as targets
from probes.activations import read as read
from probes.controls import ControlScore as ControlScore
from probes.controls import ProbeScore as ProbeScore
from probes.estimators import to_sklearn as to_sklearn
from probes.fitting import fit as fit
from probes.fitting import probe as probe
from probes.result import Decoded as Decoded
from probes.result import ProbeResult as ProbeResult
from probes.sweeping import SweepResult as SweepResult
from probes.sweeping import sweep as sweep
from probes.targets import Target as Target
from probes.values import TargetValues as TargetValues
