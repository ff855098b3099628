"""Molecules as a data type: see `data`."""
