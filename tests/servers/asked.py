"""Asked: stands for the metadata address of a cloud, and for its endpoint."""

from __future__ import annotations

import http.server
import threading
from typing import Self


class Asked(http.server.ThreadingHTTPServer):
    """A server on this machine that keeps the requests it was sent, and answers none of them well.

    It stands for every metadata address, so that no test can reach the real ones.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(handler) -> None:  # noqa: N805
                self.requests.append(f"{handler.command} {handler.path}")
                handler.send_error(404)

            do_GET = do_PUT = do_HEAD = do_POST = answer  # noqa: N815

            def log_message(self, *_words: object) -> None:
                """Not printed."""

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which the clients of each cloud take it for their metadata address."""
        return {
            "AWS_METADATA_ENDPOINT": self.address,  # obstore.
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.address,  # pyarrow and deltalake.
            "GCE_METADATA_HOST": self.address.removeprefix("http://"),
            "HOME": "/nonexistent",
        }

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self.server_close()
