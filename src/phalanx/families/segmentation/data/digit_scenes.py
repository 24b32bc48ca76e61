"""The data set that comes with the package: digit scenes, drawn on demand. Every pixel of ink is its digit."""

from phalanx.data.image import LabelMap
from phalanx.families.segmentation.labels import VOID
from phalanx.synthetic import scenes

assert scenes.EDGE == VOID  # pixels between ink and background are ignored


class DigitScenes(scenes.DigitScenes):
    class_names = ('background', *scenes.DIGITS)

    def truth(self, scene: scenes.Scene) -> LabelMap:
        return scene.labels
