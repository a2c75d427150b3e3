"""Statistics grouped by episode: intervals, affine decoders, refits that resample the fit as well as the test."""
