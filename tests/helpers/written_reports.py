"""Reports as a browser and a program see them."""

import json
import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects what a browser would show, and what it would fetch."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.scripts = []
        self.addresses = []
        self.identifiers = []
        self.headings = []
        self._inside = []

    def handle_starttag(self, tag, attrs):
        self._inside.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.addresses.append(value)
            if name == "id":
                self.identifiers.append(value)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self._inside and self._inside[-1] == "script":
            self.scripts[-1] += data
        elif not self._inside or self._inside[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).replace("\u00a0", " ").split())


def read(report):
    reader = Reader()
    reader.feed(report.path.read_text())
    return reader


def document(report):
    return json.loads(report.json_path.read_text())


def states(report):
    return {verdict.question: verdict.state for verdict in report.verdicts}
