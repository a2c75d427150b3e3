"""Statistics in which episodes are the independent units: bootstrap intervals, affine decoders,
scores of cross-validated fits, and model confidence sets.
"""
