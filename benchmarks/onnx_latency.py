"""Latency of ONNX files in onnxruntime on one thread, by turns: median milliseconds for one image of noise.

python benchmarks/onnx_latency.py FILE.onnx ... [--size 640] [--rounds 15]
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('files', nargs='+', type=Path)
    parser.add_argument('--size', type=int, default=640)
    parser.add_argument('--rounds', type=int, default=15)
    given = parser.parse_args()
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    sessions = {file: ort.InferenceSession(str(file), options, providers=['CPUExecutionProvider']) for file in given.files}
    image = np.random.default_rng(0).random((1, 3, given.size, given.size), np.float32)
    times: dict[Path, list[float]] = {file: [] for file in given.files}
    for _ in range(given.rounds + 2):  # the first two are not counted
        for file, session in sessions.items():
            begin = time.process_time()
            session.run(None, {session.get_inputs()[0].name: image})
            times[file].append(1e3 * (time.process_time() - begin))
    for file, taken in times.items():
        print(f'{file.name}: {median(taken[2:]):.1f} ms, at least {min(taken[2:]):.1f}')


if __name__ == '__main__':
    main()
