"""How the app starts, and how it says that it cannot."""

import socket

import pytest

from components.server import launch


def test_a_port_that_is_taken_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("PORT", str(port))
        with pytest.raises(SystemExit, match=rf"^The app cannot listen at 127\.0\.0\.1, port {port}: Address already in use\. PORT="):
            launch.main()


@pytest.mark.parametrize("port", ["http", "65536", "-1"])
def test_what_is_no_port_is_one_sentence(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("PORT", port)
    with pytest.raises(SystemExit, match=r"^PORT must be a number up to 65535, not"):
        launch.main()
