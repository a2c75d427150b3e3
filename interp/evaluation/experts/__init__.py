"""What is measured of models of expert advice: regret, regimes, long episodes."""
