"""A trained network outside training: export, prediction, reading pages, serving. Imports engine and the rooms below it."""
