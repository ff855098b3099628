"""Text: documents and the models that read and write them."""
