"""Where does a variable live: at which sites, in a form that the rest of the round uses?

Asked of every site of the hook points at which a variable is known to be held. Sites further along or beside these are
asked for, too, where they are positions of the same hook: what merely could be decoded there is false.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer
from circuits.benchmark.question import Question, Truth
from circuits.benchmark.scores import ranking
from circuits.benchmark.subject import Subject
from interp.algorithm import Values
from interp.interventions.places import Place
from interp.interventions.sites import Site


def variables(subject: Subject, material: Material) -> Values:
    """The algorithm's variables on the material's larger batch of episodes, ``[episode, round, ...]``."""
    episodes = material.episodes(1, material.effort.fits)
    return material.once("variables", lambda: subject.algorithm.run(episodes))


def held(subject: Subject, material: Material) -> dict[str, tuple[Place, ...]]:
    """Variable -> the places of the residual stream that hold it; variables that never vary are left out."""
    values = variables(subject, material)
    found = {}
    for key, several in subject.places.items():
        inside = tuple(place for place in several if place.site.kind.axes == "pos")
        if inside and key in values and np.ptp(values[key].astype(np.float64)) > 0:
            found[key] = inside
    return found


def truth(subject: Subject, material: Material) -> Truth:
    """Every (variable, site): "held" where the variable is."""
    layout = subject.model.layout.fit(material.episodes())
    found: dict[Hashable, str] = {}
    for key, several in held(subject, material).items():
        true = {str(place.site) for place in several}
        for component, layer in dict.fromkeys((place.site.component, place.site.layer) for place in several):
            for label in layout.labels:
                site = str(Site(component, layer, position=label))
                found[key, site] = "held" if site in true else ""
    return found


def grade(subject: Subject, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking of sites that hold a variable above sites that do not."""
    return ranking(material.truth("where"), answer, "held")


QUESTION = Question(
    key="where",
    name="where variables live",
    asked="At which sites of the residual stream is a variable held in a form that the rest of the round uses?",
    true="The construction's locations; of trained subjects the sites that interchanges tied.",
    scored="Sites that hold a variable against other positions of the same hook points, over all variables.",
    headline="ap",
    truth=truth,
    grade=grade,
)
