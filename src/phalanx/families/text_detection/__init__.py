"""Text detection: finds the texts of an image as polygons."""
