"""Results of the program that tries operations which containers must not be allowed."""

from pathlib import Path

NOT_PERMITTED = (
    *("mount", "umount", "unshare", "clone", "setns", "chroot", "sethostname", "bpf", "keyctl"),
    *("io_uring", "userfaultfd", "perf", "module", "reboot", "mknod", "ptrace-init"),
    *("memory-of-init", "descriptor-of-init"),
)


class Tried:
    """Results of the probe by name."""

    def __init__(self, text: str) -> None:
        rows = [line.rpartition(" ") for line in text.splitlines()]
        self.errors = {name: int(number) for name, _, number in rows if not name.startswith("soc")}
        self.sockets = [line for line in text.splitlines() if line.startswith("socket:")]

    def named(self, kind: str) -> set[str]:
        return {name.partition(":")[2] for name in self.errors if name.startswith(f"{kind}:")}


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""
