"""An object store in memory that speaks as much of S3 as pyarrow does, and lets the n-th request fail.

A request can fail with an error, never be answered, be done without an answer, or be answered with half a body; once, or from
there on. It is a process of its own, so that who uses it can be killed at a request. Objects are put back to an earlier state in
one call: an injection starts from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

HOW = (
    "error once",
    "error for good",
    "hang once",
    "hang for good",
    "lost once",
    "lost for good",
    "lost, then errors",
    "cut once",
    "kill before",
    "kill after",
)
HANG_S = 5.0  # longer than clients wait


class Store(ThreadingHTTPServer):
    """The objects, and which request fails how."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.RLock()
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.saved: dict[str, dict[str, tuple[bytes, float]]] = {}
        self.requests: list[str] = []
        self.number = 0
        self.how = ""
        self.client = 0

    def fate(self, line: str) -> str:
        """What becomes of this request: "", "error", "hang", "lost", "cut", or a kill of the client."""
        with self.lock:
            self.requests.append(line)
            at = len(self.requests)
            if not self.number or at < self.number:
                return ""
            if self.how == "lost, then errors":
                return "lost" if at == self.number else "error"
            if self.how.startswith("kill") and at == self.number:
                return self.how
            what, _, until = self.how.partition(" ")
            if at == self.number or until == "for good":
                return what
            return ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes: the second would wait for the client's acknowledgement
    server: Store

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _serve(self) -> None:
        body = self._body()
        split = urlsplit(self.path)
        name = unquote(split.path).lstrip("/")
        query = {key: values[0] for key, values in parse_qs(split.query, keep_blank_values=True).items()}
        if name.startswith("-/"):
            self._control(name[2:], query)
            return
        fate = self.server.fate(f"{self.command} {name}?{split.query}")
        if fate == "error":
            self._answer(500, _error("InternalError"))
            return
        if fate == "hang":
            time.sleep(HANG_S)
            self.close_connection = True
            return
        if fate == "kill before":
            self._kill()
            return
        with self.server.lock:
            status, answer, headers = self._do(name, query, body)
        if fate == "kill after":
            self._kill()
            return
        if fate == "lost":
            self.close_connection = True
            return
        self._answer(status, answer, headers, cut=fate == "cut")

    def _kill(self) -> None:
        os.kill(self.server.client, signal.SIGKILL)
        self.close_connection = True

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD" and not cut:
            self.wfile.write(body)
        if cut:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        whole = b""
        while body:
            head, _, body = body.partition(b"\r\n")
            size = int(head.split(b";")[0], 16)
            if not size:
                break
            whole += body[:size]
            body = body[size + 2 :]
        return whole

    def _do(self, name: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        bucket, _, key = name.partition("/")
        if self.command == "GET" and not key:
            return 200, self._list(bucket, query), {}
        if self.command == "POST" and "uploads" in query:
            upload = md5(os.urandom(8)).hexdigest()
            self.server.uploads[upload] = {}
            return 200, _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>"), {}
        if self.command == "PUT" and "uploadId" in query:
            if query["uploadId"] not in self.server.uploads:
                return 404, _error("NoSuchUpload"), {}
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, b"", {"ETag": f'"{md5(body).hexdigest()}"'}
        if self.command == "POST" and "uploadId" in query:
            if query["uploadId"] not in self.server.uploads:
                return 404, _error("NoSuchUpload"), {}
            parts = self.server.uploads.pop(query["uploadId"])
            whole = b"".join(part for _, part in sorted(parts.items()))
            self.server.objects[name] = whole, time.time()
            return 200, _xml("CompleteMultipartUploadResult", f'<ETag>"{md5(whole).hexdigest()}"</ETag>'), {}
        if self.command == "PUT":
            self.server.objects[name] = body, time.time()
            return 200, b"", {"ETag": f'"{md5(body).hexdigest()}"'}
        if self.command == "DELETE":
            self.server.uploads.pop(query.get("uploadId", ""), None)
            if "uploadId" not in query:
                self.server.objects.pop(name, None)
            return 204, b"", {}
        if name not in self.server.objects:
            return 404, _error("NoSuchKey"), {}
        return self._object(*self.server.objects[name])

    def _object(self, body: bytes, written: float) -> tuple[int, bytes, dict[str, str]]:
        headers = {"ETag": f'"{md5(body).hexdigest()}"', "Last-Modified": formatdate(written, usegmt=True)}
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None:
            return 200, body, headers
        first = int(found[1])
        last = min(int(found[2]), len(body) - 1)
        return 206, body[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(body)}"}

    def _list(self, bucket: str, query: dict[str, str]) -> bytes:
        start = f"{bucket}/{query.get('prefix', '')}"
        delimiter = query.get("delimiter", "")
        found = []
        folders = set()
        for name, (body, written) in sorted(self.server.objects.items()):
            if not name.startswith(start):
                continue
            rest = name[len(start) :]
            if delimiter and delimiter in rest:
                folders.add(name[: len(start) + rest.index(delimiter) + 1])
                continue
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(written))
            key = escape(name.partition("/")[2])
            found.append(f"<Contents><Key>{key}</Key><LastModified>{stamp}</LastModified><Size>{len(body)}</Size></Contents>")
        common = [
            f"<CommonPrefixes><Prefix>{escape(name.partition('/')[2])}</Prefix></CommonPrefixes>" for name in sorted(folders)
        ]
        most = query.get("max-keys")
        every = [*found, *common]
        if most is not None:
            every = every[: int(most)]
        count = f"<KeyCount>{len(every)}</KeyCount><IsTruncated>false</IsTruncated>"
        return _xml("ListBucketResult", f"<Name>{bucket}</Name>{count}{''.join(every)}")

    def _control(self, what: str, query: dict[str, str]) -> None:
        """What tests do: `save` and `back` of all objects under a name, `arm`, `stop`, `names`."""
        store = self.server
        answer: Any = None
        with store.lock:
            if what == "save":
                store.saved[query["name"]] = dict(store.objects)
            elif what == "back":
                store.objects = dict(store.saved[query["name"]])
                store.uploads = {}
            elif what == "arm":
                store.requests = []
                store.number = int(query["n"])
                store.how = query["how"]
                store.client = int(query["client"])
            elif what == "stop":
                store.number = 0
                answer = store.requests
            elif what == "names":
                answer = sorted(store.objects)
        self._answer(200, json.dumps(answer).encode())


def _xml(name: str, inside: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inside}</{name}>'.encode()


def _error(code: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()


class Control:
    """The store from outside."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, what: str, **query: object) -> Any:
        asked = "&".join(f"{key}={quote(str(value))}" for key, value in query.items())
        with urllib.request.urlopen(f"{self.address}/-/{what}?{asked}", timeout=60) as answer:
            return json.load(answer)


@contextlib.contextmanager
def running() -> Iterator[Control]:
    """A store in a process of its own; the environment names it."""
    store = Store()
    address = f"http://127.0.0.1:{store.server_port}"
    child = os.fork()
    if not child:
        try:
            store.serve_forever()
        finally:
            os._exit(0)
    store.server_close()
    settings = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield Control(address)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
