"""Recipes, from YAML text to checked settings, and arguments shared by commands. Imports system."""
