"""Backbones: networks that turn images into feature maps of falling size, used by more than one family."""

from phalanx.nn.backbones.stdc import stdc1, stdc2

BACKBONES = {'stdc1': stdc1, 'stdc2': stdc2}
