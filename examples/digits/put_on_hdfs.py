"""Put a file of this directory into the user's home on HDFS, under the same path: put_on_hdfs.py FILE"""

from __future__ import annotations

import sys

from dlapp.hadoop.configuration import read_configuration
from dlapp.login import own_login
from dlapp.storage.hdfs.staging import HdfsStagingFiles

path = sys.argv[1]
files = HdfsStagingFiles(read_configuration(None).hdfs(own_login()))
target = f"{files.home}/{path}"
files.make(target.rpartition("/")[0], 0o755)
files.send(path, target, 0o644)
files.close()
print(f"{path} is at {target}")
