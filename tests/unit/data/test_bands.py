"""Images of other bands than RGB of 8 bits: reading, augmenting, networks, and a run from training to the exported file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
import yaml

import phalanx
from phalanx.data.bands import Bands, find_bands, to_rgb
from phalanx.data.batch import channels_first, normalise_images
from phalanx.data.colour import ColourDistortion, scale_brightness, scale_contrast
from phalanx.data.samples import SampleError
from phalanx.families.detection import transforms as of_boxes
from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.models import MODELS as DETECTORS
from phalanx.families.segmentation import transforms as of_masks
from phalanx.families.segmentation.models import MODELS as SEGMENTERS
from phalanx.nn.layers import set_input_channels
from phalanx.runtime import load
from phalanx.runtime.prepare import normalise
from phalanx.weights.matching import Fit, Naming, Slot
from running import run_here

Pixels = np.ndarray[Any, Any]


def random_image(count: int, bits: int, height: int = 40, width: int = 60) -> Pixels:
    return np.random.default_rng(0).integers(0, 2**bits, (height, width, count)).astype(f'uint{bits}')


@pytest.fixture
def tifffile() -> Any:
    return pytest.importorskip('tifffile')


def test_files_of_up_to_four_bands_are_read_as_pillow_wrote_them(tmp_path: Path) -> None:
    grey, colours = random_image(1, 16), random_image(4, 8)
    PIL.Image.fromarray(grey[..., 0]).save(tmp_path / 'grey.png')
    PIL.Image.fromarray(colours, 'RGBA').save(tmp_path / 'colours.png')
    PIL.Image.fromarray(colours[..., :3]).save(tmp_path / 'colours.webp', lossless=True)
    assert (Bands(count=1, bits=16).read(tmp_path / 'grey.png') == grey).all()
    assert (Bands(count=4).read(tmp_path / 'colours.png') == colours).all()
    assert (Bands(count=3).read(tmp_path / 'colours.webp') == colours[..., :3]).all()


def test_bands_of_a_tiff_file_may_be_in_pixels_planes_or_pages(tmp_path: Path, tifffile: Any) -> None:
    image = random_image(5, 16)
    planes = image.transpose(2, 0, 1)
    tifffile.imwrite(tmp_path / 'pixels.tif', image, photometric='minisblack', planarconfig='contig')
    tifffile.imwrite(tmp_path / 'planes.tif', planes, photometric='minisblack', planarconfig='separate')
    tifffile.imwrite(tmp_path / 'pages.tif', planes, photometric='minisblack')
    tifffile.imwrite(tmp_path / 'compressed.tif', image, photometric='minisblack', planarconfig='contig', compression='zlib')
    tifffile.imwrite(tmp_path / 'big.tif', image, photometric='minisblack', planarconfig='contig', bigtiff=True)
    for file in sorted(tmp_path.iterdir()):
        assert (Bands(count=5, bits=16).read(file) == image).all(), file


def test_a_tiff_file_is_turned_upright(tmp_path: Path, tifffile: Any) -> None:
    image = random_image(5, 8)
    tifffile.imwrite(
        tmp_path / 'turned.tif', image, photometric='minisblack', planarconfig='contig', extratags=[(274, 'H', 1, 6, True)]
    )
    assert (Bands(count=5).read(tmp_path / 'turned.tif') == np.rot90(image, -1)).all()  # 6: turn by 90 degrees clockwise


def test_files_of_other_bands_or_bits_are_refused(tmp_path: Path, tifffile: Any) -> None:
    PIL.Image.fromarray(random_image(3, 8)).save(tmp_path / 'rgb.png')
    with pytest.raises(SampleError, match=r'rgb\.png: has 3 bands of 8 bits, but data\.bands is count: 4, bits: 16'):
        Bands(count=4, bits=16).read(tmp_path / 'rgb.png')
    tifffile.imwrite(tmp_path / 'floats.tif', np.zeros((40, 60), np.float32))
    with pytest.raises(SampleError, match='values of type float32; convert them to integers of 8 or 16 bits'):
        Bands(count=1).read(tmp_path / 'floats.tif')
    tifffile.imwrite(
        tmp_path / 'volume.tif', np.zeros((2, 5, 40, 60), np.uint8), photometric='minisblack', metadata={'axes': 'ZCYX'}
    )
    with pytest.raises(SampleError, match=r'ZCYX of sizes \[2, 5, 40, 60\], which are not bands of one image'):
        Bands(count=10).read(tmp_path / 'volume.tif')
    data = (tmp_path / 'rgb.png').read_bytes()
    (tmp_path / 'short.png').write_bytes(data[:-40])
    with pytest.raises(SampleError, match='cut off'):
        Bands(count=3).read(tmp_path / 'short.png')


def test_options_of_bands_are_checked() -> None:
    with pytest.raises(ValueError, match='count must lie between 1 and 16, got 17'):
        Bands(count=17)
    with pytest.raises(ValueError, match=r'shown names 1 or 3 of the bands 1 to 4, got \[5, 1, 2\]'):
        Bands(count=4, shown=(5, 1, 2))


def test_pictures_show_the_chosen_bands() -> None:
    image = random_image(4, 8)
    assert (to_rgb(image, Bands(count=4, shown=(4, 2, 1))) == image[..., [3, 1, 0]]).all()
    assert (to_rgb(image[..., :2], Bands(count=2)) == image[..., [0, 0, 0]]).all()
    dark = np.linspace(1000, 1100, 101).astype(np.uint16).reshape(1, 101, 1)  # 12 bits would be black in 8 of 16
    shown = to_rgb(dark, Bands(count=1, bits=16))
    assert (shown.min(), shown.max(), shown[0, 50, 0]) == (0, 255, 128)  # the median lies in the middle, 127.5


GEOMETRY: dict[str, Callable[[Pixels, np.random.Generator], Pixels]] = {
    **{
        f'masks, {type(transform).__name__}': lambda image, rng, own=transform: own(
            image, np.zeros(image.shape[:2], np.uint8), rng
        )[0]  # type: ignore[misc]
        for transform in (
            of_masks.Resize(target_size=(30, 50)),
            of_masks.Padding(target_size=(64, 64)),
            of_masks.RandomPaddingCrop(crop_size=(50, 50)),
            of_masks.RandomFlip(probability=1),
            of_masks.RandomVerticalFlip(probability=1),
            of_masks.RandomRotation(),
            of_masks.RandomBlur(probability=1, kind='gaussian'),
        )
    },
    **{
        f'boxes, {name}': lambda image, rng, own=transform: own(image, objects(), context(image, rng))[0]  # type: ignore[misc]
        for name, transform in {
            'mosaic': of_boxes.Mosaic(target_size=(48, 48)),
            'mix_up': of_boxes.MixUp(),
            'copy_paste': of_boxes.CopyPaste(probability=1),
            'crop': of_boxes.RandomCrop(),
            'window': of_boxes.RandomWindow(target_size=(64, 64)),
            'flip': of_boxes.RandomFlip(probability=1),
            'area': of_boxes.Resize(target_size=(20, 30), interpolation='area'),
            'lanczos': of_boxes.Resize(target_size=(60, 90), interpolation='lanczos4'),
        }.items()
    },
}


def objects() -> Objects:
    return Objects.plain(np.array([[5, 5, 30, 25]], np.float32), np.zeros(1, np.int64))


def context(image: Pixels, rng: np.random.Generator) -> of_boxes.TransformContext:
    return of_boxes.TransformContext(rng, lambda: rng, lambda: (image[::-1].copy(), objects()))


@pytest.mark.parametrize('bits', [8, 16])
@pytest.mark.parametrize('name', GEOMETRY)
def test_transforms_do_to_every_band_what_they_do_to_one(name: str, bits: int) -> None:
    image = cv2.GaussianBlur(random_image(6, bits), (0, 0), 3)
    together = GEOMETRY[name](image, np.random.default_rng(1))
    assert together.dtype == image.dtype
    for band in range(6):
        alone = GEOMETRY[name](image[..., band : band + 1].copy(), np.random.default_rng(1))
        # OpenCV takes positions between pixels with another precision for several bands.
        assert np.abs(together[..., band].astype(int) - alone[..., 0]).max() <= 2**bits / 100


def test_padding_of_16_bits_is_the_grey_of_8_bits() -> None:
    padding = of_masks.Padding(target_size=(41, 61))
    small, large = (padding(random_image(2, bits), np.zeros((40, 60), np.uint8), None)[0] for bits in (8, 16))  # type: ignore[arg-type]
    assert (large[-1] == 257 * small[-1].astype(np.uint16)).all()  # 65535 / 255


def test_brightness_and_contrast_change_the_values_of_each_band() -> None:
    image = np.array([[[1000, 10], [3000, 30]]], np.uint16)
    assert scale_brightness(image, 1.5).tolist() == [[[1500, 15], [4500, 45]]]
    assert scale_contrast(image, 0.5).tolist() == [[[1500, 15], [2500, 25]]]
    assert scale_brightness(image, 50).max() == 65535  # 150000 is cut off


def test_saturation_and_hue_are_refused_for_other_bands() -> None:
    assert 'set saturation_probability: 0, hue_probability: 0' in ColourDistortion().only_rgb
    assert ColourDistortion(saturation_probability=0, hue_probability=0).only_rgb == ''


@pytest.mark.parametrize(('count', 'bits'), [(1, 16), (6, 8), (5, 16)])
def test_training_and_runtime_normalise_bands_alike(count: int, bits: int) -> None:
    image = random_image(count, bits)
    mean, std = (tuple(np.linspace(low, high, count).tolist()) for low, high in ((0.1, 0.4), (0.2, 0.3)))
    here = normalise_images(channels_first(image)[None], mean, std)[0].numpy()
    there = normalise(image, {'mean': mean, 'std': std, 'channels': 'as stored'})
    by_hand = (image.transpose(2, 0, 1) / (2**bits - 1) - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))
    np.testing.assert_allclose(here, by_hand, atol=1e-5)
    np.testing.assert_allclose(there, by_hand, atol=1e-5)


@pytest.mark.parametrize('name', [*SEGMENTERS, *DETECTORS])
def test_every_network_takes_any_number_of_bands(name: str) -> None:
    """RGB given twice is RGB: the weights of six bands are those of three, repeated and halved."""
    torch.manual_seed(0)
    network = {**SEGMENTERS, **DETECTORS}[name](3).eval().double()
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        expected = leaves(network(images))
        set_input_channels(network, 6)
        doubled = leaves(network(images.repeat(1, 2, 1, 1)))
        set_input_channels(network, 6)  # has it already
    assert len(doubled) == len(expected)
    for one, other in zip(doubled, expected, strict=True):
        torch.testing.assert_close(one, other)


def leaves(outputs: Any) -> list[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    parts = (
        vars(outputs).values() if hasattr(outputs, '__dict__') else outputs.values() if isinstance(outputs, dict) else outputs
    )
    return [leaf for part in parts if isinstance(part, torch.Tensor | list | tuple | dict) for leaf in leaves(part)]


def test_published_weights_for_rgb_fill_the_convolution_of_other_bands() -> None:
    conv = torch.nn.Conv2d(4, 2, 1, bias=False)
    naming = Naming({'conv.weight': Slot('conv.weight', conv.weight)})
    stored = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).view(2, 3, 1, 1)
    fit = Fit.of(naming, {'conv.weight': stored})
    fit.fill()
    # R, G, B, R times three quarters, so that four bands add up to what three did.
    assert conv.weight.flatten(1).tolist() == [[0.75, 1.5, 2.25, 0.75], [3, 3.75, 4.5, 3]]
    assert fit.problems() == []
    assert fit.notes() == ['for images of RGB, repeated for the bands of these: conv.weight']
    grey = torch.nn.Conv2d(1, 2, 1, bias=False)
    Fit.of(Naming({'w': Slot('w', grey.weight)}), {'w': stored}).fill()
    assert grey.weight.flatten().tolist() == [6, 15]  # a grey pixel is R = G = B


@pytest.fixture(scope='module')
def infrared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of noise in RGB whose objects are visible in a fourth band alone, of 16 bits."""
    root, rng = tmp_path_factory.mktemp('infrared'), np.random.default_rng(0)
    lines: dict[str, list[str]] = {'train': [], 'val': []}
    for number in range(20):
        image = rng.integers(0, 4096, (64, 64, 4)).astype(np.uint16)
        labels = np.zeros((64, 64), np.uint8)
        top, left = rng.integers(8, 32, 2)
        labels[top : top + 24, left : left + 24] = 1
        image[..., 3] = 400 + 2500 * labels.astype(int) + rng.integers(0, 200, (64, 64))
        cv2.imwrite(str(root / f'{number}.png'), image[..., [2, 1, 0, 3]])
        PIL.Image.fromarray(labels).save(root / f'{number}_labels.png')
        lines['val' if number % 5 == 0 else 'train'].append(f'{number}.png {number}_labels.png')
    for split, text in lines.items():
        (root / f'{split}.txt').write_text('\n'.join(text) + '\n')
    recipe = {
        'task': 'segmentation',
        'model': {'name': 'pp_liteseg', 'width': 0.25},
        'data': {
            'name': 'file_list',
            'root': str(root),
            'classes': ['ground', 'warm'],
            'bands': {'count': 4, 'bits': 16, 'shown': [4]},
        },
        'mean': [0.03, 0.03, 0.03, 0.012],
        'std': [0.02, 0.02, 0.02, 0.02],
        'loss': ['cross_entropy'] * 3,
        'transforms': ['random_flip', {'name': 'random_distort', 'saturation_probability': 0, 'hue_probability': 0}],
        'optimizer': {'name': 'adamw', 'lr': 0.01},  # IoU of the first image: 0.69 to 0.82 with six seeds
        'schedule': {'name': 'polynomial', 'power': 0.9},
        'train': {'steps': 40, 'global_batch_size': 4, 'workers': 0},
        'evaluate': {'every': 40, 'batch_size': 2},
        'checkpoint': {'every': 40},
        'report': {'every': 10, 'pictures': 2},
        'device': 'cpu',
    }
    (root / 'recipe.yml').write_text(yaml.safe_dump(recipe))
    assert run_here('train', str(root / 'recipe.yml'), '--save_dir', str(root / 'run')) == 0
    return root


