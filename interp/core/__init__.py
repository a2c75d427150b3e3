"""Defines what an algorithm, a machine and a task are; looks tasks up by name; shows results."""
