"""Fixtures of the repository itself."""