def test_a_network_learns_from_a_band_that_rgb_does_not_have(infrared: Path) -> None:
    trained = phalanx.load_run(infrared / 'run', device='cpu')
    truth, found = np.asarray(PIL.Image.open(infrared / '0_labels.png')) == 1, trained(infrared / '0.png') == 1
    assert (truth & found).sum() / (truth | found).sum() > 0.5
    with pytest.raises(ValueError, match=r'\[height, width, 4\] of uint16; got \[64, 64, 3\] of uint8'):
        trained(np.zeros((64, 64, 3), np.uint8))
    report = (infrared / 'run' / 'report.html').read_text()
    assert 'prediction' in report


@pytest.mark.long
def test_an_exported_file_takes_the_bands_that_it_was_trained_on(infrared: Path) -> None:
    run, image = infrared / 'run', Bands(count=4, bits=16).read(infrared / '0.png')
    assert run_here('export', str(run)) == 0
    model = load(run / 'model.onnx')
    assert model.guide['preparation']['bands'] == {'count': 4, 'bits': 16}
    assert (model(image) == phalanx.load_run(run, device='cpu')(image)).mean() > 0.999
    with pytest.raises(ValueError, match=r'4\] of uint16'):
        model(np.zeros((64, 64, 3), np.uint8))


def test_predictions_and_data_checks_show_the_bands(infrared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(infrared / 'run')
    assert run_here('predict', run, str(infrared / '0.png'), '--out', str(tmp_path / 'out')) == 0
    overlay = np.asarray(PIL.Image.open(tmp_path / 'out' / '0_overlay.jpg'))
    assert overlay.shape == (64, 64, 3)
    PIL.Image.fromarray(random_image(3, 8)).save(tmp_path / 'rgb.png')
    assert run_here('predict', run, str(tmp_path / 'rgb.png'), '--out', str(tmp_path / 'out')) == 1
    assert 'has 3 bands of 8 bits, but data.bands is count: 4, bits: 16' in capsys.readouterr().err
    assert run_here('data', 'check', run, '--page', str(tmp_path / 'data.html')) == 0


@pytest.mark.parametrize(
    ('overrides', 'message'),
    [
        (('mean=[0.5,0.5,0.5]',), 'mean: gives 3 values for images of 4 bands'),
        (('transforms=[random_distort]',), 'RandomDistort has no saturation and hue of other bands'),
        (('data.bands.count=0',), 'count must lie between 1 and 16, got 0'),
        (('data.bands=null',), 'mean: gives 4 values for images of 3 bands'),
    ],
)
def test_recipes_that_do_not_fit_the_bands_are_refused_before_training(
    infrared: Path, tmp_path: Path, overrides: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ('train', str(infrared / 'recipe.yml'), '--set', *overrides, '--save_dir', str(tmp_path / 'run'))
    assert run_here(*words) != 0
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_the_service_refuses_a_file_for_other_bands(infrared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not (infrared / 'run' / 'model.onnx').exists():
        assert run_here('export', str(infrared / 'run')) == 0
    assert run_here('serve', str(infrared / 'run')) == 2
    assert 'is for images of other bands than RGB' in capsys.readouterr().err


def test_new_proposes_the_bands_of_the_images_with_their_mean_and_deviation(tmp_path: Path, tifffile: Any) -> None:
    for folder in ('images', 'masks'):
        (tmp_path / 'fields' / folder).mkdir(parents=True)
    for top, name in enumerate(('ash', 'elm', 'fir', 'oak', 'pine', 'yew')):
        image = np.full((40, 60, 5), [6553, 13107, 100, 200, 65535], np.uint16)
        image[top : top + 20, :, 2] = 300
        labels = np.zeros((40, 60), np.uint8)
        labels[top : top + 20] = 1
        tifffile.imwrite(tmp_path / 'fields/images' / f'{name}.tif', image, photometric='minisblack', planarconfig='contig')
        PIL.Image.fromarray(labels).save(tmp_path / 'fields/masks' / f'{name}.png')
    out = tmp_path / 'out'
    assert run_here('new', str(tmp_path / 'fields'), '--out', str(out), '--no_trial') == 0
    recipe = yaml.safe_load((out / 'out.yml').read_text())
    assert recipe['data']['bands'] == {'count': 5, 'bits': 16}
    np.testing.assert_allclose(recipe['mean'], [0.1, 0.2, 200 / 65535, 200 / 65535, 1], rtol=0.02)
    np.testing.assert_allclose(recipe['std'][2], 100 / 65535, rtol=0.02)
    assert {'name': 'random_distort', 'saturation_probability': 0, 'hue_probability': 0}.items() <= recipe['transforms'][
        -1
    ].items()


def test_a_fourth_band_of_a_tiff_file_is_used_unless_it_is_transparency(tmp_path: Path, tifffile: Any) -> None:
    image = random_image(4, 8)
    for kind in ('unspecified', 'unassalpha'):
        tifffile.imwrite(tmp_path / f'{kind}.tif', image, photometric='rgb', extrasamples=[kind])
    found = find_bands([tmp_path / 'unspecified.tif'])
    assert found is not None
    assert found[0] == Bands(count=4)
    assert find_bands([tmp_path / 'unassalpha.tif']) is None


def test_damaged_files_and_constant_bands_do_not_stop_the_measurement(tmp_path: Path, tifffile: Any) -> None:
    image = np.full((40, 60, 5), [0, 10, 20, 30, 40], np.uint8)
    paths = [tmp_path / f'{number}.tif' for number in range(3)]
    for path in paths:
        tifffile.imwrite(path, image, photometric='minisblack', planarconfig='contig')
    paths[0].write_bytes(paths[0].read_bytes()[:300])
    found = find_bands(paths)
    assert found is not None
    bands, mean, std = found
    assert (bands, mean[1:]) == (Bands(count=5), pytest.approx([10 / 255, 20 / 255, 30 / 255, 40 / 255], rel=0.01))
    assert min(mean + std) > 0  # values are divided by the deviation


def test_new_reads_photographs_as_before(tmp_path: Path) -> None:
    for name, image in {
        'rgb.png': random_image(3, 8),
        'alpha.png': random_image(4, 8),
        'grey.png': random_image(1, 8)[..., 0],
    }.items():
        PIL.Image.fromarray(image).save(tmp_path / name)
        assert find_bands([tmp_path / name]) is None


def test_one_thermal_image_among_photographs_does_not_decide_how_all_are_read(tmp_path: Path) -> None:
    PIL.Image.fromarray(random_image(1, 16)[..., 0]).save(tmp_path / 'thermal.png')
    PIL.Image.fromarray(random_image(3, 8)).save(tmp_path / 'photograph.png')
    (tmp_path / 'damaged.png').write_bytes(b'no image')
    assert find_bands([tmp_path / 'damaged.png', tmp_path / 'thermal.png']) is not None
    assert find_bands([tmp_path / 'thermal.png', tmp_path / 'photograph.png']) is None
