"""The task of prediction with expert advice (paper, section 3).

    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=2, n_rounds=5, n_experts=4, regime="uniform", seed=0)
    >>> episodes.advice.shape, episodes.labels.shape
    ((2, 5, 4), (2, 5))

Handwired models are in the package ``circuits``, figures in ``reports``.
"""

from pathlib import Path

from interp.core.task import Algorithms, Analysis, Data, Reporting, Size, Task
from interp.support.files import read_tables
from interp.support.lazy import lazy, lazy_functions, lazy_registered
from interp.tasks.experts.episodes import ExpertEpisodes, read, sample
from interp.tasks.experts.regimes import REGIMES, Bounds, ExpertRegime, get_regime

__all__ = [
    "REGIMES",
    "TASK",
    "Bounds",
    "ExpertEpisodes",
    "ExpertRegime",
    "get_regime",
    "read",
    "sample",
]

_DATA = Data(
    layout=lazy("interp.tasks.experts.layout:ExpertRound"),
    sample=sample,
    read=read,
    losses=lazy("interp.tasks.experts.analysis:losses"),
    sizes=(Size("n_experts", "experts", "number of experts", minimum=1, default=4),),
    regimes=lambda: {regime.name: regime.description for regime in REGIMES.values()},
)
_ALGORITHMS = Algorithms(
    records=lazy("interp.tasks.experts.algorithms:records"),
    hypothesis=lazy("interp.tasks.experts.analysis:hypothesis"),
    families=lazy("interp.tasks.experts.families:families"),
    battery=lazy("interp.tasks.experts.episodes:battery"),
)
_ANALYSIS = Analysis(
    **lazy_functions(
        "interp.tasks.experts.analysis",
        "round_inputs",
        "corruptions",
        "aligned",
        "claims",
        "steering",
    ),
    probed=("log_weights_centred", "counts", "evidence", "prediction", "match", "label"),
    default_corruption="exchange-history",
)
TASK = Task(
    key="experts",
    name="expert advice",
    what="predict a label from the advice of experts whose accuracies are unknown",
    data=_DATA,
    algorithms=_ALGORITHMS,
    analysis=_ANALYSIS,
    training=lazy_registered("goals", "experts:goal"),
    evaluation=lazy_registered("evaluation", "experts.plan:plan"),
    report=Reporting(looks=read_tables(Path(__file__).with_name("looks.toml"))),
)
