"""The data set that comes with the package: digit scenes, drawn on demand, with a box per digit."""

from phalanx.families.detection.data.source import Objects
from phalanx.synthetic import scenes


class DigitScenes(scenes.DigitScenes):
    def truth(self, scene: scenes.Scene) -> Objects:
        return Objects.plain(scene.boxes, scene.classes)
