"""The needs of the commands of a section: files, applications, GPUs, a cluster, and keys typed at a terminal.

The commands themselves run as the page has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Section = tuple[str, str]
"""A page, and the heading of a section of it."""


@dataclass(frozen=True)
class Scenario:
    """The needs of the command blocks of one section, which run one after another in one shell.

    Args:
        directory: the working directory, below HOME. ``dlapp`` and what is below it is a copy of this project.
        prepare: shell commands before the first.
        before: shell commands before the block of this first command.
        compare: what the section's sessions print is what the page says. Otherwise each command must exit with 0.
        codes: other exit codes of a block, by its first command.
        typed: a pattern of what a block prints at a terminal, and the text that is typed at each match.
        payload: further lines of the properties file, first those of [application], for blocks that are lines of a
            start script: each runs as one.
        replace: placeholders of the page, and what stands there for them; ``{tree}`` is the copy of this project.
        gpus: the number of simulated GPUs of the machine.
        cluster: a fixture that the blocks need: hadoop or dockerd.
        begins_with: the section whose files and plain blocks come first.
    """

    directory: str = "app"
    prepare: str = ""
    before: Mapping[str, str] = field(default_factory=dict)
    compare: bool = False
    codes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    typed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    payload: str | None = None
    replace: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    cluster: str = ""
    begins_with: Section | None = None


RESETS = r"""
mkdir -p ~/bin && printf '#!/bin/sh\necho "All done."\n' >~/bin/nvidia-smi && chmod +x ~/bin/nvidia-smi
PATH=~/bin:$PATH
"""
"""A stand-in for the program of NVIDIA's driver that resets GPUs."""

APPLICATION = r"""
mkdir -p code data
cat >code/start.sh <<'END'
#!/bin/sh
echo "arguments: $*"
mkdir -p output && echo result >output/result
END
chmod +x code/start.sh
for name in dl_app prepare train; do cat >$name.properties <<END; done
[application]
appname=$name
project=mnist
user_dev_workspace_path=code
user_shell_script=start.sh
[resources]
memory=64m
gcores=0
[to_hdfs]
output_path=output
hdfs=results
overwrite=true
END
"""
"""Files of an application in the working directory, by the names that the pages use."""

ENDED = APPLICATION + "dlapp-launcher --wait dl_app.properties\n"

RUNNING = r"""
mkdir -p ~/bin && printf '#!/bin/sh\necho no GPUs\n' >~/bin/nvidia-smi && chmod +x ~/bin/nvidia-smi
PATH=~/bin:$PATH
mkdir -p code && echo patch >code/patch && tar -C code -czf patch.tar.gz patch
cat >code/serve.sh <<'END'
#!/bin/sh
exec python3 -m http.server --bind 127.0.0.1 8888
END
chmod +x code/serve.sh
cat >running.properties <<'END'
[application]
appname=running
user_dev_workspace_path=code
[role worker]
instances=2
command=sleep 600
memory=64m
gcores=0
[role trainer]
command=sleep 600
memory=64m
gcores=0
END
dlapp-launcher running.properties
until dlapp-status last | grep 'phase : running 3 of 3'; do sleep 0.1; done
"""
"""Two workers and a trainer that run; the program that comes with NVIDIA's driver has a stand-in."""

SWEEP = r"""
mkdir -p code
cat >code/trial.sh <<'END'
#!/bin/sh
mkdir output && echo "$lr" >output/lr
echo "{\"metrics\": {\"accuracy\": $lr}, \"step\": 1}" >>"$DLAPP_REPORT"
END
chmod +x code/trial.sh
cat >sweep.properties <<'END'
[application]
appname=sweep
user_dev_workspace_path=code
user_shell_script=trial.sh
[resources]
containers=2
memory=64m
gcores=0
[sweep]
random.lr=uniform(0, 1)
trials=4
metric=accuracy
goal=max
[to_hdfs]
output_path=output
hdfs=results
overwrite=true
END
dlapp-launcher --wait sweep.properties
"""

RANKS = r"""
mkdir -p code && cat >code/train.py <<'END'
import torch.distributed

torch.distributed.init_process_group("gloo")
assert torch.distributed.get_world_size() == 4
torch.distributed.barrier()
END
"""
"""A program whose four processes meet."""

DEBIAN_PYTHON = r"""
mkdir -p ~/bin && for one in "$COMMANDS"/dlapp*; do ln -s "$one" ~/bin; done
PATH=~/bin:/usr/bin:/bin
"""
"""Only the commands of dlapp and Debian's Python, which has torch."""

OWN_PYTHON = 'python3 -m venv ~/venv && PATH=~/venv/bin:$(dirname "$(command -v git)"):/usr/bin:/bin\n'

CLONE = {"/path/to/the/clone": "{tree}"}
RECIPE = Scenario(directory="recipe", compare=True)
MAYBE_WARNS = (0, 1)
"""Exit codes of dlapp-doctor: 1 where a check failed, as on a machine of the tests."""

