"""What type checkers see of the package, and which names it has (`interp.support.lazy.facade`)."""

from interp import audit as audit
from interp import evaluation as evaluation
from interp import interventions as interventions
from interp import llm as llm
from interp import machines as machines
from interp import measure as measure
from interp import model as model
from interp import tasks as tasks
from interp import training as training
from interp.core.machine import Channel as Channel
from interp.interventions.hand_over import hand_over as hand_over
from interp.interventions.hand_over import state_difference as state_difference
from interp.interventions.steering import Doses as Doses
from interp.interventions.steering import steer as steer
from interp.model.adapted import adapt as adapt
from interp.model.checks import MACHINE_CHECKS as MACHINE_CHECKS
from interp.model.checks import check_machine as check_machine
from interp.model.library import load as load
from interp.model.library import models as models
from interp.model.library import register_machine as register_machine
from interp.model.rollout import play as play
from interp.model.rollout import replay as replay
from interp.model.rollout import rollout as rollout
from interp.model.run import Rollout as Rollout
from interp.model.taps import Point as Point
from interp.model.task_checks import check_task as check_task
from interp.support.errors import InputError as InputError
from reports.explore.server import explore as explore

__version__: str
