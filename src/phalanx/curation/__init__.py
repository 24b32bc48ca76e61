"""Data sets: checking, preparing, rewriting, and a recipe for a folder of data. Imports bench, engine and what is below."""
