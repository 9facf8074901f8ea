"""The documentation: its code runs, its words are the program's, its site asks no other host."""

import ast
import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

import eande
from eande.cli.app import app
from eande.foundations.checks import EandeWarning
from eande.workflow.study import Study

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "results" not in path.parts)
COMPILED_ONLY = "<!-- compiled only:"
# What pages warn of on purpose.
WARNINGS = {
    "howto/data.md": ["1 of 20 files are broken and count as failures"],
    "howto/observations.md": ["pooling 5 observations"],
}
# Called by other folders of the library, not by users: without an example, not in the reference.
OF_THE_HOUSE = {
    "Prior": {
        "between",
        "constrain",
        "describe",
        "from_description",
        "given",
        "half_lines",
        "location_and_scale",
        "sample_evenly",
        "tensors",
        "unconstrain",
        "unconstrained_log_prob",
    },
    "Simulations": {"rows"},
    "Store": {
        "complete",
        "forget_shape",
        "opened",
        "prepare",
        "readable",
        "record",
        "records",
        "settle",
        "versions",
        "write",
        "writing",
    },
    "Similarity": {
        "continued",
        "describe",
        "factor",
        "features",
        "for_dimension",
        "from_description",
        "grouped_score",
        "pool",
    },
    "FitSettings": {"describe", "resolved", "schedule", "steps_of_search"},
    "EmbedAndEmulate": {"calling", "check_data", "locate", "parts", "probes", "train"},
    "Posterior": {"warn_of_few_draws"},
}


def blocks_of(page):
    """Return the Python blocks of a page: (line, code, whether they are compiled only)."""
    text = page.read_text()
    found = []
    for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        line = text.count("\n", 0, match.start(1))
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        found.append((line, match.group(1), before.startswith(COMPILED_ONLY)))
    return found


def name_of(page):
    return str(page.relative_to(DOCS))


WITH_CODE = [page for page in PAGES if blocks_of(page)]


