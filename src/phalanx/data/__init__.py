"""Images, samples and batches before a family gives them meaning. Imports parallel, config, system."""
