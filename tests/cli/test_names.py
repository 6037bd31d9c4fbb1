"""What is played, asked for by somebody who may not read it."""

import subprocess
import sys
import tempfile
from pathlib import Path

from winpod.node.play.objects import Key
from winpod.node.play.records import Kept, Records

SCRIPT = """
import os, sys
from pathlib import Path
from winpod.cli.names import complete_names, has_pods, read_names
from winpod.windows.errors import PermissionDenied
if os.geteuid() == 0:
    os.setuid(65534)
root = Path(sys.argv[1])
try:
    read_names(root)
except PermissionDenied as error:
    print(error)
print(has_pods(root), complete_names(""))
"""


def test_what_another_user_plays_is_not_taken_for_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="play-") as place:
        root = Path(place)
        root.chmod(0o755)
        file = root / "play/records.db"
        records = Records(file)
        records.put(Key("Pod", "default", "web"), Kept({"metadata": {"name": "web"}}))
        records.close()
        file.chmod(0)
        ask = [sys.executable, "-c", SCRIPT, place]
        environment = {"WINPOD_ROOT": place, "HOME": place}
        asked = subprocess.run(ask, env=environment, capture_output=True, text=True, check=False)
        assert asked.stdout.splitlines() == [
            f"What is played in {place} is another user's. Use sudo.",
            "False []",
        ], asked.stderr
        (root / "play/play.sock").touch()
        asked = subprocess.run(ask, env=environment, capture_output=True, text=True, check=False)
        assert asked.stdout.splitlines()[1] == "True []"
