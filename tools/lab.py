"""JupyterLab on the notebooks, with the kernel of this environment.

    python tools/lab.py [a notebook of nbs/] [any option of jupyter lab]
    python tools/lab.py --check       start it unseen, run a line in its kernel, stop it
"""
import os, secrets, socket, subprocess, sys, time
from pathlib import Path

from repo import NBS

ENV = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1",      # this environment's kernel, before one of the same name in the home folder
       "MATPLOTLIBRC": str(NBS / "matplotlibrc")}

def kernel():
    "Install the kernel `python3` that the notebooks name into this environment, where it is not there"
    if not (Path(sys.prefix) / "share/jupyter/kernels/python3/kernel.json").exists():
        subprocess.run([sys.executable, "-m", "ipykernel", "install", "--sys-prefix", "--name", "python3"], check=True, capture_output=True)

def command(*options):
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyterlab", "--notebook-dir", str(NBS), *as_root, *options]

def ask(address, token, path, method="GET", body=None):
    "What the server answers"
    import requests
    return requests.request(method, address + path, json=body, headers={"Authorization": f"token {token}"}, timeout=20)

def run_line(kernel_id, line):
    "What a line prints in a running kernel"
    from jupyter_client import BlockingKernelClient, find_connection_file
    client, said = BlockingKernelClient(connection_file=find_connection_file(kernel_id)), []
    client.load_connection_file()
    client.start_channels()
    client.execute_interactive(line, timeout=60, output_hook=lambda message: said.append(message["content"]))
    client.stop_channels()
    return "".join(some.get("text", some.get("evalue", "")) for some in said)

def check():
    "Start JupyterLab on a free port of the loopback, open the first chapter, run a line in its kernel, stop"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port, token = s.getsockname()[1], secrets.token_hex(8)
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command("--no-browser", f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"), env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(120):
            if server.poll() is not None: sys.exit(f"JupyterLab stopped: {server.stderr.read()[-2000:]}")
            try: ask(address, token, "/api/status"); break
            except OSError: time.sleep(0.5)
        else: sys.exit("JupyterLab does not answer")
        chapter = "core/" + sorted(f["name"] for f in ask(address, token, "/api/contents/core").json()["content"] if f["type"] == "notebook")[0]
        session = ask(address, token, "/api/sessions", "POST", {"path": chapter, "name": chapter, "type": "notebook", "kernel": {"name": "python3"}}).json()
        said = run_line(session["kernel"]["id"], "import sys, softsortlib; print(sys.prefix)").strip()
        ask(address, token, f"/api/sessions/{session['id']}", "DELETE")
        if Path(said) != Path(sys.prefix): sys.exit(f"the kernel runs in {said}, not in {sys.prefix}")
        print(f"JupyterLab opens {chapter}; its kernel is the Python of {sys.prefix}")
    finally:
        try: ask(address, token, "/api/shutdown", "POST")
        except OSError: server.terminate()
        try: server.wait(20)
        except subprocess.TimeoutExpired: server.kill()
        server.stderr.close()

if __name__ == "__main__":
    kernel()
    if sys.argv[1:] == ["--check"]: check()
    else: sys.exit(subprocess.run(command(*(f"--LabApp.default_url=/lab/tree/{a}" if a.endswith(".ipynb") else a for a in sys.argv[1:])), env=ENV).returncode)
