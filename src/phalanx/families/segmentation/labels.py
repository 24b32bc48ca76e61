"""Special values of label maps."""

VOID = 255  # the label of pixels that losses and metrics ignore
