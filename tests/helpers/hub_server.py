"""A stand-in for a model hub: creates repositories, takes commits of small files, and serves what was committed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`files`: repository -> path -> content."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def _send(self, body: bytes, status: int = 200, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _json(self, body: object, status: int = 200) -> None:
                self._send(json.dumps(body).encode(), status, Content_Type="application/json")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path == "/api/repos/create":
                    given = json.loads(body)
                    owner = given.get("organization")
                    name = given["name"] if not owner else f"{owner}/{given['name']}"
                    hub.files.setdefault(name, {})
                    self._json({"url": f"{hub.url}/{name}", "id": name, "name": name})
                elif match := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path.split("?")[0]):
                    wanted = json.loads(body)["files"]
                    self._json({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted]})
                elif match := re.fullmatch(r"/api/models/(.+)/commit/main", self.path.split("?")[0]):
                    for line in body.splitlines():
                        entry = json.loads(line)
                        if entry["key"] == "file":
                            content = base64.b64decode(entry["value"]["content"])
                            hub.files[match[1]][entry["value"]["path"]] = content
                    url = f"{hub.url}/{match[1]}/commit/{COMMIT}"
                    self._json({"commitUrl": url, "commitOid": COMMIT, "success": True})
                else:
                    self._json({}, 200)

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.+)?", path):
                    if match[1] not in hub.files:
                        self._json({"error": "Repository not found"}, 404)
                        return
                    siblings = [{"rfilename": name} for name in hub.files[match[1]]]
                    self._json({"id": match[1], "modelId": match[1], "sha": COMMIT, "siblings": siblings, "tags": []})
                elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/.+", path):
                    self._json(
                        [{"type": "file", "path": n, "size": len(c), "oid": COMMIT} for n, c in hub.files[match[1]].items()]
                    )
                elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                    content = hub.files.get(match[1], {}).get(match[2])
                    if content is None:
                        self._send(b"", 404, X_Error_Code="EntryNotFound")
                        return
                    tag = hashlib.sha256(content).hexdigest()
                    self._send(content, 200, ETag=f'"{tag}"', X_Repo_Commit=COMMIT)
                else:
                    self._json({}, 404)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
