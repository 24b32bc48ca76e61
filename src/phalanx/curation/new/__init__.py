"""`phalanx new DIR`: from a folder of images, and whatever annotates them, to a recipe that trains on them."""
