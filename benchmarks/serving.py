"""`phalanx serve` under load: requests a second, how long an answer takes, and whether a stop loses any.

    python benchmarks/serving.py MODEL.onnx [--clients 8] [--seconds 10] [--size 128,96]

Clients ask over connections that stay open, each again as soon as it has its answer. At the end the service gets SIGTERM while
all of them wait: what was asked by then must be answered.
"""

import argparse
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np


def free_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as taken:
        return int(taken.getsockname()[1])


def wait_for(service: subprocess.Popen[bytes], port: int) -> None:
    while service.poll() is None:
        try:
            connection = http.client.HTTPConnection('127.0.0.1', port)
            connection.request('GET', '/health')
            if connection.getresponse().status == 200:
                return
        except ConnectionRefusedError:
            time.sleep(0.05)
    sys.exit('the service ended before it listened')


def client(port: int, picture: bytes, ending: threading.Event) -> tuple[list[float], int]:
    """The seconds of each answer, and how many requests had none."""
    connection, seconds = http.client.HTTPConnection('127.0.0.1', port), list[float]()
    while not ending.is_set():
        begin = time.perf_counter()
        try:
            connection.request('POST', '/predict', picture, {'Content-Type': 'image/png'})
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return seconds, 1
        if response.status != 200:
            return seconds, 1
        seconds.append(time.perf_counter() - begin)
    return seconds, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('model')
    parser.add_argument('--clients', type=int, default=8)
    parser.add_argument('--seconds', type=float, default=10)
    parser.add_argument('--image_size', default='96,128', help='height and width of the picture')
    given = parser.parse_args()
    height, width = map(int, given.image_size.split(','))
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    # clients send the same picture until the server is stopped
    picture, port, ending = cv2.imencode('.png', noise)[1].tobytes(), free_port(), threading.Event()
    words = [sys.executable, '-m', 'phalanx', 'serve', given.model, '--port', str(port)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as service, ThreadPoolExecutor(given.clients) as clients:
        wait_for(service, port)
        begin = time.perf_counter()
        asking = [clients.submit(client, port, picture, ending) for _ in range(given.clients)]
        time.sleep(given.seconds)
        ending.set()  # each has one request under way, and asks no other
        service.send_signal(signal.SIGTERM)
        done = [one.result() for one in asking]
        duration = time.perf_counter() - begin
        status = service.wait()
    seconds = [one for answers, _ in done for one in answers]
    # latencies, and requests that were lost to the stop
    median, p95 = (float(value) for value in np.percentile(seconds, (50, 95)) * 1000)
    figures = {
        'requests_per_s': len(seconds) / duration,
        'median_ms': median,
        'p95_ms': p95,
        'answered': len(seconds),
        'lost': sum(lost for _, lost in done),
        'clients': given.clients,
        'exit_status': status,
    }
    print(json.dumps(figures))


if __name__ == '__main__':
    main()
