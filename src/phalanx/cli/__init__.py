"""The commands, each a file or a folder that `main` finds. Imports any room; no room imports it."""
