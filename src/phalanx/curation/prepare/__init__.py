"""Readers of annotation formats, and writers of data sets made from them.

To add a format, add a file with its reader and a line in FORMATS (formats.py). Readers do not trust annotation files: paths
must stay in the folder, sizes must match the images, and what cannot be used is reported with file, number and label.
"""
