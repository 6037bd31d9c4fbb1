"""`winpod doctor`."""

import json
from pathlib import Path

from tests.support.winpod_cli import winpod


def test_doctor_reports_missing_requirements_and_fails(tmp_path: Path) -> None:
    ran = winpod("doctor", "--root", str(tmp_path / "root"), home=tmp_path)
    assert ran.code == 1
    assert "ok        kernel" in ran.out
    assert "failed    Wine base" in ran.out
    assert "→ winpod base build" in ran.out
    assert not (tmp_path / "root").exists()


def test_doctor_prints_json(tmp_path: Path) -> None:
    ran = winpod("doctor", "--root", str(tmp_path), "-o", "json", home=tmp_path)
    checks = {check["name"]: check for check in json.loads(ran.out)}
    assert checks["overlayfs"]["level"] == "ok"
    assert checks["Wine base"]["remedy"] == "winpod base build"
