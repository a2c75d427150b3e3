"""What an analysis returns: measures with their verdicts, and figures in the house style."""
