"""Backbones: networks that turn images into feature maps of falling size, used by more than one family."""
