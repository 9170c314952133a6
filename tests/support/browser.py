"""A real Chromium without a screen, driven by Selenium. It contacts only this machine: neither the driver nor the
browser is downloaded, and no name is resolved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

ENOUGH_S = 60.0
"""Seconds after which a condition counts as never true."""
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    driver_path, browser_path = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver_path, "there is no chromedriver: run .ci/setup-tests"
    assert browser_path, "there is no chromium: run .ci/setup-tests"
    options = ChromeOptions()
    options.binary_location = browser_path
    for each in (*_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    driver = Chrome(options=options, service=Service(executable_path=driver_path))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """One browser tab, as its user sees it. Every method blocks: call it in a thread."""

    def __init__(self, driver: Chrome) -> None:
        self.driver: Any = driver
        """Driver, typed as Any: half of its methods have no types."""

    def open(self, url: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Open a page as a first-time visitor."""
        self.driver.get("about:blank")
        self.forget_logs()
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.resize(width, height)
        self.driver.get(f"{url}/")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the viewport: a window cannot be as narrow as a telephone's."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def find(self, css: str) -> WebElement:
        found: WebElement = self.driver.find_element(By.CSS_SELECTOR, css)
        return found

    def text(self, css: str) -> str:
        """Whole text of an element, as it is in the document."""
        told: str | None = self.driver.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", css
        )
        return told or ""

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: object) -> Any:
        """Wait until this JavaScript expression is truthy, and return its value."""
        wait = WebDriverWait(self.driver, ENOUGH_S, poll_frequency=0.02)
        return wait.until(lambda driver: driver.execute_script(f"return {script}", *arguments), f"never: {script}")

    def until_live(self) -> None:
        self.until("document.querySelector('#live').dataset.state === 'live' && !!document.querySelector('#regions')")

    def forget_logs(self) -> None:
        self.driver.get_log("browser")
        self.driver.get_log("performance")

    def console(self) -> list[str]:
        """Messages in the browser's console since the last call."""
        return [each["message"] for each in self.driver.get_log("browser")]

    def asked(self) -> set[str]:
        """Origins (scheme and host) that the page contacted since the last call."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                hosts.add(f"{url.scheme}://{url.netloc}")
        return hosts - {"data://", "about://"}
