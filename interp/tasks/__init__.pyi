"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from interp.core.catalog import get as get
from interp.core.catalog import list_tasks as list_tasks
from interp.core.catalog import of as of
from interp.core.catalog import register as register
from interp.core.catalog import using as using
from interp.core.task import Algorithms as Algorithms
from interp.core.task import Analysis as Analysis
from interp.core.task import Corruption as Corruption
from interp.core.task import Data as Data
from interp.core.task import Reporting as Reporting
from interp.core.task import RoundInputs as RoundInputs
from interp.core.task import Size as Size
from interp.core.task import Steering as Steering
from interp.core.task import Task as Task
from interp.core.task import corrupted_round as corrupted_round
from interp.core.task import shift_by_one_episode as shift_by_one_episode
from interp.support.lazy import lazy as lazy
from interp.tasks import bandit as bandit
from interp.tasks import experts as experts
from interp.tasks import mdp as mdp
from interp.tasks import qlearning as qlearning
from interp.tasks import reachability as reachability
from interp.tasks.arrays import series as series
