"""What a model is worth, as frozen results with intervals, controls and provenance.

In this room: :mod:`~interp.evaluation.experts` (regimes by predictors), :mod:`~interp.evaluation.lengths` (episodes
longer than training's), :mod:`~interp.evaluation.controls` (what the latent is needed for),
:mod:`~interp.evaluation.attention` (what attention is paid to), :mod:`~interp.evaluation.qlearning` (agreement with
tabular Q-learning, cross-entropy, effective rates), :mod:`~interp.evaluation.play` (what a model earns when it acts),
:mod:`~interp.evaluation.suite` (all of it for one model, as tables). Not in this room: the inside of a model
(``probes``, ``interp.interventions``), handwired against learned (``circuits.compare``), pictures (``reports``).
"""
