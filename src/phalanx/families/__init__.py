"""The vision tasks, siblings with the same files, and their seam to the engine. Imports nn, data, parallel, config, system."""
