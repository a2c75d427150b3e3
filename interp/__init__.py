"""Run transformers that carry latent tokens from round to round, look inside them, and intervene.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=4)
    >>> interp.rollout(model, experts.sample(n_episodes=2, n_rounds=5, n_experts=4)).predictions.shape
    torch.Size([2, 5])

:func:`load` opens a shipped or saved model, and :func:`adapt` wraps your module. :func:`rollout`
runs a model over recorded episodes; :func:`play` lets the model's choices act in the task. Each
task has a package in ``interp.tasks``. Importing ``interp`` does not import torch. Progress is
logged to the logger "interp"; ``logging.basicConfig(level="INFO")`` shows it.
"""

import logging
import warnings

from interp.support.lazy import defer_import, facade, register_modules, warn_of_other_copies

__version__ = "0.2.0"

logging.getLogger("interp").addHandler(logging.NullHandler())
for sentence in warn_of_other_copies():
    warnings.warn(sentence, stacklevel=2)

# Of transformer_lens we use some modules; its __init__ imports tokenizers, data sets and pytest.
defer_import("transformer_lens", "transformer_lens.utilities", "transformer_lens.tools.analysis")

register_modules(
    tasks="interp.tasks", circuits="circuits.registry", learners="interp.machines.learners"
)
register_modules(
    evaluation="interp.evaluation",
    goals="interp.training.goals",
    task_checks="interp.model.task_checks",
)
register_modules(rollouts="interp.model.rollout")

__getattr__, __dir__, __all__ = facade(__name__)
