"""ADE20K, the scene parsing benchmark of 2016: 20210 training and 2000 evaluation images (Zhou et al., CVPR 2017)."""

from pathlib import Path

from phalanx.data.samples import Split
from phalanx.families.segmentation.data.pairs import Pairs, label_table, list_stems
from phalanx.families.segmentation.labels import VOID

CLASSES = tuple(  # the first name of each of the 150 classes of the official list, in its order
    """wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person, earth, door, table,
    mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field, armchair, seat, fence,
    desk, rock, wardrobe, lamp, bathtub, railing, cushion, base, box, column, signboard, chest of drawers, counter, sand, sink,
    skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table, pillow, screen door, stairway,
    river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench, countertop, stove, palm, kitchen island,
    computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel, light, truck, tower, chandelier, awning, streetlight,
    booth, television receiver, airplane, dirt track, apparel, pole, land, bannister, escalator, ottoman, bottle, buffet,
    poster, stage, van, ship, fountain, conveyer belt, canopy, washer, plaything, swimming pool, stool, barrel, basket,
    waterfall, tent, bag, minibike, cradle, oven, ball, food, step, tank, trade name, microwave, pot, animal, bicycle, lake,
    dishwasher, screen, blanket, sculpture, hood, sconce, vase, traffic light, tray, ashcan, fan, pier, crt screen, plate,
    monitor, bulletin board, shower, radiator, glass, clock, flag""".replace('\n    ', ' ').split(', ')
)


class ADE20K:
    """ADE20K in the layout of the archive ADEChallengeData2016: images/{training,validation}/*.jpg, annotations/.../*.png.

    Annotation values 1 to 150 become 0 to 149; 0 (other objects) becomes void.
    """

    def __init__(self, *, root: Path) -> None:
        self.root, self.class_names = root, CLASSES

    def split(self, split: Split) -> Pairs:
        folder = 'training' if split == 'train' else 'validation'
        stems = list_stems(self.root / 'images' / folder, '*.jpg')
        # Images and label maps share their stems.
        pairs = [(f'images/{folder}/{stem}.jpg', f'annotations/{folder}/{stem}.png') for stem in stems]
        return Pairs(self.root, pairs, label_table({0: VOID} | {label + 1: label for label in range(len(CLASSES))}))
