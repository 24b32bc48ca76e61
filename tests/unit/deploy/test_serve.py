"""A served model answers everybody, also while it is stopped, and says what is wrong with a request."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnx.helper
import onnx.parser
import PIL.Image
import pytest

from phalanx.cli.main import main
from phalanx.cli.serve import command
from phalanx.runtime import load
from phalanx.system.errors import RequestError
from serving import asked, served

# The class of a pixel: 1 where it is bright.
BRIGHT = """
<ir_version: 10, opset_import: ["" : 20]>
bright (float[batch, 3, height, width] images) => (uint8[batch, height, width] classes)
<int64[1] channels = {1}, float middle = {0.5}>
{
    grey = ReduceMean <keepdims = 0> (images, channels)
    is_bright = Greater (grey, middle)
    classes = Cast <to = 2> (is_bright)
}
"""
CLASSIFIER = """
<ir_version: 10, opset_import: ["" : 20]>
lines (float[batch, 3, height, width] x) => (float[batch, 2] y)
<int64[3] axes = {1, 2, 3}, float[1, 2] shares = {0.25, 0.75}, float none = {0}, int64[1] one = {1}>
{
    means = ReduceMean <keepdims = 0> (x, axes)
    column = Unsqueeze (means, one)
    nothing = Mul (column, none)
    y = Add (nothing, shares)
}
"""
ONE_VIEW = {'window': None, 'window_stride': None, 'scales': [1.0], 'flip_horizontal': False, 'flip_vertical': False}
GUIDE = {
    'format': 1,
    'phalanx': '0',
    'task': 'segmentation',
    'model': 'bright',
    'recipe': '',
    'metric': None,
    'input': {'shape': ['batch', 3, 'height', 'width']},
    'preparation': {'transforms': [], 'channels': 'RGB', 'mean': [0, 0, 0], 'std': [1, 1, 1]},
    'reading': {'classes': ['dark', 'bright'], 'inference': ONE_VIEW},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    network = onnx.parser.parse_model(BRIGHT)
    onnx.helper.set_model_props(network, {'phalanx': json.dumps(GUIDE)})
    onnx.save(network, tmp_path / 'bright.onnx')
    return tmp_path / 'bright.onnx'


def picture(bright: int) -> bytes:
    """PNG file of 10 x 20 pixels with `bright` white pixels, the rest black."""
    pixels = np.zeros((10, 20, 3), np.uint8)
    pixels.reshape(-1, 3)[:bright] = 255
    return cv2.imencode('.png', pixels)[1].tobytes()


def test_each_request_gets_the_result_of_its_own_image(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight clients at a time; the number of bright pixels shows whose answer it is."""
    with served(file) as server, ThreadPoolExecutor(8) as clients:
        begin = time.perf_counter()
        answers = list(clients.map(lambda n: asked(server.port, '/predict', picture(n)), range(1, 161)))
        print(f'{160 / (time.perf_counter() - begin):.0f} requests a second')
        assert [(status, output['pixels']['bright']) for status, output in answers] == [(200, n) for n in range(1, 161)]
        _, metrics = asked(server.port, '/metrics')
    counted = dict(line.split() for line in metrics.splitlines())
    assert int(counted['phalanx_images_total']) == 160
    assert int(counted['phalanx_batches_total']) <= 160


def test_a_published_classifier_of_text_lines_gives_its_probability(tmp_path: Path) -> None:
    """One that answers 0.25 and 0.75 to each line."""
    network = onnx.parser.parse_model(CLASSIFIER)
    onnx.save(network, tmp_path / 'ch_ppocr_mobile_v2.0_cls_mobile.onnx')
    with served(tmp_path / 'ch_ppocr_mobile_v2.0_cls_mobile.onnx') as server:
        assert asked(server.port, '/predict', picture(1)) == (200, {'upside_down': 0.75})
        status, health = asked(server.port, '/health')
    assert (status, health['task'], health['recipe']) == (200, 'orientation', None)


def test_a_stop_loses_no_accepted_request(file: Path) -> None:
    """The model waits until the server has been asked to stop: one request is in its hands by then, three wait."""
    model, stopped = load(file), threading.Event()
    run = model.run

    def slow(images: Any) -> Any:
        assert stopped.wait(60)
        return run(images)

    model.run = slow
    with ThreadPoolExecutor(4) as clients:
        with served(file, model) as server:
            answers = [clients.submit(asked, server.port, '/predict', picture(n)) for n in range(1, 5)]
            server.batcher.wait_for(4)
            server.should_exit = True
            stopped.set()
        assert [answer.result()[1]['pixels']['bright'] for answer in answers] == [1, 2, 3, 4]


def test_images_are_accepted_as_bytes_in_json_or_in_a_form(file: Path) -> None:
    with served(file) as server:
        status, output = asked(server.port, '/predict', picture(7))
        as_json = json.dumps({'image': base64.b64encode(picture(7)).decode()}).encode()
        assert (status, output) == asked(server.port, '/predict', as_json, 'Application/JSON; charset=utf-8')
        form = b'--end\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n%s\r\n--end--\r\n' % picture(7)
        assert (status, output) == asked(server.port, '/predict', form, 'multipart/form-data; boundary=end')
        shown = cv2.imdecode(np.frombuffer(base64.b64decode(output['class_map_png']), np.uint8), cv2.IMREAD_GRAYSCALE)
        assert (shown.shape, int(shown.sum())) == ((10, 20), 7)
        assert asked(server.port, '/health')[1]['status'] == 'ok'
        assert 'Drop images here' in asked(server.port, '/')[1]


