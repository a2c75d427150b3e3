"""The task of directed reachability by continuous thought (Zhu et al., arXiv 2505.12514).

    >>> from interp.tasks import reachability
    >>> episodes = reachability.sample(n_episodes=4, n_rounds=5, n_nodes=16, n_edges=24, regime="matched", seed=0)
    >>> episodes.edges.shape, sorted(episodes.depths.tolist())
    ((4, 24, 2), [1, 2, 3, 4])

Handwired models are in the package ``circuits``, figures in ``reports``.
"""

from pathlib import Path

from interp.core.task import Algorithms, Analysis, Data, Reporting, Size, Task
from interp.support.files import read_tables
from interp.support.lazy import lazy, lazy_functions, lazy_registered
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.sampling import REGIMES, sample

__all__ = ["REGIMES", "TASK", "ReachabilityEpisodes", "sample"]

_DATA = Data(
    layout=lazy("interp.tasks.reachability.layout:ReachabilityRound"),
    sample=sample,
    losses=lazy("interp.tasks.reachability.analysis:losses"),
    sizes=(
        Size("n_nodes", "nodes", "number of node names", minimum=4, default=16),
        Size("n_edges", "edges", "length of the list of edges", minimum=3, default=24),
    ),
    regimes=lambda: {regime.key: regime.name for regime in REGIMES.values()},
    rounds=6,
    first_asked=1,
)
_ALGORITHMS = Algorithms(
    **lazy_functions("interp.tasks.reachability.algorithms", "records", "families"),
    hypothesis=lazy("interp.tasks.reachability.analysis:hypothesis"),
    battery=lazy("interp.tasks.reachability.sampling:battery"),
)
_ANALYSIS = Analysis(
    **lazy_functions(
        "interp.tasks.reachability.analysis",
        "round_inputs",
        "corruptions",
        "aligned",
        "claims",
        "steering",
    ),
    probed=("reached", "member", "prediction"),
    default_corruption="exchange-history",
)
TASK = Task(
    key="reachability",
    name="reachability",
    what="say which of two nodes of a directed graph can be reached from its root",
    data=_DATA,
    algorithms=_ALGORITHMS,
    analysis=_ANALYSIS,
    training=lazy_registered("goals", "reachability:goal"),
    evaluation=lazy_registered("evaluation", "reachability:plan"),
    report=Reporting(looks=read_tables(Path(__file__).with_name("looks.toml"))),
)
