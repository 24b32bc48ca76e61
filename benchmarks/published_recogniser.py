"""PP-OCRv3's published recogniser in our network: the same outputs as its ONNX file gives, and weights to train on from.

    python benchmarks/published_recogniser.py MODEL.onnx OUT --data ROOT [--images N]

MODEL.onnx is `ch_PP-OCRv3_rec_infer.onnx`, of which the wheel of rapidocr-onnxruntime 1.2.3 on PyPI holds one (Apache-2.0).
ROOT holds `rec_gt_test.txt`, whose lines are `path<TAB>text`. Written to OUT: `weights.safetensors` and `characters.txt`.
The file has no attention head, which only training needs; in OUT it is as drawn.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import nn

from phalanx.data.samples import Draw
from phalanx.engine.runs import open_job
from phalanx.families.recognition.task import Recognition, network_input
from phalanx.weights.originals import stored_as_in_paddle

BATCH = 50
NOISE = 1e-4  # of probabilities in float32, between two implementations
PARAMETER = re.compile(r'\.[bw]_\d$')  # how Paddle numbers those of a layer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('model', type=Path)
    parser.add_argument('out', type=Path)
    parser.add_argument('--data', type=Path, required=True)
    parser.add_argument('--images', type=int, default=3000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    graph = onnx.load(given.model)
    characters = given.out / 'characters.txt'
    characters.write_text(next(each.value for each in graph.metadata_props if each.key == 'character').strip('\n') + '\n')
    settings = (
        f'characters.dictionary={characters}',
        *(f'data.root={given.data.resolve()}', 'data.eval=[rec_gt_test.txt]', 'compare.alphanumeric_only=true'),
    )
    job = open_job('ch_PP-OCRv3_rec', [(setting, 'this benchmark') for setting in settings])
    task = job.task
    assert isinstance(task, Recognition)
    network = task.model().eval()
    fill(network, graph)
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, given.out / 'weights.safetensors')
    sys.exit(0 if compare(task, network, onnxruntime.InferenceSession(given.model), given.images) else 1)


def fill(network: nn.Module, graph: onnx.ModelProto) -> None:
    """In the order of the layers, which both have in common: the file names its arrays by numbers."""
    stored = {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in graph.graph.node if node.op_type == 'Constant'
    }
    given = [name for node in graph.graph.node for name in node.input if name in stored and PARAMETER.search(name)]
    wanted = {name: tensor for name, tensor in stored_as_in_paddle(network).items() if not name.startswith('sar.')}
    if len(given) != len(wanted):
        raise SystemExit(f'the file has {len(given)} arrays, the network {len(wanted)}')
    with torch.no_grad():
        for (name, tensor), source in zip(wanted.items(), given, strict=True):
            if tensor.shape != stored[source].shape:
                raise SystemExit(f'{name} is {list(tensor.shape)}, {source} in the file {list(stored[source].shape)}')
            tensor.copy_(torch.from_numpy(stored[source].copy()))


@torch.inference_mode()
def compare(task: Recognition, network: nn.Module, session: onnxruntime.InferenceSession, images: int) -> bool:
    """Whether both give the same for images prepared by the recipe; prints how far off they are and how well each reads."""
    samples = task.dataset('eval')
    metrics = {'phalanx': task.metric(), 'onnxruntime': task.metric()}
    furthest = 0.0
    for start in range(0, min(images, len(samples)), BATCH):
        numbers = range(start, min(start + BATCH, images, len(samples)))
        batch = task.collate([samples[Draw(seed=0, epoch=0, step=0, index=index)] for index in numbers])
        inputs = network_input(batch)
        logits = network(inputs).ctc
        (theirs,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
        furthest = max(furthest, float(np.abs(logits.softmax(-1).numpy() - theirs).max()))
        metrics['phalanx'].update(task.characters.decode(logits), batch)
        metrics['onnxruntime'].update(task.characters.decode(torch.from_numpy(theirs).log()), batch)
    print(f'{min(images, len(samples))} images; probabilities differ by {furthest:.1e} at most')
    for name, metric in metrics.items():
        print(name, metric.compute())
    return furthest < NOISE


if __name__ == '__main__':
    main()
