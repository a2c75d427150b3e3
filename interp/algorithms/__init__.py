"""Reference algorithms and baselines, vectorised over episodes in NumPy. No model lives here."""
