"""Data sets made of annotations as tools write them.

To add a kind: a file here with its reader, and a line in FORMATS (formats.py). Readers trust nothing in the files that they are
given: paths lead nowhere else, sizes are those of the images, and what cannot be used is reported with file, number and label.
"""
