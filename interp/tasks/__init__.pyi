"""What type checkers see of the package, and which names it has (`interp.lazy.facade`)."""

from interp.catalog import every as every
from interp.catalog import get as get
from interp.catalog import of as of
from interp.catalog import register as register
from interp.catalog import using as using
from interp.lazy import lazy as lazy
from interp.task import Algorithms as Algorithms
from interp.task import Analysis as Analysis
from interp.task import Corruption as Corruption
from interp.task import Data as Data
from interp.task import Reporting as Reporting
from interp.task import RoundInputs as RoundInputs
from interp.task import Size as Size
from interp.task import Steering as Steering
from interp.task import Task as Task
from interp.task import corrupted_round as corrupted_round
from interp.task import exchanged as exchanged
from interp.tasks import bandit as bandit
from interp.tasks import experts as experts
from interp.tasks import mdp as mdp
from interp.tasks import qlearning as qlearning
from interp.tasks import reachability as reachability
from interp.tasks.arrays import series as series
