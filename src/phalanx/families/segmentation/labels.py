"""What the numbers in a label map mean."""

VOID = 255  # the label of pixels that are not judged, neither by losses nor by metrics
