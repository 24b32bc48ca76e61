"""Measures training, its parts and its scaling, and predicts what more nodes would bring."""
