"""A real browser: Debian's Chromium, by the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

import base64
import http.client
import json
import socket
import subprocess

import harness

OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,1250", "--hide-scrollbars"]


class Browser:
    """One window, until the test ends."""

    def __init__(self, test, *options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        driver = subprocess.Popen(["chromedriver", "--port=%d" % self.port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        test.addCleanup(harness.kill_tree, driver)
        harness.wait_until(self._ready, 30, "chromedriver")
        session = self._call("POST", "", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": OPTIONS + list(options)}, "goog:loggingPrefs": {"browser": "ALL"}}}}, prefix="/session")
        self.session = session["sessionId"]
        test.addCleanup(lambda: self._call("DELETE", ""))

    def _ready(self):
        try:
            return self._call("GET", "", prefix="/status")["ready"]
        except OSError:
            return False

    def _call(self, method, path, body=None, prefix=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, (prefix or "/session/" + self.session) + path,
                               None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(value["message"])
        return value

    def go(self, url):
        self._call("POST", "/url", {"url": url})

    def run(self, script):
        """What the script returns, in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def dark(self):
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]}})

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self._call("GET", "/screenshot")))

    def errors(self):
        """What the browser's console says."""
        return self._call("POST", "/se/log", {"type": "browser"})
