// Prints the platform that a Zig program sees, and exits with 5.
const std = @import("std");
const builtin = @import("builtin");

pub fn main() u8 {
    std.debug.print("Zig on {s}/{s}\n", .{ @tagName(builtin.os.tag), @tagName(builtin.cpu.arch) });
    return 5;
}
