"""What is measured of models of Q-learning: agreement with the table, the rates in what they carry, returns."""
