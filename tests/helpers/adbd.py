"""A stand-in for adbd, the program on a phone that the real adb client speaks to. It listens on TCP as after
`adb tcpip`, and knows what Handheld needs: `shell,v2,…,raw:` and the SEND and STAT requests of `sync:`.

    with Phone(folder) as phone:                  a shell and a file system in this folder
        phone.name                                adb:127.0.0.1:PORT, after `adb connect`

The server of adb gets a port of its own, so that phones and emulators of this machine are left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

ADB = shutil.which("adb")
TEMPORARY = "/data/local/tmp"
HEAD = struct.Struct("<6I")
PIECE = 1 << 16
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)


def _number(name: bytes) -> int:
    return int.from_bytes(name, "little")


CNXN, OPEN, OKAY, CLSE, WRTE = map(_number, (b"CNXN", b"OPEN", b"OKAY", b"CLSE", b"WRTE"))
BANNER = b"device::ro.product.name=standin;ro.product.model=Pixel 7;ro.product.device=standin;features=shell_v2,cmd"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def adb_server() -> Iterator[int]:
    """A server of adb on a port of its own, for the time of the context."""
    port = free_port()
    environment = {**os.environ, "ANDROID_ADB_SERVER_PORT": str(port)}
    try:
        yield port
    finally:
        subprocess.run(["adb", "kill-server"], env=environment, check=False, capture_output=True)


class Phone:
    """A phone on a port of the loopback address. It ends with the `with` statement."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        (folder / TEMPORARY[1:]).mkdir(parents=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.serial = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._connections: list[_Connection] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def name(self) -> str:
        return f"adb:{self.serial}"

    @property
    def storage(self) -> Path:
        return self.root / TEMPORARY[1:]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted = self._socket.accept()[0]
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(_Connection(accepted, self.root))

    def unplug(self) -> None:
        """Cuts every connection and takes no other, as a cable that is pulled."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._connections:
            connection.cut()

    def __enter__(self) -> Phone:
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()


class _Stream:
    """One service that the client has opened. A message is sent only after the last one was taken."""

    def __init__(self, connection: _Connection, own: int, theirs: int) -> None:
        self._connection, self.own, self.theirs = connection, own, theirs
        self._taken, self._arrived = threading.Semaphore(1), threading.Condition()
        self._data = bytearray()
        self.closed = False

    def feed(self, data: bytes) -> None:
        with self._arrived:
            self._data += data
            self._arrived.notify_all()

    def taken(self) -> None:
        self._taken.release()

    def end(self) -> None:
        with self._arrived:
            self.closed = True
            self._arrived.notify_all()
        self._taken.release()

    def read(self, count: int) -> bytes:
        """So many bytes. Raises EOFError if the client has closed the stream."""
        with self._arrived:
            self._arrived.wait_for(lambda: len(self._data) >= count or self.closed)
            if len(self._data) < count:
                raise EOFError
            data = bytes(self._data[:count])
            del self._data[:count]
            return data

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE):
            self._taken.acquire()
            if self.closed:
                raise EOFError
            self._connection.send(WRTE, self.own, self.theirs, data[at : at + PIECE])


class _Connection:
    """The connection of one adb server: messages of six numbers and their data."""

    def __init__(self, stream: socket.socket, root: Path) -> None:
        self._socket, self._root, self._lock = stream, root, threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        head = HEAD.pack(command, first, second, len(data), sum(data) & 0xFFFFFFFF, command ^ 0xFFFFFFFF)
        with self._lock:
            self._socket.sendall(head + data)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for process in self._processes:
            _hang_up(process)

    def _exact(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                command, first, second, length, _, _ = HEAD.unpack(self._exact(HEAD.size))
                self._take(command, first, second, self._exact(length))
        for stream in list(self._streams.values()):
            stream.end()

    def _take(self, command: int, first: int, second: int, data: bytes) -> None:
        stream = self._streams.get(second)
        if command == CNXN:
            self.send(CNXN, 0x01000001, 1 << 18, BANNER)
        elif command == OPEN:
            stream = self._streams[len(self._streams) + 1] = _Stream(self, len(self._streams) + 1, first)
            self.send(OKAY, stream.own, first)
            threading.Thread(target=self._service, args=(stream, data.rstrip(b"\0").decode()), daemon=True).start()
        elif stream is not None and command == OKAY:
            stream.taken()
        elif stream is not None and command == WRTE:
            stream.feed(data)
            self.send(OKAY, second, first)
        elif stream is not None and command == CLSE:
            stream.end()

    def _service(self, stream: _Stream, name: str) -> None:
        kind, _, words = name.partition(":")
        with contextlib.suppress(EOFError, OSError):
            if kind.startswith("shell,v2,") and kind.endswith(",raw"):  # TERM may be between them.
                self._shell(stream, words)
            elif kind == "sync":
                self._sync(stream)
        with contextlib.suppress(OSError):
            self.send(CLSE, stream.own, stream.theirs)
        stream.end()

    # ── services ──────────────────────────────────────────────────────────────────────────────

    def _shell(self, stream: _Stream, script: str) -> None:
        home, pipe = f"{self._root}{TEMPORARY}", subprocess.PIPE
        process = subprocess.Popen(
            ["sh", "-c", script.replace(TEMPORARY, home)],
            cwd=home,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            start_new_session=True,
        )
        self._processes.append(process)
        threading.Thread(target=self._to_stdin, args=(stream, process), daemon=True).start()
        outputs = [(process.stdout, STDOUT), (process.stderr, STDERR)]
        threads = [threading.Thread(target=_from_file, args=(stream, *one), daemon=True) for one in outputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = process.wait()
        stream.write(struct.pack("<BIB", EXIT, 1, code if code >= 0 else 128 - code))

    def _to_stdin(self, stream: _Stream, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(EOFError, OSError), process.stdin as stdin:
            while True:
                kind, length = struct.unpack("<BI", stream.read(5))
                data = memoryview(stream.read(length))
                if kind == CLOSE_STDIN:
                    stdin.close()
                while kind == STDIN and data:
                    data = data[stdin.write(data) :]
        _hang_up(process)

    def _sync(self, stream: _Stream) -> None:
        while (kind := stream.read(4)) != b"QUIT":
            path = stream.read(*struct.unpack("<I", stream.read(4))).decode()
            if kind == b"STAT":  # Nothing that Handheld sends to is a folder, and the client asks no more.
                stream.write(b"STAT" + bytes(12))
            elif kind == b"SEND":
                self._receive(stream, Path(f"{self._root}{path.rpartition(',')[0]}"))

    def _receive(self, stream: _Stream, path: Path) -> None:
        data = b""
        while (kind := stream.read(4)) == b"DATA":
            data += stream.read(*struct.unpack("<I", stream.read(4)))
        assert kind == b"DONE" and stream.read(4)
        try:
            path.write_bytes(data)
            stream.write(b"OKAY" + bytes(4))
        except OSError as error:
            text = f"couldn't create file: {error.strerror}".encode()
            stream.write(b"FAIL" + struct.pack("<I", len(text)) + text)


def _from_file(stream: _Stream, file: object, kind: int) -> None:
    assert hasattr(file, "read")
    with contextlib.suppress(EOFError, OSError):
        while data := file.read(PIECE // 2):
            stream.write(struct.pack("<BI", kind, len(data)) + data)


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """As adbd does when a client closes the stream of a shell."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGHUP)
