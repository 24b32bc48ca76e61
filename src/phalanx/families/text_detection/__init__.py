"""Text detection: where on an image there is text, as polygons."""
