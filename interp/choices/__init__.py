"""Recorded choices: which family of algorithms explains them, at which parameters, and whether a network does the same.

* ``explain``: which algorithm explains the choices of a player, or of a language model
  (:func:`~interp.choices.explain.behaviour`);
* ``players``: the same for each participant, recovery of families and parameters, phase portraits;
* ``fitting``, ``link``: a family's parameters, and from its predictions to the choices of somebody who errs;
* ``recorded``: small recurrent cells that are fitted to recorded choices.
"""
