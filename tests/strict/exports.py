"""Exports of each family trained on the CPU and on the strict device, for `test_steps.py`: python exports.py, prints JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from device import NAME, strict_device
from steps import CASES, SMALL, Training

from phalanx.deploy.export import Options, example_images, export, run_network
from phalanx.deploy.writing import run_onnx
from phalanx.engine.job import Job, open_job
from phalanx.families.distillation import student_of
from phalanx.weights.checkpoint import Checkpoints
from phalanx.weights.reading import load_weights


def train(job: Job, device: torch.device, folder: Path) -> None:
    """Save a run of two steps."""
    folder.mkdir(parents=True)
    training = Training(job, device, folder, is_bf16=False)
    for _ in range(2):
        training.step()
    training.trainer.save()
    training.trainer.saver.finish(training.trainer.progress, training.trainer.report)


def outputs(job: Job, folder: Path) -> dict[str, Any]:
    """Of evaluation samples: those of the exported file of the run on the device, and of the network trained on the CPU."""
    strict, cpu = (Checkpoints(folder / kind, keep=1).all()[-1] for kind in (NAME, 'cpu'))
    images = example_images(job.task, None, True)
    written = export(job, folder / 'model.onnx', Options(weights=strict))
    _, (found,) = run_onnx(written.file, [images])
    model = job.task.model()
    load_weights(model, cpu, raw=job.recipe.ema is None)
    network = job.task.export(student_of(model.eval()), post_processing=False).network
    return {'file': [part.tolist() for part in found], 'network': [part.tolist() for part in run_network(network, images)]}


def main() -> None:
    torch.set_num_threads(1)
    jobs = {case: open_job(CASES[case][0], [(key, key) for key in (*CASES[case][1:], *SMALL)]) for case in sys.argv[1:]}
    with tempfile.TemporaryDirectory() as place:
        with strict_device() as strict:
            for case, job in jobs.items():
                for device in (strict, torch.device('cpu')):
                    train(job, device, Path(place, case, device.type))
        print(json.dumps({case: outputs(job, Path(place, case)) for case, job in jobs.items()}))


if __name__ == '__main__':
    main()
