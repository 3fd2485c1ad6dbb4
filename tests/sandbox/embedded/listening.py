"""Which addresses a process listens on, as the kernel tells."""

import socket
import struct
from pathlib import Path

LISTEN = "0A"


def listening(pid: int) -> set[tuple[str, int]]:
    """(address, port) of every TCP socket that `pid` itself listens on, IPv4 and IPv6."""
    links = [link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add((_dotted(address), int(port, 16)))
    return found


def _dotted(address: str) -> str:
    words = [int(address[start : start + 8], 16) for start in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
