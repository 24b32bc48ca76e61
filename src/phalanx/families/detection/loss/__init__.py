"""Detection losses: callables that judge what `decode.Raw` says by the true boxes of each image."""

from phalanx.families.detection.loss.task_aligned import TaskAlignedLoss

LOSSES = {'task_aligned': TaskAlignedLoss}
