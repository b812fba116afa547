"""`penstock train --watch` serves the page of its run while it trains."""

from __future__ import annotations

import io
import urllib.error
import urllib.request

import pytest

from penstock.cli.train import _live_page
from penstock.train.show import Lines


def test_the_page_is_there_while_the_run_is(tmp_path):
    pytest.importorskip("uvicorn")
    out = io.StringIO()
    with _live_page(tmp_path, True, Lines(out)):
        url = out.getvalue().split("live page: ")[1].strip()
        assert url.startswith("http://127.0.0.1:")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie
        with browser.open(url, timeout=20) as answer:
            assert answer.status == 200 and "token" not in answer.url
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=20)
