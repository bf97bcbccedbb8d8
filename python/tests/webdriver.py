# SPDX-License-Identifier: MIT
"""Headless Chromium by chromedriver, over HTTP: pages are opened, clicked and looked at as a user would."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ABSENT = None if BROWSER and DRIVER else "no Chromium with chromedriver here (Debian: chromium-driver)"


class Browser:
    """One window; use it in a `with` statement."""

    def __init__(self, profile):
        self._driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        line = ""
        while "successfully on port" not in line:
            line = self._driver.stdout.readline()
            assert line, "chromedriver does not start"
        self._address = f"http://127.0.0.1:{re.search('port ([0-9]+)', line)[1]}/session"
        options = {"binary": BROWSER,
                   "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            f"--user-data-dir={profile}", "--window-size=1280,1000"]}
        try:
            self._address += "/" + self._send("", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome", "goog:chromeOptions": options}}})["sessionId"]
            self.command("Performance.enable", timeDomain="threadTicks")
        except BaseException:
            self._driver.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._send("", method="DELETE")
        finally:
            self._driver.terminate()
            self._driver.wait()

    def _send(self, path, content=None, method=None):
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"},
                                         method=method)
        try:
            with DIRECTLY.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def open(self, address, ready="document.readyState === 'complete'"):
        self._send("/url", {"url": "about:blank"})  # where only the part behind # differs, it is opened anew
        self._send("/url", {"url": address})
        self.wait(ready)

    def busy(self, part="TaskDuration"):
        """Seconds of processor time, since others may use this machine, of the page's thread since it was opened, or of its
        ScriptDuration alone."""
        metrics = {one["name"]: one["value"] for one in self.command("Performance.getMetrics")["metrics"]}
        return metrics[part]

    def wait(self, ready, seconds=60):
        until = time.monotonic() + seconds
        while not self.run(f"return Boolean({ready})"):
            assert time.monotonic() < until, f"{ready} does not come true"
            time.sleep(0.05)

    def run(self, script, *arguments):
        return self._send("/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def click(self, selector, x=0.5, y=0.5, times=1):
        """At a share of the width and the height of the first such element, brought into view before."""
        self.drag(selector, (x, y), (x, y), times)

    def drag(self, selector, begin, end, times=1):
        left, top, width, height = self._box(selector)
        move, until = ({"type": "pointerMove", "x": round(left + x * width), "y": round(top + y * height)}
                       for x, y in (begin, end))
        self._send("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [
            move, *[{"type": "pointerDown", "button": 0}, until, {"type": "pointerUp", "button": 0}] * times]}]})

    def wheel(self, selector, pixels):
        """In the middle of the first such element."""
        left, top, width, height = self._box(selector)
        self.command("Input.dispatchMouseEvent", type="mouseWheel", x=left + width / 2, y=top + height / 2, deltaX=0,
                     deltaY=pixels)

    def _box(self, selector):
        return self.run(
            "const found = document.querySelector(arguments[0]); found.scrollIntoView({ block: 'center' });"
            "const box = found.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]", selector)

    def touch(self, *moments):
        """Where fingers are, one moment after the other; the last one has none."""
        for number, fingers in enumerate(moments):
            self.command("Input.dispatchTouchEvent", touchPoints=[{"x": x, "y": y, "id": place}
                         for place, (x, y) in enumerate(fingers)],
                         type="touchEnd" if not fingers else "touchMove" if number else "touchStart")

    def type(self, keys):
        self._send("/actions", {"actions": [{"type": "key", "id": "keys", "actions": [
            {"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]}]})

    def command(self, name, **values):
        """Of Chromium's own protocol."""
        return self._send("/goog/cdp/execute", {"cmd": name, "params": values})

    def resize(self, width, height=1000, dark=False, scale=1):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                     mobile=width < 500)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme",
                                                              "value": "dark" if dark else "light"}])

    def picture(self, path):
        path.write_bytes(base64.b64decode(self._send("/screenshot")))
