"""Pictures: class folders, given train/test folders, or a table of paths."""
