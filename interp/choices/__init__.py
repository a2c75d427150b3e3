"""Recorded choices: which families of algorithms explain them, at which parameters, and does a network do the same?

* ``explain``: the families that explain the choices of a player (:func:`~interp.choices.explain.explain_choices`);
* ``scoring``, ``predictive``: what each family loses on choices that it was not fitted to, and whether its simulated
  players choose like the player;
* ``fitting``, ``link``: a family's parameters, and from its predictions to the choices of somebody who errs;
* ``players``, ``recovery``, ``portrait``: each participant, simulated players of known algorithm, phase portraits;
* ``behaviour``: language models among experts;
* ``recorded``: small recurrent cells that are fitted to recorded choices.
"""
