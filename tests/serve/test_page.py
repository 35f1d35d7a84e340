"""The page in a real browser: what a person does, and what they see."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chromium import NEEDED, launched
from serve_fixtures import draw, encoded

pytestmark = NEEDED


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as opened:
        yield opened


class Watch:
    """A page whose scripts must not fail and that must not talk to anyone else."""

    def __init__(self, page: Any, home: str) -> None:
        self.page, self.home = page, home
        self.errors: list[str] = []
        self.strangers: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith((home, "blob:", "data:")) else self.strangers.append(request.url),
        )


@pytest.fixture
def open_page(browser: Any, live: Any) -> Iterator[Callable[..., Any]]:
    watches: list[Watch] = []

    def open_(hash_: str = "", url: str = live.url, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        page = context.new_page()
        page.set_default_timeout(60_000)
        watches.append(Watch(page, url))
        page.goto(f"{url}/{hash_}")
        return page

    yield open_
    for watch in watches:
        watch.page.context.close()
        assert watch.errors == [] and watch.strangers == []


def until(page: Any, expression: str, arg: Any = None) -> None:
    """Wait until it holds. (Playwright's own wait needs `eval` in the page, which our policy forbids.)"""
    deadline = time.monotonic() + 60
    while not page.evaluate(expression, arg):
        assert time.monotonic() < deadline, f"never: {expression}; the page says: {page.inner_text('main')[:400]}"
        time.sleep(0.03)


def settled(page: Any) -> None:
    """The page shows what its address says."""
    until(page, "document.querySelector('#results').dataset.shown === location.hash")


def follow(page: Any, selector: str) -> None:
    """Click what leads to another address, and wait until that is shown: a browser may follow a link after the click is over."""
    before = page.evaluate("location.hash")
    page.click(selector)
    until(page, "before => location.hash !== before", before)
    settled(page)


def stop_the_clock(page: Any) -> None:
    """From here on time passes in the page when a test says so: what is shown for some seconds stays."""
    page.clock.install()
    page.clock.pause_at(time.time() + 3600)


def cards(page: Any) -> list[str]:
    settled(page)
    return [
        str(card)
        for card in page.eval_on_selector_all("#results .card:not(.ghost)", "(all) => all.map((card) => card.dataset.id)")
    ]


def search(page: Any, text: str) -> list[str]:
    page.fill("#text", text)
    page.press("#text", "Enter")
    until(page, "text => new URLSearchParams(location.hash.slice(1)).get('q') === text", arg=text)
    return cards(page)


FILES = """([files]) => {
    const transfer = new DataTransfer();
    for (const [data, name, kind] of files) {
        transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name, { type: kind }));
    }
    return transfer;
}"""


def drop(page: Any, data: bytes, name: str, kind: str, zone: str = "") -> None:
    drop_all(page, [(data, name, kind)], zone)


def drop_all(page: Any, files: list[tuple[bytes, str, str]], zone: str = "") -> None:
    """Drop files on the page as a browser does, on one of its two places if one is named."""
    transfer = page.evaluate_handle(FILES, [[[base64.b64encode(data).decode(), name, kind] for data, name, kind in files]])
    page.dispatch_event("body", "dragenter", {"dataTransfer": transfer})
    assert page.is_visible("#drop")
    let_go(page, transfer, zone)


def let_go(page: Any, transfer: Any, zone: str) -> None:
    where = {"clientX": 1, "clientY": 1}
    if zone:
        box = page.query_selector(f"#drop [data-zone={zone}]").bounding_box()
        where = {"clientX": box["x"] + box["width"] / 2, "clientY": box["y"] + box["height"] / 2}
    page.dispatch_event("body", "dragover", {"dataTransfer": transfer, **where})
    page.dispatch_event("body", "drop", {"dataTransfer": transfer, **where})
    assert not page.is_visible("#drop")


def test_the_page_of_another_collection(open_page: Callable[..., Any], live_two: Any) -> None:
    url = live_two.url
    page = open_page("?collection=few", url)
    settled(page)
    assert page.inner_text("#count") == "9 items"
    found = search(page, "a red circle on white paper")
    assert 0 < len(found) <= 9
    shown = page.eval_on_selector_all("#results .card img", "(all) => all.map((image) => new URL(image.src).pathname)")
    assert shown and all(path.startswith("/v1/collections/few/") for path in shown)
    page = open_page("?collection=none", url)
    settled(page)
    assert "no collection 'none'" in page.inner_text("#results")


def test_text_search_shows_a_grid_with_scores(open_page: Callable[..., Any]) -> None:
    page = open_page()
    assert len(cards(page)) > 5 and "Search with text" in page.inner_text("#results")
    assert page.inner_text("#count") == "108 items"
    found = search(page, "a red circle on white paper")
    assert len(found) == 24
    modalities = [one.inner_text() for one in page.query_selector_all(".card .kind")]
    assert set(modalities) <= {"image", "image + text"} and "target" not in page.url  # things to look at, unless asked otherwise
    page.click("label:has-text('Anything')")
    until(page, "[...document.querySelectorAll('.card .kind')].some((one) => one.textContent === 'text')")
    assert cards(page)[0] == "circle red text"
    scores = [float(score.inner_text()) for score in page.query_selector_all(".score")]
    assert scores == sorted(scores, reverse=True) and len(scores) == 24
    assert re.match(r"24 results in [\d.]+ ms", page.inner_text("#status"))


def test_kind_and_number_of_answers(open_page: Callable[..., Any]) -> None:
    page = open_page()
    search(page, "green square")
    follow(page, "label:has-text('Texts')")
    assert len(cards(page)) == 24
    kinds = page.eval_on_selector_all(".kind", "(all) => [...new Set(all.map((kind) => kind.textContent))]")
    assert set(kinds) <= {"text", "image + text"} and kinds  # whatever has a text
    page.select_option("#k", "12")
    assert len(cards(page)) == 12
    assert "target=text" in page.url and "k=12" in page.url
    page.click("label:has-text('Images')")  # the default stands in no address
    until(page, "!location.hash.includes('target')")


def test_image_search_by_drop_then_composed_with_words(open_page: Callable[..., Any]) -> None:
    page = open_page("#target=any")
    cards(page)
    drop(page, encoded(draw("ring", "blue")), "ring.png", "image/png")
    page.wait_for_selector("#results .score")
    assert cards(page)[0] == "ring/blue.png"
    assert page.inner_text("#chosen-name") == "ring.png" and page.is_visible("#chosen-image")
    alone = cards(page)
    composed = search(page, "but a red square")  # the picture stays
    assert page.is_visible("#chosen") and composed != alone
    follow(page, "#chosen-remove")
    assert cards(page) != composed and page.is_hidden("#chosen")
    page.go_back()  # history holds the picture
    assert cards(page) == composed and page.is_visible("#chosen")


def test_choose_and_paste_a_picture(open_page: Callable[..., Any], tmp_path: Path) -> None:
    page = open_page("#target=any")
    (tmp_path / "large.png").write_bytes(encoded(draw("cross", "green", 3000).effect_spread(40)))  # noise: megabytes
    page.set_input_files("#file", tmp_path / "large.png")
    page.wait_for_selector("#results .score")
    assert cards(page)[0].startswith("cross") and "green" in cards(page)[0]
    page.evaluate(
        """(data) => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
            transfer.items.add(new File([bytes], "", { type: "image/png" }));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true }));
        }""",
        base64.b64encode(encoded(draw("circle", "yellow"))).decode(),
    )
    until(page, "document.querySelector('.card')?.dataset.id === 'circle/yellow.png'")
    assert page.inner_text("#chosen-name") == "pasted image"


def test_filter_and_its_fields(open_page: Callable[..., Any]) -> None:
    page = open_page("#target=any")
    page.click("#fields button:has-text('colour')")
    assert page.input_value("#where") == "colour = ''"
    page.keyboard.type("purple")  # the cursor stands between the quotes
    drop(page, encoded(draw("ring", "purple")), "ring.png", "image/png")  # keeps the filter that was not searched yet
    until(page, "location.hash.includes('pic=')")
    assert cards(page)[0] == "ring/purple.png" and page.input_value("#where") == "colour = 'purple'"
    page.click("#chosen-remove")
    found = search(page, "a circle")  # at once: the page without the image is still on its way
    assert len(found) == 18 and all("purple" in name for name in found)
    assert "within the filter" in page.inner_text("#status")


class Held:
    """Requests of a page that wait until they are let."""

    def __init__(self, page: Any, path: str) -> None:
        self.page, self.path = page, path
        self.waiting: list[Any] = []
        self.open = False
        page.route(path, self._arrive)

    def _arrive(self, request: Any) -> None:
        if self.open:
            request.continue_()
        else:
            self.waiting.append(request)

    def arrived(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.waiting) < count:
            assert time.monotonic() < deadline, f"{len(self.waiting)} of {count} requests for {self.path}"
            self.page.wait_for_timeout(20)  # requests are handled while playwright waits for something

    def let_go(self) -> None:
        """The latest first: what was asked before comes after it. Requests that the page gave up are gone."""
        self.open = True
        for request in reversed(self.waiting):
            request.continue_()


def test_a_list_is_marked_with_the_address_it_was_drawn_for(open_page: Callable[..., Any]) -> None:
    """An address changes before the event that says so: what is drawn in between belongs to the address before it."""
    page = open_page("#q=blue+ring")
    wanted = cards(page)
    held = Held(page, "**/v1/codes/**")
    page.evaluate("location.hash = '#target=any'")  # the first screen
    held.arrived(1)
    page.evaluate("history.pushState(null, '', '#q=blue+ring')")  # as `location.hash = …` does, without its event so far
    held.let_go()
    until(page, "document.querySelector('#results .start') !== null")
    assert page.get_attribute("#results", "data-shown") == "#target=any"
    page.evaluate("window.dispatchEvent(new HashChangeEvent('hashchange'))")
    assert cards(page) == wanted and page.input_value("#text") == "blue ring"


def test_a_late_answer_of_a_former_search_is_not_shown(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red+circle")
    found = cards(page)
    held = Held(page, "**/v1/search")
    page.evaluate("location.hash = '#q=blue+ring'")
    held.arrived(1)
    page.evaluate("location.hash = '#q=red+circle'")  # back to what is on screen
    with page.expect_response("**/v1/search") as late:  # of either, if the former was not given up
        held.let_go()
    late.value.finished()
    assert cards(page) == found
    assert search(page, "yellow bar") != found


def test_words_typed_while_the_page_is_drawn_stay(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red+circle&where=colour+%3D+%27red%27")
    cards(page)
    held = Held(page, "**/v1/search")
    page.evaluate("location.hash = '#q=blue+ring&where=colour+%3D+%27blue%27'")
    held.arrived(1)
    page.fill("#text", "a green")
    page.fill("#where", "colour = 'gr")
    held.let_go()
    settled(page)
    page.evaluate("window.dispatchEvent(new HashChangeEvent('hashchange'))")  # drawn once more
    settled(page)
    assert (page.input_value("#text"), page.input_value("#where")) == ("a green", "colour = 'gr")


def test_detail_more_like_this_and_like_this_but(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red+circle&target=any")
    cards(page)
    page.click(".card[data-id='circle-red-pair']")
    page.wait_for_selector("#detail .path")
    panel = page.inner_text("#detail")
    assert "red circle" in panel and "circle-red-pair" in panel and "colour" in panel
    assert page.eval_on_selector("#detail .picture", "(image) => image.decode().then(() => image.naturalWidth)") > 0
    follow(page, "#more-like")
    alike = cards(page)
    assert "circle-red-pair" not in alike and page.is_hidden("#detail")
    until(page, "document.querySelector('#chosen-name').textContent === 'like “red circle”'")
    page.click(".card >> nth=0")
    page.wait_for_selector("#but")
    page.fill("#but", "yellow")
    page.press("#but", "Enter")
    until(page, "new URLSearchParams(location.hash.slice(1)).get('q') === 'yellow'")
    assert cards(page) != alike and page.input_value("#text") == "yellow"


def test_less_like_this_and_back(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red+circle&target=any")
    before = cards(page)
    page.click(".card[data-id='circle-red-pair']")
    with page.expect_request("**/v1/search") as sent:
        page.click("#less-like")
    assert sent.value.post_data_json["minus_like"] == "circle-red-pair" and cards(page) != before
    follow(page, "text=Not like circle-red-pair")
    assert cards(page) == before


def test_walking_the_codes(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=blue+ring&item=ring%2Fblue.png")
    settled(page)
    steps = page.locator("#detail .path li a")
    assert steps.count() == 4 and "image" in steps.first.inner_text() and "36" in steps.first.inner_text()
    follow(page, "#detail .path li a >> nth=0")
    assert page.inner_text("#codes-title") == "36 items below this prefix"
    counts = [int(many.inner_text()) for many in page.query_selector_all(".tile .many")]
    assert sum(counts) == 36 and counts == sorted(counts, reverse=True) and len(cards(page)) == 36
    follow(page, ".tile >> nth=0")
    assert page.inner_text("#codes-title").startswith(f"{counts[0]} item")
    assert len(page.query_selector_all(".crumbs li")) == 3
    page.click(".card >> nth=0")  # an item here opens beside the codes
    page.wait_for_selector("#detail .path")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="hidden")
    follow(page, ".crumbs a >> nth=0")
    assert page.locator(".tile").count() == 3


def test_everything_by_keyboard(open_page: Callable[..., Any]) -> None:
    page = open_page()
    cards(page)
    page.evaluate("document.activeElement.blur()")
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results" and "#" not in page.url
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("red circle")
    page.keyboard.press("Enter")
    page.wait_for_selector("#results .score")
    order = cards(page)
    for _ in range(40):  # tab from the box to the first card
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('card')"):
            break
    focused = "document.activeElement.dataset.id"
    assert page.evaluate(focused) == order[0]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == order[1]
    page.keyboard.press("ArrowDown")
    below = order.index(page.evaluate(focused))
    assert below > 2
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail .path")
    assert page.evaluate("document.activeElement.id") == "detail-title"
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="hidden")
    assert page.evaluate(focused) == order[1]  # back where it was


def test_error_states_help(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red&where=prize+%3C+3")
    page.wait_for_selector(".notice.bad")
    assert "unknown column 'prize'" in page.inner_text(".notice") and "single quotes" in page.inner_text(".notice")
    page.click("text=Search without the filter")
    page.wait_for_selector("#results .score")
    drop(page, b"%PDF-1.7", "paper.pdf", "application/pdf")
    page.wait_for_selector(".notice.bad")
    assert "paper.pdf" in page.inner_text(".notice") and "not an image" in page.inner_text(".notice")
    drop(page, b"\x89PNG broken", "broken.png", "image/png")
    until(page, "document.querySelector('.notice')?.textContent.includes('cannot be read')")
    page.click("text=Remove the image")
    page.wait_for_selector("#results .score")
    page.goto(page.url.split("#")[0] + "#q=red&where=price+%3E+999")
    page.wait_for_selector(".notice")
    assert "Nothing matches" in page.inner_text(".notice") and "matches the condition 'price > 999'" in page.inner_text(".notice")
    page.goto(page.url.split("#")[0] + "#q=red&item=nobody")
    until(page, "document.querySelector('#detail').textContent.includes('gone')")


def test_busy_and_unreachable_servers_are_explained(open_page: Callable[..., Any]) -> None:
    page = open_page()
    cards(page)
    busy = '{"error": {"code": "unavailable", "message": "too many searches are waiting", "request_id": "r"}}'
    page.route(
        "**/v1/search",
        lambda route: route.fulfill(status=503, headers={"Retry-After": "4"}, content_type="application/json", body=busy),
    )
    page.fill("#text", "red circle")
    page.press("#text", "Enter")
    page.wait_for_selector(".notice.bad")
    assert "busy" in page.inner_text(".notice") and "4 seconds" in page.inner_text(".notice")
    page.unroute("**/v1/search")
    page.route("**/v1/search", lambda route: route.abort())
    page.click("text=Try again")
    until(page, "document.querySelector('.notice')?.textContent.includes('does not answer')")
    page.unroute("**/v1/search")
    page.click("text=Try again")
    page.wait_for_selector("#results .score")


def test_markup_in_items_is_text(open_page: Callable[..., Any], live: Any) -> None:
    import httpx

    evil = "<img src=x onerror=\"document.title='owned'\"> <b>bold</b>"
    item = {"text": evil, "metadata": {"colour": "<script>1</script>"}}
    httpx.put(f"{live.url}/v1/items/evil", json=item, trust_env=False, timeout=60)
    try:
        page = open_page("#q=" + "bold&item=evil")
        page.wait_for_selector("#detail .path")
        assert evil in page.inner_text("#detail") and page.title() == "GENIUS search"
    finally:
        httpx.delete(f"{live.url}/v1/items/evil", trust_env=False, timeout=60)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_in_the_colours_of_the_system(open_page: Callable[..., Any], scheme: str) -> None:
    page = open_page("#q=red+circle&item=circle%2Fred.png", color_scheme=scheme)
    page.wait_for_selector("#detail .path")
    cards(page)
    low = page.evaluate(CONTRAST)
    assert low == [], low
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(int(n) for n in re.findall(r"\d+", paper)[:3]) < 80) is (scheme == "dark")


def test_phone_layout_has_no_sideways_scroll(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red+circle", viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    cards(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.tap(".card >> nth=1")
    page.wait_for_selector("#detail .path")
    box = page.query_selector("#detail").bounding_box()
    assert box["width"] == 360 and box["y"] == 0  # a sheet over everything
    page.tap("#detail [aria-label=Close]")
    page.wait_for_selector("#detail", state="hidden")
    page.goto(page.url.split("#")[0] + "#codes=0")
    page.wait_for_selector(".tile")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_controls_have_names(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red+circle&item=circle%2Fred.png")
    page.wait_for_selector("#detail .path")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, select")]
            .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim() || e.title))
            .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    assert page.get_attribute("#status", "aria-live") == "polite"


KEY = "read-key-0123456789abc"


@pytest.fixture(scope="module")
def keyed(start_server: Callable[..., Any]) -> Any:
    """A server with a key that may only read."""
    return start_server(environ={"GENIUS_API_KEYS": f"read:{KEY}"}, items=12)


def test_a_key_is_asked_for_and_pictures_load_with_it(open_page: Callable[..., Any], keyed: Any) -> None:
    page = open_page(url=keyed.url)
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong-key-0123456789")
    page.press("#key", "Enter")
    until(page, "document.querySelector('.notice.bad')?.textContent.includes('not known')")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.wait_for_selector("#results .card img")
    until(page, "[...document.querySelectorAll('.card img')].every((image) => image.naturalWidth > 0)")


def test_the_first_screen_is_varied_and_its_questions_can_be_clicked(open_page: Callable[..., Any]) -> None:
    page = open_page()
    shown = cards(page)
    kinds = [kind.inner_text() for kind in page.query_selector_all(".card .kind")]
    assert kinds == sorted(kinds, key=lambda kind: kind == "text") and len(set(shown)) == len(shown)  # pictures first
    codes = """async () => Promise.all([...document.querySelectorAll('.card')].map(async (card) => {
        const item = await (await fetch(`v1/items/${encodeURIComponent(card.dataset.id)}`)).json();
        return item.codes.slice(0, 2).join('-');
    }))"""
    prefixes = page.evaluate(codes)
    assert len(set(prefixes)) == len(prefixes)  # no two of one code
    question = page.inner_text(".try >> nth=0")
    page.click(".try >> nth=0")
    until(page, "text => new URLSearchParams(location.hash.slice(1)).get('q') === text", arg=question)
    assert cards(page)


def test_searching_ends_where_reasons_take_their_time(open_page: Callable[..., Any]) -> None:
    page = open_page()

    def late(route: Any) -> None:
        time.sleep(0.5)  # longer than the page waits before it says "Searching …"
        route.continue_()

    page.route("**/explain", late)
    page.goto(page.url.partition("#")[0] + "#q=red+circle&target=image&why=1")
    page.wait_for_selector("#why")
    assert "Searching" not in page.inner_text("#status") and "result" in page.inner_text("#status")
    page.unroute("**/explain")


def test_why_these_answers(open_page: Callable[..., Any]) -> None:
    page = open_page("#q=red+circle&target=image")
    cards(page)
    page.click(".why-open")
    page.wait_for_selector(".why-card")
    settled(page)
    text = page.inner_text("#why")
    assert "log p" in text and "could follow" in text and "beam 1" in text
    first = page.locator(".why-step >> nth=1").locator(".why-card >> nth=0")
    prefix = str(first.get_attribute("data-prefix"))
    first.locator("button").click()
    lit = page.eval_on_selector_all(".why-card.on", "(all) => all.map((card) => card.dataset.prefix)")
    below = [one for one in lit if len(one) > len(prefix)]
    assert prefix in lit and all(one.startswith(f"{prefix}-") or prefix.startswith(one) for one in lit) and below
    follow(page, ".why-path a >> nth=0")  # the tree is walked on among the codes
    assert f"codes={prefix}" in page.url and "below this prefix" in page.inner_text("#codes-title")


def listed(url: str, name: str) -> int:
    import httpx

    return int(httpx.get(f"{url}/v1/items/{name}", trust_env=False, timeout=60).status_code)


@pytest.fixture(scope="module")
def shelf(start_server: Callable[..., Any]) -> Any:
    """A server to change: every test has ids of its own."""
    return start_server(items=12)


def test_pictures_are_added_by_dropping_them(open_page: Callable[..., Any], shelf: Any) -> None:
    page = open_page(url=shelf.url)
    cards(page)
    stop_the_clock(page)  # messages are shown for some seconds, and both are looked at below
    before = int(page.inner_text("#count").split()[0])
    drop(page, encoded(draw("ring", "blue")), "new ring.png", "image/png", zone="change")
    page.wait_for_selector("#add-dialog[open]")
    assert page.evaluate("document.activeElement.className") == "add-words"
    page.keyboard.type("a blue ring that was dropped")
    drop_into = page.evaluate_handle(
        FILES, [[[base64.b64encode(encoded(draw("bar", "red"))).decode(), "circle/red.png", "image/png"]]]
    )
    page.dispatch_event("body", "drop", {"dataTransfer": drop_into})  # one more, whose id is taken
    assert page.locator("#add-list li").count() == 2 and page.inner_text("#add-go") == "Add 2 items"
    labels = page.eval_on_selector_all("#add-list .add-words", "all => all.map((one) => one.getAttribute('aria-label'))")
    assert labels == ["Text of item 1", "Text of item 2"]
    page.click("#add-go")
    until(page, "document.querySelector('.add-said')?.textContent.includes('there already')")
    assert page.locator("#add-list li").count() == 1 and page.inner_text("#count") == f"{before + 1} items"
    page.fill(".add-name", "a/second bar.png")
    page.press(".add-name", "Enter")
    until(page, "!document.querySelector('#add-dialog').open")
    assert listed(shelf.url, "new%20ring.png") == listed(shelf.url, "a%2Fsecond%20bar.png") == 200
    page.click(".toast >> nth=0 >> text=Show")
    page.wait_for_selector("#detail .path")
    assert "a blue ring that was dropped" in page.inner_text("#detail") and "image + text" in page.inner_text("#detail")
    assert page.eval_on_selector("#detail .picture", "(image) => image.decode().then(() => image.naturalWidth)") > 0


def test_several_pictures_and_words_alone_and_what_is_no_picture(open_page: Callable[..., Any], shelf: Any) -> None:
    page = open_page(url=shelf.url)
    cards(page)
    stop_the_clock(page)
    before = int(page.inner_text("#count").split()[0])
    several = [(encoded(draw("bar", colour)), f"bar-{colour}.png", "image/png") for colour in ("red", "blue")]
    drop_all(page, [*several, (b"%PDF-1.7", "paper.pdf", "application/pdf"), (b"\x89PNG broken", "broken.png", "image/png")])
    assert "paper.pdf" in page.inner_text("#toasts")  # several cannot be searched with: they are to be added
    assert page.locator("#add-list li").count() == 3
    page.click("#add-note")
    page.keyboard.type("words without a picture")
    page.click("#add-go")
    until(page, "document.querySelectorAll('#add-list li').length === 1")
    until(page, "document.querySelector('.add-said').textContent.includes('read')")  # the broken one stays and says why
    assert page.inner_text("#count") == f"{before + 3} items"
    page.click("#add-list [aria-label^=Leave]")
    page.click("#add-cancel")
    page.click("label:has-text('Anything')")
    assert any(name.startswith("words 2") for name in search(page, "words without a picture"))


def test_deleting_can_be_undone_until_it_is_sent(open_page: Callable[..., Any], shelf: Any) -> None:
    page = open_page("#q=red+circle", url=shelf.url)
    first, second, *_ = cards(page)
    stop_the_clock(page)
    page.focus(f".card[data-id='{first}']")
    page.keyboard.press("Delete")
    assert not page.is_visible(f".card[data-id='{first}']") and listed(shelf.url, quote(first, safe="")) == 200
    assert page.evaluate("document.activeElement.dataset.id") == second  # the keyboard goes on
    page.keyboard.press("Control+z")
    assert page.is_visible(f".card[data-id='{first}']") and page.locator(".toast").count() == 0
    page.click(f".card[data-id='{second}']")
    page.wait_for_selector("#delete-item")
    page.click("#delete-item")
    page.wait_for_selector("#detail", state="hidden")
    page.click(".toast >> text=Undo")
    assert page.is_visible(f".card[data-id='{second}']") and listed(shelf.url, quote(second, safe="")) == 200
    transfer = page.evaluate_handle("new DataTransfer()")
    page.dispatch_event(f".card[data-id='{first}']", "dragstart", {"dataTransfer": transfer})
    page.dispatch_event("body", "dragenter", {"dataTransfer": transfer})
    assert "Delete it" in page.inner_text("#drop")
    let_go(page, transfer, "change")
    assert not page.is_visible(f".card[data-id='{first}']")
    page.goto("about:blank")  # leaving sends what was waiting
    deadline = time.monotonic() + 60
    while listed(shelf.url, quote(first, safe="")) != 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert listed(shelf.url, quote(second, safe="")) == 200


def test_a_deletion_is_sent_after_its_time(open_page: Callable[..., Any], shelf: Any) -> None:
    page = open_page("#q=red+circle", url=shelf.url)
    first = cards(page)[0]
    before = int(page.inner_text("#count").split()[0])
    stop_the_clock(page)
    page.focus(f".card[data-id='{first}']")
    page.keyboard.press("Delete")
    page.clock.run_for(7000)
    assert listed(shelf.url, quote(first, safe="")) == 200
    page.clock.run_for(2000)
    until(page, "document.querySelector('#toasts').textContent.includes('is deleted')")
    assert listed(shelf.url, quote(first, safe="")) == 404 and page.inner_text("#count") == f"{before - 1} items"


@pytest.mark.parametrize("guard", ["read-only", "key"])
def test_where_nothing_may_be_changed_the_page_says_why(
    open_page: Callable[..., Any], start_server: Callable[..., Any], keyed: Any, guard: str
) -> None:
    server = start_server("--read-only", items=6) if guard == "read-only" else keyed
    page = open_page(url=server.url)
    if guard == "key":
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
    page.wait_for_selector("#results .card")
    settled(page)
    stop_the_clock(page)
    why = "read-only" if guard == "read-only" else "may search, not change"
    assert page.is_hidden("#add-open")
    drop(page, encoded(draw("ring", "blue")), "ring.png", "image/png", zone="change")
    until(page, "why => document.querySelector('#toasts').textContent.includes(why)", why)
    assert page.locator("#add-dialog[open]").count() == 0
    page.evaluate("document.querySelector('#toasts').replaceChildren()")
    page.focus(".card >> nth=0")
    page.keyboard.press("Delete")
    until(page, "why => document.querySelector('#toasts').textContent.includes(why)", why)
    assert page.is_visible(".card >> nth=0")
    page.click(".card >> nth=0")
    page.wait_for_selector("#detail .path")
    assert page.locator("#delete-item").count() == 0


def test_the_list_of_keys_is_the_documented_one(open_page: Callable[..., Any]) -> None:
    page = open_page()
    cards(page)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.wait_for_selector("#keys-dialog[open]")
    shown = page.eval_on_selector_all("#keys-dialog kbd", "(all) => all.map((key) => key.textContent)")
    documented = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in documented for key in shown)
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('#keys-dialog').open")


def test_adding_on_a_phone(open_page: Callable[..., Any], shelf: Any, tmp_path: Path) -> None:
    page = open_page(url=shelf.url, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    cards(page)
    (tmp_path / "phone.png").write_bytes(encoded(draw("cross", "green")))
    page.tap("#add-open")
    page.set_input_files("#add-files", tmp_path / "phone.png")
    page.wait_for_selector("#add-list li")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.fill(".add-words", "a green cross")
    page.tap("#add-go")
    until(page, "!document.querySelector('#add-dialog').open")
    assert listed(shelf.url, "phone.png") == 200
    page.goto(page.url.split("#")[0] + "#codes=0")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_near_duplicates_stand_beside_an_item(open_page: Callable[..., Any], live: Any) -> None:
    import httpx

    body = {"text": "red circle again", "metadata": {"colour": "red"}}
    item = httpx.get(f"{live.url}/v1/items/circle%20red%20text", trust_env=False, timeout=60).json()
    httpx.put(f"{live.url}/v1/items/twin", json={**body, "text": item["text"]}, trust_env=False, timeout=60)
    try:
        page = open_page("#q=red+circle&item=twin")
        page.wait_for_selector(".twin")
        assert "Nearly the same" in page.inner_text("#detail") and "share the first" in page.inner_text(".twins")
        page.click(".twin >> nth=0")
        until(page, "location.hash.includes('item=') && !location.hash.includes('item=twin')")
    finally:
        httpx.delete(f"{live.url}/v1/items/twin", trust_env=False, timeout=60)


SCREENS = ("", "#q=red+circle&target=image&why=1&item=circle%2Fred.png", "#codes=0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_page: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = []
    for screen in SCREENS:
        page = open_page(screen, color_scheme=scheme, bypass_csp=True)  # the rules come as a script of their own
        settled(page)
        if "item=" in screen:
            page.wait_for_selector("#detail .path")
        for fault in axe.run(page).response["violations"]:
            found += [f"{screen}: {fault['impact']} {fault['id']} {node['target']}" for node in fault["nodes"]]
    assert [line for line in found if " serious " in line or " critical " in line] == []


# Text whose colour is too close to its background (WCAG AA: 4.5, large or bold 3).
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (c) => {  // any CSS colour, oklch too, as the browser paints it
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = c;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c[3] > 0.9) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (!e.checkVisibility() || e.closest(".hidden, .skip, script, noscript")) continue;
    const style = getComputedStyle(e), a = light(rgb(style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.6 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) low.push(`${e.className || e.tagName}: ${e.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
  }
  return low;
}"""