@pytest.mark.thorough
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """Block after block, as a reader would type them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "__main__"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EandeWarning)
        for line, code, compiled_only in blocks_of(page):
            # As many empty lines before it that an error names the line of the page.
            compiled = compile("\n" * line + code, str(page), "exec")
            if not compiled_only:
                exec(compiled, scope)
    told = [str(one.message) for one in caught if issubclass(one.category, EandeWarning)]
    expected = WARNINGS.get(name_of(page), [])
    assert all(any(text in message for message in told) for text in expected)
    assert [m for m in told if not any(text in m for text in expected)] == []


def test_code_that_is_compiled_only_calls_eande_rightly():
    """Its functions exist and take these arguments by name."""
    checked = 0
    for page in WITH_CODE:
        for _, code, compiled_only in blocks_of(page):
            if not compiled_only:
                continue
            for call in ast.walk(ast.parse(code)):
                if not isinstance(call, ast.Call) or not ast.unparse(call.func).startswith(
                    "eande."
                ):
                    continue
                function = eande
                for part in ast.unparse(call.func).split(".")[1:]:
                    function = getattr(function, part)
                given = {keyword.arg: None for keyword in call.keywords}
                inspect.signature(function).bind(*call.args, **given)
                checked += 1
    assert checked >= 2


def public_methods(cls):
    """Yield the public methods of a class that ours define, each with the class that does."""
    seen = set()
    for home in cls.__mro__:
        if not home.__module__.startswith("eande."):
            continue
        for name, value in vars(home).items():
            function = getattr(value, "__func__", value)
            if name.startswith("_") or name in seen or not inspect.isfunction(function):
                continue
            seen.add(name)
            yield name, function


def is_of_the_house(cls, name):
    return any(name in OF_THE_HOUSE.get(home.__name__, ()) for home in cls.__mro__)


@pytest.mark.parametrize("public", eande.__all__)
def test_everything_public_has_an_example_that_runs(public):
    thing = getattr(eande, public)
    things = {public: thing}
    if inspect.isclass(thing):
        methods = dict(public_methods(thing))
        things |= {name: f for name, f in methods.items() if not is_of_the_house(thing, name)}
        known = [name for name in methods if is_of_the_house(thing, name)]
        assert all(">>>" not in (methods[name].__doc__ or "") for name in known)
    for name, one in things.items():
        text = one.__doc__ or ""
        assert ">>>" in text, f"{public}.{name} has no example"
        assert "+SKIP" not in text, f"{public}.{name} has an example that is skipped"


def test_what_is_of_the_house_exists():
    classes = [thing for thing in map(eande.__getattr__, eande.__all__) if inspect.isclass(thing)]
    homes = {home.__name__: home for cls in classes for home in cls.__mro__}
    for cls, names in OF_THE_HOUSE.items():
        subclasses = [one for one in classes if homes[cls] in one.__mro__]
        assert all(any(hasattr(one, name) for one in subclasses) for name in names)


def test_the_table_of_symptoms_quotes_the_program():
    """Who searches it for a message finds it: the words in the first columns are in the source."""
    said = "\n".join(
        node.value
        for path in (ROOT / "src" / "eande").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    tables = (DOCS / "howto" / "diagnosis.md").read_text().partition("## It takes too long")[0]
    first = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| ")]
    quoted = [words for cell in first for words in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 25
    assert [words for words in quoted if words not in said] == []


def test_every_warning_and_fault_is_in_the_table():
    """A new verdict about ranks or a new fault has to get its row."""
    text = (DOCS / "howto" / "diagnosis.md").read_text()
    source = (ROOT / "src" / "eande" / "diagnostics" / "verdicts.py").read_text()
    faults = re.findall(r'"((?:posteriors (?:are|lie)|too (?:narrow|wide):)[^"{]*)', source)
    assert len(faults) >= 4
    assert [fault for fault in faults if fault.strip() not in text] == []


def test_the_citation_is_that_of_the_repository():
    entry = (DOCS / "citing.md").read_text()
    known = (ROOT / "CITATION.cff").read_text()
    title = re.search(r'  title: "(.*)"', known).group(1)
    families = re.findall(r"family-names: (\w+)", known)
    given = re.findall(r'given-names: "?([\w .]+?)"?\n', known)
    year = re.search(r"  year: (\d+)", known).group(1)
    software = re.search(r'^title: "(.*)"', known, re.MULTILINE).group(1)
    authors = " and ".join(f"{a}, {b}" for a, b in zip(families, given, strict=True))
    assert f"title  = {{{title}}}" in entry
    assert f"author = {{{authors}}}" in entry
    assert f"year   = {{{year}}}" in entry
    assert f"title   = {{{software}}}" in entry
    assert f"version = {{{eande.__version__}}}" in entry


def test_every_picture_was_made_by_the_script():
    sys.path.insert(0, str(DOCS))
    try:
        figures = importlib.import_module("figures").FIGURES
    finally:
        sys.path.remove(str(DOCS))
    made = json.loads((DOCS / "pictures" / "figures.json").read_text())
    pictures = {path.stem for path in (DOCS / "pictures").glob("*.png")}
    assert set(figures) == set(made) == pictures
    text = "".join(page.read_text() for page in PAGES)
    assert all(f"pictures/{name}.png" in text for name in pictures)


def test_the_pictures_show_what_their_pages_say():
    made = json.loads((DOCS / "pictures" / "figures.json").read_text())
    numbers = {name: one["numbers"] for name, one in made.items()}
    # Five readings of noise 0.1 tell the distance to 0.1/√5.
    assert abs(numbers["ring"]["mean_distance"] - 1) < 0.02
    assert 0.8 < numbers["ring"]["std_distance"] / (0.1 / 5**0.5) < 1.25
    assert numbers["embedding"]["total_variation"] < 0.05
    assert numbers["evidence"]["median_error"] < 0.1
    assert numbers["identifiability"]["stiff"] > 20 * numbers["identifiability"]["sloppy"]
    covered = [
        numbers["calibration"][f"covered_80_{n}"] for n in ("too_narrow", "right", "too_wide")
    ]
    assert covered[0] < 0.75 < covered[1] < 0.85 < covered[2]


class _Resources(HTMLParser):
    """Collects what a page loads by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        loads = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
        if tag in loads:
            self.found.append(known.get(loads[tag]) or "")
        if tag == "link" and known.get("rel") not in ("canonical", "author"):
            self.found.append(known.get("href") or "")
        self.found += re.findall(r"url\(([^)]*)\)", known.get("style") or "")