def test_a_wrong_request_gets_the_reason(file: Path) -> None:
    with served(file, most_bytes=10_000) as server:
        status, output = asked(server.port, '/predict', b'no image')
        assert (status, 'the image: is not an image that can be decoded' in output['detail']) == (422, True)
        status, output = asked(server.port, '/predict', b'{}', 'application/json')
        assert (status, '{"image": "..."}' in output['detail']) == (422, True)
        image = base64.b64encode(picture(7)).decode()
        for wrong in ({'image': image, 'threshold': 0.5}, {'image': 3}, [image], {'image': 'é'}):
            status, output = asked(server.port, '/predict', json.dumps(wrong).encode(), 'application/json')
            assert (status, 'and nothing else' in output['detail']) == (422, True)
        status, output = asked(server.port, '/predict', b'[' * 9000, 'application/json')  # deeper than Python's stack
        assert (status, 'and nothing else' in output['detail']) == (422, True)
        status, output = asked(server.port, '/predict?threshold=0.5', picture(7))
        assert (status, output['detail']) == (422, 'threshold: there are no parameters; each result has its score')
        form = b'--end\r\nContent-Disposition: form-data; name="image"\r\n\r\nphoto.png\r\n--end--\r\n'
        status, output = asked(server.port, '/predict', form, 'multipart/form-data; boundary=end')
        assert (status, output['detail']) == (422, 'the form has no file; send the image as one: curl -F image=@photo.jpg')
        status, output = asked(server.port, '/predict', form, 'multipart/form-data')
        assert (status, output['detail']) == (422, 'the form: Missing boundary in multipart.')
        pages, both = [PIL.Image.new('RGB', (20, 10))] * 2, io.BytesIO()
        pages[0].save(both, 'TIFF', save_all=True, append_images=pages[1:])
        status, output = asked(server.port, '/predict', both.getvalue())
        assert (status, output['detail']) == (422, 'the file has 2 pages or frames; send each as an image of its own')
        status, output = asked(server.port, '/predict', b'x' * 10_001)
        assert (status, output['detail']) == (413, 'a request may have 10000 bytes (--max_mib)')


def test_an_image_that_the_model_fails_for_leaves_the_others_their_answers(file: Path) -> None:
    model = load(file)
    run = model.run

    def fail_for_bright(images: Any) -> Any:
        if images.any(axis=(1, 2, 3)).any():
            raise RuntimeError('out of memory')
        return run(images)

    model.run = fail_for_bright
    with served(file, model) as server:
        for bright, expected in ((1, 500), (0, 200), (1, 500), (0, 200)):
            assert asked(server.port, '/predict', picture(bright))[0] == expected


def test_a_request_beyond_the_queue_is_rejected(file: Path) -> None:
    """One is with the model, one waits, the third has no place."""
    model, goes_on, begun = load(file), threading.Event(), threading.Event()
    run = model.run

    def slow(images: Any) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return run(images)

    model.run = slow
    with served(file, model, room=1) as server, ThreadPoolExecutor(2) as clients:
        first = clients.submit(asked, server.port, '/predict', picture(1))
        assert begun.wait(60)
        second = clients.submit(asked, server.port, '/predict', picture(2))
        server.batcher.wait_for(2)
        assert 'phalanx_waiting 1' in asked(server.port, '/metrics')[1]
        status, output = asked(server.port, '/predict', picture(3))
        goes_on.set()
        assert (status, output['detail']) == (503, '1 requests wait already; try again later')
        assert [first.result()[0], second.result()[0]] == [200, 200]


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match='there is no such file'):
        command([str(tmp_path / 'none.onnx')])
    assert main(['serve', str(tmp_path / 'none.onnx')]) == 2


def test_a_port_in_use_is_refused_with_a_free_one(file: Path) -> None:
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RequestError, match=rf'port {port} is in use, .*; add --port \d+'):
            command([str(file), '--port', str(port)])


def test_an_ipv6_address_may_have_the_brackets_of_urls(file: Path) -> None:
    try:
        taken = socket.create_server(('::1', 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f'there is no IPv6 here: {error}')
    with taken, pytest.raises(RequestError, match=r'port \d+ is in use'):
        command([str(file), '--host', '[::1]', '--port', str(taken.getsockname()[1])])


def test_an_address_of_another_machine_is_refused(file: Path) -> None:
    with pytest.raises(RequestError, match=r'--host 192\.0\.2\.1 --port 8000: Cannot assign requested address'):
        command([str(file), '--host', '192.0.2.1'])


def test_a_port_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='2'):
        main(['serve', 'model.onnx', '--port', '70000'])
    assert "--port: '70000' is not a port from 0 to 65535" in capsys.readouterr().err
