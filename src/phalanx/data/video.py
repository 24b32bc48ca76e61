"""Videos, frame by frame, as OpenCV reads and writes them: files, and cameras."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import cv2
import numpy as np

from phalanx.data.samples import Image, SampleError
from phalanx.system.buckets import StorePath

VIDEOS = {'.avi', '.m4v', '.mkv', '.mov', '.mp4', '.webm'}
RATE = 25.0  # frames per second of a video without a rate


class Video:
    """Frames [H, W, 3] uint8 RGB of a video file, or of a camera (by number) until it is disconnected.

    `stated` is the number of frames by the header of a file, 0 for a camera: a file that was cut off has fewer, but so has one
    that an editor trimmed without encoding it again. Raises SampleError if there are none.
    """

    def __init__(self, source: Path | int) -> None:
        source = source.local() if isinstance(source, StorePath) else source
        self._capture = cv2.VideoCapture(source if isinstance(source, int) else str(source))
        self.rate = self._capture.get(cv2.CAP_PROP_FPS) or RATE
        self.stated = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        is_read, self._first = self._capture.read()
        # Opening succeeds for many files that OpenCV cannot read: only a frame proves it.
        if not is_read and isinstance(source, int):
            cameras = ', '.join(sorted(map(str, Path('/dev').glob('video*')))) or 'no /dev/video*'
            raise SampleError(f'camera {source}: OpenCV gets no picture from it; this node has {cameras}')
        if not is_read:
            raise SampleError(f'{source}: is not a video that OpenCV can read')

    def __length_hint__(self) -> int:
        return self.stated or NotImplemented

    def __iter__(self) -> Iterator[Image]:
        is_read, frame = True, self._first
        while is_read:
            yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)
            is_read, frame = self._capture.read()


class VideoWriter:
    """MP4 file of frames [H, W, 3] uint8 RGB, of the size of the first: others are cropped, or padded with black."""

    def __init__(self, path: Path, rate: float) -> None:
        self.path, self.rate, self.frames = path, rate, 0
        self._writer = cv2.VideoWriter()
        self._canvas = np.zeros((0, 0, 3), np.uint8)

    def write(self, frame: Image) -> None:
        """Write one frame. Raises OSError if the file cannot be written."""
        # The writer needs the size, which is known with the first frame.
        if not self.frames:
            height, width = frame.shape[:2]
            self._canvas = np.zeros((height, width, 3), np.uint8)
            if not self._writer.open(str(self.path), cv2.VideoWriter.fourcc(*'mp4v'), self.rate, (width, height)):
                raise OSError(f'{self.path}: OpenCV cannot write this video')
        # Codecs cannot change the size within a file.
        height, width = (min(own, new) for own, new in zip(self._canvas.shape[:2], frame.shape[:2], strict=True))
        self._canvas[:] = 0
        self._canvas[:height, :width] = frame[:height, :width]
        self._writer.write(cv2.cvtColor(self._canvas, cv2.COLOR_RGB2BGR))
        self.frames += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.release()
