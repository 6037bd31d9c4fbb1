"""The README's transcripts: each command is run and its output compared."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSCRIPT = re.compile(r"^```\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)


def transcripts() -> list[tuple[str, str]]:
    found = []
    for block in TRANSCRIPT.findall((ROOT / "README.md").read_text("utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_readme_transcripts_match_command_output(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    for command, output in (("examples/pack-images images", ""), *transcripts()):
        ran = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ran.stderr == ""
        if output:
            assert ran.stdout == output
    assert len(transcripts()) == 3
