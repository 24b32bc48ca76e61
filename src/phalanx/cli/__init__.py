"""The commands, one file each, found by `main`. Imports any room; no room imports it."""
