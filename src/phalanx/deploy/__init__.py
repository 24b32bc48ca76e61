"""A trained network outside training: export, prediction, reading pages, serving. Imports engine and rooms below it."""
