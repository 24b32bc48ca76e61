"""Losses of text detection: called with the maps of a network in training and their targets, they give named Terms."""

from phalanx.families.text_detection.loss.db_loss import DbLoss

LOSSES = {'db': DbLoss}
