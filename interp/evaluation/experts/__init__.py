"""Measurements for models of expert advice: regret, regimes, long episodes."""
