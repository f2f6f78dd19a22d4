"""The pytest plugin (being written)."""
