"""Trains and evaluates: loop, step, loader, optimizers, run folders. Imports report, weights, families and what is below."""
