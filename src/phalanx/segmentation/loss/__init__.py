"""Losses of segmentation: called with logits [B, K, H, W], labels [B, H, W] and the step they belong to, they give a Term."""

from phalanx.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.segmentation.loss.ohem import OhemCrossEntropy

LOSSES = {'cross_entropy': CrossEntropy, 'ohem': OhemCrossEntropy}
