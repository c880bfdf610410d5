"""CarelessBucket: a server that takes S3's requests and passes over their conditions, as some compatible ones do."""

from __future__ import annotations

import hashlib
import http.server
import threading
from typing import Self


class CarelessBucket(http.server.ThreadingHTTPServer):
    """Objects in memory. It checks no signature, and refuses no write."""

    daemon_threads = True

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(handler) -> None:  # noqa: N805
                data = self.objects.get(handler.path)
                handler.reply(404 if data is None else 200, data or b"<Error><Code>NoSuchKey</Code></Error>")

            def do_PUT(handler) -> None:  # noqa: N805
                data = self.objects[handler.path] = handler.rfile.read(int(handler.headers["Content-Length"]))
                handler.reply(200, b"", of=data)

            def do_DELETE(handler) -> None:  # noqa: N805
                self.objects.pop(handler.path, None)
                handler.reply(204, b"")

            def do_POST(handler) -> None:  # noqa: N805
                """Deletes of several objects, of which there is one at a time."""
                text = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
                key = text.partition("<Key>")[2].partition("</Key>")[0]
                for path in [each for each in self.objects if each.endswith(f"/{key}")]:
                    del self.objects[path]
                handler.reply(200, f"<DeleteResult><Deleted><Key>{key}</Key></Deleted></DeleteResult>".encode())

            def reply(handler, status: int, body: bytes, of: bytes | None = None) -> None:  # noqa: N805
                handler.send_response(status)
                handler.send_header("ETag", f'"{hashlib.md5(body if of is None else of).hexdigest()}"')
                handler.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(self, *_words: object) -> None:
                """Not printed."""

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self.server_close()
