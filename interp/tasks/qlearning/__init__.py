"""The task of tabular Q-learning (paper, section 4). Its episodes and samplers are in
``interp.tasks.mdp``.

    >>> from interp.tasks import mdp
    >>> episodes = mdp.sample(n_episodes=2, n_rounds=5, n_states=4, n_actions=3, seed=0)
    >>> episodes.states.shape, episodes.q_tables.shape
    ((2, 5), (2, 6, 4, 3))

Handwired models are in the package ``circuits``, figures in ``reports``.
"""

from pathlib import Path

from interp.core.task import Algorithms, Analysis, Data, Reporting, Size, Task
from interp.support.files import read_tables
from interp.support.lazy import lazy, lazy_functions, lazy_registered
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs, read
from interp.tasks.qlearning.mdps import REGIMES
from interp.tasks.qlearning.sampling import Interaction, sample

__all__ = ["REGIMES", "TASK", "MDPEpisodes", "MDPs", "read", "sample"]

_DATA = Data(
    layout=lazy("interp.tasks.qlearning.layout:QLearningRound"),
    sample=sample,
    read=read,
    losses=lazy("interp.tasks.qlearning.analysis:losses"),
    sizes=(
        Size("n_states", "states", "number of states", minimum=1, default=4),
        Size("n_actions", "actions", "number of actions", minimum=1, default=3),
    ),
    regimes=lambda: {regime.key: regime.name for regime in REGIMES.values()},
    sample_options=lazy("interp.tasks.qlearning.analysis:rates"),
    interaction=Interaction,
)
_ALGORITHMS = Algorithms(
    records=lazy("interp.tasks.qlearning.algorithms:records"),
    hypothesis=lazy("interp.tasks.qlearning.analysis:hypothesis"),
    **lazy_functions("interp.tasks.qlearning.families", "families", "updates"),
    battery=lazy("interp.tasks.qlearning.sampling:battery"),
)
_ANALYSIS = Analysis(
    **lazy_functions(
        "interp.tasks.qlearning.analysis",
        "round_inputs",
        "corruptions",
        "aligned",
        "claims",
        "steering",
    ),
    probed=("table", "column", "td_error", "reward", "current_value", "bootstrapped_value"),
    default_corruption="exchange-history",
)
TASK = Task(
    key="qlearning",
    name="Q-learning",
    what="choose actions in an unknown Markov decision process as tabular Q-learning would",
    data=_DATA,
    algorithms=_ALGORITHMS,
    analysis=_ANALYSIS,
    training=lazy_registered("goals", "qlearning:goal"),
    evaluation=lazy_registered("evaluation", "qlearning.plan:plan"),
    report=Reporting(looks=read_tables(Path(__file__).with_name("looks.toml"))),
)
