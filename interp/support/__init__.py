"""What every room stands on and that knows nothing of machines: errors, checks of input, files,
lazy imports, sessions."""
