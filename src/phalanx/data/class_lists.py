"""Classes of public data sets, for their data sets in recipes and for `phalanx new`, which knows their files by name."""

CITYSCAPES_CLASSES = {  # name -> number in `labelIds` files, for the 19 classes of the benchmark; other numbers are void
    'road': 7,
    'sidewalk': 8,
    'building': 11,
    'wall': 12,
    'fence': 13,
    'pole': 17,
    'traffic light': 19,
    'traffic sign': 20,
    'vegetation': 21,
    'terrain': 22,
    'sky': 23,
    'person': 24,
    'rider': 25,
    'car': 26,
    'truck': 27,
    'bus': 28,
    'train': 31,
    'motorcycle': 32,
    'bicycle': 33,
}
ADE20K_CLASSES = tuple(  # the first name of each of the 150 classes of the official list, in its order
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
