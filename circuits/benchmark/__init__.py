"""Methods of interpretability, graded on machines whose insides are known."""
