"""What is measured of models of expert advice: regret, calibration, regimes, long episodes."""
