"""What every room needs, independent of machines: errors, checks of input, files,
lazy imports, sessions.
"""
