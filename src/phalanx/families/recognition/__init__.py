"""Recognition: the text of an image of one line."""
