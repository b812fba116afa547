"""Chromium for the tests of the report and the live page, driven over WebDriver's plain HTTP: no package is needed."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
KEYS = {"Tab": "\ue004", "Right": "\ue014", "Left": "\ue012", "Space": " ", "Enter": "\ue007", "Shift": "\ue008"}


def find_chromium() -> tuple[str, str] | None:
    """The browser and its driver, if both are installed."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One window. Close it, or use it in a `with` block."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        found = find_chromium()
        assert found is not None, "chromium and chromium-driver are not installed"
        self._profile = tempfile.mkdtemp(prefix="penstock-chromium-")
        environment = {**os.environ, "HOME": self._profile, "no_proxy": "127.0.0.1,localhost"}
        self._driver = subprocess.Popen(
            [found[1], "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self._address = f"http://127.0.0.1:{self._port()}"
        options = {
            "binary": found[0],
            "args": [*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={self._profile}/data"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}, "browserName": "chrome"}
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return int(found.group(1))
        raise AssertionError("chromedriver did not start")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=240) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from error

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def js(self, script: str, *args: Any) -> Any:
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(args)})

    def cdp(self, command: str, **values: Any) -> Any:
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": values})

    def press(self, key: str, *, shift: bool = False) -> None:
        actions = [{"type": kind, "value": KEYS.get(key, key)} for kind in ("keyDown", "keyUp")]
        if shift:
            actions = [{"type": "keyDown", "value": KEYS["Shift"]}, *actions, {"type": "keyUp", "value": KEYS["Shift"]}]
        self._call("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]})

    def wait(self, condition: str, timeout_s: float = 90.0) -> Any:
        """Wait until a JavaScript expression is true; its value."""
        end_s = time.monotonic() + timeout_s
        while not (value := self.js(f"return {condition}")):
            assert time.monotonic() < end_s, f"not true after {timeout_s} s: {condition}\n{self.errors()}"
            time.sleep(0.05)
        return value

    def errors(self) -> list[str]:
        """Errors and warnings on the console since the last call."""
        logs = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in logs if entry["level"] in ("SEVERE", "WARNING")]

    def prefer(self, scheme: str) -> None:
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, width: int, height: int) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.wait("document.readyState === 'complete'")
        # Two frames later what the new size changed is laid out and painted.
        self.js("window.painted = 0; const f = () => { if (++window.painted < 3) requestAnimationFrame(f); }; f()")
        self.wait("window.painted >= 3")
        shot = self.cdp("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(10)
            assert self._driver.stdout is not None
            self._driver.stdout.close()
            shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
