"""What models of expert advice are worth: by regime, in long episodes, without their latent.

    >>> from interp.tasks.experts.evaluation import plan
    >>> plan().min_episodes
    30

``by_regime`` (scores beside every baseline), ``lengths`` (episodes longer than training's), ``latent`` (what the latent
is needed for), ``attention`` (what is paid to each expert), ``appendix_b`` (the theory, on a model's own predictions),
``parts`` (all tables), ``headline`` (the model card's rows).
"""

from interp.evaluation.plan import EvaluationPlan

__all__ = ["plan"]


def plan() -> EvaluationPlan:
    """What ``interp evaluate`` measures of a model of expert advice."""
    from interp.tasks.experts.evaluation import appendix_b, headline, parts

    return EvaluationPlan(parts.parts, parts.measure, parts.tables, headline.rows, appendix_b.checks, min_episodes=30)
