"""Types of recognition data sets: a Data makes the splits, a Source reads the samples of one split."""

from phalanx.data import samples
from phalanx.data.samples import Image

TextImage = tuple[Image, str]  # [H, W, 3] RGB, and its text
Source = samples.Source[str]
Data = samples.Data[Source]
