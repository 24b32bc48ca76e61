"""Segmentation losses: callables of logits [B, K, H, W], labels [B, H, W] and the whole step; they return a Term."""

from phalanx.families.segmentation.loss.pixel_loss import PixelLoss as PixelLoss
from phalanx.families.segmentation.loss.terms import LOSSES as LOSSES
from phalanx.families.segmentation.loss.terms import Mixed as Mixed
