#!/usr/bin/env python3
"""Answer requests for the digit on an 8 x 8 image: an inference server of the standard library.

    GET  /health             200 once the model is there
    POST /predict            {"pixels": [64 numbers from 0 to 16]}  ->  {"digit": 7, "distances": [10 numbers]}

The model is the mean image of each digit in data/digits.csv.gz; an image is the digit to whose mean it is nearest. With
numpy the distances are computed by it.
"""

import argparse
import csv
import gzip
import http.server
import json
import signal
import sys
import threading

try:
    import numpy as np
except ImportError:
    np = None

PIXELS, DIGITS, MAX_BYTES = 64, 10, 64 * 1024


def read_means(path):
    """Return the mean image of each digit."""
    sums, counts = [[0.0] * PIXELS for _ in range(DIGITS)], [0] * DIGITS
    with gzip.open(path, "rt") as file:
        for *pixels, digit in csv.reader(file):
            counts[int(digit)] += 1
            for place, pixel in enumerate(pixels):
                sums[int(digit)][place] += float(pixel)
    return [[total / counts[digit] for total in image] for digit, image in enumerate(sums)]


def distances(means, pixels):
    """Return how far an image is from each mean: the sum of the squares of the differences."""
    if np is not None:
        return ((np.array(means) - np.array(pixels)) ** 2).sum(axis=1).tolist()
    return [sum((mean[place] - pixel) ** 2 for place, pixel in enumerate(pixels)) for mean in means]


class Handler(http.server.BaseHTTPRequestHandler):
    """One request. The server has the model as ``means``."""

    def do_GET(self):
        self.answer(*((200, {"state": "ready"}) if self.path == "/health" else (404, {"error": "not found"})))

    def do_POST(self):
        if self.path != "/predict":
            self.answer(404, {"error": "not found"})
            return
        try:
            length = int(self.headers.get("Content-Length", "-1"))
            if not 0 <= length <= MAX_BYTES:
                raise ValueError("the length of the body is missing or too large")
            pixels = [float(one) for one in json.loads(self.rfile.read(length))["pixels"]]
            if len(pixels) != PIXELS or not all(0 <= one <= 16 for one in pixels):
                raise ValueError("an image has 64 pixels from 0 to 16")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self.answer(400, {"error": str(error)})
            return
        found = distances(self.server.means, pixels)
        self.answer(200, {"digit": found.index(min(found)), "distances": [round(one, 3) for one in found]})

    def answer(self, status, body):
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data", default="data/digits.csv.gz")
    options = parser.parse_args()
    server = http.server.ThreadingHTTPServer((options.host, options.port), Handler)
    server.means = read_means(options.data)
    # dlapp-softkill sends SIGTERM. Not from the handler itself: shutdown waits for the loop that it interrupts.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving on {options.host}:{options.port}, {'with' if np else 'without'} numpy", flush=True)
    server.serve_forever()
    print("stopped", file=sys.stderr)


if __name__ == "__main__":
    main()
