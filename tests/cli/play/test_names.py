"""Reading the objects of `winpod play` without permission."""

import subprocess
import sys
import tempfile
from pathlib import Path

from winpod.play.apiserver.objects import ObjectKey
from winpod.play.apiserver.store import ObjectStore, StoredObject

SCRIPT = """
import os, sys
from pathlib import Path
from winpod.cli.play.names import complete_names, has_pods
from winpod.errors import PermissionDenied
from winpod.play.apiserver.database import read_names
if os.geteuid() == 0:
    os.setuid(65534)
root = Path(sys.argv[1])
try:
    read_names(root)
except PermissionDenied as error:
    print(error)
print(has_pods(root), complete_names(""))
"""


def test_objects_of_another_user_are_reported() -> None:
    with tempfile.TemporaryDirectory(prefix="play-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        file = root / "play/records.db"
        records = ObjectStore(file)
        records.put(ObjectKey("Pod", "default", "web"), StoredObject({"metadata": {"name": "web"}}))
        records.close()
        file.chmod(0)
        command = [sys.executable, "-c", SCRIPT, directory]
        environment = {"WINPOD_ROOT": directory, "HOME": directory}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == [
            f"The objects in {directory} belong to another user. Use sudo.",
            "False []",
        ], done.stderr
        (root / "play/play.sock").touch()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[1] == "True []"
