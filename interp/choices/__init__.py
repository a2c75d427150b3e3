"""Recorded choices: which algorithms explain them, and does a network choose in the same way?

A *player* is whoever made the choices: a person, a language model or a network. A *family* is a
set of algorithms that differ only in their parameters.

* ``explain``: find the families that explain a player's choices
  (:func:`~interp.choices.explain.explain_choices`);
* ``scoring``: the cross-validated loss of each family;
* ``predictive``: compare a player's statistics with those of simulated players of a family;
* ``fitting``, ``optimum``: fit a family's parameters, to one player or to many at once;
* ``link``: from a predicted distribution to choices, with a temperature and a lapse rate;
* ``offers``: choices where only some of the options are available in a round;
* ``players``: explain the choices of each participant separately;
* ``recovery``: simulate players of known algorithms, and test whether the fits find them;
* ``portrait``: how much one round changes the log-odds of a choice;
* ``behaviour``: explain the choices of language models that predict with expert advice;
* ``recorded``: small recurrent networks that are fitted to recorded choices.
"""
