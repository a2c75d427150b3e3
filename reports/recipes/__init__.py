"""What the report on a model of each task holds: one driver per task, which reads like the method."""
