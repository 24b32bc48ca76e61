"""Takes a trained network out of training: export, prediction. Imports engine and what is below it."""
