"""Tables: columns of numbers, categories and dates with one target column."""
