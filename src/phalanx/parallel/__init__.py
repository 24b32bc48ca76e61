"""What ranks do together: exchanges, gradients, batch norm, sums over a step, heartbeats. Imports system."""
