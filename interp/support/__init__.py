"""Helpers that every package uses: errors, input checks, file access, lazy imports and sessions."""
