"""What the data is: one folder per data type, all of the same shape (see `domains.contract`)."""
