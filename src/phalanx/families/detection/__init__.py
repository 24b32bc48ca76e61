"""Detection: boxes around the objects of an image, and what they are."""