SCENARIOS: dict[Section, Scenario] = {
    ("README.md", "Try it"): Scenario(
        directory=".",
        replace={"<this repository>": "{repository}"},
        prepare="PATH=/usr/local/bin:/usr/bin:/bin\n",
    ),
    ("README.md", "Write your own application"): Scenario(
        directory="dlapp", compare=True, replace={"/home/tony": "{home}"}
    ),
    ("docker/README.md", "Without a registry"): Scenario(directory="dlapp", cluster="dockerd"),
    ("docs/commands.md", "dlapp-launcher FILE"): Scenario(prepare=APPLICATION),
    ("docs/commands.md", "dlapp-list [USER]"): Scenario(prepare=ENDED),
    ("docs/commands.md", "dlapp-queue"): Scenario(prepare=APPLICATION + "dlapp-launcher --hold dl_app.properties\n"),
    ("docs/commands.md", "dlapp-port ID ROLE[:INDEX] PORT [LOCAL]"): Scenario(
        prepare=RUNNING.replace("command=sleep 600", "script=serve.sh", 1)
        .replace("instances=2\n", "")
        .replace("3 of 3", "2 of 2")
        + "until curl -s -o index http://127.0.0.1:8888/; do sleep 0.1; done\n",
        typed={"dlapp-port last worker:0 8888": ("127.0.0.1:[0-9]+ : port.*\r\n", r"\x03")},
        codes={"dlapp-port last worker:0 8888": (0, 130)},
    ),
    ("docs/commands.md", "dlapp-board [ID...]"): Scenario(
        prepare=ENDED,
        typed={"dlapp-board --project mnist": ("http://127.0.0.1:[0-9]+/.+\r\n", r"\x03")},
        codes={"dlapp-board --project mnist": (0, 130)},
    ),
    ("docs/commands.md", "dlapp-report [ID]"): Scenario(prepare=ENDED),
    ("docs/commands.md", "dlapp-exec ID [INDEX] -- COMMAND"): Scenario(
        prepare=RUNNING, typed={"dlapp-exec last -- nvidia-smi": ("[#$] $", r"exit\n")}
    ),
    ("docs/commands.md", "dlapp-cache ACTION [ENTRY]..."): Scenario(prepare=ENDED),
    ("docs/commands.md", "dlapp-doctor"): Scenario(
        cluster="hadoop", codes={"dlapp-doctor --cluster yarn": MAYBE_WARNS}
    ),
    ("docs/distributed.md", "Continue after a failure"): Scenario(
        prepare=APPLICATION.replace(
            "[to_hdfs]\noutput_path=output\nhdfs=results\noverwrite=true", "[checkpoint]\npath=output\nhdfs=checkpoints"
        )
        + "dlapp-launcher --wait dl_app.properties\n",
    ),
    ("docs/failures.md", ""): Scenario(
        prepare=APPLICATION + "sed -i '2i exec python3 -c \"import torch_of_a_page\"' code/start.sh\n"
        "dlapp-launcher --wait dl_app.properties || :\n"
    ),
    ("docs/first-hour.md", ""): Scenario(
        directory="dlapp", compare=True, begins_with=("README.md", "Write your own application")
    ),
    ("docs/gpu.md", "For users"): Scenario(gpus=3, codes={"dlapp-gpu why 4": (1,)}),
    ("docs/gpu.md", "For operators"): Scenario(gpus=3, prepare=RESETS),
    ("docs/metrics.md", "Applications"): Scenario(prepare="groupadd -f prometheus\n"),
    ("docs/metrics.md", "GPUs of a host"): Scenario(
        gpus=1,
        replace=CLONE,
        prepare=OWN_PYTHON,
        typed={"pip install '/path/to/the/clone[metrics]'": ("9441", r"\x03")},
        codes={"pip install '/path/to/the/clone[metrics]'": (0, 130)},
    ),
    ("docs/notebooks.md", ""): Scenario(
        prepare=APPLICATION + "sed -i 's/memory=64m/memory=1g/' dl_app.properties\n",
        gpus=1,
        # The second Ctrl-C answers the question whether to end it.
        typed={"dlapp-notebook --gcores 1 dl_app.properties": (r"Ctrl-C ends it|\[Y/n\]", r"\x03")},
        codes={"dlapp-notebook --gcores 1 dl_app.properties": (0, 7, 130)},
    ),
    ("docs/payload.md", "Report progress and metrics"): Scenario(payload=""),
    ("docs/payload.md", "Reading a feed"): Scenario(
        prepare="mkdir -p data ~/bin && seq 100 >data/numbers && PATH=~/bin:$PATH\n"
        "printf '#!/bin/sh\\ncat >/dev/null\\n' >~/bin/train && chmod +x ~/bin/train\n",
        payload="[from_hdfs]\nhdfs=data/numbers\ninput_path=in\nmode=feed\nfeed.format=lines\nfeed.epochs=3\n",
    ),
    ("docs/payload.md", "Checkpoints"): Scenario(
        prepare="mkdir -p code && echo 'import os; os.makedirs(\"model\", exist_ok=True)' >code/train.py\n",
        payload="[checkpoint]\npath=model\nhdfs=checkpoints\n",
    ),
    ("docs/properties.md", "[application]"): Scenario(prepare=APPLICATION),
    ("docs/recipes.md", "Continue from the last checkpoint"): Scenario(
        directory="recipe",
        compare=True,
        before={
            "dlapp-launcher --set 'from_hdfs.hdfs=results.*.partial/*' train.properties": "mkdir results.1.partial; "
            "echo 300 >results.1.partial/step\n"
        },
    ),
    ("docs/recipes.md", "Use a virtual environment or conda"): Scenario(
        prepare=APPLICATION + "python3 -m venv --without-pip ~/venvs/torch\n"
    ),
    ("docs/recipes.md", "Look into a running or failed program"): Scenario(
        prepare=RUNNING.replace("command=sleep 600", "command=python3 -c 'import time; time.sleep(600)'"),
        typed={"dlapp-exec last -- nvidia-smi": ("[#$] $", r"exit\n")},
    ),
    ("docs/recipes.md", "See who uses the GPUs"): Scenario(gpus=4),
    ("docs/recipes.md", "Free disk space"): Scenario(prepare=ENDED + "dlapp-launcher --wait train.properties\n"),
    ("docs/services.md", "One TensorBoard for many applications"): Scenario(
        prepare=ENDED + "dlapp-launcher --wait train.properties\n",
        typed={"dlapp-board": ("http://127.0.0.1:[0-9]+/.+\r\n", r"\x03")},
        codes={"dlapp-board": (0, 130)},
    ),
    ("docs/frameworks.md", "torchrun by hand"): Scenario(
        prepare=RANKS, payload="framework=pytorch\n[role worker]\ninstances=2\nmemory=1g\n"
    ),
    ("docs/sweeps.md", "Go on with a sweep"): Scenario(prepare=SWEEP),
    ("docs/sweeps.md", "The metric"): Scenario(payload="[sweep]\ngrid.lr=1, 2\nmetric=accuracy\ngoal=max\n"),
    ("docs/sweeps.md", "See the trials"): Scenario(prepare=SWEEP),
    ("docs/team.md", "Set it up"): Scenario(prepare="useradd ann\n", replace=CLONE),
    ("docs/troubleshooting.md", ""): Scenario(prepare=ENDED),
    ("docs/waits.md", ""): Scenario(prepare=ENDED),
    ("docs/why.md", ""): Scenario(prepare=APPLICATION + "dlapp-launcher --hold dl_app.properties\n"),
    ("docs/yarn.md", ""): Scenario(prepare=APPLICATION + OWN_PYTHON, replace=CLONE, cluster="hadoop"),
    ("docs/yarn.md", "A test cluster on one machine"): Scenario(
        directory="dlapp",
        prepare="rm .venv\nexport USER=$(id -un)\necho words >words.txt\n",
        before={
            'curl -fL -T words.txt "http://127.0.0.1:9870/webhdfs/v1/user/$USER/words.txt?op=CREATE&user.name=$USER"': (
                "curl -fL -T words.txt "
                '"http://127.0.0.1:9870/webhdfs/v1/user/$USER/counts/0/out?op=CREATE&user.name=$USER"\n'
            )
        },
    ),
    ("docs/yarn.md", "Requirements"): Scenario(
        cluster="hadoop", codes={"dlapp-doctor --cluster yarn --node": MAYBE_WARNS}
    ),
    ("examples/caffe_mnist/README.md", ""): Scenario(
        directory="dlapp",
        prepare="rm .venv\n",
        before={"dlapp-logs last | grep accuracy": "PATH=$PWD/.venv/bin:$PATH\ncd examples/caffe_mnist\n"},
    ),
    ("examples/digits/README.md", ""): Scenario(directory="dlapp/examples/digits"),
    ("examples/distributed/README.md", ""): Scenario(directory="dlapp/examples/distributed", prepare=DEBIAN_PYTHON),
    ("examples/frameworks/README.md", ""): Scenario(directory="dlapp/examples/frameworks"),
    ("examples/feed/README.md", ""): Scenario(directory="dlapp/examples/feed", prepare=DEBIAN_PYTHON),
    ("examples/serve/README.md", ""): Scenario(directory="dlapp/examples/serve"),
    ("examples/sweep/README.md", ""): Scenario(directory="dlapp/examples/sweep"),
}


def scenario_of(section: Section) -> Scenario:
    """Return how a section's blocks run; without an entry a recipe's do as the others of its page."""
    if section[0] == "docs/recipes.md":
        return SCENARIOS.get(section, RECIPE)
    return SCENARIOS.get(section, Scenario())
