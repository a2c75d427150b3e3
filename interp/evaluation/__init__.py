"""What a model is worth, as frozen results with intervals, controls and provenance.

In this room: :mod:`~interp.tasks.experts.evaluation.by_regime` (regimes by predictors), :mod:`~interp.tasks.experts.evaluation.lengths` (episodes
longer than training's), :mod:`~interp.evaluation.controls` (what the latent is needed for),
:mod:`~interp.evaluation.attention` (what attention is paid to), :mod:`~interp.tasks.qlearning.evaluation.by_regime` (agreement with
tabular Q-learning, cross-entropy, effective rates), :mod:`~interp.tasks.qlearning.evaluation.playing` (what a model earns when it acts),
:mod:`~interp.evaluation.suite` (all of it for one model, as tables). Not in this room: the inside of a model
(``probes``, ``interp.interventions``), handwired against learned (``circuits.compare``), pictures (``reports``).
"""
