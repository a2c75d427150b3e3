"""The training goals of the tasks that come with the package, one module per task."""
