"""Proteins: amino-acid chains with labels. `data` reads them, one file per model family, `demo` what a package ships."""
