"""Stretches of DNA and RNA with labels."""
