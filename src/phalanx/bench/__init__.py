"""Measurements of training, its parts and its scaling, and a plan for more nodes. Imports launch, engine and what is below."""
