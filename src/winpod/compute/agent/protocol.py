"""Constants of the agent protocol. Generated from native/agent_protocol.toml by `make protocol`."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag, StrEnum

MAX_FRAME = 512 << 10
"""Bytes of a frame's payload."""
CHUNK = 32 << 10
"""Bytes of data in one STDIN, STDOUT or STDERR frame."""
STDIN_WINDOW = 64 << 10
"""Bytes of STDIN that may be unread."""
OUTPUT_WINDOW = 128 << 10
"""Bytes of STDOUT and STDERR frames that may be unread."""
MAX_TEXT = 32767
"""Units of a text, with its last one; the environment may fill the frame."""
MAX_PIPE_NAME = 257
"""Units of the name of a pipe, with the last one."""
LAST_CLIENT_FRAME = 31
"""The highest number of a frame that a client may send."""
GUEST_MAX_BYTES = 1024 << 10
"""Bytes of a guest request's words, and of an answer's data."""
GUEST_MAX_WORDS = 256
"""Words of a guest request."""
GUEST_MARK_SIZE = 8
"""Bytes of the mark that an answer repeats."""

FRAME_HEADER = struct.Struct("<IB")
"""Begins every frame. Fields: u32 size, u8 type."""
LINK_HEADER = struct.Struct("<IBI")
"""Begins every frame between winit and wagent. Fields: u32 size, u8 type, u32 session."""
TERMINAL_EXTENT = struct.Struct("<HH")
"""The size of a terminal in characters. Fields: u16 columns, u16 rows."""
REGISTRY_CHANGE = struct.Struct("<BBI")
"""One change, with numbers of RegistryRoot and RegistryOperation. Fields: u8 root, u8 operation,
u32 type, text key, text name, u32 size, data value.
"""
PROCESS_INFO = struct.Struct("<IIIQQQQQI")
"""One process, with times in units of 100 ns. Fields: u32 pid, u32 parent, u32 threads, u64
created, u64 user_time, u64 kernel_time, u64 working_set, u64 private_bytes, u32 size, utf16
name.
"""


class Frame(IntEnum):
    """Types of frames; docs/agent-protocol.md describes them."""

    START = 1
    """Start a program. The environment is a sequence of NAME=value, each terminated by 0. Answered
    by STARTED or FAILED. Payload: u8 flags, terminal_extent terminal, text command_line, text
    directory, text environment.
    """
    STDIN = 2
    """Data for the program's stdin, or written to the named pipe. Payload: data."""
    STDIN_CLOSE = 3
    """Close the program's stdin, or the named pipe."""
    SIGNAL = 4
    """Send a console event to the program and its descendants. Payload: u8 signal."""
    RESIZE = 5
    """Resize the program's terminal. Payload: terminal_extent terminal."""
    LIST_PROCESSES = 6
    """Answered by PROCESS_LIST."""
    REGISTRY = 7
    """Change the registry. Answered by DONE, or by FAILED; changes before the failed one are kept.
    Payload: registry_change... changes.
    """
    PING = 8
    """Answered by DONE when the silo is ready for programs."""
    PIPE_LISTEN = 9
    r"""Create an instance of the named pipe `\\.\pipe\NAME`. Answered by DONE when it exists, then
    by PIPE_CONNECTED when a program has opened it; or by FAILED. Payload: text name.
    """
    PIPE_CREDIT = 10
    """Bytes of a named pipe's frames that were forwarded, headers included: OUTPUT_CREDIT for
    pipes. Payload: u32 bytes.
    """
    OUTPUT_CREDIT = 32
    """Bytes that a client has received, headers included. Payload: u32 bytes."""
    CLIENT_GONE = 33
    """The client of the session has disconnected."""
    SILO_EXITED = 34
    """The silo has ended, so winit on the host exits."""
    STARTED = 65
    """The program runs, with this Windows process ID. Payload: u32 pid."""
    STDOUT = 66
    """Output of the program, or data written to the named pipe. Payload: data."""
    STDERR = 67
    """Error output of the program. Payload: data."""
    EXIT = 68
    """The program has exited and all of its output was sent, or the named pipe was closed. Payload:
    u32 exit_code.
    """
    FAILED = 69
    """A Windows error code, and Windows' message for it. Payload: u32 error, utf8 message."""
    STDIN_CREDIT = 70
    """Bytes of STDIN that were consumed. Payload: u32 bytes."""
    PROCESS_LIST = 71
    """The processes of the silo. Payload: process_info... processes."""
    DONE = 72
    """The request was executed."""
    PIPE_CONNECTED = 73
    """A program has opened the named pipe: from now on STDIN and STDOUT carry the pipe's data."""


