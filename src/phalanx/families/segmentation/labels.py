"""What the numbers in a label map mean."""

VOID = 255  # the label of pixels that losses and metrics ignore
