"""The page in a real browser: several windows, live, by keyboard, on a phone, without scripts."""

from contextlib import ExitStack

import pytest

from stategraph import ExecutionError, State
from stategraph.stores.sqlite import SqliteStore
from stategraph.web import app
from tests.web.browser import CHROMIUM, MISSING, launched, served, window
from tests.web.desk import HOSTILE, asks, desk

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)


@pytest.fixture(scope="module")
def browser():
    """Return one browser for all of them."""
    with launched() as found:
        yield found


@pytest.fixture
def site(browser, tmp_path):
    """Return a store, a graph, and what opens windows of their page."""
    with ExitStack() as stack:
        store = stack.enter_context(SqliteStore(tmp_path / "runs.db"))
        graph = desk(store)
        asking = asks(store, bool)
        page = app(store, [graph, asking])
        address = stack.enter_context(served(page))

        def opened(path="/", **options):
            shown = stack.enter_context(window(browser, address, page.token, **options))
            shown.goto(shown.url.rstrip("/") + path)
            return shown

        yield store, graph, asking, opened


def test_every_page_can_be_reached_by_links_and_read(site):
    """Runs, a run, a State of it, its nested run; each has a heading, landmarks and labelled fields."""
    _, graph, _, opened = site
    graph.execute(State({"photos": ["roof"]}, run_id="claim"))
    page = opened()

    page.get_by_role("link", name="claim", exact=True).click()
    assert page.get_by_role("heading", level=1).inner_text() == "claim"
    assert page.locator(".picture img").evaluate("image => image.complete && image.naturalWidth > 0")
    page.get_by_role("link", name="1", exact=True).click()
    page.get_by_role("heading", name="State at step 1").wait_for()
    page.get_by_role("link", name="claim/#2/estimate").first.click()
    assert page.get_by_role("heading", level=1).inner_text() == "claim/#2/estimate"
    assert page.get_by_role("main").count() == 1
    assert page.locator("input:not([type=hidden]), select, textarea").evaluate_all(
        "fields => fields.every(field => field.labels.length)"
    )


def test_a_run_is_followed_live(site):
    """The page shows changes of other processes without being loaded again."""
    _, graph, _, opened = site
    graph.execute(State({"photos": []}, run_id="claim"))
    page = opened("/run?id=claim")
    page.evaluate("window.stays = true")

    graph.resume("claim", {"verdict": {"amount": 7}})

    page.locator(".head .badge.completed").wait_for()
    page.get_by_text("paid").first.wait_for()
    assert page.evaluate("window.stays")


def test_an_answer_in_one_window_is_seen_in_another_and_a_late_one_refused(site):
    """Another window shows the answered run, and a late answer is refused with the reason."""
    store, _, asking, opened = site
    asking.execute(State(run_id="r"))
    answering, late, looking = (opened("/run?id=r") for _ in range(3))
    late.route("**/version*", lambda route: route.abort())  # this one does not hear of it
    looking.evaluate("window.stays = true")

    answering.get_by_label("yes").check()
    answering.get_by_label("By").first.fill("ann")
    answering.get_by_role("button", name="Answer").click()
    answering.locator(".head .badge.completed").wait_for()
    looking.locator(".head .badge.completed").wait_for()
    assert looking.evaluate("window.stays")
    late.get_by_label("no").check()
    late.get_by_role("button", name="Answer").click()

    assert "it is completed" in late.get_by_role("alert").inner_text()
    assert store.load("r")["answer"] is True


def test_typed_text_stays(site):
    """Though the page is kept up to date around it."""
    _, graph, asking, opened = site
    graph.execute(State({"photos": []}, run_id="claim"))
    page = opened("/run?id=claim")
    field = page.get_by_label("verdict")
    field.fill('{"amount":')

    with page.expect_response("**/run?id=claim"):  # it is looked at again
        asking.execute(State(run_id="other"))
    page.wait_for_timeout(100)

    assert field.input_value() == '{"amount":'


def test_hostile_values_run_nothing(site):
    """Hostile values run nothing in lists, pages and pictures."""
    _, graph, _, opened = site
    graph.execute(State({"photos": [], HOSTILE: [HOSTILE]}, run_id="claim"), by=HOSTILE, labels={"l": HOSTILE})
    page = opened("/run?id=claim&row=0")
    page.on("dialog", lambda dialog: pytest.fail("a script has run"))

    assert "<script>alert(1)</script>" in page.locator(".data").inner_text()
    assert page.locator("script").count() == 1
    page.goto(page.url.partition("/run")[0] + "/picture.svg?id=claim")
    assert page.locator("svg").count() == 1


def test_without_scripts_it_can_be_used(site):
    """Links and forms are enough."""
    store, _, asking, opened = site
    asking.execute(State(run_id="r"))
    page = opened("/run?id=r", java_script_enabled=False)

    page.get_by_label("no").check()
    page.get_by_role("button", name="Answer").click()

    page.locator(".head .badge.completed").wait_for()
    assert store.load("r")["answer"] is False


def test_on_a_phone_it_is_seen_why_a_run_failed(site):
    """On a phone the list and the timeline show the reason without scrolling sideways."""
    _, graph, _, opened = site
    with pytest.raises(ExecutionError):
        graph.execute(State({"photos": ["torn"]}, run_id="claim"))
    page = opened("/", viewport={"width": 390, "height": 844}, is_mobile=True)

    for path in ("/", "/run?id=claim"):
        page.goto(page.url.partition("/run")[0].rstrip("/") + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        why = page.locator("tbody .why").filter(has_text="part 0: ValueError: this photo is torn").bounding_box()
        assert 0 <= why["x"] < why["x"] + why["width"] <= 390
    assert page.get_by_role("columnheader", name="Who, why").count() == 1


def test_it_can_be_used_by_keyboard(site):
    """The first Tab skips the header, and the focus is visible."""
    _, _, asking, opened = site
    asking.execute(State(run_id="r"))
    page = opened()

    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to content"
    page.keyboard.press("Enter")
    page.get_by_role("link", name="r", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Waits at ask").wait_for()
    page.get_by_label("yes").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Answer").focus()
    page.keyboard.press("Enter")

    page.locator(".head .badge.completed").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(site, scheme):
    """Texts have a contrast of at least 4.5 to 1, as WCAG AA requires."""
    _, graph, _, opened = site
    with pytest.raises(ExecutionError):
        graph.execute(State({"photos": ["torn"]}, run_id="failed"))
    graph.execute(State({"photos": []}, run_id="waits"))
    page = opened("/", color_scheme=scheme)

    for path in ("/", "/run?id=failed", "/run?id=waits"):
        page.goto("/".join(page.url.split("/")[:4]) + path)
        assert page.evaluate(CONTRASTS) == []


CONTRASTS = """() => {
  const light = (colour) => {
    const parts = colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map(
      (part) => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const two = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    if ((two[0] + 0.05) / (two[1] + 0.05) < 4.5) found.push(element.outerHTML.slice(0, 120));
  }
  return found;
}"""
