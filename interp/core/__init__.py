"""What an algorithm, a machine and a task are, the catalogue that finds them by name, and how records are shown."""
