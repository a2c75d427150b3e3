"""The bandit task: predict which arm a player chooses, from recorded or simulated choices and
rewards.

    >>> from interp.tasks import bandit
    >>> episodes = bandit.sample(n_episodes=2, n_rounds=5, n_arms=2, regime="reversal", seed=0)
    >>> episodes.choices.shape, episodes.rewards.shape
    ((2, 5), (2, 5))

:func:`read` reads a table with one row per trial. Figures are in the package ``reports``.
"""

from pathlib import Path

from interp.core.task import Algorithms, Analysis, Data, Reporting, Size, Task
from interp.support.files import read_tables
from interp.support.lazy import lazy, lazy_functions, lazy_registered
from interp.tasks.bandit.episodes import REGIMES, BanditEpisodes, sample
from interp.tasks.bandit.reader import read

__all__ = ["REGIMES", "TASK", "BanditEpisodes", "read", "sample"]

_DATA = Data(
    layout=lazy("interp.tasks.bandit.layout:BanditRound"),
    sample=sample,
    losses=lazy("interp.tasks.bandit.layout:losses"),
    sizes=(Size("n_arms", "arms", "number of arms", minimum=2, default=2),),
    regimes=lambda: REGIMES,
    read=read,
)
_ALGORITHMS = Algorithms(
    **lazy_functions("interp.tasks.bandit.algorithms", "records", "families"),
    battery=lazy("interp.tasks.bandit.episodes:battery"),
)
_ANALYSIS = Analysis(
    **lazy_functions("interp.tasks.bandit.episodes", "round_inputs", "corruptions"),
    probed=("arm_values", "logits", "choice_trace", "arm_wins", "pulled", "payoff"),
    default_corruption="exchange-history",
    aligned=lambda model: (("arm_values", "latent"), ("payoff", "latent")),
    claims=lambda model: (("arm_values", None), ("arm_values", None, "state")),
)
TASK = Task(
    key="bandit",
    name="a bandit",
    what="predict which arm a player chooses, from its choices and what they paid",
    data=_DATA,
    algorithms=_ALGORITHMS,
    analysis=_ANALYSIS,
    training=lazy_registered("goals", "bandit:goal"),
    report=Reporting(looks=read_tables(Path(__file__).with_name("looks.toml"))),
)
