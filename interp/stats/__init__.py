"""Statistics with the episode as the unit: intervals, affine decoders and scores of refitted
decoders.
"""
