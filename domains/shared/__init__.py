"""Readers, heads and encoders that several data types use."""
