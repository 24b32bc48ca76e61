"""What `phalanx data` does: checks, shows, prepares and rewrites data sets."""
