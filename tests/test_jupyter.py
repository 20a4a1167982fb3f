"""`make lab`: JupyterLab opens the notebooks with the kernel of this environment."""
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

requests = pytest.importorskip("requests")
jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
ROOT = Path(__file__).resolve().parent.parent


def run_line(kernel_id, line):
    "What a line prints in a running kernel."
    client = jupyter_client.BlockingKernelClient(connection_file=jupyter_client.find_connection_file(kernel_id))
    said = []
    client.load_connection_file()
    client.start_channels()
    client.execute_interactive(line, timeout=60, output_hook=lambda message: said.append(message["content"]))
    client.stop_channels()
    return "".join(some.get("text", some.get("evalue", "")) for some in said)


class Server:
    "JupyterLab on a free port of the loopback."
    def __init__(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port, self.token = s.getsockname()[1], secrets.token_hex(8)
        command = [sys.executable, ROOT / "tools" / "lab.py", "--no-browser", f"--port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"]
        self.process = subprocess.Popen(command, env=dict(os.environ, PYTHONWARNINGS=""), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def ask(self, path, method="GET", body=None):
        return requests.request(method, f"http://127.0.0.1:{self.port}{path}", json=body, headers={"Authorization": f"token {self.token}"}, timeout=20)

    def answers(self):
        "Wait until it does."
        for _ in range(240):
            assert self.process.poll() is None, self.process.stderr.read()[-2000:]
            try: return self.ask("/api/status")
            except requests.ConnectionError: time.sleep(0.5)
        raise TimeoutError("JupyterLab does not answer")

    def end(self):
        try: self.ask("/api/shutdown", "POST")
        except requests.ConnectionError: self.process.terminate()
        try: self.process.wait(20)
        except subprocess.TimeoutExpired: self.process.kill()
        self.process.stderr.close()


def test_lab_runs_a_line_in_the_right_kernel():
    server = Server()
    try:
        server.answers()
        chapters = [f["name"] for f in server.ask("/api/contents/core").json()["content"] if f["type"] == "notebook"]
        chapter = "core/" + min(chapters)
        session = server.ask("/api/sessions", "POST", {"path": chapter, "name": chapter, "type": "notebook", "kernel": {"name": "python3"}}).json()
        said = run_line(session["kernel"]["id"], "import sys, softsortlib; print(sys.prefix)").strip()
        server.ask(f"/api/sessions/{session['id']}", "DELETE")
    finally:
        server.end()
    assert Path(said) == Path(sys.prefix)
