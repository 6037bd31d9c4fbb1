/* Generated from native/agent_protocol.toml by `make protocol`.
 *
 * A client connects to the silo's socket. A connection carries one program, one opened instance of
 * a named pipe, or one request. Numbers are little endian. A frame is a frame_header and its
 * payload. Between winit and wagent every frame has a link_header instead, so that one pair of
 * pipes carries all sessions.
 *
 * winit closes the connection of a client that sends a frame larger than MAX_FRAME, or one whose
 * number is not between 1 and LAST_CLIENT_FRAME. A connection that is closed terminates its
 * program, and that program's descendants.
 *
 * A client may send STDIN_WINDOW bytes of STDIN, and more as STDIN_CREDIT allows. wagent may send
 * OUTPUT_WINDOW bytes of STDOUT and STDERR frames, headers included, and more as OUTPUT_CREDIT
 * allows. So neither side ever has to stop reading, signals are never stuck behind data, and
 * buffers are bounded. For a named pipe the client itself reports with PIPE_CREDIT what it has
 * forwarded, so neither direction blocks the other.
 *
 * The host sends requests to wguest, the first process of a microVM, on the virtio port "control".
 * A request is a u32 length of its words, a mark of GUEST_MARK_SIZE bytes, and the words, each
 * terminated by 0: a command and its arguments. Its answer is the same mark, a u32 length of the
 * data, a u32 errno, and the data. A request that is incomplete when the host disconnects is
 * discarded, and the next connection recognizes answers to earlier requests by their mark.
 *
 * Payloads:
 *   u8: unsigned number; u16, u32 and u64 likewise.
 *   text: u32 count of UTF-16 units, the units, the last of them 0.
 *   utf8: UTF-8 to the end of the frame.
 *   utf16: UTF-16 of the size before it.
 *   data: bytes of the size before it, else to the end of the frame.
 *   frame_header: u32 size, u8 type (begins every frame).
 *   link_header: u32 size, u8 type, u32 session (begins every frame between winit and wagent).
 *   terminal_extent: u16 columns, u16 rows (the size of a terminal in characters).
 *   registry_change: u8 root, u8 operation, u32 type, text key, text name, u32 size, data value
 *   (one change, with numbers of RegistryRoot and RegistryOperation).
 *   process_info: u32 pid, u32 parent, u32 threads, u64 created, u64 user_time, u64 kernel_time,
 *   u64 working_set, u64 private_bytes, u32 size, utf16 name (one process, with times in units of
 *   100 ns).
 */

#ifndef WINPOD_AGENT_PROTOCOL_H
#define WINPOD_AGENT_PROTOCOL_H

#define FRAME_HEADER_SIZE 5
#define LINK_HEADER_SIZE 9
#define TERMINAL_EXTENT_SIZE 4
#define REGISTRY_CHANGE_SIZE 6
#define PROCESS_INFO_SIZE 56

#define MAX_FRAME (512u << 10) /* bytes of a frame's payload */
#define CHUNK (32u << 10) /* bytes of data in one STDIN, STDOUT or STDERR frame */
#define STDIN_WINDOW (64u << 10) /* bytes of STDIN that may be unread */
#define OUTPUT_WINDOW (128u << 10) /* bytes of STDOUT and STDERR frames that may be unread */
#define MAX_TEXT 32767 /* units of a text, with its last one; the environment may fill the frame */
#define MAX_PIPE_NAME 257 /* units of the name of a pipe, with the last one */
#define LAST_CLIENT_FRAME 31 /* the highest number of a frame that a client may send */
#define GUEST_MAX_BYTES (1024u << 10) /* bytes of a guest request's words, and of an answer's data */
#define GUEST_MAX_WORDS 256 /* words of a guest request */
#define GUEST_MARK_SIZE 8 /* bytes of the mark that an answer repeats */

