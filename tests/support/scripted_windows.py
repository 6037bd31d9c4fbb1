"""Stand-in for Windows Server: answers the scripts that are sent to instances, from memory.

It implements only the programs that docs/instances.md lists, with their documented behaviour: two
hundred of them fit into one process. Files are real, in the folder that SFTP serves. Behaviour that
it cannot reproduce (locks, quoting by the real cmd) is covered by the Wine host of tests/e2e.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path

CERTUTIL_FAILED = -2147024894
NO_SUCH_SERVICE = 1060
OWN = {"dir", "mkdir", "rd", "del", "move", "type"}
"""Commands of cmd itself."""


@dataclass
class ScriptedService:
    line: str
    start: int = 2
    depends: list[str] = field(default_factory=list)
    description: str = ""
    actions: bytes = b""
    state: str = "STOPPED"


@dataclass
class ScriptedWindows:
    """Windows Server; `stubborn` names programs that report success and do nothing, like stubs.

    A script that contains `hangs_at` hangs while that is set; `hangs` is set once one hangs.
    """

    folder: Path
    build: int = 20348
    hostname: str = "WIN-1"
    next_hostname: str = "WIN-1"
    booted: int = 133_000_000_000_000_000
    features: dict[str, str] = field(default_factory=lambda: {"Containers": "Disabled"})
    services: dict[str, ScriptedService] = field(default_factory=dict)
    networks: list[dict[str, str]] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)
    free: int = 50 << 30
    stubborn: set[str] = field(default_factory=set)
    does_not_start: set[str] = field(default_factory=set)
    called: list[list[str]] = field(default_factory=list)
    hangs_at: str = ""
    hangs: bool = False

    async def reply(self, script: str) -> tuple[bytes, bytes, int]:
        while self.hangs_at and self.hangs_at in script:
            self.hangs = True
            await asyncio.sleep(0.05)
        output, code = "", 0
        for line in script.splitlines():
            if line and not line.startswith("@"):
                printed, code = self.run(line.replace("%errorlevel%", str(code)), code)
                output += printed.replace("\n", "\r\n")
        return output.encode(), b"", code

    def local(self, path: str) -> Path:
        return self.folder / path.rstrip("\\").replace("\\", "/")

    def run(self, line: str, code: int) -> tuple[str, int]:
        if line.startswith("echo "):
            return f"{line[5:]}\n", code
        if found := re.fullmatch(r'if exist "([^"]*)" (.*)', line):
            path = found[1].replace("%%", "%")
            there = self.local(path).is_dir() if path.endswith("\\") else self.local(path).exists()
            return self.run(found[2], code) if there else ("", code)
        line = re.sub(r" (2>nul|>nul|2>&1)$", "", line)
        own = line.partition(" ")[0] in OWN
        program, *words = split_for_cmd(line) if own else split_for_program(line)
        self.called.append([program, *words])
        name = program.rpartition("\\")[2].removesuffix(".exe").removesuffix(".com")
        if name in self.stubborn:
            return "", 0
        return getattr(self, f"do_{name}")(words)  # type: ignore[no-any-return]

    def do_chcp(self, words: list[str]) -> tuple[str, int]:
        del words
        return "", 0

    do_rem = do_icacls = do_chcp

    def do_type(self, words: list[str]) -> tuple[str, int]:
        if words[0] == "nul":
            self.local(words[2]).touch()
            return "", 0
        return self.local(words[0]).read_text(), 0

    def do_dir(self, words: list[str]) -> tuple[str, int]:
        names = sorted(one.name for one in self.local(words[-1]).iterdir())
        return "".join(f"{name}\n" for name in names), 0 if names else 1

    def do_mkdir(self, words: list[str]) -> tuple[str, int]:
        self.local(words[0]).mkdir(parents=True, exist_ok=True)
        return "", 0

    def do_rd(self, words: list[str]) -> tuple[str, int]:
        path = self.local(words[-1])
        if len(words) > 1:
            shutil.rmtree(path)
        else:
            path.rmdir()
        return "", 0

    def do_del(self, words: list[str]) -> tuple[str, int]:
        self.local(words[-1]).unlink(missing_ok=True)
        return "", 0

    def do_move(self, words: list[str]) -> tuple[str, int]:
        self.local(words[1]).replace(self.local(words[2]))
        return "        1 file(s) moved.\n", 0

    def do_certutil(self, words: list[str]) -> tuple[str, int]:
        try:
            digest = hashlib.sha256(self.local(words[1]).read_bytes()).hexdigest()
        except OSError:
            return "CertUtil: -hashfile command FAILED: 0x80070002\n", CERTUTIL_FAILED
        return f"SHA256 hash of {words[1]}:\n{digest}\nCertUtil: -hashfile completed.\n", 0

    def do_dism(self, words: list[str]) -> tuple[str, int]:
        name = next(word for word in words if word.startswith("/featurename:"))[13:]
        if name not in self.features:
            return f"Error: 0x800f080c\n\nFeature name {name} is unknown.\n", -2146498548
        if "/enable-feature" in words:
            self.features[name] = "Enable Pending"
            return "", 3010
        return f"Feature Name : {name}\nState : {self.features[name]}\n", 0

    def do_shutdown(self, words: list[str]) -> tuple[str, int]:
        assert words[:2] == ["/r", "/f"]
        self.reboot()
        return "", 0

    def reboot(self) -> None:
        self.booted += 1_000_000_000
        self.hostname = self.next_hostname
        self.features = {
            n: s.replace("Enable Pending", "Enabled") for n, s in self.features.items()
        }
        for name, service in self.services.items():
            runs = service.start == 2 and name not in self.does_not_start
            service.state = "RUNNING" if runs else "STOPPED"

    def do_tasklist(self, words: list[str]) -> tuple[str, int]:
        del words
        return "INFO: No tasks are running which match the specified criteria.\n", 0

    def do_reg(self, words: list[str]) -> tuple[str, int]:
        key = words[1]
        if key.endswith("CurrentVersion"):
            values = [
                ("CurrentBuild", "REG_SZ", str(self.build)),
                ("CurrentMajorVersionNumber", "REG_DWORD", "0xa"),
                ("CurrentMinorVersionNumber", "REG_DWORD", "0x0"),
                ("ProductName", "REG_SZ", "Windows Server Datacenter"),
            ]
        elif key.endswith("Parameters"):
            names = (("Hostname", self.hostname), ("NV Hostname", self.next_hostname))
            values = [(name, "REG_SZ", value) for name, value in names]
        elif service := self.services.get(key.rpartition("\\")[2].lower()):
            values = [
                ("ImagePath", "REG_EXPAND_SZ", service.line),
                ("Start", "REG_DWORD", hex(service.start)),
                ("DependOnService", "REG_MULTI_SZ", r"\0".join(service.depends)),
                ("Description", "REG_SZ", service.description),
                ("FailureActions", "REG_BINARY", service.actions.hex().upper()),
            ]
        else:
            return "ERROR: The system was unable to find the specified registry key.\n", 1
        lines = "".join(f"    {name}    {kind}    {value}\n" for name, kind, value in values)
        return f"\n{key}\n{lines}\n", 0

    def do_sc(self, words: list[str]) -> tuple[str, int]:
        verb, name, *rest = words
        options = dict(zip(rest[::2], rest[1::2], strict=False))
        service = self.services.get(name.lower())
        if verb == "create":
            self.services[name.lower()] = service = ScriptedService("")
            verb = "config"
        if service is None:
            return f"[SC] OpenService FAILED {NO_SUCH_SERVICE}:\n", NO_SUCH_SERVICE
        match verb:
            case "config":
                service.line, service.start = options["binPath="], 2
                if depends := options.get("depend="):
                    service.depends = [one for one in depends.split("/") if one]
            case "description":
                service.description = rest[0]
            case "failure":
                delays = [int(one) for one in options["actions="].split("/")[1::2]]
                service.actions = struct.pack("<5I", int(options["reset="]), 0, 0, len(delays), 20)
                service.actions += b"".join(struct.pack("<2I", 1, delay) for delay in delays)
            case "start":
                service.state = "STOPPED" if name in self.does_not_start else "RUNNING"
            case "stop":
                service.state = "STOPPED"
            case "delete":
                del self.services[name.lower()]
            case "query" | "queryex":
                number = {"STOPPED": 1, "RUNNING": 4}[service.state]
                pid = "        PID                : 0\n" if verb == "queryex" else ""
                return (
                    f"SERVICE_NAME: {name}\n        TYPE               : 10  WIN32_OWN_PROCESS\n"
                    f"        STATE              : {number}  {service.state}\n{pid}",
                    0,
                )
        return f"[SC] {verb} SUCCESS\n", 0

    def do_powershell(self, words: list[str]) -> tuple[str, int]:
        printed, code = "", 0
        for statement in words[-1].split("; "):
            text, code = self.state_of(statement)
            printed += text
        return printed, code

    def state_of(self, statement: str) -> tuple[str, int]:
        if "LastBootUpTime" in statement:
            return f"{self.booted}\n", 0
        if "Get-PSDrive" in statement:
            return f"{self.free}\n", 0
        if self.features.get("Containers") != "Enabled":
            return "", 1
        if found := re.search(r"\$_\.Id -eq '(.*)' \} \| Remove-HnsNetwork", statement):
            self.networks = [one for one in self.networks if one["ID"] != found[1]]
            return "", 0
        if not self.networks:
            return "", 0
        listed = self.networks if len(self.networks) > 1 else self.networks[0]
        return json.dumps(listed) + "\n", 0

    def do_wevtutil(self, words: list[str]) -> tuple[str, int]:
        assert words[0] == "qe"
        return "Event[0]: The kubelet service entered the stopped state.\n", 0

    def do_ipconfig(self, words: list[str]) -> tuple[str, int]:
        del words
        return "Windows IP Configuration\n", 0

    def do_crictl(self, words: list[str]) -> tuple[str, int]:
        if "pull" in words:
            self.images.append(words[-1])
            return f"Image is up to date for {words[-1]}\n", 0
        if "rmp" in words:
            self.pods.remove(words[-1])
            return f"Removed sandbox {words[-1]}\n", 0
        if "pods" in words:
            return json.dumps({"items": [{"id": pod} for pod in self.pods]}), 0
        return json.dumps({"images": [{"repoTags": self.images}]}), 0


def split_for_cmd(line: str) -> list[str]:
    return [quoted or word for quoted, word in re.findall(r'"([^"]*)"|([^\s"]+)', line)]


def split_for_program(line: str) -> list[str]:
    """Split a line like cmd and the C runtime do, as far as the scripts need it."""
    text, position = "", 0
    while position < len(line):
        if line[position] == "^" or line.startswith("%%", position):
            position += 1
        text += line[position]
        position += 1
    words: list[str] = []
    for part in re.finditer(r'((?:[^\s"]|"(?:[^"\\]|\\"|\\)*")+)', text):
        word = re.sub(r'(?<!\\)"', "", part[0])
        words.append(word.replace('\\"', '"'))
    return words
