#!/usr/bin/env python3
"""Write the digits as tar files of samples, to `records/`: each has the pixels of an image, and its digit."""

import gzip
import io
import os
import tarfile

FILES = 12
HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    """Write the files."""
    with gzip.open(os.path.join(HERE, "../digits/data/digits.csv.gz"), "rt") as file:
        rows = [line.strip().rpartition(",") for line in file]
    os.makedirs(os.path.join(HERE, "records"), exist_ok=True)
    for number in range(FILES):
        with tarfile.open(os.path.join(HERE, f"records/digits-{number:02}.tar"), "w") as tar:
            for row in range(number, len(rows), FILES):
                pixels, _, digit = rows[row]
                for suffix, content in (("pixels", bytes(map(int, pixels.split(",")))), ("digit", digit.encode())):
                    info = tarfile.TarInfo(f"{row:05}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    main()
