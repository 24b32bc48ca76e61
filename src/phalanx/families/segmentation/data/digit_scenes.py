"""Synthetic digit scenes that come with the package, drawn on demand; pixels of ink have the class of their digit."""

from phalanx.data.image import LabelMap
from phalanx.families.segmentation.labels import VOID
from phalanx.synthetic import scenes

assert scenes.EDGE == VOID  # pixels between ink and background are ignored


class DigitScenes(scenes.DigitScenes):
    """Digit scenes with label maps: background and ten digits."""

    class_names = ('background', *scenes.DIGITS)

    def truth(self, scene: scenes.Scene) -> LabelMap:
        return scene.labels
