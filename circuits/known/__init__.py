"""Known machines: models of which it is known what a comparison with their reference must, and must not, say.

    from circuits import known
    known.gallery("experts")                                 # every specimen of a task
    known.reference("experts")                               # the machine that all of them are held against

A :class:`Specimen` is made by editing a circuit, from an algorithm, or by training. It says which words about it are
right, and why; half of them were not looked at while thresholds were chosen. ``interp calibrate`` runs all of them.
"""

from circuits.known.specimen import Right, Specimen

__all__ = ["Right", "Specimen"]