def is_elsewhere(url):
    return re.match(r"\s*['\"]?\s*(https?:)?//", url) is not None


def test_a_page_that_asks_another_host_is_found():
    page = _Resources()
    page.feed(
        '<a href="https://a.org"></a><script src="//b.org/x.js"></script>'
        '<link rel="stylesheet" href="https://c.org/x.css"><img src="x.png">'
    )
    assert [url for url in page.found if is_elsewhere(url)] == [
        "//b.org/x.js",
        "https://c.org/x.css",
    ]


def rendered(site):
    """Return the pages; the theme leaves a template of its own among the static files."""
    return [path for path in site.rglob("*.html") if "_static" not in path.parts]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; what Sphinx warns of is an error."""
    out = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(out / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(out / "html")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


@pytest.mark.thorough
@pytest.mark.xdist_group("site")
class TestSite:
    def test_one_worker_builds_it(self, request):
        """Groups are kept together: a version of pytest with which they are not says nothing."""
        if hasattr(request.config, "workerinput"):
            assert request.node.nodeid.endswith("@site")

    def test_it_asks_no_other_host(self, site):
        pages = rendered(site)
        assert len(pages) > 30
        for path in pages:
            page = _Resources()
            page.feed(path.read_text())
            assert page.found
            assert [url for url in page.found if is_elsewhere(url)] == [], path
        for path in site.rglob("*.css"):
            urls = re.findall(r"(?:url\(|@import\s)([^);]*)", path.read_text())
            assert [url for url in urls if is_elsewhere(url)] == [], path

    def test_what_it_loads_is_there(self, site):
        for path in rendered(site):
            page = _Resources()
            page.feed(path.read_text())
            for url in page.found:
                local = url.partition("?")[0].partition("#")[0]
                if local and not local.startswith("data:"):
                    assert (path.parent / local).exists(), (path, url)

    def test_every_public_name_is_in_the_reference(self, site):
        text = "".join(path.read_text() for path in (site / "reference").rglob("*.html"))
        assert [name for name in eande.__all__ if f'id="eande.{name}"' not in text] == []

    def test_its_search_knows_the_words_of_warnings(self, site):
        index = (site / "searchindex.js").read_text()
        assert index.startswith("Search.setIndex(")
        known = json.loads(index[len("Search.setIndex(") : index.rindex(")")])
        page = known["docnames"].index("howto/diagnosis")
        for word in ("narrow", "prior", "pareto"):
            found = known["terms"][word]
            assert page in (found if isinstance(found, list) else [found])


def commands_of_pages():
    """Return the calls of eande in console blocks, and in the table of commands."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            found += [line[2:] for line in block.splitlines() if line.startswith("$ eande ")]
        if page.name == "commands.md":
            found += re.findall(r"^\| `(eande [^`]*)`", text, re.MULTILINE)
    return sorted(set(found))


@pytest.mark.parametrize("line", commands_of_pages())
def test_commands_of_pages_exist_with_their_options(line):
    """They are parsed, and not run."""
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    context = typer.Context(command, info_name="eande")
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
        context = typer.Context(command, parent=context)
    command.parse_args(context, words)


def test_the_table_of_a_study_file_has_every_name():
    text = (DOCS / "reference" / "commands.md").read_text().partition("## The study file")[2]
    listed = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    read = {field.name for field in fields(Study)} - {"path", "about"}
    assert {name for cell in listed for name in cell.split("`") if name.strip(", ")} == read
