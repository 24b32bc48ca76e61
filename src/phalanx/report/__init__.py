"""Output of a run for users: console, page, charts. Imports families, system."""
