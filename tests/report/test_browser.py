"""The page in Chromium (Debian packages chromium and chromium-driver). Nothing is downloaded."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoAlertPresentException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from manyviews.report import write_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
missing = [name for name, path in (("chromium", CHROMIUM), ("chromium-driver", DRIVER)) if path is None]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing), reason=f"needs Chromium: apt install {' '.join(missing)}"),
]

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page(image_run: Path, modal_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three runs, one of them named like a script."""
    folder = tmp_path_factory.mktemp("page")
    evil, plain = folder / EVIL, folder / "plain" / "script>"
    shutil.copytree(image_run, evil)
    shutil.copytree(image_run, plain)  # the same name, so that paths are displayed
    write_report([modal_run, evil, plain], folder / "report.html", instances=60, num_workers=0)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def driver(browser: webdriver.Chrome, page: Path) -> webdriver.Chrome:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    return browser


def list_drawings(browser: webdriver.Chrome) -> list[WebElement]:
    """List figures outside of collapsed details."""
    figures = browser.find_elements(By.CSS_SELECTOR, "figure svg[aria-label], figure img")
    return [figure for figure in figures if not figure.find_elements(By.XPATH, "ancestor::details[not(@open)]")]


def resize(browser: webdriver.Chrome, width: int) -> int:
    """Set the window width and return the page width."""
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    return browser.execute_script("return document.documentElement.scrollWidth")


def get_colors(browser: webdriver.Chrome, scheme: str, media: str = "") -> dict[str, str]:
    """Background and text color of the page."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    code = "const s = getComputedStyle(document.body); return {page: s.backgroundColor, ink: s.color}"
    return browser.execute_script(code)


def compute_lightness(color: str) -> float:
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3


def test_browser_logs_no_error_and_fetches_nothing(driver: webdriver.Chrome, page: Path) -> None:
    assert driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in urls
    assert {url.partition(":")[0] for url in urls} <= {"file", "data"}
    assert [url for url in urls if url.startswith("file:")] == [page.as_uri()]


def test_every_figure_is_visible(driver: webdriver.Chrome) -> None:
    figures = list_drawings(driver)
    assert len(figures) > 100
    code = "return arguments[0].map((one) => { const b = one.getBoundingClientRect(); return [b.width, b.height] })"
    assert all(min(box) > 10 for box in driver.execute_script(code, figures))
    broken = "return [...document.images].filter((one) => !one.naturalWidth || !one.alt).length"
    assert driver.execute_script(broken) == 0


def test_script_in_a_name_is_not_run(driver: webdriver.Chrome) -> None:
    with pytest.raises(NoAlertPresentException):
        _ = driver.switch_to.alert
    assert any(one.text.endswith(EVIL) for one in driver.find_elements(By.TAG_NAME, "h2"))
    assert len(driver.find_elements(By.TAG_NAME, "script")) == 2


def test_pointer_shows_a_tooltip(driver: webdriver.Chrome) -> None:
    figure = driver.find_element(By.CSS_SELECTOR, "[data-map='1']")
    tip, points = figure.find_element(By.CLASS_NAME, "tip"), figure.find_elements(By.CSS_SELECTOR, ".map use")
    assert len(points) == 60
    assert not tip.is_displayed()
    ActionChains(driver).move_to_element(points[30]).perform()
    assert tip.is_displayed()
    assert re.fullmatch(r"[a-z]+\ntest/\d+", tip.text)
    thumb = tip.find_element(By.CLASS_NAME, "thumb")
    assert thumb.is_displayed()
    assert thumb.value_of_css_property("background-image").startswith('url("data:image/webp')
    ActionChains(driver).move_to_element(driver.find_element(By.ID, "name-1")).perform()
    assert not tip.is_displayed()


def test_tooltip_of_features_has_label_and_id(driver: webdriver.Chrome) -> None:
    figure = driver.find_element(By.CSS_SELECTOR, "[data-map='0']")
    ActionChains(driver).move_to_element(figure.find_elements(By.CSS_SELECTOR, ".map use")[7]).perform()
    assert re.fullmatch(r"\d\ntest/\d+", figure.find_element(By.CLASS_NAME, "tip").text)
    assert not figure.find_element(By.CLASS_NAME, "thumb").is_displayed()


def test_arrow_keys_move_between_points(driver: webdriver.Chrome) -> None:
    figure = driver.find_element(By.CSS_SELECTOR, "[data-map='0']")
    tip = figure.find_element(By.CLASS_NAME, "tip")
    for _ in range(60):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        if driver.switch_to.active_element.tag_name == "use":
            break
    assert tip.is_displayed()
    texts = {tip.text}
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_UP) * 2:
        ActionChains(driver).send_keys(key).perform()
        active = driver.switch_to.active_element
        assert active.tag_name == "use"
        assert active.get_attribute("aria-label") == tip.text.replace("\n", ", ")
        texts.add(tip.text)
    assert len(texts) > 2
    assert len(figure.find_elements(By.CSS_SELECTOR, "use[tabindex='0']")) == 1
    ActionChains(driver).send_keys(Keys.TAB).perform()
    assert driver.switch_to.active_element.tag_name == "button"
    assert not tip.is_displayed()


def test_legend_button_shows_one_class(driver: webdriver.Chrome) -> None:
    figure = driver.find_element(By.CSS_SELECTOR, "[data-map='1']")
    buttons = figure.find_elements(By.CSS_SELECTOR, ".groups button")
    layers = figure.find_elements(By.CSS_SELECTOR, ".map g")
    assert len(buttons) == len(layers) > 5
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", buttons[2])
    buttons[2].click()
    assert [one.value_of_css_property("opacity") == "1" for one in layers] == [n == 2 for n in range(len(layers))]
    buttons[2].click()
    assert {one.value_of_css_property("opacity") for one in layers} == {"1"}


def test_light_dark_and_print_colors(driver: webdriver.Chrome) -> None:
    light, dark = get_colors(driver, "light"), get_colors(driver, "dark")
    assert compute_lightness(light["page"]) > 200 > 80 > compute_lightness(light["ink"])
    assert compute_lightness(dark["page"]) < 60 < 180 < compute_lightness(dark["ink"])
    paper = get_colors(driver, "dark", "print")
    assert paper == {"page": "rgb(255, 255, 255)", "ink": "rgb(0, 0, 0)"}


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_fits_the_window(driver: webdriver.Chrome, width: int) -> None:
    assert resize(driver, width) == width


def test_touch_shows_a_tooltip(driver: webdriver.Chrome) -> None:
    resize(driver, 390)
    figure = driver.find_element(By.CSS_SELECTOR, "[data-map='1']")
    point = figure.find_elements(By.CSS_SELECTOR, ".map use")[12]
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", point)
    box = driver.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.x, b.y]", point)
    touch = {"type": "touchStart", "touchPoints": [{"x": box[0] + 3, "y": box[1] + 3}]}
    driver.execute_cdp_cmd("Input.dispatchTouchEvent", touch)
    driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    tip = figure.find_element(By.CLASS_NAME, "tip")
    assert tip.is_displayed()
    assert tip.rect["x"] >= 0
    assert tip.rect["x"] + tip.rect["width"] <= 390


def test_print_layout_fits_the_page(driver: webdriver.Chrome) -> None:
    get_colors(driver, "light", "print")
    a4 = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", a4)
    wide = "return [...document.querySelectorAll('table, .row, svg, img')].map((x) => x.getBoundingClientRect().right)"
    assert max(driver.execute_script(wide)) <= 718
    assert not driver.find_element(By.TAG_NAME, "nav").is_displayed()
