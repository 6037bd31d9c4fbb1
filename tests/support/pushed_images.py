"""Images packed and pushed with the CLI."""

import asyncio
from pathlib import Path

from winpod.cli.main import app


async def push(home: Path, reference: str, *versions: str) -> str:
    content = home / "content"
    content.mkdir(exist_ok=True)
    (content / "app.txt").write_text("app", "utf-8")
    builds = [option for version in versions for option in ("--os-version", version)]
    arguments = ["image", "pack", str(content), "-t", reference, *builds]
    await asyncio.to_thread(app, arguments, standalone_mode=False)
    return reference
