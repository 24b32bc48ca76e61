"""Data sets of detection: each tells its classes and gives a Source of images with boxes for each split.

To add one: a file here with a class whose keyword-only parameters are the options of `data:` in a recipe, and a line in DATA.
To construct it reads no more than the names of the classes, so that a trained run works where its images are not; `split` reads
the annotations and the Source's `check_files` looks for every file, so that what is missing or malformed is reported before
training starts.
"""

from phalanx.families.detection.data.coco import CocoJson, Objects365
from phalanx.families.detection.data.digit_scenes import DigitScenes
from phalanx.families.detection.data.source import Data, Objects, Source
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.detection.data.yolo import YoloText

DATA = {
    'digit_scenes': DigitScenes,
    'coco': CocoJson,
    'objects365': Objects365,
    'pascal_voc': PascalVOC,
    'yolo': YoloText,
}

__all__ = ['DATA', 'Data', 'Objects', 'Source']
