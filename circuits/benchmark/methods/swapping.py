"""Interchange of whole activations: does setting a site to another episode's move the outcome as the variable would?

The score of a variable at a site is the cosine between how the outcome moved and how it moves in the algorithm when the
variable is set, over all pairs; the larger one of the prediction and of the state that the round leaves. A site that
carries other things as well moves the outcome elsewhere, too, and is scored lower: nothing is known of subspaces here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from circuits.benchmark.material import Material
from circuits.benchmark.method import Answer, Method, register
from circuits.benchmark.questions.where import variables
from circuits.benchmark.subject import Subject
from interp.algorithm import NEXT
from interp.decoder import RIDGE, Decoder
from interp.interventions.interchange import interchange

OUTCOMES = ("prediction", "state")


def interchanged(subject: Subject, material: Material) -> Answer:
    """The best cosine over both outcomes, for every variable and site that is asked for."""
    decode = None if subject.model.is_handwired else material.once("state decoder", lambda: _reader(subject, material))
    (base, source), runs = (material.episodes(2), material.episodes(3)), (material.run(2), material.run(3))
    outcomes = OUTCOMES if subject.algorithm.written else OUTCOMES[:1]
    scores = {}
    for key, site in material.items("where"):
        found = [
            interchange(
                subject.model, base, source, subject.algorithm, key, site, outcome=outcome, decode=decode, runs=runs
            )
            for outcome in outcomes
        ]
        scores[key, site] = max(_cosine(one.effect, one.wanted) for one in found)
    return Answer(scores)


def _reader(subject: Subject, material: Material) -> Callable[[Tensor], Tensor]:
    """A fitted decoder of the algorithm's state, for models without an exact one."""
    run, key = material.run(1, material.effort.fits), subject.algorithm.state[0]
    held = run.layout.per_latent(torch.from_numpy(np.asarray(variables(subject, material)[NEXT + key], np.float64)))
    decoder = Decoder.fit(run.latents[:, 1:], held, ridge=RIDGE, per_latent=run.layout.n_latents > 1)

    def read(latents: Tensor) -> Tensor:
        return run.layout.state(decoder(latents))

    return read


def _cosine(effect: np.ndarray, wanted: np.ndarray) -> float:
    size = float(np.linalg.norm(effect) * np.linalg.norm(wanted))
    return float((effect * wanted).sum()) / size if size > 1e-9 else 0.0


register(Method("interchange", "interchange of whole activations", "where", interchanged, quick=False))
