"""Text recognition: reads the text of an image that shows one line."""
