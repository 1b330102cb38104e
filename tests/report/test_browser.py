"""The page in a real Chromium: Debian's packages chromium and chromium-driver. Nothing is downloaded."""

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
missing = [name for name, found in (("chromium", CHROMIUM), ("chromium-driver", DRIVER)) if found is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"the page is not opened: apt install {' '.join(missing)}")

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page(image_run: Path, modal_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, one of them with a name that is a script."""
    folder = tmp_path_factory.mktemp("page")
    evil, plain = folder / EVIL, folder / "plain" / "script>"
    shutil.copytree(image_run, evil)
    shutil.copytree(image_run, plain)  # of the same name, so that all of the path is shown
    write_report([modal_run, evil, plain], folder / "report.html", instances=60, workers=0)
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
def opened(browser: webdriver.Chrome, page: Path) -> webdriver.Chrome:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    return browser


def drawings(browser: webdriver.Chrome) -> list[WebElement]:
    """Figures that are not folded away."""
    found = browser.find_elements(By.CSS_SELECTOR, "figure svg[aria-label], figure img")
    return [one for one in found if not one.find_elements(By.XPATH, "ancestor::details[not(@open)]")]


def width_of(browser: webdriver.Chrome, width: int) -> int:
    """How wide the page is in a window of a width."""
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    return browser.execute_script("return document.documentElement.scrollWidth")


def shows(browser: webdriver.Chrome, scheme: str, media: str = "") -> dict[str, str]:
    """Colours of the page and what is written on it."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    code = "const s = getComputedStyle(document.body); return {page: s.backgroundColor, ink: s.color}"
    return browser.execute_script(code)


def lightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_nothing_is_complained_of_and_nothing_fetched(opened: webdriver.Chrome, page: Path) -> None:
    assert opened.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in asked
    assert {address.partition(":")[0] for address in asked} <= {"file", "data"}
    assert [address for address in asked if address.startswith("file:")] == [page.as_uri()]


def test_every_figure_is_seen(opened: webdriver.Chrome) -> None:
    found = drawings(opened)
    assert len(found) > 100
    code = "return arguments[0].map((one) => { const b = one.getBoundingClientRect(); return [b.width, b.height] })"
    assert all(min(box) > 10 for box in opened.execute_script(code, found))
    broken = "return [...document.images].filter((one) => !one.naturalWidth || !one.alt).length"
    assert opened.execute_script(broken) == 0


def test_a_script_in_a_name_stays_text(opened: webdriver.Chrome) -> None:
    with pytest.raises(NoAlertPresentException):
        _ = opened.switch_to.alert
    assert any(one.text.endswith(EVIL) for one in opened.find_elements(By.TAG_NAME, "h2"))
    assert len(opened.find_elements(By.TAG_NAME, "script")) == 2


def test_a_point_under_the_pointer_tells_of_itself(opened: webdriver.Chrome) -> None:
    figure = opened.find_element(By.CSS_SELECTOR, "[data-map='1']")
    tip, points = figure.find_element(By.CLASS_NAME, "tip"), figure.find_elements(By.CSS_SELECTOR, ".map use")
    assert len(points) == 60
    assert not tip.is_displayed()
    ActionChains(opened).move_to_element(points[30]).perform()
    assert tip.is_displayed()
    assert re.fullmatch(r"[a-z]+\ntest/\d+", tip.text)
    thumb = tip.find_element(By.CLASS_NAME, "thumb")
    assert thumb.is_displayed()
    assert thumb.value_of_css_property("background-image").startswith('url("data:image/webp')
    ActionChains(opened).move_to_element(opened.find_element(By.ID, "name-1")).perform()
    assert not tip.is_displayed()


def test_points_of_features_tell_their_label_and_id(opened: webdriver.Chrome) -> None:
    figure = opened.find_element(By.CSS_SELECTOR, "[data-map='0']")
    ActionChains(opened).move_to_element(figure.find_elements(By.CSS_SELECTOR, ".map use")[7]).perform()
    assert re.fullmatch(r"\d\ntest/\d+", figure.find_element(By.CLASS_NAME, "tip").text)
    assert not figure.find_element(By.CLASS_NAME, "thumb").is_displayed()


def test_the_keyboard_goes_from_point_to_point(opened: webdriver.Chrome) -> None:
    figure = opened.find_element(By.CSS_SELECTOR, "[data-map='0']")
    tip = figure.find_element(By.CLASS_NAME, "tip")
    for _ in range(60):
        ActionChains(opened).send_keys(Keys.TAB).perform()
        if opened.switch_to.active_element.tag_name == "use":
            break
    assert tip.is_displayed()
    told = {tip.text}
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_UP) * 2:
        ActionChains(opened).send_keys(key).perform()
        here = opened.switch_to.active_element
        assert here.tag_name == "use"
        assert here.get_attribute("aria-label") == tip.text.replace("\n", ", ")
        told.add(tip.text)
    assert len(told) > 2
    assert len(figure.find_elements(By.CSS_SELECTOR, "use[tabindex='0']")) == 1
    ActionChains(opened).send_keys(Keys.TAB).perform()
    assert opened.switch_to.active_element.tag_name == "button"
    assert not tip.is_displayed()


def test_a_class_is_seen_alone(opened: webdriver.Chrome) -> None:
    figure = opened.find_element(By.CSS_SELECTOR, "[data-map='1']")
    buttons = figure.find_elements(By.CSS_SELECTOR, ".groups button")
    layers = figure.find_elements(By.CSS_SELECTOR, ".map g")
    assert len(buttons) == len(layers) > 5
    opened.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", buttons[2])
    buttons[2].click()
    assert [one.value_of_css_property("opacity") == "1" for one in layers] == [n == 2 for n in range(len(layers))]
    buttons[2].click()
    assert {one.value_of_css_property("opacity") for one in layers} == {"1"}


def test_light_and_dark_and_paper(opened: webdriver.Chrome) -> None:
    light, dark = shows(opened, "light"), shows(opened, "dark")
    assert lightness(light["page"]) > 200 > 80 > lightness(light["ink"])
    assert lightness(dark["page"]) < 60 < 180 < lightness(dark["ink"])
    paper = shows(opened, "dark", "print")
    assert paper == {"page": "rgb(255, 255, 255)", "ink": "rgb(0, 0, 0)"}


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_is_never_wider_than_its_window(opened: webdriver.Chrome, width: int) -> None:
    assert width_of(opened, width) == width


def test_on_a_phone_a_touch_is_enough(opened: webdriver.Chrome) -> None:
    width_of(opened, 390)
    figure = opened.find_element(By.CSS_SELECTOR, "[data-map='1']")
    point = figure.find_elements(By.CSS_SELECTOR, ".map use")[12]
    opened.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", point)
    box = opened.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.x, b.y]", point)
    touch = {"type": "touchStart", "touchPoints": [{"x": box[0] + 3, "y": box[1] + 3}]}
    opened.execute_cdp_cmd("Input.dispatchTouchEvent", touch)
    opened.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    tip = figure.find_element(By.CLASS_NAME, "tip")
    assert tip.is_displayed()
    assert tip.rect["x"] >= 0
    assert tip.rect["x"] + tip.rect["width"] <= 390


def test_on_paper_nothing_is_cut_off(opened: webdriver.Chrome) -> None:
    shows(opened, "light", "print")
    a4 = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", a4)
    wide = "return [...document.querySelectorAll('table, .row, svg, img')].map((x) => x.getBoundingClientRect().right)"
    assert max(opened.execute_script(wide)) <= 718
    assert not opened.find_element(By.TAG_NAME, "nav").is_displayed()
