"""The annotations by which a pod, or a handler for its pods, says what a guest shall have.

The words are those that Hyper-V's shim has, so a pod that says them is the same on Windows.
"""

PREFIX = "io.microsoft.virtualmachine."
_TOPOLOGY = f"{PREFIX}computetopology."

MEMORY_MB = f"{_TOPOLOGY}memory.sizeinmb"
PROCESSORS = f"{_TOPOLOGY}processor.count"
LIMIT = f"{_TOPOLOGY}processor.limit"
WEIGHT = f"{_TOPOLOGY}processor.weight"
DISK_BYTES = f"{PREFIX}storageqos.bandwidthmaximum"
DISK_OPERATIONS = f"{PREFIX}storageqos.iopsmaximum"
NUMBERS = (MEMORY_MB, PROCESSORS, LIMIT, WEIGHT, DISK_BYTES, DISK_OPERATIONS)

OVERCOMMIT = f"{_TOPOLOGY}memory.allowovercommit"
BACKED = f"{PREFIX}fullyphysicallybacked"
FLAGS = (OVERCOMMIT, BACKED)


def wrong_value(name: str, text: str) -> str:
    """What a value must be that it is not; empty where it is fine, or nobody here reads it."""
    if name in NUMBERS and not (text.isascii() and text.isdigit()):
        return "a number"
    if name in FLAGS and text not in ("true", "false"):
        return "true or false"
    return ""
