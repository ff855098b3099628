"""Protein sequences for every data type that reads them: letters, relatives, and the ESM-2 encoder with its weights."""
