"""Losses of segmentation: called with logits [B, K, H, W], labels [B, H, W] and the step they belong to, they give a Term."""

from phalanx.families.segmentation.loss.pixel_loss import PixelLoss as PixelLoss
from phalanx.families.segmentation.loss.terms import LOSSES as LOSSES
from phalanx.families.segmentation.loss.terms import Mixed as Mixed