enum frame_type {
    /* Start a program. The environment is a sequence of NAME=value, each terminated by 0. Answered
     * by STARTED or FAILED. Payload: u8 flags, terminal_extent terminal, text command_line, text
     * directory, text environment. */
    FRAME_START = 1,
    /* Data for the program's stdin, or written to the named pipe. Payload: data. */
    FRAME_STDIN = 2,
    /* Close the program's stdin, or the named pipe. */
    FRAME_STDIN_CLOSE = 3,
    /* Send a console event to the program and its descendants. Payload: u8 signal. */
    FRAME_SIGNAL = 4,
    /* Resize the program's terminal. Payload: terminal_extent terminal. */
    FRAME_RESIZE = 5,
    /* Answered by PROCESS_LIST. */
    FRAME_LIST_PROCESSES = 6,
    /* Change the registry. Answered by DONE, or by FAILED; changes before the failed one are kept.
     * Payload: registry_change... changes. */
    FRAME_REGISTRY = 7,
    /* Answered by DONE when the silo is ready for programs. */
    FRAME_PING = 8,
    /* Create an instance of the named pipe `\\.\pipe\NAME`. Answered by DONE when it exists, then
     * by PIPE_CONNECTED when a program has opened it; or by FAILED. Payload: text name. */
    FRAME_PIPE_LISTEN = 9,
    /* Bytes of a named pipe's frames that were forwarded, headers included: OUTPUT_CREDIT for
     * pipes. Payload: u32 bytes. */
    FRAME_PIPE_CREDIT = 10,
    /* Bytes that a client has received, headers included. Payload: u32 bytes. */
    FRAME_OUTPUT_CREDIT = 32,
    /* The client of the session has disconnected. */
    FRAME_CLIENT_GONE = 33,
    /* The silo has ended, so winit on the host exits. */
    FRAME_SILO_EXITED = 34,
    /* The program runs, with this Windows process ID. Payload: u32 pid. */
    FRAME_STARTED = 65,
    /* Output of the program, or data written to the named pipe. Payload: data. */
    FRAME_STDOUT = 66,
    /* Error output of the program. Payload: data. */
    FRAME_STDERR = 67,
    /* The program has exited and all of its output was sent, or the named pipe was closed. Payload:
     * u32 exit_code. */
    FRAME_EXIT = 68,
    /* A Windows error code, and Windows' message for it. Payload: u32 error, utf8 message. */
    FRAME_FAILED = 69,
    /* Bytes of STDIN that were consumed. Payload: u32 bytes. */
    FRAME_STDIN_CREDIT = 70,
    /* The processes of the silo. Payload: process_info... processes. */
    FRAME_PROCESS_LIST = 71,
    /* The request was executed. */
    FRAME_DONE = 72,
    /* A program has opened the named pipe: from now on STDIN and STDOUT carry the pipe's data. */
    FRAME_PIPE_CONNECTED = 73,
};

enum start_flag {
    /* Run the program in a pseudo console of the given size. */
    START_FLAG_TERMINAL = 1,
    /* Connect stdin; without it the program's stdin is at its end. */
    START_FLAG_STDIN = 2,
    /* Terminate the program's descendants when it exits. */
    START_FLAG_KILL_DESCENDANTS = 4,
};

enum signal {
    /* System shutdown: SIGTERM in Go, Java and .NET, a closed console (SIGHUP) in Node.js. */
    SIGNAL_SHUTDOWN = 1,
    /* Closed console: CTRL_CLOSE_EVENT. */
    SIGNAL_CLOSE = 2,
    /* Ctrl+C. */
    SIGNAL_INTERRUPT = 3,
    /* Ctrl+Break. */
    SIGNAL_BREAK = 4,
    /* Terminate the program and its descendants. */
    SIGNAL_KILL = 5,
};

enum registry_root {
    /* HKEY_LOCAL_MACHINE. */
    REGISTRY_ROOT_MACHINE = 0,
    /* HKEY_CURRENT_USER. */
    REGISTRY_ROOT_USER = 1,
    /* HKEY_USERS. */
    REGISTRY_ROOT_USERS = 2,
};

enum registry_operation {
    /* Set a value, creating its key. */
    REGISTRY_OPERATION_SET_VALUE = 0,
    /* Delete a value, if it exists. */
    REGISTRY_OPERATION_DELETE_VALUE = 1,
    /* Delete a key with everything below, if it exists. */
    REGISTRY_OPERATION_DELETE_KEY = 2,
};

/* X(name, word, least number of arguments, greatest) */
#define GUEST_COMMANDS(X) \
    X(ping, "ping", 0, 0) \
    X(mount, "mount", 5, 5) \
    X(unmount, "unmount", 1, 1) \
    X(eject, "eject", 1, 1) \
    X(mkdir, "mkdir", 1, 1) \
    X(remove, "remove", 1, 1) \
    X(mknod, "device", 3, 3) \
    X(chown, "chown", 2, 2) \
    X(chmod, "chmod", 2, 2) \
    X(write, "write", 2, 2) \
    X(read, "read", 1, 2) \
    X(set_clock, "clock", 1, 1) \
    X(add_entropy, "stir", 1, 1) \
    X(set_address, "address", 3, 3) \
    X(set_route, "route", 2, 2) \
    X(dial, "dial", 3, GUEST_MAX_WORDS) \
    X(start_silo, "start", 11, GUEST_MAX_WORDS) \
    X(run, "run", 2, GUEST_MAX_WORDS) \
    X(kill_silo, "kill", 1, 1) \
    X(mount_in_silo, "mount-inside", 3, 3) \
    X(set_silo_hostname, "rename-inside", 2, 2)

#endif
