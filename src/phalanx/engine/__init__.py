"""Training and evaluation: loop, step, loader, optimizers, run folders. Imports report, weights, families and rooms below."""
