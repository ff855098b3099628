"""Scans of patients: CT, MR and others as NIfTI volumes with masks."""
