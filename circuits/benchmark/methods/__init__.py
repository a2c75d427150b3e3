"""One file for each method, or for a few that share their work."""
