"""Shows a person what a run does: console, page, charts. Imports families, system."""
