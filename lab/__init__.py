"""What measures the toolkit itself: it stands beside the packages, is not installed, and no package imports it.

    python -m lab calibrate --quick                          # from the root of a checkout

* :mod:`lab.known`: machines of which it is known what a comparison with their reference must say;
* the tables that ``calibrate`` writes: :mod:`lab.probing` (coverage, nulls and power of probes, on the
  :mod:`lab.designs`), :mod:`lab.interchanges` (sites, alignment, known machines), :mod:`lab.deciding` and
  :mod:`lab.resolution`;
* :mod:`lab.tied_training` (by :mod:`lab.recipes`, with :mod:`lab.tying`) and :mod:`lab.taught_training`: how the
  benchmark's trained subjects, ``wma-tied`` and ``qlearning-taught`` were made.
"""