class StartFlag(IntFlag):
    """Flags of START."""

    TERMINAL = 1
    """Run the program in a pseudo console of the given size."""
    STDIN = 2
    """Connect stdin; without it the program's stdin is at its end."""
    KILL_DESCENDANTS = 4
    """Terminate the program's descendants when it exits."""


class Signal(IntEnum):
    """Events that can be sent to a program. It can handle all but KILL."""

    SHUTDOWN = 1
    """System shutdown: SIGTERM in Go, Java and .NET, a closed console (SIGHUP) in Node.js."""
    CLOSE = 2
    """Closed console: CTRL_CLOSE_EVENT."""
    INTERRUPT = 3
    """Ctrl+C."""
    BREAK = 4
    """Ctrl+Break."""
    KILL = 5
    """Terminate the program and its descendants."""


class RegistryRoot(IntEnum):
    """The root key of a registry key."""

    MACHINE = 0
    """HKEY_LOCAL_MACHINE."""
    USER = 1
    """HKEY_CURRENT_USER."""
    USERS = 2
    """HKEY_USERS."""


class RegistryOperation(IntEnum):
    """What a registry change does."""

    SET_VALUE = 0
    """Set a value, creating its key."""
    DELETE_VALUE = 1
    """Delete a value, if it exists."""
    DELETE_KEY = 2
    """Delete a key with everything below, if it exists."""


class GuestCommand(StrEnum):
    """Commands of a microVM's wguest."""

    PING = "ping"
    """Do nothing."""
    MOUNT = "mount"
    """SOURCE TARGET TYPE FLAGS OPTIONS: Mount a file system; the arguments are those of
    mount(2).
    """
    UNMOUNT = "unmount"
    """PATH: Detach a mount, also if it is in use."""
    EJECT = "eject"
    """PATH: Unmount with all data written; fails while files are open."""
    MKDIR = "mkdir"
    """PATH: Create a directory and its parents."""
    REMOVE = "remove"
    """PATH: Remove a file or an empty directory."""
    MKNOD = "device"
    """PATH MAJOR MINOR: Create a character device with mode 0666."""
    CHOWN = "chown"
    """PATH UID: Set the user and the group of a path, without following a link."""
    CHMOD = "chmod"
    """PATH MODE: Set the mode of a path, in octal."""
    WRITE = "write"
    """PATH TEXT: Create or overwrite a file."""
    READ = "read"
    """PATH [SIZE]: Return the content of a file, at most SIZE bytes."""
    SET_CLOCK = "clock"
    """SECONDS: Set the clock, in seconds since 1970 with a fraction."""
    ADD_ENTROPY = "stir"
    """SEED: Reseed the random generator, whose state is a copy of the template's."""
    SET_ADDRESS = "address"
    """INTERFACE ADDRESS PREFIX: Set an address of an interface, and bring it up."""
    SET_ROUTE = "route"
    """INTERFACE GATEWAY: Set the default route."""
    DIAL = "dial"
    """PORT NUMBER ADDRESS...: Connect to a TCP port of the first address that answers, and relay it
    over a virtio port.
    """
    START_SILO = "start"
    """NAME PORT ROOT CGROUP UID HOSTNAME BITS [VARIABLE...] -- [MASKED...] -- [READONLY...] --
    COMMAND...: Start a silo in the root directory, with its agent on a virtio port. BITS is 32 if
    32-bit programs may run too, else 64.
    """
    RUN = "run"
    """RESULT COMMAND...: Run a program of the guest. Its output goes to RESULT.said; RESULT is
    created when it has ended, with the exit code.
    """
    KILL_SILO = "kill"
    """NAME: Kill a silo, if it exists."""
    MOUNT_IN_SILO = "mount-inside"
    """NAME SOURCE TARGET: Mount a directory of the guest in a silo."""
    SET_SILO_HOSTNAME = "rename-inside"
    """NAME HOSTNAME: Set the host name of a silo."""
