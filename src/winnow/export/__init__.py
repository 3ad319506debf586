"""A trained model as a file for other programs."""
