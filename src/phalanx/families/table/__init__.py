"""Table structure recognition: the HTML of the table in an image, and the box of each of its cells."""
