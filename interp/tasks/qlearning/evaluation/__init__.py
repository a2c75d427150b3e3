"""What models of Q-learning are worth: agreement with the table, effective rates, returns when they act.

    >>> from interp.tasks.qlearning.evaluation import plan
    >>> plan().theory is None
    True

``by_regime`` (agreement with tabular Q-learning and its controls), ``discount`` (the discount that choices follow),
``tables`` (the table in the latents, and its rates), ``playing`` (what a model earns), ``parts`` (all tables),
``headline`` (the model card's rows).
"""

from interp.evaluation.record import EvaluationPlan

__all__ = ["plan"]


def plan() -> EvaluationPlan:
    """What ``interp evaluate`` measures of a model of Q-learning; tables are decoded by five folds of three sizes."""
    from interp.tasks.qlearning.evaluation import headline, parts

    return EvaluationPlan(parts.parts, parts.measure, parts.tables, headline.rows, min_episodes=30)
