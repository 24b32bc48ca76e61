"""What a segmentation data set gives: a Data names the classes and the splits, a Source reads the samples of one split."""

from phalanx.data import samples
from phalanx.data.image import LabelMap

Source = samples.Source[LabelMap]  # label maps [H, W]: class ids, VOID where pixels are ignored
Data = samples.DataOfClasses[Source]
